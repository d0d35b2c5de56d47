"""Where the matrices are that a measure needs: found by the names that architectures give them, or by pattern.

Each has a group (`find_groups`), and lies in a layer, perhaps as one of its experts (`rows_of`). Matrices of layers
whose names are not known are told (`not_taken`): nobody should have to guess that. Routers, tables of positions, norms
and biases are known, and belong to no group.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from joma.host.errors import BadInput
from joma.host.words import counted
from joma.scan.errors import UnknownNames
from joma.scan.formats.checkpoint import part_of, tensor_of
from joma.scan.formats.tensor_file import Stored
from joma.scan.names.roles import NONE, TABLE, Shape, is_number, layer_of, taken
from joma.scan.names.roots import choose_root, in_root, roots, weights_of

MLP, GATE, EMBEDDING = "mlp", "mlp_gate", "embedding"
_KNOWN = re.compile(r"(embedding|mlp(_experts|_shared)?(_gate|_down|_gate_up)?|(cross_)?attention(_\w+)?)")
_EXPERT = re.compile(r"\.experts\.(?:expert_)?(\d{1,9})\.")
_EXPERT_ROWS = f".{TABLE['mlp']['rows']['inside']}."  # of tensors that hold one expert's rows after the other's
_KINDS = 4  # of names that are not known, in a sentence
_ASIDE = TABLE["aside"]
# One word of a name at a time: a stranger's name may be long.
_OTHER, _TABLES = (re.compile(_ASIDE[of], re.I) for of in ("other", "tables"))
_HEADS, _ROUTERS = (frozenset(_ASIDE[of]) for of in ("heads", "routers"))


def find_groups(
    names: Iterable[str], patterns: Mapping[str, str], *, root: str | None = None, shape: Shape | None = None,
    model_type: str | None = None, roles: Mapping[str, str] | None = None,
) -> dict[str, tuple[str, ...]]:  # fmt: skip
    """The tensors of every group that can be found, by layer and by expert.

    Groups are, as far as the architecture's names are known:

    - mlp, mlp_gate, mlp_down: the lower projection of the MLP, its gate, the projection back; mlp_gate_up where gate
      and up lie in one matrix and it is not known how
    - mlp_experts, mlp_shared (and their _gate, _down): the same of experts, and of experts that see every token
    - attention_q, _k, _v, _o, _qkv (in one matrix), _q_a, _q_b, _kv_a, _kv_b (in two steps); cross_attention_q, ...
    - those of other mixers (ssm_in, linear_attention_q, conv_in, indexer_q, ...) and between towers (merger, projector)
    - embedding
    - those of `roles`: the ends of names, as `joma.scan.names.roles.read_roles` reads them
    - those of `patterns`: regular expressions that must fit a full tensor name, and that take precedence

    root: which of several models in one checkpoint, see `roots`. shape: the shape of a tensor by name; without it,
    parts of a tensor (one expert of a stack, a gate in a fused matrix) are not named. model_type: of config.json.
    """
    everything = sorted(names, key=_natural)
    mine = in_root(weights_of(everything), choose_root(everything, root))
    found: dict[str, list[str]] = {}
    for one in taken(mine, shape, model_type, roles):
        if one.group != NONE:
            found.setdefault(one.group, []).append(one.name)
    mlp_first = sorted(found.items(), key=lambda item: (not item[0].startswith(MLP), item[0]))
    groups = {group: tuple(sorted(several, key=_natural)) for group, several in mlp_first}
    if EMBEDDING not in groups:
        words = (rf"(?:.*\.)?{word}\.weight" for word in TABLE["embedding"])
        groups[EMBEDDING] = next(filter(None, (_matching(mine, word) for word in words)), ())
    groups |= {group: _matching(everything, pattern, shape) for group, pattern in patterns.items()}
    if MLP in patterns and GATE not in patterns:
        groups.pop(GATE, None)
    return {group: fitting for group, fitting in groups.items() if fitting}


def coverage(groups: Mapping[str, tuple[str, ...]], names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """How many layers each group covers, and how many the model has. Groups that lie in no layer are not listed."""
    everything = weights_of(names)
    layer, covers = layers_of(everything), dict[str, tuple[int, int]]()
    members = {name: root for root in roots(everything) for name in in_root(everything, root)}
    for group, tensors in groups.items():
        full = [tensor_of(name) for name in tensors]
        covered = {layer[name] for name in full if layer.get(name)}
        same_root = {members[name] for name in full if name in members}
        all_layers = {layer[name] for name, root in members.items() if root in same_root and layer.get(name)}
        if covered:
            covers[group] = (len(covered), len(all_layers | covered))
    return covers


class Row(NamedTuple):
    """One row of a curve: a layer, or an expert of a layer. Layers count from 0; None: the tensor is of no layer."""

    layer: int | None
    expert: int | None
    name: str  # the tensor, or what else has this row's numbers

    @property
    def label(self) -> str:
        if self.layer is None:
            return self.name
        return f"layer {self.layer}" + ("" if self.expert is None else f", expert {self.expert}")

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def layers(count: int) -> tuple[Row, ...]:
    """Rows for the layers of a running model.

    >>> [row.label for row in layers(2)]
    ['layer 0', 'layer 1']
    """
    return tuple(Row(layer, None, f"layer {layer}") for layer in range(count))


def located(tensors: Iterable[str], names: Iterable[str] = ()) -> list[Row]:
    """Where each of the tensors (or parts of them) lies. names: all tensors of the checkpoint, if there are more."""
    tensors = list(tensors)
    layers, rows = layers_of([*names, *map(tensor_of, tensors)]), []
    for name in tensors:
        layer, part, named = layers[tensor_of(name)], part_of(name), _EXPERT.search(name)
        stacked = part.index[0] if part and isinstance(part.index[0], int) else None
        if part and isinstance(own := part.index[0], slice) and _EXPERT_ROWS in f".{part.base}":
            stacked = own.start // (own.stop - own.start)
        expert = stacked if stacked is not None else int(named[1]) if named else None
        rows.append(Row(None if layer is None else int(layer.rpartition(".")[2]), expert, name))
    return rows


def rows_of(tensors: Sequence[str]) -> tuple[Row, ...]:
    """A row for every tensor of a group.

    Where names do not tell the tensors apart (the encoder and the decoder have layers 0 to 5 each), layers are counted
    in the order of the group.
    """
    rows = located(tensors)
    if len(rows) > 1 and len({(row.layer, row.expert) for row in rows}) < len(rows):
        return tuple(Row(at, None, row.name) for at, row in enumerate(rows))
    return tuple(rows)


def pick_groups(
    found: Mapping[str, tuple[str, ...]], wanted: Iterable[str], names: Iterable[str], model_type: str | None
) -> dict[str, tuple[str, ...]]:
    """The wanted groups among those found.

    "mlp" brings its gate, and experts with theirs where a model has them; "attention" brings all of its projections.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    for group in wanted:
        if group == MLP:
            members = [each for each in found if re.fullmatch(r"mlp(_experts|_shared)?(_gate|_gate_up)?", each)]
        else:
            projections = [each for each in found if each.startswith("attention_")] if group == "attention" else []
            members = [group] if group in found else projections
        if not members:
            weights = [name for name in names if name.endswith("weight")] or list(names)
            example = weights[len(weights) // 2] if weights else "nothing: there are no tensors"
            known = f"{group} tensors are not known in this architecture ({model_type or 'without config.json'})"
            failed = known if _KNOWN.fullmatch(group) else f"the pattern {group} fits no tensor"
            what = f"{failed}; name them with a pattern {group}=REGEX (names look like {example})"
            raise UnknownNames(what, argument="patterns")
        chosen |= {member: found[member] for member in members}
    return chosen


def read_patterns(given: Iterable[str]) -> dict[str, str]:
    """Patterns that are given as NAME=REGEX, as a dictionary."""
    found: dict[str, str] = {}
    for option in given:
        name, equals, pattern = option.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w{0,40}", name) or not pattern:
            what = f"a pattern is NAME=REGEX, as in mlp='.*\\.up\\.weight', got {option!r}"
            raise BadInput(what, argument="patterns")
        if name in found:
            raise BadInput(f"there are two patterns {name}", argument="patterns")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:  # a{99999999999}, or parentheses without end
            raise BadInput(f"the pattern {name} is not a regular expression: {error}", argument="patterns") from None
        found[name] = pattern
    return found


def layers_of(names: Iterable[str]) -> dict[str, str | None]:
    """The layer of every tensor: by its own name if that is known, else by those of its neighbours."""
    names = list(names)
    found = {name: layer_of(name) for name in names}
    known = {layer for layer in found.values() if layer}
    stacks = {layer.rpartition(".")[0] for layer in known}
    above = {layer[: at.start()] for layer in known for at in re.finditer(r"\.", layer)}
    for name in names:
        if found[name] is None:
            found[name] = next((layer for layer in _numbered(name, stacks) if layer not in above), None)
    return found


def _numbered(name: str, stacks: Collection[str]) -> Iterator[str]:
    """What may be the layer in a name: a number in a known stack of layers, or after a word that means layers."""
    words = name.split(".")
    places = [at for at, word in enumerate(words) if is_number(word)]
    yield from (".".join(words[: at + 1]) for at in places if ".".join(words[:at]) in stacks)
    yield from (".".join(words[: at + 1]) for at in places if at and words[at - 1] in TABLE["stacks"])


def _matching(names: list[str], pattern: str, shape: Shape | None = None) -> tuple[str, ...]:
    """The tensors that fit a pattern; of a stack of matrices, each of them."""
    found: list[str] = []
    for name in filter(re.compile(pattern).fullmatch, names):
        size = shape(name) if shape else ()
        found += [f"{name}[{at}]" for at in range(size[0])] if len(size) == 3 else [name]
    return tuple(found)


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers inside names count as numbers: layer 2 before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]


def not_taken(
    names: Iterable[str], groups: Mapping[str, Collection[str]], stored: Callable[[str], Stored],
    root: str | None = None, roles: Mapping[str, str] | None = None,
) -> dict[str, tuple[str, ...]]:  # fmt: skip
    """Tensors that look like matrices, are in no group and have no known name, by their names with a star per number.

    names: all of the checkpoint. groups: what `find_groups` made of them. stored: how each is stored. root, roles: as
    there.
    """
    found: dict[str, list[str]] = {}
    for name, role in others(names, groups, root, roles).items():
        if role is None and _looks_like_matrices(stored(name)):
            kind = ".".join("*" if is_number(word) else word for word in name.split("."))
            found.setdefault(kind, []).append(name)
    return {kind: tuple(several) for kind, several in found.items()}


def others(
    names: Iterable[str], groups: Mapping[str, Collection[str]], root: str | None = None,
    roles: Mapping[str, str] | None = None,
) -> dict[str, str | None]:  # fmt: skip
    """What the tensors in no group are known as (norm, router, head, ...), or None; arguments as of `not_taken`.

    >>> others(["h.0.ln_1.weight", "lm_head.weight", "h.0.wild.weight"], {})
    {'h.0.ln_1.weight': 'norm', 'lm_head.weight': 'head', 'h.0.wild.weight': None}
    """
    everything = list(names)
    mine = in_root(weights_of(everything), choose_root(everything, root))
    in_groups = {tensor for group in groups.values() for name in group for tensor in (name, tensor_of(name))}
    known = {one.name for one in taken(mine, None, None, roles) if one.group == NONE}
    routed = any(word in name for name in mine for word in _ASIDE["experts"])  # without experts a gate is no router
    return {
        name: "state" if name in known else _known_as(name, layer, routed=routed)
        for name, layer in layers_of(mine).items()
        if name not in in_groups
    }


def not_taken_notes(found: Mapping[str, Collection[str]], stored: Callable[[str], Stored]) -> tuple[str, ...]:
    """A sentence on what `not_taken` found, if it found anything, with the line that would take the first kind."""
    if not found:
        return ()
    count = sum(map(len, found.values()))
    shown = [f"{kind} ({_shapes(several, stored)})" for kind, several in list(found.items())[:_KINDS]]
    more = f" and {counted(len(found) - _KINDS, 'more kind')} of names" if len(found) > _KINDS else ""
    why = f"because {'its name is' if count == 1 else 'their names are'} not known"
    lines = [line for line in map(_line_for, found) if line]
    how = f"; a line of roles: {lines[0]}" if lines else ""
    return (f"not taken: {counted(count, 'matrix', 'matrices')}, {why}: {', '.join(shown)}{more}{how}",)


def _line_for(kind: str) -> str | None:
    """The line that a user would write for a kind of names; None where no line can be copied from it."""
    words = kind.removesuffix(".weight").split(".")
    layers = [at for at, word in enumerate(words) if word == "*" and at and words[at - 1] in TABLE["stacks"]]
    words = words[layers[0] + 1 :] if layers else words[-3:]
    group = re.sub(r"\W+", "_", "_".join(word for word in words if word != "*"))[:40].strip("_")
    safe = all(re.fullmatch(r"[\w*-]+", word) for word in words) and re.fullmatch(r"[A-Za-z_]\w*", group)
    return f'"{".".join(words)}" = "{group}"' if safe else None


def _known_as(name: str, layer: str | None, *, routed: bool) -> str | None:
    """What a name means for which there is no group.

    Only the module itself can be a norm: DBRX has attention in `norm_attn_norm`, diffusion models have a matrix in
    `norm1.linear`. The gate of an expert is no router.
    """
    words = (name if layer is None else name[len(layer) + 1 :]).split(".")
    if words[-1].endswith("bias"):
        return "bias"
    if any(map(_OTHER.search, words[-2:])):
        return "norm"
    if layer is None:
        module = words[:-1] if words[-1] == "weight" else words
        if not _HEADS.isdisjoint({module[-1] if module else "", ".".join(module[-2:])}):
            return "head"
        return "table" if module and _TABLES.search(module[-1]) else None
    before_experts = words[: words.index("experts")] if "experts" in words else words
    return "router" if routed and not _ROUTERS.isdisjoint(before_experts) else None


def _looks_like_matrices(stored: Stored) -> bool:
    """A mask of true and false is no matrix, nor is a kernel of a convolution along one channel."""
    return len(stored.shape) in (2, 3) and min(stored.shape[-2:]) > 1 and stored.dtype is not torch.bool


def _shapes(names: Collection[str], stored: Callable[[str], Stored]) -> str:
    (shape, _), *others = Counter(stored(name).shape for name in names).most_common(2)
    times = f", {len(names)} times" if len(names) > 1 else ""
    return f"{' x '.join(map(str, shape))}{' and others' if others else ''}{times}"
