"""LoRA adapters: what they add to a weight, W + s B A, measured alone or together with the base they belong to.

Alone, the product is never formed. With B = P R and A^T = Q S (QR), B A has the singular values of R S^T, a matrix as
small as the rank of the adapter, and zeros. That core is what is read, times the scale s.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import Parts, Recipe, Rows, Stored

CONFIG = "adapter_config.json"
# "lora_A.weight", and with the name of the adapter, as a training run keeps it: "lora_A.default.weight".
_DOWN = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?A(?P<name>\.\w+?)?(?P<weight>\.weight)?")
_MOST_GROUPS = 2  # in a pattern for names of modules
_MOST_REPEATS = 2  # of a letter or a class: the time grows with a power of a name's length, and that is the power
_LONGEST = 200  # letters of a pattern
_LONGEST_NAME = 160  # letters of the name of a module that patterns are tried on


@dataclass(frozen=True)
class Factors:
    """The names of the two factors of one module, and the scale of their product.

    target: the weight that they change. alpha, root: the scale is alpha, divided by the rank or by its root.
    embedding: whether the product is added transposed, as for embeddings. magnitude: the lengths of the rows (DoRA).
    """

    target: str
    down: str
    up: str
    alpha: float
    root: bool
    embedding: bool = False
    magnitude: str | None = None

    def taken(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """A and s B in double precision; a sentence where they do not fit together."""
        a, b = parts.look(self.down).shape, parts.look(self.up).shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or 0 in (*a, *b):
            raise CheckpointError(f"{self.down} {a} and {self.up} {b} are no two factors of a matrix", tensor=self.down)
        scale = self.alpha / (sqrt(a[0]) if self.root else a[0])
        return parts.take(self.down).double(), scale * parts.take(self.up).double()


@dataclass(frozen=True)
class Core(Recipe):
    """What an adapter adds to one weight, as the small matrix with the same singular values."""

    factors: Factors

    def stored(self, parts: Parts) -> Stored:
        a, b = parts.look(self.factors.down).shape, parts.look(self.factors.up).shape
        if len(a) != 2 or len(b) != 2:
            return Stored((*b, *a), torch.float32)  # of a convolution: no matrix, and refused as that
        return Stored((min(b), min(a)), torch.float32)

    def note(self, parts: Parts) -> str:
        dora = ", without the row lengths that DoRA adds" if self.factors.magnitude else ""
        return f"made from the factors of a LoRA adapter (the core with the singular values of s B A{dora})"

    def made(self, parts: Parts) -> Tensor:
        down, up = self.factors.taken(parts)
        return (_triangle(up) @ _triangle(down.T).T).float()


class Renamed(Recipe):
    """A tensor that an adapter holds in full, under the name that the model has for it."""

    def stored(self, parts: Parts) -> Stored:
        return parts.look(self.parts[0])

    def read(self, parts: Parts, rows: Rows | None = None) -> Tensor:
        return parts.take(self.parts[0], rows)


def adapter_recipes(names: Collection[str], settings: Mapping[str, Any]) -> dict[str, Recipe]:
    """What the adapter among `names` adds, by the weight that it is added to; settings: its adapter_config.json."""
    found: dict[str, Recipe] = {
        each.target: Core(tuple(part for part in (each.down, each.up, each.magnitude) if part), each)
        for each in factors_of(names, settings)
    }
    for name in (each for each in names if ".lora_" not in each):
        plain = plain_name(name)
        if isinstance(core := found.get(plain), Core):  # the base's own, of an embedding: no tensor beside this one
            found[plain] = replace(core, parts=(*core.parts, name))
        elif plain != name:
            found[plain] = Renamed((name,))
    return found


def factors_of(names: Collection[str], settings: Mapping[str, Any]) -> Iterator[Factors]:
    """The pairs of factors among `names`, with the scales that the settings give them."""
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        what = f"{CONFIG} describes an adapter of the kind {str(kind)[:40]!a}; only LORA is read"
        raise CheckpointError(what, file=CONFIG)
    there = names if isinstance(names, dict) else set(names)
    for name, found in ((found[0], found) for found in map(_DOWN.fullmatch, names) if found):
        module, suffix = found["module"], f"{found['name'] or ''}{found['weight'] or ''}"
        up = f"{module}.lora_{found['embedding'] or ''}B{suffix}"
        if up not in there:
            raise CheckpointError(f"{name} is there, and the other factor {up} is not", tensor=name)
        target = plain_name(module)
        lengths = (f"{module}.lora_magnitude_vector{ending}" for ending in (suffix, ".weight", ""))
        magnitude = next((each for each in lengths if each in there), None)
        alpha, root = _alpha(settings, target), settings.get("use_rslora") is True
        yield Factors(f"{target}.weight", name, up, alpha, root, bool(found["embedding"]), magnitude)


def plain_name(name: str) -> str:
    """A name without what peft puts before and into it.

    >>> plain_name("base_model.model.lm_head.modules_to_save.default.weight"), plain_name("base_model.model.h.0.c_fc")
    ('lm_head.weight', 'h.0.c_fc')
    """
    name = re.sub(r"^(base_model\.model\.|base_model\.)", "", name).replace(".base_layer", "")
    return re.sub(r"\.(modules_to_save|original_module)(\.\w+)?(?=\.(weight|bias)$)", "", name)


def _alpha(settings: Mapping[str, Any], module: str) -> float:
    alpha, patterns = settings.get("lora_alpha", settings.get("r")), settings.get("alpha_pattern") or {}
    for pattern, own in patterns.items() if isinstance(patterns, dict) else ():  # some modules have their own
        if module == pattern or module.endswith(f".{pattern}") or _fits(pattern, module):
            alpha = own
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e30:
        raise CheckpointError(f"{CONFIG} has no number lora_alpha, so the scale of the adapter is unknown", file=CONFIG)
    return float(alpha)


def _fits(pattern: str, module: str) -> bool:
    """Patterns are a stranger's regular expressions: only those are tried that cannot take for ever.

    Letters, choices and classes are tried, and what repeats one letter or class, a few times: "layers.[0-9]+.q_proj".
    What repeats a group is refused: the scale that peft would use is then not known.
    """
    if not isinstance(pattern, str) or len(pattern) > _LONGEST:
        raise CheckpointError(f"{CONFIG} has a pattern of more than {_LONGEST} letters", file=CONFIG)
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "c", re.sub(r"\\.", "e", pattern, flags=re.S)).replace("(?:", "(")
    if len(re.findall(r"[*+?{]", plain)) > _MOST_REPEATS or re.search(r"\)[*+?{]", plain):
        how = f"repeats more than {_MOST_REPEATS} letters, or a group, which could take for ever"
        raise CheckpointError(f"{CONFIG} has a pattern that {how}: {pattern[:40]!a}", file=CONFIG)
    if plain.count("(") > _MOST_GROUPS:  # (.|a) 38 times has 2^38 ways to fit a word of as many letters
        what = f"{CONFIG} has a pattern of more than {_MOST_GROUPS} groups, which could take for ever: {pattern[:40]!a}"
        raise CheckpointError(what, file=CONFIG)
    if len(module) > _LONGEST_NAME:
        raise CheckpointError(f"{CONFIG} has patterns, and a module has a name of {len(module):,} letters", file=CONFIG)
    try:
        return re.fullmatch(rf"(.*\.)?({pattern})$", module) is not None
    except (re.error, RecursionError, OverflowError):
        raise CheckpointError(
            f"{CONFIG} has a pattern that is not a regular expression: {pattern[:40]!a}", file=CONFIG
        ) from None


def _triangle(matrix: Tensor) -> Tensor:
    """R of a QR decomposition with a diagonal that is not negative, so that it changes as smoothly as the matrix."""
    r: Tensor = torch.linalg.qr(matrix, mode="r").R
    return torch.where(r.diagonal() < 0, -1.0, 1.0).to(r)[:, None] * r
