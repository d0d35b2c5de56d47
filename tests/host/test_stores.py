"""Addresses of object stores: what they may hold, where they lead, and what is said of an error."""

import re
import sys

import pytest

from joma.host import stores
from joma.host.stores import Replaced, StoreError, explain, is_address, read_address, store_of

SECRETS = ("AKIAHUSHHUSHHUSH", "hush-the-secret", "hush-the-token")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "JOMA_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "text",
    [
        f"s3://{SECRETS[0]}:{SECRETS[1]}@bucket/run",
        f"https://user:{SECRETS[1]}@host/model.safetensors",
        f"https://{SECRETS[2]}@host/model.safetensors",
        f"https://host/model.safetensors?token={SECRETS[2]}",
        f"https://host/model.safetensors#{SECRETS[2]}",
        f"s3://bucket/run?X-Amz-Signature={SECRETS[2]}",
        "https://host/model.safetensors?",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(text):
    with pytest.raises(StoreError, match="put credentials into the environment") as caught:
        read_address(text)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://host/a", "ftp:// is not a store"),
        ("file:///etc/passwd", "file:// is not a store"),
        ("s3:///run", "needs a name"),
        ("s3://a bucket/run", "needs a name"),
        ("s3://bucket/r\u0007n", "needs a name"),
        ("s3://bucket/a/../b", r"\.\. in its path"),
        ("s3://bucket/a//b", "empty part"),
        ("https://host:port/a", "cannot be read"),
        ("https://[::1/a", "cannot be read"),
    ],
)
def test_what_is_no_address_is_refused_in_a_sentence(text, why):
    with pytest.raises(StoreError, match=why):
        read_address(text)


def test_an_address_reads_back_as_it_was_written():
    for text in ("s3://bucket/runs/a", "gs://bucket", "az://container/a b", "https://host:8443/a%20b.safetensors"):
        assert str(read_address(text)) == text
        assert str(read_address(text + "/")) == text
    assert read_address("https://host/a%20b.safetensors").name == "a b.safetensors"
    assert str(read_address("s3://bucket/a/b").parent) == "s3://bucket/a"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_http_is_for_this_machine(host):
    assert read_address(f"http://{host}:9000/a").scheme == "http"


@pytest.mark.parametrize("host", ["10.0.0.5", "example.org", "127.0.0.1.example.org", "localhost.example.org"])
def test_http_to_another_machine_must_be_asked_for(host, monkeypatch):
    with pytest.raises(StoreError, match="neither secret nor safe"):
        read_address(f"http://{host}:9000/a")
    monkeypatch.setenv("JOMA_ALLOW_HTTP", "1")
    assert read_address(f"http://{host}:9000/a").host == f"{host}:9000"


def test_an_endpoint_without_tls_must_be_asked_for(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio.example.org:9000")
    with pytest.raises(StoreError, match="AWS_ALLOW_HTTP=true"):
        store_of("s3://bucket/a")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert store_of("s3://bucket/a")[1] == "a"


@pytest.mark.parametrize("http", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
@pytest.mark.parametrize("safe", ["http://127.0.0.1:9000", "https://minio.example.org"])
def test_of_two_endpoints_both_must_be_safe(monkeypatch, http, safe):
    """obstore takes the one that comes last in the environment, whichever that is."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://minio.example.org:9000" if name == http else safe)
    with pytest.raises(StoreError, match="AWS_ALLOW_HTTP=true"):
        store_of("s3://bucket/a")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.org")  # it wins, so that the others do not matter
    assert store_of("s3://bucket/a")[1] == "a"


def test_a_bucket_is_a_store_and_a_web_address_is_one_file():
    assert store_of("s3://bucket/a/b")[1] == "a/b"
    assert store_of("https://host/a/b.safetensors")[1] == ""


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StoreError, match=re.escape("s3://bucket/a needs obstore: pip install -e '.[cloud]'")):
        store_of("s3://bucket/a")


def test_paths_and_models_are_no_addresses():
    assert not any(map(is_address, ("owner/model", "/a/b", "a:b/c", "~/s3", "")))
    assert all(map(is_address, ("s3://b", "nosuch://b", "HTTPS://b")))


def made(kind, text):
    return type(kind, (Exception,), {})(text)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("PreconditionError", "412", "was replaced while it was read"),
        ("FileNotFoundError", "", "does not exist"),
        ("NotSupportedError", "", "ignores ranges"),
        ("UnauthenticatedError", "", "AWS_ACCESS_KEY_ID"),
        ("PermissionDeniedError", "", "AWS_SKIP_SIGNATURE"),
        ("GenericError", "PUT http://169.254.169.254/latest/api/token", "AWS_ACCESS_KEY_ID"),
        ("GenericError", "redirect without LOCATION", "AWS_REGION"),
        ("GenericError", "error following redirect", "redirected too often"),
        ("GenericError", "non-2xx status code: 503 Service", "status 503"),
        ("GenericError", "non-2xx status code: 404 Not", "does not exist"),
        ("GenericError", "source: TimedOut", "120 s"),
        ("GenericError", "UnexpectedRange {", "other bytes"),
        ("GenericError", "hyper", "the connection broke"),
    ],
)
def test_an_error_becomes_a_sentence_of_its_own(kind, text, said):
    found = explain(made(kind, f"{text} <AWSAccessKeyId>{SECRETS[0]}</AWSAccessKeyId> {SECRETS[1]}"), "s3://b/a")
    assert said in str(found)
    assert str(found).startswith("s3://b/a ")
    assert not any(secret in str(found) for secret in SECRETS)
    assert isinstance(found, Replaced) == (kind == "PreconditionError")


def test_a_web_server_that_asks_for_credentials_gets_none():
    for kind in ("UnauthenticatedError", "PermissionDeniedError"):
        said = str(explain(made(kind, SECRETS[1]), "https://host/a"))
        assert said == "https://host/a may not be read: it is not public, and joma sends no credentials to web servers"


def test_settings_that_cannot_be_used_are_not_quoted(monkeypatch):
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", f"{{{SECRETS[1]}")
    with pytest.raises(StoreError, match="in the environment cannot be used") as caught:
        store_of("gs://bucket/a")
    assert SECRETS[1] not in str(caught.value)


def test_every_scheme_has_a_way_to_allow_http():
    assert set(stores._ALLOW_HTTP) == set(stores._CREDENTIALS) == set(stores._ENDPOINTS)
