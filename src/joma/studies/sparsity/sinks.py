"""Attention sinks: when the first token comes to draw attention, and whether that needs softmax.

The sizes of the quick scale were tuned until it decided something. The made language was chosen after trials
(`_readings`). For the text at paper scale, depth, rate and length were changed once, after a trial without a
sink.
"""

from __future__ import annotations

from collections.abc import Callable

from joma.claims.contract import NotRun, Progress, Study, each_claim
from joma.host.devices import lacking
from joma.recipes.language import corpus as find_text
from joma.recipes.language.text import remember_corpus
from joma.runs import Run
from joma.studies.sparsity import _sinks_findings as findings
from joma.studies.sparsity._readings import (
    COPY,
    TEXT,
    Reading,
    copying,
    of_text,
    same_words,
    text_config,
    without_fetching,
)
from joma.studies.sparsity._sinks_figures import draw
from joma.studies.sparsity._sinks_networks import Config, Members, called
from joma.training import train_all


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train every kind of attention on both readings, and look where attention goes."""
    if lacks := lacking(config.device):
        raise NotRun(str(lacks), findings.COMMAND)
    readings = {reading: make() for reading, make in _readings(config, run, progress).items()}
    for reading, made in readings.items():
        run.keep(f"{reading}/words", lambda made=made: made.words)  # type: ignore[misc]
    run.keep("unfetched", lambda: without_fetching(readings[COPY]))
    train_all(
        {
            called(reading, kind): Members(config, reading, kind, readings[reading]).ensemble()
            for reading, kind in config.variants
        },
        run,
        progress=lambda share, doing: progress(0.02 + 0.97 * share, doing),
    )


def _readings(config: Config, run: Run, progress: Progress) -> dict[str, Callable[[], Reading]]:
    def text() -> Reading:
        found = find_text(text_config(config), progress)
        remember_corpus(found, run)
        return of_text(found, config.length, config.valid)

    def made() -> Reading:
        return copying(
            config.words, config.triggers, config.length, train=config.pool, valid=config.valid, seed=config.seed
        )

    return {COPY: made, TEXT: text}


STUDY = Study(
    name="sinks",
    title="Attention sinks: do they need softmax?",
    version=1,
    claims=findings.CLAIMS,
    quick=Config(),
    paper=Config(
        corpus="wikitext-2",
        tokens=1_000_000_000,
        vocabulary=4_000,
        words=64,
        triggers=8,
        pool=32_768,
        firsts=("fixed", "free"),
        layers=1,
        text_layers=4,
        width=128,
        heads=2,
        mlp=True,
        length=128,
        batch=16,
        steps=4_000,
        text_steps=5_000,
        every=250,
        rate=3e-3,
        text_rate=2e-3,
        valid=64,
        seeds=4,
        device="cuda",
        precision="tf32",
    ),
    run=run,
    judge=each_claim(*findings.JUDGES),
    draw=draw,
    check=same_words,
    about=(
        "Decoders with four kinds of attention are trained on a text and on a made language in which attention helps "
        "at few tokens only. The kinds are softmax, softmax with one more key of logit 0 and value 0 (off-by-one), the "
        "same with a learned logit (learned sink), and a sigmoid of each logit. All kinds begin with the same weights "
        "and read the same sequences. Measured is the attention of late queries, which see half of the sequence or "
        "more: how much of it goes to the first key. Uniform attention, the untrained network and the second key are "
        "the controls. The first word is also replaced by another one, and a copy of it is put elsewhere, to tell "
        "place from word. Kinds are compared only where softmax has a sink; a network that did not learn does not "
        "count."
    ),
)
