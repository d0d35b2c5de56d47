"""What a shard leaves in its folder, `shard.json`, and whether such parts belong together.

    {"schema": "joma-shard", "version": 1, "kind": "scan", "shard": "2/4", "done": true, "versions": {...},
     "options": {...}, "work": [...], "mine": [...], "content": {...}}

It is written before the work, so that one folder never holds two shards, and again when the shard is done.
docs/reference/file-formats.md says what every key means.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joma.host.errors import BadInput
from joma.host.files import write_json
from joma.host.schema import read_json
from joma.host.words import counted
from joma.runs.machine import versions
from joma.scale.shards import Shard, read_shard

FILE, SCHEMA, VERSION = "shard.json", "joma-shard", 1
COMPARED = ("joma", "commit", "torch", "numpy", "sympy")
"""Versions that numbers can depend on. Parts of one piece of work have the same."""
_NAMED = 5  # missing shards that a sentence names
_LONGEST = 60  # characters of an option's value in a sentence


@dataclass(frozen=True)
class Part:
    """The share of one shard: what was asked for, what all of the work is, which is its own, and what came out."""

    folder: Path
    kind: str
    shard: Shard
    options: Mapping[str, Any]
    work: Sequence[str]
    mine: Sequence[str]
    content: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    versions: Mapping[str, str] = field(default_factory=versions)

    def begin(self) -> "Part | None":
        """Claim the folder. Returns what an earlier call with the same work left there; other work is refused."""
        before = None
        if (self.folder / FILE).exists():
            before = read_part(self.folder)
            if before.shard != self.shard or _work_differs(before, self):
                there = f"{self.folder} already holds shard {before.shard} of other work"
                raise BadInput(f"{there}; choose another folder, or remove this one", argument="out")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write()
        return before

    def finish(self, content: Mapping[str, Any]) -> "Part":
        finished = replace(self, content=content, done=True)
        finished._write()
        return finished

    def _write(self) -> None:
        said = {name: getattr(self, name) for name in ("kind", "done", "options", "work", "mine", "content")}
        said = {name: list(value) if name in ("work", "mine") else value for name, value in said.items()}
        head = {"schema": SCHEMA, "version": VERSION, "shard": str(self.shard)}
        write_json(self.folder / FILE, {**head, "versions": dict(self.versions), **said})


def read_part(folder: Path) -> Part:
    """What the shard in a folder left. Refuses a folder without one, and what cannot be read."""
    path = folder / FILE
    if not path.is_file():
        raise BadInput(f"{folder} holds no shard: there is no {FILE} in it")
    wrong = "is damaged and cannot be read"
    try:
        content = read_json(path)
        if (content["schema"], content["version"]) != (SCHEMA, VERSION):
            wrong = "is of another version of joma, or of another program"
            raise ValueError
        kinds: dict[str, type] = {"kind": str, "options": dict, "work": list, "mine": list, "content": dict,
                                  "done": bool, "versions": dict}  # fmt: skip
        if any(type(content[name]) is not kind for name, kind in kinds.items()):
            raise TypeError
        if not all(isinstance(name, str) for name in (*content["work"], *content["mine"])):
            raise TypeError
        return Part(folder, shard=read_shard(content["shard"]), **{name: content[name] for name in kinds})
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        # The command alone would find the file again, and refuse it.
        raise BadInput(f"{path} {wrong}; remove it and give the shard's command again") from None


def find_parts(folders: Sequence[Path]) -> list[Part]:
    """The parts in these folders: a folder is one shard's, or holds those of several."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(f"there is no folder {folder}")
        inside = [folder] if (folder / FILE).is_file() else sorted(path.parent for path in folder.glob(f"*/{FILE}"))
        if not inside:
            raise BadInput(f"{folder} holds no shard: there is no {FILE} in it, nor in a folder of it")
        found += inside
    return [read_part(folder) for folder in {path.resolve(): path for path in found}.values()]


def belonging_together(parts: Sequence[Part]) -> list[Part]:
    """The parts in order, if they are all of one piece of work; else one sentence says why they are not."""
    first = parts[0]
    for other in parts[1:]:
        for sentence in (_versions_differ(first, other), _work_differs(first, other), _shards_differ(first, other)):
            if sentence:
                raise BadInput(f"these parts do not belong together: {sentence}")
    by_number: dict[int, Part] = {}
    for part in parts:
        if (twin := by_number.setdefault(part.shard.number, part)) is not part:
            raise BadInput(f"shard {part.shard} is there twice: {twin.folder} and {part.folder}; leave one of them out")
    if missing := [Shard(number, first.shard.of) for number in range(1, first.shard.of + 1) if number not in by_number]:
        raise BadInput(f"{_listed(missing)} missing; merge takes all {first.shard.of}")
    for part in by_number.values():
        if not part.done:
            raise BadInput(f"shard {part.shard} in {part.folder} is not finished; give its command again to continue")
    in_order = [by_number[number] for number in sorted(by_number)]
    dealt = [name for part in in_order for name in part.mine]
    if sorted(dealt) != sorted(first.work):
        raise BadInput("these parts do not belong together: some of the work is in no share, or in two")
    return in_order


def _listed(missing: Sequence[Shard]) -> str:
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    verb = "shard" if len(missing) == 1 else "shards"
    return f"{verb} {', '.join(map(str, missing[:_NAMED]))}{more} {'is' if len(missing) == 1 else 'are'}"


def _versions_differ(one: Part, other: Part) -> str:
    for name in COMPARED:
        mine, its = (str(part.versions.get(name, "unknown")) or "none" for part in (one, other))
        if mine != its:
            return f"{one.folder} was made with {name} {mine[:_LONGEST]}, {other.folder} with {its[:_LONGEST]}"
    return ""


def _work_differs(one: Part, other: Part) -> str:
    """What two parts were asked for: a word on the first difference."""
    if one.kind != other.kind:
        return f"{one.folder} is of joma {one.kind}, {other.folder} of joma {other.kind}"
    for name in dict.fromkeys([*one.options, *other.options]):
        mine, its = (_brief(part.options.get(name)) for part in (one, other))
        if one.options.get(name) != other.options.get(name):
            return f"{one.folder} was made with {name} {mine}, {other.folder} with {its}"
    for here, there in ((one, other), (other, one)):
        if lacking := sorted(set(here.work) - set(there.work), key=list(here.work).index):
            more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
            return f"{here.folder} lists {lacking[0]}{more}, {there.folder} does not"
    return "" if list(one.work) == list(other.work) else f"{one.folder} and {other.folder} order their work differently"


def _shards_differ(one: Part, other: Part) -> str:
    if one.shard.of != other.shard.of:
        counts = [counted(part.shard.of, "shard") for part in (one, other)]
        return f"{one.folder} is one of {counts[0]}, {other.folder} one of {counts[1]}"
    return ""


def _brief(value: Any) -> str:
    words = value if isinstance(value, str) else json.dumps(value)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."
