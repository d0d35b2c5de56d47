"""`--out s3://bucket/path`: written to a local folder first, then sent as whole finished files."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joma.cli.options import DEFAULT_OUT
from joma.host.printing import say

# A path has one slash where an address has two: argparse has made a path of it already.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


@contextmanager
def uploaded(out: Path) -> Iterator[Path]:
    """The local folder to write to. Where `out` is an address, its files are sent there when the block ends well.

    >>> with uploaded(Path("joma-out")) as folder:
    ...     folder.as_posix()
    'joma-out'
    """
    if not _ADDRESS.match(str(out)):
        yield out
        return
    from joma.host.stores import StoreError, read_address
    from joma.scale.upload import must_be_reachable, upload

    address = str(read_address(_ADDRESS.sub(r"\1://", str(out), count=1)))
    must_be_reachable(address)
    folder = local_folder(address)
    say(f"written to {folder}, then sent to {address}", sys.stderr)
    yield folder
    try:
        say(f"{address}: {upload(folder, address)}", sys.stderr)
    except StoreError as error:
        raise StoreError(f"{error}; all of it is in {folder}, and the same command sends what is missing") from None


def local_folder(address: str) -> Path:
    """Where the files of an address are written: the same folder for the same address, so that a command goes on.

    >>> local_folder("s3://bucket/runs/a").as_posix()
    'joma-out/s3-bucket-runs-a-de961c'
    """
    words = re.sub(r"[^A-Za-z0-9._]+", "-", address).strip("-")[:40]
    return DEFAULT_OUT / f"{words}-{hashlib.sha256(address.encode()).hexdigest()[:6]}"
