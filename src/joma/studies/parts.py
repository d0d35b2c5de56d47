"""`joma verify` in several shares: which studies fall to which shard, and one list of results from all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.files import atomically
from joma.host.words import counted
from joma.scale.contents import content_of, is_damaged
from joma.scale.parts import FILE, Part
from joma.scale.shards import Shard
from joma.studies import chosen
from joma.studies.task import answer_of, result_of

if TYPE_CHECKING:
    from joma.claims.execute import Result

KIND = "verify"


def part_of(names: Sequence[str], shard: Shard, folder: Path, *, scale: str, threads: int) -> Part:
    """The share of a shard: studies are given out by what they took on the machines of the kept records.

    threads: of a study; the last digits of a result can depend on it, so all shards must have the same.
    """
    mine = shard.balanced(times(names, scale))
    return Part(folder, KIND, shard, {"scale": scale, "threads": threads}, list(names), mine)


def times(names: Sequence[str], scale: str) -> dict[str, float]:
    """Seconds that studies took once; of those that nobody knows, as the one in the middle.

    >>> sorted(times(["thm2", "a-study-of-your-own"], "quick"))
    ['a-study-of-your-own', 'thm2']
    """
    known = _known()[scale]
    middle = median(known.values())
    return {name: known.get(name, middle) for name in names}


@cache
def _known() -> Mapping[str, Mapping[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(files(__package__).joinpath("seconds.json").read_text("utf-8"))
    return found


def share_in_words(part: Part) -> str:
    """Which studies a shard carries out, for whoever starts it."""
    which = f": {', '.join(part.mine)}" if part.mine else "; nothing is left for it to do"
    return f"shard {part.shard} has {len(part.mine)} of {counted(len(part.work), 'study', 'studies')}{which}"


def finish(part: Part, results: Sequence[Result]) -> None:
    """Leave the results of a shard for `merged_results`."""
    found = {result.study.name: answer_of(result) for result in results}
    files = {result.study.name: result.study.file for result in results if result.study.file}
    part.finish({"results": found, "files": files})


def merged_results(parts: Sequence[Part], out: Path, *, fresh: bool = False) -> list[Result]:
    """The results of all parts in the order of the work. Their runs are copied to `out`; nothing is run or judged.

    - parts: all shards of one `joma verify`, as `joma.scale.parts.belonging_together` gives them
    - out: the folder whose `runs` gets the runs
    - fresh: replace runs that are there and differ
    """
    if parts[0].options.get("scale") not in _known():
        is_damaged(parts[0], "its options lack the scale")
    results: dict[str, Result] = {}
    for part in parts:
        content = content_of(part, {"results": {str: {"run": str | None}}, "files": {str: str}})
        found = content["results"]
        if set(found) != set(part.mine):
            is_damaged(part, "it lacks results of its studies, or has others")
        for file in content["files"].values():
            chosen(file)  # a study that is not joma's own
        for name in part.mine:
            copied = {**found[name], "run": _copied(found[name], part, out, fresh=fresh)}
            try:
                results[name] = result_of(name, copied)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                if isinstance(error, BadInput):
                    raise
                is_damaged(part, f"its results of {name} cannot be read")
    return [results[name] for name in parts[0].work]


def _copied(answer: Mapping[str, Any], part: Part, out: Path, *, fresh: bool) -> str | None:
    """Copy the run of a result, whole or not at all; returns where it is now."""
    if answer["run"] is None:
        return None
    name = Path(answer["run"]).name
    source, target = part.folder / "runs" / name, out / "runs" / name
    if not source.is_file():
        raise BadInput(f"{source} is missing, and {part.folder / FILE} names it; give the shard's command again")
    if target.exists() and not fresh and target.read_bytes() != source.read_bytes():
        raise BadInput(f"{target} is there already, and is another run; merge into another folder, or make it anew "
                       "(fresh)", argument="fresh")  # fmt: skip
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomically(target) as unfinished:
        shutil.copyfile(source, unfinished)
    return str(target)
