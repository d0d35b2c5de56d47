"""Object stores by their address: s3://bucket/path, gs://, az:// and https://, through obstore (extra `cloud`).

An address names a place and never holds a secret: it is recorded, printed and put on pages. Credentials are those of
the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, ...), which obstore
reads itself. What obstore says of an error may quote headers and answers of a server, so nothing of it is repeated.
"""

import ipaddress
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from joma.host import limits
from joma.host.errors import JomaError
from joma.host.extras import how_to_install

TRIES = 7  # of one request, where the store is busy or the connection breaks
PAUSE = 0.5  # seconds before the second try; about doubled before each further one, by chance more or less
LONGEST_PAUSE = 15.0
PATIENCE = 180.0  # seconds after which nothing is tried again
_SCHEMES = ("s3", "gs", "az", "https", "http")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ENDPOINTS = {
    "s3": (("AWS_ENDPOINT_URL_S3",), ("AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
    "az": (("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),),
    "gs": (("GOOGLE_BASE_URL",),),
}
"""Groups of names: the first group with one that is set counts. Of several in it, the order of the environment decides
which one obstore takes, so all of them must be safe."""
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or AWS_SKIP_SIGNATURE=true for a public one",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS in the environment, or GOOGLE_SKIP_SIGNATURE=true for a public one",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the environment, or AZURE_SKIP_SIGNATURE=true "
    "for a public one",
}
NOT_PUBLIC = "it is not public, and joma sends no credentials to web servers"


class StoreError(JomaError, ValueError):
    """A store, or something in it, cannot be used; the message is one sentence that names its address."""


class Replaced(StoreError):
    """What is read is no longer what it was when reading began."""


@dataclass(frozen=True)
class Address:
    """A place in a store. host: the bucket, the container, or the host of https. path: without a slash at the ends.

    >>> address = read_address("s3://bucket/runs/a/")
    >>> address.scheme, address.host, address.path, str(address), str(address / "step10")
    ('s3', 'bucket', 'runs/a', 's3://bucket/runs/a', 's3://bucket/runs/a/step10')
    """

    scheme: str
    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.path}".rstrip("/")

    def __truediv__(self, name: str) -> "Address":
        return Address(self.scheme, self.host, f"{self.path}/{name}".strip("/"))

    @property
    def name(self) -> str:
        return unquote(self.path.rpartition("/")[2]) or self.host

    @property
    def parent(self) -> "Address":
        return Address(self.scheme, self.host, self.path.rpartition("/")[0])

    @property
    def is_web(self) -> bool:
        return self.scheme in ("https", "http")


def is_address(text: object) -> bool:
    """Whether a text is an address, and not a path or the name of a model."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def read_address(text: str) -> Address:
    """The place that an address names. One that holds a secret, or might, is refused and not repeated."""
    try:
        parts = urlsplit(text)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise StoreError("this is not an address: its host or its port cannot be read") from None
    if "@" in parts.netloc or parts.query or parts.fragment or "?" in text or "#" in text:
        what = "an address must not hold a user, a password, a query or a fragment, because it is recorded and shown"
        raise StoreError(f"{what}: put credentials into the environment")
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES[:-1])
        raise StoreError(f"{parts.scheme[:20]}:// is not a store that can be read; there are {known}")
    if not parts.hostname or not text.isprintable() or " " in parts.netloc:
        raise StoreError(f"an address needs a name after {parts.scheme}://, as in {parts.scheme}://NAME/PATH")
    path = parts.path.strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise StoreError(f"{parts.scheme}://{parts.hostname}/... has an empty part, . or .. in its path")
    host = parts.hostname + port if parts.scheme in ("https", "http") else parts.netloc
    found = Address(parts.scheme, host, path)
    if parts.scheme == "http":
        must_be_safe(text, str(found), asked="JOMA_ALLOW_HTTP")
    return found


def must_be_safe(url: str, what: str, *, asked: str) -> None:
    """Refuse http:// but on this machine: whoever stands between could read the request and change the weights."""
    parts = urlsplit(url)
    if parts.scheme == "https" or is_loopback(parts.hostname or "") or _true(asked) or _true("JOMA_ALLOW_HTTP"):
        return
    why = "http:// is neither secret nor safe from changes on the way"
    raise StoreError(f"{what}: {why}; use https://, or set {asked}=true if you trust that network")


def is_loopback(host: str) -> bool:
    """Whether a name means this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("127.0.0.1.evil.org")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def obstore_for(what: str) -> Any:
    """The library obstore; what: the address that needs it, for the sentence that says that it is missing."""
    try:
        import_module("obstore.store")
        return import_module("obstore")
    except ImportError:
        raise StoreError(f"{what} needs obstore: {how_to_install('cloud')}") from None


def store_of(address: Address | str, *, url: str | None = None) -> tuple[Any, str]:
    """An obstore store for an address, with the credentials of the environment, and the path inside that store.

    A bucket or a container is one store. For https:// the store is the one file, and the path is empty.
    """
    place = read_address(address) if isinstance(address, str) else address
    url = url or str(place)
    classes = obstore_for(str(place)).store
    options = {"client_options": _client(place, url), "retry_config": _retries()}
    try:
        if place.is_web:
            return classes.HTTPStore(url, **options), ""
        kind = {"s3": classes.S3Store, "gs": classes.GCSStore, "az": classes.AzureStore}[place.scheme]
        return kind(place.host, **options, **_more(place)), place.path
    except JomaError:
        raise
    except Exception as error:  # what obstore raises may quote what the environment holds
        why = "its credentials or its settings in the environment cannot be used"
        raise StoreError(f"{place}: {why} ({type(error).__name__})") from None


def explain(error: Exception, place: Address | str) -> StoreError:
    """What obstore raised, as one sentence: nothing of its own words, which may quote headers and answers."""
    text, kind = str(error), type(error).__name__
    scheme = str(place).partition(":")[0]
    if kind == "PreconditionError":
        return Replaced(f"{place} was replaced while it was read; scan it again")
    if kind in ("FileNotFoundError", "NotFoundError"):
        return StoreError(f"{place} does not exist")
    if kind == "NotSupportedError":
        return StoreError(f"{place} cannot be read in part: the server ignores ranges and would send all of it")
    # Where the environment has no credentials, obstore asks the machines that clouds give their own servers.
    nobody = "169.254.169.254" in text or "metadata.google.internal" in text
    status = re.search(r"status code: (\d{3})\b", text)
    forbidden = status is not None and status[1] in ("401", "403")  # of a listing, which has no kind of its own
    if kind in ("UnauthenticatedError", "PermissionDeniedError") or forbidden or nobody:
        need = _CREDENTIALS.get(scheme)
        return StoreError(f"{place} may not be read: {f'it needs {need}' if need else NOT_PUBLIC}")
    if "redirect without LOCATION" in text:
        return StoreError(f"{place} is in another region: set AWS_REGION")
    if "error following redirect" in text:
        return StoreError(f"{place} is redirected too often, or to http://")
    if status and status[1] == "404":
        return StoreError(f"{place} does not exist")
    if status:
        why = f"the server answered with status {status[1]}"
    elif "TimedOut" in text or "kind: Timeout" in text:
        why = f"a request took more than {limits.STORE_SECONDS:g} s"
    elif "UnexpectedRange" in text:
        why = "the server sent other bytes than it was asked for"
    else:
        why = "the connection broke"
    return StoreError(f"{place} could not be read: {why} (at most {TRIES} tries)")


def _client(place: Address, url: str) -> dict[str, Any]:
    asked = _ALLOW_HTTP.get(place.scheme, "JOMA_ALLOW_HTTP")
    groups = _ENDPOINTS.get(place.scheme, ())
    values = ([os.environ[name] for name in group if os.environ.get(name)] for group in groups)
    endpoints = next(filter(None, values), [])
    used = [url] if place.is_web else endpoints
    for each in used:
        must_be_safe(each, f"{place} at the endpoint of the environment" if endpoints else str(place), asked=asked)
    return {
        "allow_http": any(urlsplit(each).scheme == "http" for each in used),
        "timeout": timedelta(seconds=limits.STORE_SECONDS), "connect_timeout": timedelta(seconds=10),
        "user_agent": "joma",
    }  # fmt: skip


def _retries() -> dict[str, Any]:
    first, most = timedelta(seconds=PAUSE), timedelta(seconds=LONGEST_PAUSE)
    backoff = {"init_backoff": first, "max_backoff": most, "base": 2}
    return {"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=PATIENCE), "backoff": backoff}


def _more(place: Address) -> dict[str, Any]:
    """obstore reads its settings from the environment, but for the endpoint of Google's store."""
    base = os.environ.get("GOOGLE_BASE_URL")
    return {"base_url": base} if place.scheme == "gs" and base else {}


def _true(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")
