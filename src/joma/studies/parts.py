"""`joma verify` in several shares: which studies fall to which shard, and one list of results from all of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.figures.harmless import is_drawing
from joma.host.errors import BadInput, JomaError
from joma.host.file_kinds import RUN
from joma.host.files import as_json, atomically, make_folder
from joma.host.words import counted, short
from joma.runs import Run
from joma.runs.values import valid_name
from joma.scale.contents import content_of, is_damaged, options_of
from joma.scale.parts import FILE, Part
from joma.scale.shards import Shard
from joma.studies import foreign, is_own, is_trusted, load
from joma.studies.seconds import known, times
from joma.studies.task import answer_of, result_of

if TYPE_CHECKING:
    from joma.claims.execute import Result

KIND = "verify"
_LONGEST = 1e10  # seconds; nothing took longer
_WORDS = {"title": str, "version": int, "about": str, "file": str}
"""What a shard says of a study that is not joma's own."""
_PICTURE = {"name": str, "caption": str, "svg": str, "alt": str}
_RESULT = {"config": dict, "seconds": int | float, "findings": [dict], "pictures": [_PICTURE], "command": str,
           "run": str | None, "error": str | None, "cached": bool}  # fmt: skip


def part_of(names: Sequence[str], shard: Shard, folder: Path, *, scale: str, threads: int) -> Part:
    """The share of a shard: studies are given out by what they took on the machines of the kept records."""
    mine = shard.balanced(times(names, scale))
    return Part(folder, KIND, shard, {"scale": scale, "threads": threads}, list(names), mine)


def share_in_words(part: Part) -> str:
    """Which studies a shard carries out, for whoever starts it."""
    which = f": {', '.join(part.mine)}" if part.mine else "; nothing is left for it to do"
    return f"shard {part.shard} has {len(part.mine)} of {counted(len(part.work), 'study', 'studies')}{which}"


def finish(part: Part, results: Sequence[Result]) -> None:
    """Leave the results of a shard for `merged_results`; of studies that are not joma's own also what a page says."""
    found = {result.study.name: answer_of(result) for result in results}
    others = [result.study for result in results if not is_own(result.study.name)]
    words = {study.name: {key: getattr(study, key) for key in _WORDS} for study in others}
    part.finish({"results": found, "studies": words})


def merged_results(parts: Sequence[Part], out: Path, *, fresh: bool = False) -> list[Result]:
    """The results of all parts in the order of the work. Their runs are copied to `out`; nothing is run.

    A part is data and decides nothing that is loaded. A study that is not joma's own is words beside its findings,
    which are taken as they are recorded. Where a user has named it, its runs are judged and drawn again by its code.

    - parts: all shards of one `joma verify`, as `joma.scale.parts.belonging_together` gives them
    - out: the folder whose `runs` gets the runs
    - fresh: replace runs that are there and differ
    """
    if options_of(parts[0], {"scale": str})["scale"] not in known():
        is_damaged(parts[0], "options.scale is none that joma has")
    results = {name: result for part in parts for name, result in _left_by(part).items()}
    copies = {result.run: out / "runs" / result.run.name for result in results.values() if result.run is not None}
    for source, target in copies.items():
        if target.exists() and not fresh and target.read_bytes() != source.read_bytes():
            raise BadInput(f"{target} is there already, and is another run; merge into another folder, or make it anew "
                           "(fresh)", argument="fresh")  # fmt: skip
    for source, target in copies.items():
        make_folder(target.parent)
        with atomically(target, RUN) as unfinished:
            shutil.copyfile(source, unfinished)
    return [_here(results[name], copies) for name in parts[0].work]


def _left_by(part: Part) -> dict[str, Result]:
    """What a shard left, every part of it of the kind that it should be: what reads it later finds no fault."""
    content = content_of(part, {"results": {str: _RESULT}, "studies": {str: _WORDS}})
    if set(content["results"]) != set(part.mine):
        is_damaged(part, "it lacks results of its studies, or has others")
    return {name: _read(name, content["results"][name], content["studies"].get(name), part) for name in part.mine}


def _read(name: str, answer: Mapping[str, Any], words: Mapping[str, Any] | None, part: Part) -> Result:
    from joma.claims.ledger import must_be_readable

    if not is_trusted(name) and words is None:
        is_damaged(part, f"it does not say what {short(name)} is, which is no study of joma's own")
    study = load(name) if is_trusted(name) else foreign.described(name, **words or {})
    try:
        result = result_of(study, {**answer, "run": _run_of(name, answer["run"], part)})
        for finding in result.findings:
            must_be_readable(finding)
            if finding.study != name:
                raise ValueError
        valid_name(name, "a study")
        as_json({"config": result.config})
        if not 0 <= result.seconds < _LONGEST:
            raise ValueError
        if wrong := [picture.name for picture in result.pictures if not is_drawing(picture.svg)]:
            is_damaged(part, f"the figure {short(wrong[0])} of {short(name)} holds more than a drawing")
    except BadInput:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, JomaError):
        is_damaged(part, f"its results of {short(name)} cannot be read")
    return result


def _run_of(name: str, named: str | None, part: Part) -> Path | None:
    """The run of a result. It lies in the folder of its shard, wherever it lay when it was made."""
    if named is None:
        return None
    place = part.folder / "runs" / Path(named).name
    if not place.is_file():
        raise BadInput(f"{place} is missing, and {part.folder / FILE} names it; give the shard's command again")
    with Run.open(place) as run:  # and no other file, wherever a link leads
        if run.study != name:
            is_damaged(part, f"{place.name} is not a run of {short(name)}")
    return place


def _here(result: Result, copies: Mapping[Path, Path]) -> Result:
    """A result with its run where it is now. Of a foreign study that a user named, it is judged and drawn again."""
    if result.run is None:
        return result
    moved, name = copies[result.run], result.study.name
    if is_own(name) or not is_trusted(name):
        return replace(result, run=moved)
    from joma.studies.stored import result_of as judged_again

    return replace(judged_again(moved), cached=result.cached)
