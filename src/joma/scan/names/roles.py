"""What a tensor is to its layer, by the names that architectures give: `roles.toml` beside this file has them all.

A name is read as `LAYER.BOX.LEAF`: "model.layers.3" + "mlp" + "up_proj.weight". The leaf alone does not tell (w1 is the
gate where there is a w3, else it is the lower projection), so the leaves of one box of an MLP are judged together.
What has one meaning wherever it stands is a line of the table: the end of a name, and its group. A user adds lines by a
file of the same form.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from joma.host.errors import BadInput
from joma.scan.formats.tensor_file import small_file

Shape = Callable[[str], tuple[int, ...]]  # the shape of a tensor, by name

MLP, EXPERTS, SHARED = "mlp", "mlp_experts", "mlp_shared"
ATTENTION, CROSS = "attention", "cross_attention"
UP, GATE, DOWN, FUSED = "", "_gate", "_down", "_gate_up"
"""The lower (input) projection, its gate, the projection back, and gate and up in one matrix."""
_UP_FIRST = "_up_gate"  # both in one matrix, and the gate is the second half
NONE = "none"  # the group of what is known and measured nowhere
_MOST, _LONGEST = 1000, 200  # lines of a file of roles, and letters of a name in it

TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Taken:
    """What a tensor, or a part of it, was taken for."""

    name: str
    group: str
    expert: int | None = None


@dataclass(frozen=True)
class _Scheme:
    roles: Mapping[str, str]
    complete: bool = False

    def fits(self, leaves: Mapping[str, str]) -> bool:
        return all(leaf in leaves or (role == DOWN and not self.complete) for role, leaf in self.roles.items())


def _schemes() -> Iterator[_Scheme]:
    suffix = {"up": UP, "gate": GATE, "down": DOWN, "gate_up": FUSED, "up_gate": _UP_FIRST}
    for row in TABLE["mlp"]["schemes"]:
        yield _Scheme({suffix[of]: leaf for of, leaf in row.items() if of in suffix}, row.get("complete", False))


def _any_of(words: Iterable[str]) -> str:
    """A pattern for one of some words of names, the longest first; a star in them is a number."""
    ordered = sorted(words, key=len, reverse=True)
    return "|".join(re.escape(word).replace(r"\*", r"\d{1,9}") for word in ordered)


_SCHEMES = tuple(_schemes())
_BOX, _SHARED_BOX = (f"(?:{_any_of(TABLE['mlp'][of])})" for of in ("boxes", "shared"))
_MLP_TAIL = re.compile(
    rf"(?:(?P<box>{_BOX}(?:\.experts(?:\.(?:expert_)?(?P<expert>\d{{1,9}}))?|\.{_SHARED_BOX})?|{_SHARED_BOX})\."
    rf"(?P<leaf>{_any_of({leaf for scheme in _SCHEMES for leaf in scheme.roles.values()})})"
    rf"|(?P<direct>{_any_of(TABLE['mlp']['direct'])}))(?:\.weight)?"
)
_SEQUENCE_TAIL = re.compile(rf"(?P<box>{_BOX}(?:\.net)?)\.(?P<at>\d{{1,3}})(?:\.proj)?\.weight")
_ROWS = TABLE["mlp"]["rows"]
_ROWS_TAIL = re.compile(
    rf"(?P<box>{_BOX})\.{re.escape(_ROWS['inside'])}\.(?P<leaf>{_any_of(_ROWS[of] for of in ('gate', 'up', 'down'))})"
)
_PROJECTION_OF = {leaf: role for role, leaves in TABLE["attention"]["projections"].items() for leaf in leaves}
_MIXERS = TABLE["attention"]["mixers"]
_ATTENTION_TAIL = re.compile(
    rf"(?:(?P<cross>{_any_of(TABLE['attention']['cross'])})|(?P<self>{_any_of(TABLE['attention']['self'])}))\."
    rf"(?P<leaf>{_any_of(_PROJECTION_OF)})(?:\.weight)?"
)
_WRAPPERS = frozenset(TABLE["wrappers"])
# Gate and up in the columns of stacked experts: only the architecture tells whether they are halves or alternate.
_COLUMN_HALVES = re.compile(r"(llama4|qwen3_vl_moe|aria|openai_privacy_filter).*")
_ALTERNATING = re.compile(r"gpt_oss")


def read_roles(path: str | Path) -> dict[str, str]:
    r"""The lines of a file of roles: the end of a name, and its group.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "roles.toml")
    ...     _ = path.write_text('[names]\n"mixer.wild" = "mixer_wild"\n"mixer.table" = "none"')
    ...     read_roles(path)
    {'mixer.wild': 'mixer_wild', 'mixer.table': 'none'}
    """
    try:
        table = tomllib.loads(small_file(Path(path)).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no TOML: {' '.join(str(error).split())[:160]}", argument="roles") from None
    lines = table.get("names")
    if set(table) != {"names"} or not isinstance(lines, dict):
        raise BadInput(
            f'{path} has no table [names] alone, with lines as "mixer.in_proj" = "mixer_in"', argument="roles"
        )
    return check_roles(lines)


def check_roles(lines: Mapping[Any, Any]) -> dict[str, str]:
    """The lines, or a sentence on the first that is none."""
    if len(lines) > _MOST:
        raise BadInput(f"there are {len(lines):,} lines of roles, and {_MOST:,} are read", argument="roles")
    for name, group in lines.items():
        line = f"{str(name)[:60]!a} = {str(group)[:40]!a}"
        words = name.split(".") if isinstance(name, str) and len(name) <= _LONGEST else [""]
        if "" in words or all(word == "*" for word in words):
            what = "the end of a name, words between dots, with a star for any one word"
            raise BadInput(f"the role {line} does not begin with {what}", argument="roles")
        if not isinstance(group, str) or not re.fullmatch(r"[A-Za-z_]\w{0,40}", group):
            raise BadInput(f"the role {line} names no group; a group is a word, as mixer_in, or none", argument="roles")
    return dict(lines)


def taken(
    names: Iterable[str], shape: Shape | None = None, model_type: str | None = None,
    roles: Mapping[str, str] | None = None,
) -> list[Taken]:  # fmt: skip
    """What each tensor was taken for; tensors that are not taken are not listed, what a line calls "none" is.

    shape: needed for parts, experts that are stacked in one tensor, and gate and up in one matrix. Without it such
    tensors are named in full. model_type: what config.json calls the architecture. roles: lines of a user, which decide
    before those of the table.
    """
    own, found, rest = _Lines(roles or {}), list[Taken](), list[str]()
    names = dict.fromkeys(names)
    for name in names:
        group = own.group_of(name) or _LINES.group_of(name)
        if group == "ssm_out" and name.replace("out_proj", "Wqkv") in names:  # FlashAttention's mixer is attention
            group = "attention_o"
        if group is None:
            rest.append(name)
            continue
        sizes = shape(name) if shape and group != NONE else (2, 2)
        if len(sizes) not in (2, 3) or min(sizes[-2:]) < 2:  # no matrices
            rest.append(name)
            continue
        parts: Iterable[int | None] = range(sizes[0]) if len(sizes) == 3 else [None]
        found += [Taken(name if at is None else f"{name}[{at}]", group, at) for at in parts]
    return [*found, *_attention(rest), *_mlps(rest, shape, model_type), *_sequences(rest, shape), *_rows(rest, shape)]


_Line = tuple[int, int, list[str], str]  # how long it is, its stars, its words, its group


class _Lines:
    """Lines of roles: the group of the longest that a name ends with, of several the one with fewest stars."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self._by_end: dict[str, list[_Line]] = {}
        for line, group in lines.items():
            words = line.removesuffix(".weight").split(".")
            self._by_end.setdefault(words[-1], []).append((-len(words), words.count("*"), words, group))

    def group_of(self, name: str) -> str | None:
        words = [word for word in name.removesuffix(".weight").split(".") if word not in _WRAPPERS]
        ends: list[_Line] = [*self._by_end.get(words[-1], ()), *self._by_end.get("*", ())] if words else []
        for _, _, line, group in sorted(ends):
            fits = zip(line, words[-len(line) :], strict=False)
            if len(line) <= len(words) and all(each in ("*", word) for each, word in fits):
                return group
        return None


_LINES = _Lines(TABLE["names"])


def is_number(word: str) -> bool:
    """Whether a word of a name counts something, as layers do. Nothing has 10^9 of them, and Python reads no number
    of 5,000 digits.

    >>> is_number("12"), is_number("x1"), is_number("1" * 5000)
    (True, False, False)
    """
    return len(word) <= 9 and word.isdecimal()


def layer_of(name: str) -> str | None:
    """The layer in which a tensor lies, if its name is a known one."""
    if found := _read(name):
        return found[0]
    # What the table calls by its end alone lies in the first layer that its name tells.
    words = name.split(".")
    places = (at for at in range(1, len(words)) if is_number(words[at]) and words[at - 1] in TABLE["stacks"])
    at = next(places, None) if _LINES.group_of(name) else None
    return None if at is None else ".".join(words[: at + 1])


def _read(name: str) -> tuple[str, re.Match[str]] | None:
    """The layer of a name and what its tail is known as; the layer ends at the first number with a known tail."""
    at = 0
    for word in name.split("."):
        at += len(word) + 1
        if is_number(word) and (found := _known_tail(name[at:])):
            return name[: at - 1], found
    return None


@lru_cache(maxsize=100_000)  # all layers have the same tails, and all checkpoints of a series
def _known_tail(tail: str) -> re.Match[str] | None:
    tail = ".".join(word for word in tail.split(".") if word not in _WRAPPERS)
    tail = TABLE["without_boxes"].get(tail, tail)
    return (
        _MLP_TAIL.fullmatch(tail)
        or _ATTENTION_TAIL.fullmatch(tail)
        or _SEQUENCE_TAIL.fullmatch(tail)
        or _ROWS_TAIL.fullmatch(tail)
    )


def _tails(names: Iterable[str], kind: re.Pattern[str]) -> Iterator[tuple[str, str, re.Match[str]]]:
    """(name, layer, tail) of the names whose tail is of one kind."""
    for name in names:
        if (found := _read(name)) and found[1].re is kind:
            yield name, *found


def _attention(names: Iterable[str]) -> Iterator[Taken]:
    for name, _, found in _tails(names, _ATTENTION_TAIL):
        if found["self"] not in _MIXERS["boxes"] or found["leaf"] in _MIXERS["leaves"]:
            kind = CROSS if found["cross"] else ATTENTION
            yield Taken(name, f"{kind}_{_PROJECTION_OF[found['leaf']]}")


def _mlps(names: list[str], shape: Shape | None, model_type: str | None) -> Iterator[Taken]:
    boxes: dict[tuple[str, str, int | None], dict[str, str]] = {}
    for name, layer, found in _tails(names, _MLP_TAIL):
        expert = int(found["expert"]) if found["expert"] else None
        leaves = boxes.setdefault((layer, found["box"] or "", expert), {})
        leaves[found["leaf"] or found["direct"]] = name
    for (_, box, expert), leaves in boxes.items():
        scheme = next((scheme for scheme in _SCHEMES if scheme.fits(leaves)), None)
        roles = {role: leaves[leaf] for role, leaf in scheme.roles.items() if leaf in leaves} if scheme else {}
        stacked = shape is not None and any(len(shape(name)) == 3 for name in roles.values())
        kind = EXPERTS if "experts" in box.split(".") or stacked else SHARED if "shared" in box else MLP
        for role, name, number in _parts(roles, shape, model_type or ""):
            yield Taken(name, kind + role, expert if number is None else number)


def _parts(roles: Mapping[str, str], shape: Shape | None, model_type: str) -> Iterator[tuple[str, str, int | None]]:
    """(role, name, expert) of every matrix in the tensors of one box."""
    if shape is None:
        yield from ((FUSED if role == _UP_FIRST else role, name, None) for role, name in roles.items())
        return
    shapes = {role: shape(name) for role, name in roles.items()}
    for role, name in roles.items():
        experts = shapes[role][0] if len(shapes[role]) == 3 else None
        for expert in [None] if experts is None else range(experts):
            at = "" if expert is None else f"{expert}"
            for part_role, cut in _cuts(role, shapes, model_type):
                index = ",".join(filter(None, (at, cut)))
                yield part_role, f"{name}[{index}]" if index else name, expert


def _cuts(role: str, shapes: Mapping[str, tuple[int, ...]], model_type: str) -> list[tuple[str, str]]:
    """(role, index of the part) of one matrix: two parts where it holds gate and up and it is known how.

    Shapes tell whether it holds both: it is then twice as wide as what the projection back reads.
    """
    if role == _UP_FIRST:
        halves = _cuts(FUSED, {**shapes, FUSED: shapes[role]}, model_type)
        return halves if len(halves) == 1 else [(GATE, halves[1][1]), (UP, halves[0][1])]
    if role not in (UP, FUSED) or GATE in shapes or DOWN not in shapes or len(shapes[DOWN]) != len(shapes[role]):
        return [(role, "")]
    rows, columns = shapes[role][-2:]
    back_rows, back_columns = shapes[DOWN][-2:]
    in_rows = (rows, columns) == (2 * back_columns, back_rows)
    in_columns = (rows, columns) == (back_columns, 2 * back_rows)
    if role == UP:
        return [(FUSED if in_rows or in_columns else UP, "")]
    if (rows, columns) == (back_columns, back_rows):  # a plain MLP under a name that others use for both
        return [(UP, "")]
    lead = "" if in_rows else ":,"
    if (in_rows or in_columns) and _ALTERNATING.fullmatch(model_type):
        return [(GATE, f"{lead}0::2"), (UP, f"{lead}1::2")]
    if in_rows or (in_columns and _COLUMN_HALVES.fullmatch(model_type)):
        half = rows // 2 if in_rows else columns // 2
        return [(GATE, f"{lead}0:{half}"), (UP, f"{lead}{half}:{2 * half}")]
    return [(FUSED, "")]


def _sequences(names: Iterable[str], shape: Shape | None) -> Iterator[Taken]:
    """Lower and upper projection of an MLP that is a torch.nn.Sequential: its two matrices, whatever their numbers."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for name, layer, tail in _tails(names, _SEQUENCE_TAIL):
        if shape is None or len(shape(name)) == 2:
            found.setdefault((layer, tail["box"]), {})[int(tail["at"])] = name
    for numbered in found.values():
        if len(numbered) != 2:
            continue
        first, second = (numbered[at] for at in sorted(numbered))
        gated = shape is not None and shape(first)[0] == 2 * shape(second)[1]
        yield Taken(first, MLP + (FUSED if gated else UP))
        yield Taken(second, MLP + DOWN)


def _rows(names: Collection[str], shape: Shape | None) -> Iterator[Taken]:
    """The matrices of experts whose rows lie in one tensor, if the rows of their router say how many there are."""
    roles = {_ROWS["gate"]: GATE, _ROWS["up"]: UP, _ROWS["down"]: DOWN}
    there = set(names)
    for name, layer, tail in _tails(names, _ROWS_TAIL):
        box = f"{layer}.{tail['box']}"
        gated = f"{box}.{_ROWS['inside']}.{_ROWS['up']}" in there
        group = EXPERTS + (roles[tail["leaf"]] if gated or tail["leaf"] != _ROWS["gate"] else UP)
        router = f"{box}.{_ROWS['router']}.weight"
        if shape is None:
            yield Taken(name, group)
            continue
        experts, rows = (shape(router) or (0,))[0] if router in there else 0, (shape(name) or (0,))[0]
        each = rows // experts if experts else 0
        if len(shape(name)) == 2 and each > 1 and rows == experts * each:
            yield from (Taken(f"{name}[{at * each}:{(at + 1) * each}]", group, at) for at in range(experts))
