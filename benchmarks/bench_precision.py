"""What reduced precision does to a training run at real size: its curves against those of float32.

Figure 6's decoder with five layers on WikiText-2, from the same seeds, once at each precision. A curve of attention
entropy or of validation loss is off by what rounding does, which training amplifies; the yardstick is how far apart two
seeds are, over which the figures average. Reduced precision is harmless here if the first is small beside the second.
What it saves: `bench_ensemble.py --device cuda --shapes fig8-float32,fig8-half-logits`.

    JOMA_DATA=FOLDER python benchmarks/bench_precision.py [--steps 6000] [--precisions float32,half-logits] [--record]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from _record import record

from joma.recipes.language import PAPER, LanguageModelConfig, corpus, recipe, train_variants
from joma.recipes.language.curves import curve
from joma.runs import Run


def rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.square(difference).mean()))


def compare(run: Run, precision: str, exact: str) -> dict[str, object]:
    """How far the curves are from the exact ones, seed by seed, and how far those of two seeds are apart."""
    row: dict[str, object] = {"precision": precision}
    for what, measure in (("entropy", "sequence/entropy"), ("loss", "valid/loss")):
        ours, theirs = (curve(run, one, measure)[0, :, 1:] for one in (precision, exact))  # (seeds, points, ...)
        row[f"{what}, RMS from {exact}, nats"] = rms(ours - theirs)
        row[f"{what}, RMS between seeds, nats"] = rms(theirs - np.roll(theirs, 1, axis=0))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--precisions", default="float32,tf32,half-logits")
    parser.add_argument("--quick", action="store_true", help="small models of Python source on a CPU")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    small = {"steps": options.steps} if options.quick else PAPER | {"steps": options.steps, "every": 500}
    config = LanguageModelConfig(**small)
    text = corpus(config)
    base = recipe(config, text, layers=5, rates=(1e-4,))
    exact, *_ = precisions = options.precisions.split(",")
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Run.create(Path(folder, "precision.sqlite"), study="precision", config={}) as run,
    ):
        for precision in precisions:
            train_variants({precision: base.with_(precision=precision)}, text, run, lambda share, doing: None)
            rows.append(compare(run, precision, exact) | {"steps": options.steps})
            print(*(f"{k}: {v:.3g}" if isinstance(v, float) else f"{k}: {v}" for k, v in rows[-1].items()), sep=", ")
    record("precision", rows)


if __name__ == "__main__":
    main()
