"""The networks of `spread`, and what is measured on them.

Named as in `rebound-cause`: "2 layers". Beside networks of two layers stand

    2 layers, SGD                     trained with SGD
    2 layers, norms before, 4 heads   norms before attention and MLP, several heads
    2 layers, text shuffled           the words of the text in random order: there is nothing to attend to
    2 layers, QK frozen               queries and keys stay as they start
    2 layers, embeddings frozen       word vectors stay as they start

of which the last three end at the valley. Recorded over steps under the name, beside `valid/loss` and `valid/entropy`:

    spread/variance, /shared, /specific, /cross    (members, layers, heads)   s2 and its parts
    spread/growth, /alignment, /context            (members, layers, heads)   s2 is their product
    spread/mean_share, /rank                       (members, layers)          of what a layer reads
    spread/held/...                                (members, layers, heads)   entropy with logits rescaled, see `HELD`

and once: `gaussian entropy`, (points, members, layers, heads), that of Gaussian logits of the variance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from joma.claims.contract import Above, Least, Progress, Values
from joma.data.text import Corpus
from joma.host.seeds import generator
from joma.models.decoder import Decoder
from joma.probes.decoder import ensemble_spread
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, recipe, train_variants
from joma.recipes.language.training import ensemble, validation_sequences, with_words
from joma.runs import Run
from joma.studies.rebound._cases import base_name
from joma.studies.rebound._points import Measure, spread_points
from joma.studies.rebound.rebound_cause.run import TWO
from joma.studies.rebound.spread.record import EMBEDDINGS, HELD, QK, SGD, SHUFFLED, keep_gaussian, norms_before


@dataclass(frozen=True)
class SpreadConfig(LanguageModelConfig):
    """Models that differ in depth, and the one step at which the way back begins."""

    vocabulary: int = 80
    width: int = 16
    mlp: int = 16
    dropout: float = 0.0
    streams: int = 8
    length: int = 16
    sequence: int = 5
    valid_sequences: int = 3
    steps: int = 96
    every: int = 8
    """The first measuring point after the start. Each later one is √2 times as late."""
    layers: Annotated[tuple[int, ...], Values(1)] = (1, 2)
    """With two among them, the controls are trained too."""
    rate: Annotated[float, Above(0)] = 1e-2
    """Of Adam."""
    seeds: int = 5
    valley: int = 48
    """The step at which the way back begins, in all networks, decided before the run."""
    deep_steps: int = 96
    """The last step of networks of more than two layers."""
    others: bool = False
    """Whether networks trained with SGD, and networks with norms before and several heads, stand beside those of two
    layers."""
    sgd_rate: Annotated[float, Above(0)] = 1.0
    many_heads: Annotated[int, Least(2)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        end = min(end_of(self, layers) for layers in self.layers)
        if not self.every < self.valley < end:
            raise ValueError(f"valley must lie between {self.every} and {end}, where training ends, got {self.valley}")
        if self.others and TWO not in self.layers:
            raise ValueError(f"others needs {TWO} among the layers, got {', '.join(map(str, self.layers))}")
        if self.others and self.width % self.many_heads:
            raise ValueError(f"many_heads must divide the width {self.width}, got {self.many_heads}")


def end_of(config: SpreadConfig, layers: int) -> int:
    """The last step of networks of this depth."""
    return config.steps if layers <= TWO else config.deep_steps


def points(config: SpreadConfig, end: int) -> tuple[int, ...]:
    """Measuring points: √2 apart, and the valley."""
    return tuple(sorted({*spread_points(config.every, end), config.valley}))


def plan(config: SpreadConfig, text: Corpus) -> dict[str, Recipe]:
    """All networks by their names."""

    def base(layers: int) -> Recipe:
        return recipe(config, text, layers=layers, rates=(config.rate,)).with_(steps=end_of(config, layers))

    found = {base_name(layers): base(layers) for layers in config.layers}
    if TWO not in config.layers:
        return found
    two, name = base(TWO), base_name(TWO)
    if config.others:
        found[f"{name}, {SGD}"] = two.with_(rates=(config.sgd_rate,)).with_optimizer(kind="sgd", renew_every=None)
        heads = config.many_heads
        found[f"{name}, {norms_before(heads)}"] = two.with_decoder(norm="pre-layer", heads=heads)
    short = two.with_(steps=config.valley)
    found[f"{name}, {SHUFFLED}"] = short
    found[f"{name}, {QK}"] = short.with_(frozen=("QK",))
    found[f"{name}, {EMBEDDINGS}"] = short.with_(frozen=("embeddings",))
    return found


def in_random_order(text: Corpus, seed: int = 0) -> Corpus:
    """The text with the words of each of its parts in random order: as frequent as before, and told by nothing."""

    def mixed(split: str, tokens: Tensor) -> Tensor:
        return tokens[torch.randperm(len(tokens), generator=generator(seed, "word order", split))]

    return replace(text, tokens={split: mixed(split, tokens) for split, tokens in text.tokens.items()})


def run(config: SpreadConfig, run: Run, progress: Progress) -> None:
    """Train all networks, measured at their points; then the entropies of Gaussian logits."""
    text = corpus(config, progress)
    variants, mixed = plan(config, text), in_random_order(text)

    def measured(name: str, plain: Any) -> Any:
        variant, read = variants[name], mixed if name.endswith(SHUFFLED) else text
        plain = ensemble(variant, read) if read is mixed else plain
        tokens = validation_sequences(variant, with_words(read, variant.decoder.vocabulary))[0]
        measures = {"valid": plain.measures["valid"], "spread": spreading(tokens, name, run, config.valley)}
        return replace(plain, measures=measures, measure_at=points(config, variant.steps))

    train_variants(variants, text, run, progress, share=0.95, adapt=measured)
    progress(0.95, "entropies of Gaussian logits")
    keep_gaussian(run, list(variants), config.length)


def spreading(tokens: Tensor, variant: str, run: Run, valley: int) -> Measure:
    """The spread, its factors, and the entropies with logits held at the sizes of the valley, read from the record."""

    def measure(decoder: Any, members: Sequence[int]) -> dict[str, Tensor]:
        spread, why = ensemble_spread(decoder, tokens)
        now = {name: getattr(spread, name) for name in ("variance", "shared", "specific", "cross")}
        now |= {name: value.double() for name, value in why._asdict().items() if name != "shared"}
        then = now
        if (last := run.last_step(f"{variant}/spread/variance")) is not None and last >= valley:
            sizes = {name: run.at(f"{variant}/spread/{name}", valley) for name in ("shared", "specific", "growth")}
            then = {name: torch.from_numpy(size[list(members)]).to(now[name]) for name, size in sizes.items()}
        held = entropies_scaled(decoder, tokens, held_scales(then, now))
        entropies = {f"held/{name}": entropy for name, entropy in zip(HELD, held, strict=True)}
        return {name: value.float() for name, value in now.items()} | entropies

    return measure


def held_scales(then: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What shared and specific logits are multiplied by, one pair for each way of `HELD`, of the shape of the sizes."""

    def ratio(above: Tensor, below: Tensor) -> Tensor:
        return torch.where(below > 0, above / below, 1.0).sqrt()

    shared, specific, weights = (ratio(then[name], now[name]) for name in ("shared", "specific", "growth"))
    size = shared**2 * now["shared"] + specific**2 * now["specific"] + shared * specific * now["cross"]
    back, same = ratio(now["variance"], size), torch.ones_like(shared)
    return [(shared, specific), (shared, same), (same, specific), (back * shared, back * specific), (weights, weights)]


def entropies_scaled(decoder: Decoder, tokens: Tensor, scales: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Entropy of attention if shared and specific logits were multiplied, (members, layers, heads) for each pair."""
    found: list[list[Tensor]] = [[] for _ in scales]
    queries: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "query":  # (members, sequences, heads, length, width)
            queries.append(value)
        elif name == "key":
            query = queries.pop()
            mean = query.mean((1, 3), keepdim=True)
            for (shared, specific), entropies in zip(scales, found, strict=True):
                a, b = (one[:, layer].to(query)[:, None, :, None, None] for one in (shared, specific))
                entropies.append(_entropy(a * mean + b * (query - mean), value, causal=decoder.config.causal))

    decoder.features(tokens, look=look)
    return [torch.stack(layers, 1) for layers in found]


def _entropy(query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        logits = logits.masked_fill(~seen, -math.inf)
    each: Tensor = torch.special.entr(logits.softmax(-1)).sum(-1)
    return each.mean((1, 3), dtype=torch.float64)
