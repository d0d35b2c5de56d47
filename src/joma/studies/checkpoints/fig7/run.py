"""A series of checkpoints for every seed, trained here or given, and what is measured of it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from joma.claims.config import StudyConfig
from joma.claims.contract import NotRun, Progress
from joma.claims.guards import at_paper_scale, needs_device, needs_transformers
from joma.claims.text_source import remember_source
from joma.data.python_source import source_text
from joma.host.errors import BadInput
from joma.host.file_kinds import OWN
from joma.host.files import make_folder, write_text
from joma.measure.embedding import coherence
from joma.measure.rebound import FEWEST_POINTS, rebound
from joma.runs import Run
from joma.studies.checkpoints._seeds import prefix
from joma.training.series import SeriesConfig, checkpoint_steps, train_series


@dataclass(frozen=True)
class Fig7Config(StudyConfig):
    """A series of checkpoints: one that is given, or a small GPT-NeoX trained for the purpose."""

    series: str = ""
    """A hub model with step revisions or a folder of checkpoints; empty: train one."""
    text: str = ""
    """A text file for attention entropy; needed with --series."""
    device: str = "cpu"
    layers: int = 4
    width: int = 64
    heads: int = 4
    vocabulary: int = 512
    context: int = 64
    batch: int = 8
    steps: int = 180
    rate: float = 3e-3
    every: int = 20
    """Checkpoints beyond Pythia's schedule (0, 1, 2, 4, ..., 512, 1000, ...): one every so many steps."""
    characters: int = 1_000_000
    """How much Python source to train on."""
    held_out: int = 8_000
    """Characters at the end of the text that are not trained on and that entropy is measured on."""
    wikitext: bool = False
    """Train on WikiText-2 as well, found through JOMA_DATA."""
    seeds: int = 1
    """Networks that are trained here; with fewer than 2 there is no interval and every claim is undecided."""
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
    for number in range(config.seeds):

        def of_this(share: float, doing: str, number: int = number) -> None:
            progress((number + share) / config.seeds, doing if config.seeds == 1 else f"network {number + 1}: {doing}")

        _one_network(replace(config, seed=config.seed + number), run, number, of_this)


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
    """A series of our own under `folder`, and the file of the text it did not see."""
    text = _corpus(config)
    make_folder(folder / "checkpoints")
    held_out = folder / "held-out.txt"
    write_text(held_out, text[-config.held_out :], OWN)
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
    """(layers + 1, 2): mean |cos| between vectors of different tokens at every layer, and that of random vectors.

    The model is loaded as the scan loads it: in float32, without running its code, refused if weights are missing.
    """
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
