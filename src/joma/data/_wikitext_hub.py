"""WikiText from the Hugging Face hub: the parquet files of Salesforce/wikitext, at one commit, with their hashes.

huggingface_hub downloads them, with its token, its endpoint (HF_ENDPOINT) and its patience. A file is moved to
its place only with the hash that the hub lists.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from joma.data._cache import cache_folder
from joma.data._words import file_hash, need_pyarrow, split_files
from joma.data.errors import CorpusError
from joma.host import hub as hub_client
from joma.host.extras import how_to_install
from joma.host.files import make_folder
from joma.host.progress import Progress, silent

_REPOSITORY: dict[str, Any] = {
    "repo_id": "Salesforce/wikitext",
    "repo_type": "dataset",
    "revision": "b08601e04326c79dfdd32d625aee71d232d685c3",
}
_FOLDERS = {"wikitext-2": "wikitext-2-v1", "wikitext-103": "wikitext-103-v1"}
_UNFINISHED = ".download"  # the client's own folder, inside ours


def download_wikitext(
    name: str = "wikitext-2", folder: Path | str | None = None, *, progress: Progress = silent
) -> Path:
    """WikiText-2 (8 MB) or WikiText-103 (about 320 MB) from the hub, into `folder`; returns the folder, for `wikitext`.

    folder: else joma's cache folder, where `find_corpus` looks. Files that are there already are not fetched again, so
    a second call goes on with those that the first had not finished. The text is Wikipedia's, under CC BY-SA.
    """
    if name not in _FOLDERS:
        raise CorpusError(f"name must be 'wikitext-2' or 'wikitext-103', got {name!r}")
    target = cache_folder() / name if folder is None else Path(folder)
    with suppress(CorpusError):  # something is missing
        if all(split_files(target, split) for split in ("train", "valid", "test")):
            return target
    need_pyarrow(f"reading {name} from the hub")
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise CorpusError(f"downloading {name} needs huggingface_hub: {how_to_install('hf')}") from None
    try:
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="joma")
        # One question before the client asks with all its patience: without a network that takes half a minute.
        hub_client.client().get_session().head(api.endpoint, timeout=30)
        files = _listing(api, _FOLDERS[name])
        make_folder(target)
        total, done = sum(size for size, _ in files.values()), 0
        for path, (size, sha256) in files.items():
            progress(done / total, f"downloading {name}")
            if not (target / Path(path).name).is_file():
                _fetch(api, path, target, sha256)
            done += size
        shutil.rmtree(target / _UNFINISHED, ignore_errors=True)
        progress(1.0, f"downloading {name}")
        return target
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"the hub answered with status {status}"
    except hub_client.transport_errors() as error:
        why = f"the hub cannot be reached ({type(error).__name__})"
    except OSError as error:  # offline mode, a full disk, a file of another size
        why = " ".join(str(error).split())[:200]
    instead = f"try again, or put train.txt, valid.txt and test.txt into {target}"
    raise CorpusError(f"{name} could not be downloaded: {why}; {instead}")


def _listing(api: Any, folder: str) -> dict[str, tuple[int, str]]:
    """The size and the sha256 of every file, by its path."""
    # Not by the client's own listing, which follows links to other hosts with the user's token.
    url = f"{api.endpoint}/api/datasets/{_REPOSITORY['repo_id']}/tree/{_REPOSITORY['revision']}/{folder}"
    pages = hub_client.listing(url, hub_client.client().build_hf_headers(library_name="joma"))
    shard = re.compile(re.escape(folder) + r"/(train|validation|test)-\d{5}-of-\d{5}\.parquet")
    try:
        entries = [entry for page in pages for entry in page if shard.fullmatch(entry["path"])]
        files = {entry["path"]: (entry["size"], entry["lfs"]["oid"]) for entry in entries}
        strange = any(type(n) is not int or not re.fullmatch("[0-9a-f]{64}", sha256) for n, sha256 in files.values())
    except (KeyError, TypeError, hub_client.StrangeAnswer):
        strange = True
    if strange:
        raise CorpusError(f"the hub answered something that is no listing of {_REPOSITORY['repo_id']}")
    if not files:
        raise CorpusError(f"the hub lists no parquet files in {folder} of {_REPOSITORY['repo_id']}")
    return files


def _fetch(api: Any, path: str, folder: Path, sha256: str) -> None:
    bar: Any = hub_client.client().tqdm
    # The client's bar would run through our own progress.
    unseen = type("Unseen", (bar,), {"__init__": lambda self, *_, **__: bar.__init__(self, disable=True)})
    held = api.hf_hub_download(filename=path, local_dir=folder / _UNFINISHED, tqdm_class=unseen, **_REPOSITORY)
    if file_hash(Path(held)) != sha256:
        Path(held).unlink()
        raise CorpusError(f"{Path(path).name} was downloaded without the hash that the hub lists; it was deleted")
    os.replace(held, folder / Path(path).name)
