"""Figure 7 and the talk's embedding figure: entropy, stable rank and coherence over a series of checkpoints.

A series for every seed, trained here or given.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Progress, Study, StudyConfig
from joma.claims.guards import at_paper_scale, beyond, hardest, needs_device, needs_transformers, still_falls
from joma.claims.text_source import remember_source
from joma.claims.verdicts import below, by_effect, not_run
from joma.data.python_source import source_text
from joma.figures.reading import between, course, number
from joma.figures.style import CONTROL, depth_colours, panels
from joma.host.errors import BadInput
from joma.host.files import make_folder
from joma.measure.embedding import coherence
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_POINTS, drop_and_rebound, rebound
from joma.runs import Run
from joma.studies.checkpoints._seeds import UNLEARNED, learned, left_out, prefix
from joma.training.series import SeriesConfig, checkpoint_steps, train_series


@dataclass(frozen=True)
class Fig7Config(StudyConfig):
    """A series of checkpoints: one that is given, or a small GPT-NeoX trained for the purpose."""

    series: str = ""
    """A hub model with step revisions or a folder of checkpoints; empty: train one."""
    text: str = ""
    """A text file for attention entropy; needed with --series, as is --seeds 1."""
    device: str = "cpu"
    layers: int = 2
    width: int = 32
    heads: int = 2
    vocabulary: int = 300
    context: int = 32
    batch: int = 8
    steps: int = 120
    rate: float = 3e-3
    every: int = 20
    """Checkpoints beyond Pythia's schedule (0, 1, 2, 4, ..., 512, 1000, ...): one every so many steps."""
    characters: int = 60_000
    """How much Python source to train on."""
    held_out: int = 2_000
    """Characters at the end of the text that are not trained on and that entropy is measured on."""
    wikitext: bool = False
    """Train on WikiText-2 as well, found through JOMA_DATA."""
    seeds: int = 5
    """Networks that are trained here; with fewer than 2 there is no interval and every claim is undecided. Five of two
    layers take no longer than one of four with a width of 64."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.series and self.seeds != 1:
            raise ValueError(f"seeds must be 1 with a series, which was trained once, got {self.seeds}")
        self.own_series()  # what cannot be trained is refused now, not when training starts

    def own_series(self) -> SeriesConfig:
        names = ("layers", "width", "heads", "vocabulary", "context", "batch", "steps", "rate", "seed")
        return SeriesConfig(**{name: getattr(self, name) for name in names}, warmup=0.01)


def run(config: Fig7Config, run: Run, progress: Progress) -> None:
    """Train a series for every seed unless one is given, scan it, and keep its curves."""
    needs_transformers("fig7")
    if config.series and not config.text:
        raise BadInput("a series needs a text to measure attention entropy on: `text` must name a file")
    needs_device(config.device, at_paper_scale("fig7"))
    if not config.series:
        remember_source(run)
    for place in range(config.seeds):

        def of_this(share: float, doing: str, place: int = place) -> None:
            progress((place + share) / config.seeds, doing if config.seeds == 1 else f"network {place + 1}: {doing}")

        _one_network(replace(config, seed=config.seed + place), run, place, of_this)


def _one_network(config: Fig7Config, run: Run, number: int, progress: Progress) -> None:
    own, last = run.path.with_suffix(f".series{number or ''}"), f"{prefix(number)}curve/entropy"
    try:
        if last not in run:
            given = (config.series, Path(config.text)) if config.series else None
            _scan(config, run, number, own, *(given or _train(config, run, number, own, progress)), progress)
    finally:
        if last in run:
            shutil.rmtree(own, ignore_errors=True)


def _train(config: Fig7Config, run: Run, number: int, folder: Path, progress: Progress) -> tuple[str, Path]:
    from joma.scan.model.loading import tokenized

    text = _corpus(config)
    make_folder(folder / "checkpoints")
    at = sorted({*checkpoint_steps(config.steps), *range(0, config.steps + 1, config.every)})
    losses = train_series(
        folder / "checkpoints",
        text[: -config.held_out],
        config.own_series(),
        device=config.device,
        save_at=at,
        progress=lambda share, doing: progress(0.7 * share, doing),
    )
    run.keep(f"{prefix(number)}loss", lambda: losses)
    held_out = folder / "held-out.npy"  # a scan makes tokens of words in a process of its own, which takes seconds
    np.save(held_out, tokenized(folder / "checkpoints" / "step0", text[-config.held_out :], "the held-out text"))
    return str(folder / "checkpoints"), held_out


def _corpus(config: Fig7Config) -> str:
    text = source_text(config.characters)
    if config.wikitext:
        folder = Path(os.environ.get("JOMA_DATA", "")) / "wikitext-2"
        if not os.environ.get("JOMA_DATA") or not (folder / "train.txt").is_file():
            raise NotRun(f"WikiText-2 is not at {folder}", "JOMA_DATA=FOLDER joma verify fig7 --scale paper")
        # Held out is the end: half of each, so that entropy is measured on both kinds of text.
        wiki = (folder / "train.txt").read_text(encoding="utf-8")
        half = config.held_out // 2
        unseen = (folder / "valid.txt").read_text(encoding="utf-8")[:half]
        text = wiki + text[:-half] + unseen + text[-half:]
    return text


def _scan(config: Fig7Config, run: Run, number: int, own: Path, source: str, text: Path, progress: Progress) -> None:
    from joma.scan import open_series, plan, sweep

    series = open_series(source, downloads=run.path.parent)
    wanted = plan(series, measures=("stable_rank", "entropy"), groups=("mlp",), text=text, device=config.device)
    done, place = 0, prefix(number)

    def report(line: str) -> None:
        nonlocal done
        done += line.startswith("[")  # else it is said of a step that goes on
        progress(0.7 + 0.25 * done / len(series.places), f"scanning {line}")

    with _scanned_into(run, number, own) as into:
        found = sweep(wanted, into, report=report)
    if len(found.steps) < FEWEST_POINTS:
        few = f"{len(found.steps)} usable steps; telling a rebound from noise needs {FEWEST_POINTS}"
        raise NotRun(f"{source} has {few}", "joma verify fig7")
    mlp = next(name for name in found.curves if name.startswith("stable_rank/"))
    run.keep(f"{place}steps", lambda: np.array(found.steps))
    run.keep(f"{place}left out", lambda: np.array([fault.step for fault in found.faults], dtype=np.int64))
    rank = run.keep(f"{place}curve/stable rank", lambda: found.curves[mlp].values.reshape(len(found.steps), -1))
    for name, curve in (("stable rank", rank), ("entropy", found.curves["entropy"].values)):
        per_layer = curve if curve.ndim == 2 else np.nanmean(curve, axis=-1)
        run.keep(f"{place}layers/{name}", lambda per_layer=per_layer: per_layer)  # type: ignore[misc]
        judged = rebound(torch.from_numpy(per_layer.T.copy()), steps=torch.tensor(found.steps))
        for field in ("drop", "rebound", "drop_margin", "rebound_margin", "drops", "rebounds"):
            run.keep(f"{place}{name}/{field}", partial(getattr, judged, field))
    progress(0.96, "coherence of the tokens' vectors, layer by layer")
    chosen = [found.steps[0], found.steps[len(found.steps) // 2], found.steps[-1]]
    run.keep(f"{place}coherence/steps", lambda: np.array(chosen))
    places = {each.step: each for each in series.places}
    tokens = wanted.tokens
    assert tokens is not None  # entropy is among the measures
    run.keep(f"{place}coherence", lambda: np.stack([_coherence(places[step], tokens, config) for step in chosen]))
    run.keep(f"{place}curve/entropy", lambda: found.curves["entropy"].values)


@contextmanager
def _scanned_into(run: Run, number: int, own: Path) -> Iterator[Run]:
    """The study's run for the first network; a sweep knows no seeds, so the others have runs beside checkpoints."""
    path = own / "scan.sqlite"
    if not number:
        yield run
    elif path.exists():
        with Run.open(path, write=True) as side:
            yield side
    else:
        with Run.create(path, study="scan", config={}) as side:
            yield side


def _coherence(place: Any, tokens: torch.Tensor, config: Fig7Config) -> np.ndarray:
    """(layers + 1, 2): mean |cos| between vectors of different tokens at every layer, and that of random vectors."""
    from joma.scan.model.loading import loaded_model

    with place.folder() as folder:
        model = loaded_model(folder, torch.device("cpu")).to(config.device)
    length = min(int(getattr(model.config, "max_position_embeddings", 512)), 512)
    windows = tokens[: len(tokens) // length * length].view(-1, length)[:16].to(config.device)
    with torch.inference_mode():
        states = model(windows, output_hidden_states=True).hidden_states
    # One vector per token of the vocabulary: its first occurrence, so that equal tokens are not compared.
    _, first = np.unique(windows.flatten().cpu().numpy(), return_index=True)
    rows = []
    for state in states:
        found = coherence(state.flatten(0, 1)[torch.from_numpy(first).to(state.device)].cpu())
        rows.append([float(found.mean), found.random_mean])
    return np.array(rows)


BACK = 0.02  # of its drop: what a curve must come back by, as in `joma.measure.rebound`
DROP = 0.05  # of its start: the smallest drop that matters
CLOSE = 0.01  # of |cos|, which goes from 0 to 1: the smallest distance from the bound that matters
NEAR_ORTHOGONAL = 2.0  # times the mean |cos| of random vectors: up to there, vectors count as almost orthogonal
LEVEL = 0.99  # of the intervals of drops and rebounds, as in `joma.measure.rebound`
COMMAND = at_paper_scale("fig7")

_claim = partial(Claim, source="JoMA Fig. 7", matters=BACK, unit="%")
RANK_TOP = _claim(
    "rank-of-top-layers",
    says="In the top layers, the stable rank of the MLP's lower matrix drops and then bounces back.",
)
RANK_BOTTOM = _claim(
    "rank-of-bottom-layers",
    says="In the bottom layers, the stable rank of the MLP's lower matrix drops and does not bounce back.",
    matters=DROP,
    ceiling=1.0,
)
ENTROPY = _claim(
    "entropy-over-checkpoints",
    says="Over training, attention entropy drops and bounces back, less clearly than the stable rank.",
)
EMBEDDING = Claim(
    "embeddings-nearly-orthogonal",
    "JoMA talk slide embeddings",
    "At every layer, the vectors of different tokens are almost orthogonal.",
    matters=CLOSE,
    ceiling=1.0,
)


class _Moves(NamedTuple):
    """What the curves of all layers do, (seeds, layers) each."""

    start: Any
    drop: Any
    back: Any

    def share_back(self, layer: int) -> Any:
        """(seeds,) of the layer's mean drop what comes back; where nothing drops, nothing can."""
        drop = self.drop[:, layer].mean()
        return np.zeros(len(self.back)) if drop <= 0 else self.back[:, layer] / drop

    def share_dropped(self, layer: int) -> Any:
        """(seeds,) of its start what is lost in the valley."""
        return self.drop[:, layer] / self.start[:, layer]


def _curves(run: Run, name: str, kept: list[int]) -> Any:
    steps = [run.value(f"{prefix(number)}steps") for number in kept]
    common = reduce(np.intersect1d, steps)
    curves = [run.value(f"{prefix(number)}layers/{name}") for number in kept]
    return np.stack([curve[np.isin(at, common)] for curve, at in zip(curves, steps, strict=True)])


def _moves(run: Run, name: str, kept: list[int]) -> _Moves:
    """Each network read in the valley of the others; one alone in its own, where chance would come back, too."""
    curves = _curves(run, name, kept)
    if not np.isfinite(curves).all():  # the others have no valley without it: nothing is known
        nothing = np.full_like(curves[:, 0], np.nan)
        return _Moves(nothing, nothing, nothing)
    if len(kept) == 1:
        place = prefix(kept[0])
        drop, back = (run.value(f"{place}{name}/{part}")[None] for part in ("drop", "rebound"))
    else:
        over_seeds = torch.from_numpy(np.ascontiguousarray(curves.transpose(2, 0, 1)))
        drop, back = (part.numpy().T for part in drop_and_rebound(over_seeds))
        back = np.where(still_falls(over_seeds), np.nan, back)  # (networks, layers)
    return _Moves(curves[:, 0], drop, back)


def _top(run: Run) -> Finding:
    expected = "every layer of the upper half drops, and comes back by at least 2 % of its drop"
    if not (kept := learned(run, "loss")):
        return not_run(RANK_TOP, expected, UNLEARNED, COMMAND)
    moves = _moves(run, "stable rank", kept)
    return _rebounds(RANK_TOP, run, "stable rank", kept, moves, range(_half(moves), moves.drop.shape[1]), expected)


def _entropy(run: Run) -> Finding:
    expected = (
        "every layer drops, and comes back by at least 2 % of its drop; the stable rank comes back by a larger share"
    )
    if not (kept := learned(run, "loss")):
        return not_run(ENTROPY, expected, UNLEARNED, COMMAND)
    moves, rank = (_moves(run, name, kept) for name in ("entropy", "stable rank"))
    layers = range(moves.drop.shape[1])
    clearer = _mean_back(moves, layers) - _mean_back(rank, range(_half(rank), rank.drop.shape[1]))
    what = "share of the drop that comes back, minus that of the stable rank in the top layers"
    return _rebounds(ENTROPY, run, "entropy", kept, moves, layers, expected, [below(what, clearer, 0.0, "%")])


def _rebounds(
    claim: Claim,
    run: Run,
    name: str,
    kept: list[int],
    moves: _Moves,
    layers: Iterable[int],
    expected: str,
    size: Iterable[Any] = (),
) -> Finding:
    """Compared with 0, which is what curves without a rebound give in the mean; what does not drop cannot come back."""
    some = list(layers)
    drops = {f"layer {layer}": compare(moves.share_dropped(layer), level=LEVEL) for layer in some}
    (least,) = hardest(RANK_BOTTOM, drops).values()
    return by_effect(
        claim,
        {f"layer {layer}": compare(moves.share_back(layer), level=LEVEL) for layer in some},
        what="share of the drop that comes back",
        expected=expected,
        size=list(size),
        controls=[beyond(RANK_BOTTOM, "drop as a share of the start, in the layer where it is least certain", least)],
        details=_numbers(run, name, kept, moves, some),
    )


def _bottom(run: Run) -> Finding:
    expected = "every layer of the lower half drops, and none comes back by 2 % of its drop or more"
    if not (kept := learned(run, "loss")):
        return not_run(RANK_BOTTOM, expected, UNLEARNED, COMMAND)
    moves = _moves(run, "stable rank", kept)
    some = list(range(_half(moves)))
    if not some:
        return not_run(RANK_BOTTOM, expected, "a network with one layer has no bottom layers", COMMAND)
    most = float(np.max([compare(moves.share_back(layer), level=LEVEL).high for layer in some]))
    return by_effect(
        RANK_BOTTOM,
        {f"layer {layer}": compare(moves.share_dropped(layer), level=LEVEL) for layer in some},
        what="drop as a share of the start",
        expected=expected,
        size=[below("upper end of the largest share of a drop that comes back", most, BACK, "%")],
        details=_numbers(run, "stable rank", kept, moves, some),
    )


def _embedding(run: Run) -> Finding:
    """1 - |cos| compared with 1 - what counts as almost orthogonal, which follows from the width alone."""
    expected = "at every layer, a mean |cos| of at most twice that of random vectors"
    if not (kept := learned(run, "loss")):
        return not_run(EMBEDDING, expected, UNLEARNED, COMMAND)
    met = np.stack([run.value(f"{prefix(number)}coherence")[-1] for number in kept])  # (seeds, layers + 1, 2)
    layers, names = range(met.shape[1]), ("mean |cos|", "of random vectors")
    return by_effect(
        EMBEDDING,
        {_stage(layer): compare(1 - met[:, layer, 0], 1 - NEAR_ORTHOGONAL * met[:, layer, 1]) for layer in layers},
        what="1 - mean |cos| between vectors of different tokens",
        expected=expected,
        details={_stage(layer): dict(zip(names, met[:, layer].mean(0).tolist(), strict=True)) for layer in layers}
        | left_out(run, kept),
    )


def _half(moves: _Moves) -> int:
    return int(moves.drop.shape[1]) // 2


def _mean_back(moves: _Moves, layers: Iterable[int]) -> float:
    return float(np.mean([moves.share_back(layer) for layer in layers]))


def _stage(layer: int) -> str:
    return f"behind layer {layer - 1}" if layer else "embedding"


def _numbers(run: Run, name: str, kept: list[int], moves: _Moves, layers: list[int]) -> dict[str, dict[str, float]]:
    """Of each layer, means over networks, and what a random walk as rough as the curve would do."""

    def walk(part: str, layer: int) -> float:
        return float(np.mean([run.value(f"{prefix(number)}{name}/{part}_margin")[layer] for number in kept]))

    return {
        f"layer {layer}": {
            "drop": float(moves.drop[:, layer].mean()),
            "drop of a random walk": walk("drop", layer),
            "rebound": float(moves.back[:, layer].mean()),
            "rebound of a random walk": walk("rebound", layer),
        }
        for layer in layers
    } | left_out(run, kept)


CURVES = {"stable rank": "Stable rank of the MLP's lower matrix", "entropy": "Attention entropy"}
"""What is drawn over checkpoints, with its title."""


def draw(run: Run) -> list[Drawing]:
    """Curves by layer over the checkpoints of the first network, and the coherence of the layers' vectors."""
    figure, axes = panels(3, width=3.5)
    steps, met = run.value("steps"), run.value("coherence")
    for axis, (name, title) in zip(axes, CURVES.items(), strict=False):
        curves = run.value(f"layers/{name}")
        for layer, colour in enumerate(depth_colours(curves.shape[1])):
            axis.plot(steps, curves[:, layer], color=colour, label=f"layer {layer}", marker=".", ms=4, lw=1.2)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlabel("training step (log scale)")
        axis.set_title(title)
    axes[0].set_ylabel("stable rank")
    axes[1].set_ylabel("attention entropy (nats)")
    at = run.value("coherence/steps")
    for row, step, colour in zip(met, at, depth_colours(len(at)), strict=True):
        axes[2].plot(range(len(row)), row[:, 0], color=colour, marker="o", ms=4, label=f"step {step:,}")
    axes[2].axhline(met[0, 0, 1], color=CONTROL, ls="--", lw=1, label="random vectors")
    axes[2].set(xlabel="layer (0: embedding)", ylabel="mean |cos| between tokens", ylim=(0, 1.05))
    axes[2].set_title("Likeness of token vectors")
    ranks, entropies = (run.value(f"layers/{name}").mean(1) for name in CURVES)
    caption = (
        f"Mean over layers: the stable rank of the MLP's lower matrix {_valley(steps, ranks, '')}; attention entropy "
        f"{_valley(steps, entropies, 'nats')}. At the end, the mean |cos| between vectors of different tokens is "
        f"{between(met[-1, :, 0])}; random vectors have {number(float(met[-1, 0, 1]))}. The panels show the first "
        f"network, scanned at {len(steps)} checkpoints. Entropy is measured on text that was not trained on."
    )
    return [Drawing("checkpoint-series", caption, figure)]


def _valley(steps: Any, values: Any, unit: str) -> str:
    turns = [0, int(np.argmin(values)), -1]
    return course(steps[turns], values[turns], unit)


STUDY = Study(
    name="fig7",
    title="Figure 7: rank and entropy over a series of checkpoints",
    version=2,
    claims={RANK_TOP: _top, RANK_BOTTOM: _bottom, ENTROPY: _entropy, EMBEDDING: _embedding},
    # With eight seeds from 6000 on the top layer came back by 25 % of its drop [11, 39]; five of others left it open. A
    # checkpoint costs more than ten steps, and twelve are enough. Twice as many steps left nothing to come back.
    quick=Fig7Config(every=30, seeds=8, seed=100),
    paper=Fig7Config(
        device="cuda", layers=6, width=512, heads=8, vocabulary=16_384, context=512, batch=8, steps=5_000, rate=1e-3,
        every=500, characters=40_000_000, held_out=60_000, wikitext=True, seeds=5,
    ),
    run=run,
    draw=draw,
    about=(
        "A GPT-NeoX is trained from scratch for every seed, and its checkpoints are scanned. (A series of checkpoints "
        "can also be given with --series.) Drop and rebound of a seed are read at the step where the mean of the other "
        "seeds is lowest, so that a seed's own noise does not choose the step. A layer drops, or bounces back, if the "
        "99 % interval over seeds is above zero. A single network has no such interval, so its findings are undecided. "
        "The findings also show what a random walk as rough as the curve would do. Quick scale trains a tiny model on "
        "Python source. Paper scale trains 36 million parameters on WikiText-2 and Python source."
    ),
)  # fmt: skip
