"""WikiText from the Hugging Face hub: the parquet files of Salesforce/wikitext, at one commit, with their hashes.

A file is downloaded beside its place, goes on where it stopped, and is moved to its place only with the hash that the
hub lists. Everything goes through huggingface_hub's own client: its token, its endpoint (HF_ENDPOINT), its retries.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO

from joma.data._cache import cache_folder
from joma.data._words import file_hash, need_pyarrow, split_files
from joma.data.errors import CorpusError
from joma.host import hub as hub_client
from joma.host.extras import how_to_install
from joma.host.files import continued, make_folder
from joma.host.progress import Progress, silent

_REPOSITORY = "Salesforce/wikitext"
_COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"
_FOLDERS = {"wikitext-2": "wikitext-2-v1", "wikitext-103": "wikitext-103-v1"}


@dataclass(frozen=True)
class _Listed:
    path: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def download_wikitext(
    name: str = "wikitext-2", folder: Path | str | None = None, *, progress: Progress = silent
) -> Path:
    """WikiText-2 (8 MB) or WikiText-103 (about 320 MB) from the hub, into `folder`; returns the folder, for `wikitext`.

    folder: else joma's cache folder, where `find_corpus` looks. What is there already is not fetched again; a second
    call goes on where the first was cut off. The text is Wikipedia's, under CC BY-SA.
    """
    if name not in _FOLDERS:
        raise CorpusError(f"name must be 'wikitext-2' or 'wikitext-103', got {name!r}")
    target = cache_folder() / name if folder is None else Path(folder)
    with suppress(CorpusError):  # something is missing
        if all(split_files(target, split) for split in ("train", "valid", "test")):
            return target
    need_pyarrow(f"reading {name} from the hub")
    try:
        import_module("huggingface_hub")
    except ImportError:
        raise CorpusError(f"downloading {name} needs huggingface_hub: {how_to_install('hf')}") from None
    from huggingface_hub.errors import HfHubHTTPError

    try:
        files = _listing(_FOLDERS[name])
        make_folder(target)
        total, done = sum(file.size for file in files), 0

        def report(name: str, before: int, got: int) -> None:
            progress((before + got) / total, f"downloading {name}")

        for file in files:
            if not (target / file.name).is_file():
                _fetch(file, target, partial(report, file.name, done))
            done += file.size
        return target
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"the hub answered with status {status}"
    except hub_client.transport_errors() as error:
        why = f"the hub cannot be reached ({type(error).__name__})"
    except OSError as error:  # offline mode, a full disk
        why = " ".join(str(error).split())[:200]
    instead = f"try again, or put train.txt, valid.txt and test.txt into {target}"
    raise CorpusError(f"{name} could not be downloaded: {why}; {instead}")


def _listing(folder: str) -> list[_Listed]:
    from huggingface_hub import HfApi

    api, client = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="joma"), hub_client.client()
    # One question before the client asks with all its patience: without a network that takes half a minute.
    client.get_session().head(api.endpoint, timeout=30)
    url = f"{api.endpoint}/api/datasets/{_REPOSITORY}/tree/{_COMMIT}/{folder}"
    pages = hub_client.listing(url, client.build_hf_headers(library_name="joma"))
    shard = re.compile(re.escape(folder) + r"/(train|validation|test)-\d{5}-of-\d{5}\.parquet")
    try:
        entries = [entry for page in pages for entry in page if shard.fullmatch(entry["path"])]
        files = [_Listed(entry["path"], entry["size"], entry["lfs"]["oid"]) for entry in entries]
        strange = not all(type(file.size) is int and re.fullmatch(r"[0-9a-f]{64}", file.sha256) for file in files)
    except (KeyError, TypeError, hub_client.StrangeAnswer):
        strange = True
    if strange:
        raise CorpusError(f"the hub answered something that is no listing of {_REPOSITORY}")
    if not files:
        raise CorpusError(f"the hub lists no parquet files in {folder} of {_REPOSITORY}")
    return files


def _fetch(file: _Listed, folder: Path, report: Callable[[int], None]) -> None:
    part = folder / f"{file.name}.part"
    with continued(part) as stream:
        _lock(stream, part)
        if stream.tell() > file.size:
            _empty(stream)
        hub_client.read_all(file.size, stream.tell, partial(_read_on, file, stream, report))
        stream.flush()
        os.fsync(stream.fileno())
        if file_hash(part) != file.sha256:
            part.unlink()
            raise CorpusError(f"{file.name} was downloaded without the hash that the hub lists; it was deleted")
        os.replace(part, folder / file.name)


def _empty(stream: IO[bytes]) -> None:
    stream.seek(0)
    stream.truncate()


def _lock(stream: IO[bytes], part: Path) -> None:
    """One download of a file at a time: two would write into one another."""
    try:
        import fcntl
    except ImportError:  # not on this system; the hash still tells
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CorpusError(f"another process is downloading {part}; wait for it") from None


def _read_on(file: _Listed, stream: IO[bytes], report: Callable[[int], None]) -> None:
    """Write the bytes that `stream` lacks, as they come; they may end early."""
    from huggingface_hub import hf_hub_url

    have, client = stream.tell(), hub_client.client()
    url = hf_hub_url(
        _REPOSITORY, file.path, repo_type="dataset", revision=_COMMIT, endpoint=os.environ.get("HF_ENDPOINT")
    )
    with hub_client.byte_range(url, client.build_hf_headers(library_name="joma"), have) as response:
        client.hf_raise_for_status(response)
        if response.status_code != 206:
            _empty(stream)  # all of the file comes
        elif not response.headers.get("content-range", "").startswith(f"bytes {have}-"):
            raise CorpusError(f"{file.name}: the hub sent another part than asked for")
        for chunk in response.iter_bytes():
            stream.write(chunk)
            report(min(stream.tell(), file.size))
            if stream.tell() > file.size:
                return  # not the file that is listed, as its hash will say
