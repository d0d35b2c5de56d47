"""Figure 6 beyond decoders: attention entropy while masked language models and vision Transformers train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Claim, Drawing, Finding, Least, OnlyAtPaperScale, Progress, Study, Within
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, needs_device
from joma.data.ahead import Ahead, turns
from joma.data.stroke_digits import CLASSES, stroke_digits
from joma.data.text import Corpus, streams
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import panels
from joma.host.seeds import generator
from joma.models.decoder import Decoder
from joma.models.decoder_config import DecoderConfig, Norm
from joma.probes.decoder import ensemble_entropy
from joma.recipes import grid
from joma.recipes.language import LanguageModelConfig, Recipe, called, corpus, curves, recipe, same_text, train_variants
from joma.recipes.language.text import steps_to_read
from joma.recipes.language.training import validation_sequences
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.language._figures import WITH_RANGE, plot_layers
from joma.studies.language._judges import FLAT, Depths, judge_halves, judge_rebounds
from joma.training import Ensemble, class_loss, cross_entropy, train_all

KINDS = {"masked": "masked language model", "vision": "vision Transformer"}
AS_MASK, AS_ANOTHER = 0.8, 0.1
"""Shares of the chosen words that are replaced by the mask and by a random word, as in BERT; the others stay."""
INK = 0.5  # from this shade on a pixel is black: 0 is the ground, about 1 a stroke


@dataclass(frozen=True)
class MaskedAndVisionConfig(LanguageModelConfig):
    """Encoders that differ in depth alone: every position sees all others."""

    layers: tuple[int, ...] = (1,)
    norm: Norm = "pre-layer"
    """Before attention and MLP, as in ViT; BERT's own blocks are post-layer."""
    rate: float = 1e-2
    """Of the masked models."""
    masked: Annotated[float, Above(0), Within(0, 1)] = 0.15
    """Share of the words of a sequence that are to be filled in."""
    image_rate: float = 5e-3
    """Of the vision models."""
    side: Annotated[int, Least(8, "to show seven strokes")] = 9
    """Pixels along an image."""
    patch: Annotated[int, Least(2), Within(2, 3)] = 3
    """Pixels along a patch."""
    noise: float = 0.25
    """Of the images' pixels."""
    images: int = 8_192
    """To train on, in turn."""
    held_out: int = 512
    """Images to measure on."""
    batch: int = 32
    """Images of a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side % self.patch:
            raise ValueError(f"side must be a multiple of patch, {self.patch}, got {self.side}")


def run(config: MaskedAndVisionConfig, run: Run, progress: Progress) -> None:
    """Train one ensemble of seeds per kind and depth."""
    needs_device(config.device, device="cpu", precision="float32")
    text = corpus(config, progress)
    run.keep("layers", lambda: np.array(config.layers))
    train_masked(config, text, run, lambda done, doing: progress(0.45 * done, doing))
    train_vision(config, run, lambda done, doing: progress(0.45 + 0.53 * done, doing))


def train_masked(config: MaskedAndVisionConfig, text: Corpus, run: Run, progress: Progress) -> None:
    """Models that fill in words which they cannot see."""
    words = len(text.vocabulary)
    variants = {
        f"masked L{layers}": recipe(config, text, layers=layers, rates=(config.rate,)).with_decoder(
            **encoder(config), vocabulary=words + 1, outputs=words
        )
        for layers in config.layers
    }

    def adapt(name: str, plain: Ensemble) -> Ensemble:
        return fill_in(config, variants[name], text, plain)

    train_variants(variants, text, run, progress, share=1.0, adapt=adapt)


def encoder(config: MaskedAndVisionConfig) -> dict[str, object]:
    """What the networks of both kinds have in common."""
    return {"causal": False, "norm": config.norm, "activation": "gelu", "positions": "learned", "copies": False}


def fill_in(config: MaskedAndVisionConfig, variant: Recipe, text: Corpus, plain: Ensemble) -> Ensemble:
    """An ensemble that reads the same text as `plain`, every seed with masks of its own."""
    words, length = len(text.vocabulary), config.length
    count = max(1, round(config.masked * length))
    read = streams(text.tokens["train"].long(), config.streams)
    epoch, last = steps_to_read(read, length), read.shape[-1] - length

    def draw(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        drawn = []
        for step in steps:
            first = min(step % epoch * length, last)
            seeds = [variant.seeds[member] for member in members]
            tokens = read[:, first : first + length]
            drawn += [mask(tokens, count, words, generator(seed, "masks", step)) for seed in seeds]
        stacked = (torch.stack(part) for part in zip(*drawn, strict=True))
        return tuple(part.view(len(steps), len(members), *part.shape[1:]) for part in stacked)

    shown = validation_sequences(variant, text)[0]
    held_out = mask(shown.cpu(), count, words, generator(config.seed, "masks of held-out text"))
    measures = {"valid": measure(masked_loss, *(part.to(config.device) for part in held_out))}
    batch = Ahead(draw, steps=config.steps, device=config.device)
    return replace(plain, batch=batch, loss=masked_loss, measures=measures)


def mask(tokens: Tensor, count: int, words: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (sequences, length) with `count` of each sequence to be filled in: what is shown, where, what is right.

    The mask is the token after the last word.
    """
    places = torch.rand(tokens.shape, generator=generator).argsort(-1)[..., :count]
    right = tokens.gather(-1, places)
    luck = torch.rand(places.shape, generator=generator)
    another = torch.randint(words, places.shape, generator=generator)
    kept = torch.where(luck < AS_MASK + AS_ANOTHER, another, right)
    shown = tokens.scatter(-1, places, torch.where(luck < AS_MASK, words, kept))
    return shown, places, right


def masked_loss(decoder: Decoder, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the words to be filled in, (members,); batch: what `mask` gives."""
    shown, places, right = batch
    features = decoder.features(shown, noise=noise)
    at = places.expand(decoder.members, *places.shape[-2:])[..., None].expand(-1, -1, -1, features.shape[-1])
    targets = right.flatten(-2).expand(decoder.members, -1)
    return cross_entropy(features.gather(2, at).flatten(1, 2), decoder.out, decoder.out_bias, targets)


def measure(
    loss: Callable[..., Tensor], tokens: Tensor, *targets: Tensor
) -> Callable[[Decoder, Sequence[int]], dict[str, Tensor]]:
    """Loss and attention entropy on held-out samples, at a measuring point."""

    def measured(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        return {"loss": loss(decoder, (tokens, *targets)).double(), "entropy": ensemble_entropy(decoder, tokens)}

    return measured


def train_vision(config: MaskedAndVisionConfig, run: Run, progress: Progress) -> None:
    """Models that name the digit in an image, read from the last token."""
    seeds = range(config.seed, config.seed + config.seeds)
    tokens, digits = images(config, config.images, "to train on")
    held_out = [part.to(config.device) for part in images(config, config.held_out, "held out")]

    def draw(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        which = turns(steps, config.batch, config.images, "cpu")[:, None].expand(-1, len(members), -1)
        return tokens[which], digits[which]

    ensembles = {}
    for layers in config.layers:
        name, shape = f"vision L{layers}", vision_shape(config, layers, tokens.shape[-1])
        values = {"rates": np.array([config.image_rate]), "seeds": np.array(seeds)}
        for part, value in {**values, "loss by frequency": np.array(log(CLASSES))}.items():
            run.keep(f"{name}/{part}", lambda value=value: value)  # type: ignore[misc]
        ensembles[name] = grid.ensemble(
            config,
            len(seeds),
            networks=lambda members, shape=shape: Decoder(shape, [seeds[member] for member in members]),
            batch=Ahead(draw, steps=config.steps, device=config.device),
            loss=class_loss,
            optimizer=make_optimizer("adam", config.image_rate, clip=config.clip),
            measures={"valid": measure(class_loss, *held_out)},
            measure_at=tuple(range(0, config.steps + 1, config.every)),
        )
    train_all(ensembles, run, progress=progress)


def vision_shape(config: MaskedAndVisionConfig, layers: int, length: int) -> DecoderConfig:
    """A ViT whose patches are black and white: each kind of patch has an embedding of its own."""
    sizes = {name: getattr(config, name) for name in ("width", "heads", "mlp", "dropout")}
    vocabulary = 2**config.patch**2 + 1  # the last one stands for the class that is asked for
    return DecoderConfig(vocabulary, outputs=CLASSES, layers=layers, context=length, **sizes, **encoder(config))  # type: ignore[arg-type]


def images(config: MaskedAndVisionConfig, count: int, what: str) -> tuple[Tensor, Tensor]:
    """Images as tokens (images, patches + 1), and their digits; the same on every machine and for every seed."""
    drawn = stroke_digits(count, side=config.side, generator=generator(config.seed, "images", what), noise=config.noise)
    asked = torch.full((count, 1), 2**config.patch**2)
    return torch.cat([patches(drawn.pixels, config.patch), asked], 1), drawn.labels


def patches(pixels: Tensor, size: int) -> Tensor:
    """Images (images, side, side) as numbers of their patches, row by row: each pixel is a digit of base two."""
    count, side, _ = pixels.shape
    black = (pixels > INK).view(count, side // size, size, side // size, size).transpose(2, 3)
    return (black.flatten(-2).flatten(1, 2).long() << torch.arange(size**2)).sum(-1)


CLAIMS = Claims(source="JoMA Fig. 6", matters=FLAT, unit="nats")


def variants(run: Run, kind: str) -> Depths:
    """The networks of a kind by their number of layers."""
    return {int(layers): f"{kind} L{layers}" for layers in sorted(run.value("layers"))}


def several(run: Run, kind: str) -> Depths:
    """Those of at least two layers, which quick scale has no time for."""
    if found := {layers: name for layers, name in variants(run, kind).items() if layers > 1}:
        return found
    raise OnlyAtPaperScale("all networks of this record have one layer", at_paper_scale("masked-and-vision"))


def judge_one(run: Run, claim: Claim, kind: str) -> Finding:
    """One layer drops and comes back."""
    return judge_rebounds(run, claim, {n: name for n, name in variants(run, kind).items() if n == 1})


def judge_top(run: Run, claim: Claim, kind: str) -> Finding:
    """The top half of several layers drops and comes back."""
    return judge_rebounds(run, claim, several(run, kind))


def judge_bottom(run: Run, claim: Claim, kind: str) -> Finding:
    """The bottom half of several layers ends below the top half."""
    return judge_halves(run, claim, several(run, kind))


COMES_BACK = (
    f"in each of these layers entropy drops and comes back, both by at least {FLAT:g} nats and by more than seeds "
    "differ by chance (99 %); more than 2 % of the drop comes back"
)
STAYS_LOW = (
    f"the top half of the layers ends above the bottom half; this gap is at least {FLAT:g} nats larger than before "
    "training, and larger by more than seeds differ"
)
FIGURE_6 = {
    "one-layer": ("With one layer, the attention entropy of a {} first drops and then rebounds", COMES_BACK, judge_one),
    "top-layers": (
        "With several layers, the attention entropy of the top layers of a {} first drops and then rebounds",
        COMES_BACK,
        judge_top,
    ),
    "bottom-layers": (
        "With several layers, the attention entropy of a {} ends lower in the bottom layers than in the top layers",
        STAYS_LOW,
        judge_bottom,
    ),
}
"""What Figure 6 says of decoders, what would be seen of other networks, and who judges it."""
for kind, networks in KINDS.items():
    for name, (says, expected, judging) in FIGURE_6.items():
        sentence = f"{says.format(networks)}.\n\nExpected: {expected}"
        judge = partial(judging, kind=kind)
        CLAIMS.declare(f"{kind}-{name}", text=sentence, uses=(f"fig6/fig6-{name}",))(judge)


def draw(run: Run) -> list[Drawing]:
    """Entropy by layer, one panel per kind and depth."""
    depths = sorted(int(layers) for layers in run.value("layers"))
    shown = {variants(run, kind)[layers]: (kind, layers) for layers in depths for kind in KINDS}
    figure, axes = panels(len(KINDS), len(depths), width=3.4, height=2.5)
    for axis, (name, (kind, layers)) in zip(axes, shown.items(), strict=True):
        plot_layers(axis, run, name)
        depth = f"{layers} layer{'s' if layers > 1 else ''}"
        axis.set(title=f"{KINDS[kind][0].upper()}{KINDS[kind][1:]}, {depth}", ylabel="attention entropy (nats)")
        label_lines(axis, fontsize=8 if layers <= WITH_RANGE else 7)
    moves = []
    for name, (kind, layers) in shown.items():
        drop, back = (curves.mean_over_seeds(part[-1]) for part in curves.drops_and_rebounds(run, name))
        which = f"the top layer of a {KINDS[kind]} of {layers}" if layers > 1 else f"a {KINDS[kind]} of one layer"
        moves.append(f"{number(drop, 'nats')} and {number(back, 'nats')} in {which}")
    caption = (
        f"Attention entropy drops and comes back by {listing(moves)}. Masked models read "
        f"{called(run.config['corpus'])}, vision models read images of digits. Lines: mean of {run.config['seeds']} "
        "seeds on held-out samples; bands: their range. Layer 1 is the one next to the input."
    )
    return [Drawing("entropy-over-training", caption, figure)]


STUDY = Study(
    name="masked-and-vision",
    title="Figure 6 for BERT and ViT: attention entropy of encoders over training",
    version=1,
    claims=CLAIMS,
    quick=MaskedAndVisionConfig(
        vocabulary=80, width=24, mlp=24, dropout=0.0, streams=16, length=16, sequence=5, valid_sequences=10, steps=400,
        every=40, seeds=8, renew_each_epoch=False,
    ),
    paper=MaskedAndVisionConfig(
        corpus="wikitext-2", tokens=1_000_000_000, vocabulary=10_000, width=200, mlp=800, heads=4, dropout=0.1,
        streams=20, length=64, sequence=20, valid_sequences=50, steps=15_000, every=500, seeds=5, seed=3, rate=3e-4,
        layers=(1, 4), image_rate=3e-4, side=24, noise=0.35, images=65_536, held_out=2_048, batch=64,
        renew_each_epoch=False, device="cuda", precision="tf32",
    ),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "Figure 6 has decoders that predict the next word. Here every position sees all others. Masked models fill in "
        "15 % of the words, chosen and replaced as in BERT. Vision models name a digit that joma draws from strokes. "
        "An image is a sequence of black and white patches. Each kind of patch has an embedding of its own, where ViT "
        "has a linear map of pixels. Blocks have their norm before attention and MLP, GELU and learned positions. The "
        "judges are those of Figure 6."
    ),
)  # fmt: skip
