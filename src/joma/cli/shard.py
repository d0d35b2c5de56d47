"""`--shard I/N`: one of several shares of a command, for arrays of jobs. `joma merge` makes one of all."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput

if TYPE_CHECKING:
    from joma.scale.parts import Part

_NOT_OF_MERGE = ("compare", "list")


def add_shard(parser: Any, what: str) -> None:
    """Add the option. what: what is shared out."""
    parser.add_argument(
        "--shard", metavar="I/N",
        help=f"carry out share I of N of the {what}, as 2/4, in a folder of its own; joma merge makes one of all",
    )  # fmt: skip


def refuse_with_shard(options: argparse.Namespace, *names: str) -> None:
    """Refuse what only all shards together can give."""
    for name in names:
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            instead = "leave one of them out" if name in _NOT_OF_MERGE else "give it to joma merge"
            raise BadInput(f"{option} does not go with --shard, because a shard has only a part; {instead}")


def how_to_merge(part: Part) -> str:
    """Where a shard left its part, and what to do when all are there."""
    out = part.folder.parent
    merge = shlex.join(["joma", "merge", str(out), "--out", str(out)])
    return f"shard {part.shard} is done, in {part.folder}; when all {part.shard.of} shards are: {merge}"
