"""`joma view`: runs, scans and claims in a page, as a file or live. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.options import add_study, load_named
from joma.cli.outputs import add_file
from joma.host.errors import BadInput, JomaError
from joma.host.exit_status import OK
from joma.host.extras import how_to_install
from joma.host.file_kinds import PAGE
from joma.host.printing import say

if TYPE_CHECKING:
    from joma.view.feed import Feed

_EPILOG = """\
Without --export a server on this machine shows the runs while they are written; Ctrl-C ends it. Only this machine
reaches it, and only with the address that is printed. With --export a page is written that has its data inside and
works without a network. It only reads.
Exit status: 0 done, 2 bad input, 130 and 143 after Ctrl-C and SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `view` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "view",
        help="look at runs, scans and claims in a browser",
        description="Look at runs, scans and claims in a browser.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    what = "runs, and folders that joma verify, joma scan or joma.monitor write (default: joma-out)"
    add("path", type=Path, nargs="*", metavar="RUN|FOLDER", help=what)
    add_file(parser, "--export", "write one page with its data inside", kinds={"": PAGE})
    add("--size", type=float, metavar="MB", help="limit for the numbers in that page (default: 16)")
    add("--port", type=int, default=0, metavar="N", help="port of the server (default: any free one)")
    add("--every", type=float, default=1.0, metavar="SECONDS", help="between two looks at the files (default: 1)")
    add_study(parser)
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma view` out; returns the exit status. Bad input raises ValueError with one sentence."""
    paths = options.path or [Path("joma-out")]
    for path in paths:
        if not path.exists():
            raise BadInput(f"there is no {path}; joma view takes runs, and folders with runs")
        if path.is_file() and not _begins_as_a_run(path):
            raise BadInput(f"{path} is not a run; joma view takes runs, and folders with runs")
    if options.size is not None and not options.export:
        raise BadInput("--size goes with --export: a live page is sent what it shows")
    load_named(options)
    if options.export:
        return _exported(paths, options.export, options.size)
    return _served(paths, options.port, options.every)


def _begins_as_a_run(path: Path) -> bool:
    """Whether a file is of SQLite, as runs are. One that is empty may be begun at this moment."""
    with path.open("rb") as file:
        return file.read(16) in (b"", b"SQLite format 3\0")


def _feed(paths: list[Path]) -> Feed:
    from joma.view.feed import Feed

    return Feed(paths, kept=_kept, compact=_compact)


def _kept(id: str, claim: Any) -> Any:
    from joma.report.claims.kept import kept_of

    return kept_of(id, claim)


def _compact(svg: str) -> str:
    from joma.report.svg import compact_svg

    return compact_svg(svg)


def _served(paths: list[Path], port: int, every: float) -> int:
    if not 0 < every < math.inf:
        raise BadInput(f"--every takes seconds above 0, got {every:g}")
    try:
        from joma.view.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio"):
            raise
        other = "without it, joma view --export page.html writes a page"
        raise BadInput(f"a live page needs starlette and uvicorn: {how_to_install('serve')}; {other}") from None
    try:
        serve(_feed(paths), port=port, every=every, ready=_say_where)
    except KeyboardInterrupt as stop:
        raise stop from JomaError("only viewing ends, the runs continue")
    return OK


def _say_where(address: str) -> None:
    say(f"joma view: {address}\nOpen it in a browser of this machine. Ctrl-C ends it.", keep="\n")
    sys.stdout.flush()


def _exported(paths: list[Path], out: Path, size: float | None) -> int:
    from joma.view.page import MEGABYTES, write_page

    sentence = write_page(_feed(paths), out, megabytes=MEGABYTES if size is None else size)
    say(f"page: {out}\n{sentence}", keep="\n")
    return OK
