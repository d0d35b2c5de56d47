"""Training text, held-out files with their syntax, and how well neurons stand for it: the parts of `python-hierarchy`.

Every label that is frequent enough is a latent: 1 where a token stands in that kind of syntax, else 0. Three versions
of it are scored. "labels": the latent itself. "rotated": the latent of another place of the same file, which keeps how
often and how long it is on, and nothing else. "beyond": the latent less its mean given the current token, so that what
merely recognises the token scores 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from joma.data.errors import CorpusError
from joma.data.python_source import PythonTokens
from joma.measure.alignment import held_out_correlation, linear_probe
from joma.measure.correlation import pearson
from joma.models import Decoder

LEVELS = ("expression", "statement", "block", "definition")
"""From close to the tokens to far above them."""
VERSIONS = ("labels", "rotated", "beyond")
FREQUENT = 0.02  # of the training tokens: the rarest label that is a latent
RIDGE = 1e-3  # of the linear probes, in the units of `linear_probe`
SMOOTHING = 1.0  # tokens of the mean latent, added to what was counted of each token


class Sizes(Protocol):
    """What is needed of the study's config."""

    @property
    def context(self) -> int: ...
    @property
    def windows(self) -> int: ...
    @property
    def held_out(self) -> float: ...


class Latents(NamedTuple):
    """The labels that are frequent enough."""

    level: Tensor
    """(latents,) index into LEVELS."""
    label: Tensor
    """(latents,) index into the names of the level."""
    share: Tensor
    """(latents,) of the training tokens."""
    given_token: Tensor
    """(vocabulary, latents) mean of the latent where the token is this one, in the training files."""


class Half(NamedTuple):
    """Windows on held-out files, and the latents at the later half of their positions, where there is context."""

    windows: Tensor  # (members, windows, context + 1)
    latents: Tensor  # (members, samples, versions * latents)
    table: Tensor  # (members, samples, latents) what the current token alone says of the latents


class Material(NamedTuple):
    """All that is read: the training text, and for every seed its two halves of the held-out files."""

    train: Tensor  # (tokens,)
    latents: Latents
    chosen: Half
    scored: Half
    files: tuple[int, int]  # to train on, held out


def prepare(code: PythonTokens, sizes: Sizes, seeds: Sequence[int]) -> Material:
    """Split the files, find the latents, and draw for every seed its own halves and windows of the held-out files."""
    starts = code.starts
    first = int((starts - (1 - sizes.held_out) * len(code.tokens)).abs().argmin())
    held = len(code.files) - first
    cut = int(starts[first])
    if held < 4 or first < 4:
        raise CorpusError(
            f"{len(code.tokens):,} tokens are {len(code.files)} files, of which held_out leaves {first} to train on "
            f"and {held} to hold out: at least 4 of each are needed"
        )
    latents = find_latents(code, cut)
    halves = [_halves(code, latents, first, sizes, seed) for seed in seeds]
    chosen, scored = (Half(*map(torch.stack, zip(*half, strict=True))) for half in zip(*halves, strict=True))
    return Material(code.tokens[:cut].long(), latents, chosen, scored, (first, held))


def find_latents(code: PythonTokens, count: int) -> Latents:
    """The frequent labels of the first `count` tokens, and what each token says of them. "none" is no syntax."""
    level, label = [], []
    for number, name in enumerate(LEVELS):
        shares = torch.bincount(code.labels[name][:count].long(), minlength=len(code.names[name])) / count
        for kind, share in zip(code.names[name], shares.tolist(), strict=True):
            if kind != "none" and FREQUENT <= share <= 1 - FREQUENT:
                level.append(number)
                label.append(code.names[name].index(kind))
    found = Latents(torch.tensor(level), torch.tensor(label), torch.empty(0), torch.empty(0))
    values = _on(code, found, slice(0, count))
    share = values.mean(0)
    tokens = code.tokens[:count].long()
    sums = torch.zeros(len(code.vocabulary), len(level), dtype=torch.float64).index_add_(0, tokens, values)
    counts = torch.bincount(tokens, minlength=len(code.vocabulary))[:, None]
    return found._replace(share=share, given_token=(sums + SMOOTHING * share) / (counts + SMOOTHING))


def _on(code: PythonTokens, latents: Latents, where: slice) -> Tensor:
    """(tokens, latents) 1 where the latent is on."""
    labels = torch.stack([code.labels[level][where] for level in LEVELS], 1)
    return (labels[:, latents.level] == latents.label).double()


def _halves(code: PythonTokens, latents: Latents, first: int, sizes: Sizes, seed: int) -> tuple[Half, Half]:
    """The held-out files in two parts of about the same length, by a draw of their own for every seed."""
    generator = torch.Generator().manual_seed(seed)
    order = first + torch.randperm(len(code.files) - first, generator=generator)
    length = code.starts.diff()[order]
    middle = int((length.cumsum(0) - length.sum() / 2).abs().argmin()) + 1
    one, other = (_half(code, latents, part, sizes, generator) for part in (order[:middle], order[middle:]))
    return one, other


def _half(code: PythonTokens, latents: Latents, files: Tensor, sizes: Sizes, generator: torch.Generator) -> Half:
    tokens, on, rotated = [], [], []
    for file in files.tolist():
        where = slice(int(code.starts[file]), int(code.starts[file + 1]))
        tokens.append(code.tokens[where].long())
        on.append(_on(code, latents, where))
        length = len(tokens[-1])
        by = length // 4 + int(torch.randint(length // 2 + 1, (), generator=generator))
        rotated.append(on[-1].roll(by, 0))
    text, value, elsewhere = torch.cat(tokens), torch.cat(on), torch.cat(rotated)
    if len(text) <= sizes.context:
        raise CorpusError(f"a window of {sizes.context} tokens is longer than half of the held-out files ({len(text)})")
    begin = torch.randint(len(text) - sizes.context, (sizes.windows, 1), generator=generator)
    late = (begin + torch.arange(sizes.context // 2, sizes.context)).flatten()
    table = latents.given_token[text[late]]
    versions = torch.cat([value[late], elsewhere[late], value[late] - table], 1)
    return Half(text[begin + torch.arange(sizes.context + 1)], versions.float(), table.float())


def places(layers: int) -> list[str]:
    """Where alignment is measured, in the order of the rows that `alignment` gives."""
    blocks = range(1, layers + 1)
    return ["neuron", *(f"neuron {block}" for block in blocks), "hidden", *(f"stream {block}" for block in blocks)]


def alignment(decoder: Decoder, chosen: Half, scored: Half) -> Tensor:
    """Correlations with the latents on the scored half, (members, places, versions, latents); NaN: not to be had.

    Rows: the best hidden neuron of all blocks, of each block; a linear probe on the hidden neurons of each block, on
    the stream behind each block. Neurons are chosen and probes fitted on the other half. A member whose activity is
    not finite scores NaN throughout.
    """
    one, other = _activity(decoder, chosen), _activity(decoder, scored)
    sound = torch.ones(decoder.members, dtype=torch.bool, device=chosen.windows.device)
    for activity in (*one, *other):
        finite = activity.isfinite().flatten(1).all(1)
        activity[~finite] = 0.0
        sound &= finite
    layers = decoder.config.layers
    hidden, stream = (list(zip(one[part], other[part], strict=True)) for part in (slice(layers), slice(layers, None)))
    whole = (torch.cat(one[:layers], -1), torch.cat(other[:layers], -1))
    rows = [
        held_out_correlation(a, chosen.latents, fresh_activity=b, fresh_latents=scored.latents).per_latent
        for a, b in (whole, *hidden)
    ]
    rows += [
        linear_probe(a, chosen.latents, fresh_activity=b, fresh_latents=scored.latents, ridge=RIDGE).per_latent
        for a, b in (whole, *stream)
    ]
    found = torch.stack(rows, 1).unflatten(-1, (len(VERSIONS), -1))
    return torch.where(sound[:, None, None, None], found, torch.nan)


def _activity(decoder: Decoder, half: Half) -> list[Tensor]:
    """(members, samples, neurons) of the hidden layers, then of the streams."""
    seen: dict[tuple[str, int], Tensor] = {}
    late = decoder.config.context // 2

    def look(layer: int, name: str, value: Tensor) -> None:
        if name in ("hidden", "stream"):
            seen[name, layer] = value[:, :, late:].flatten(1, 2)

    decoder.features(half.windows[..., :-1], look=look)
    return [seen[name, layer] for name in ("hidden", "stream") for layer in range(decoder.config.layers)]


def token_score(scored: Half, latents: int) -> Tensor:
    """Correlation of each latent with what the current token alone says of it, (members, latents)."""
    found: Tensor = pearson(scored.latents[..., :latents].double().mT, scored.table.double().mT)
    return found
