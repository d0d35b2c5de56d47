"""Work elsewhere: `--on PLACE`, and `--shard I/N` for one of several shares, of which `joma merge` makes one."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput

if TYPE_CHECKING:
    from joma.scale.parts import Part

_NOT_OF_MERGE = ("compare", "list")


def add_on(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option. what: as in "checkpoints are measured"."""
    parser.add_argument(
        "--on", metavar="PLACE",
        help=f"where {what}: local (processes of this machine, one per GPU), ray (the cluster of RAY_ADDRESS, else one "
        "on this machine), ray:ADDRESS or ray://HOST:PORT (default: here)",
    )  # fmt: skip


def add_shard(parser: Any, what: str) -> None:
    """Add the option. what: what is shared out."""
    parser.add_argument(
        "--shard", metavar="I/N",
        help=f"do share I of N of the {what}, such as 2/4, in a folder of its own; joma merge joins the shards",
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
