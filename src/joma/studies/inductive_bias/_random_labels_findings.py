"""The claims about random labels, and what a record says of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import at_least, at_most
from joma.data.stroke_digits import CLASSES
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.inductive_bias._judging import mean_known, of_learned
from joma.studies.inductive_bias._random_labels import KINDS, RANDOM, SHAPES, TRUE

CHANCE = 1 / CLASSES
FITTED = 0.05  # of accuracy: a network that fits five points more than a linear classifier has memorised
GENERALISES = 0.1  # of accuracy: as much as chance itself
EPOCHS = 1.0  # a difference of less than an epoch is not longer
FIT_AT = 0.95  # training accuracy from which labels count as fitted
FACTOR = 10.0  # what "a small constant factor" may be at most, decided before the run
DEEP, DECAY, SHALLOW, LINEAR = SHAPES
PRINTED_TRAIN = {DEEP: 1.0, SHALLOW: 0.9934}

FITS = Claim(
    "fits-random-labels",
    "Zhang et al. Table 1",
    "Networks fit random labels: MLPs with three and with one hidden layer reach 100 % and 99.34 % in training.",
    matters=FITTED,
    unit="%",
    ceiling=1.0,
)
NO_TRUTH = Claim(
    "random-labels-do-not-generalise",
    "Zhang et al. Table 1",
    "After that the test accuracy is chance (10.5 %): the same network generalises or not, depending on the labels.",
    matters=GENERALISES,
    unit="%",
    ceiling=1.0,
    uses=("inductive-bias/fits-random-labels",),
)
WITHOUT = Claim(
    "generalises-without-weight-decay",
    "Zhang et al. Table 1",
    "Weight decay is not why networks generalise: without it the test accuracy is about the same (52.4 % and 53.4 %).",
    matters=GENERALISES,
    unit="%",
    ceiling=1.0,
)
NOT_STOPPED = Claim(
    "weight-decay-does-not-stop-it",
    "Zhang et al. Sec. 3",
    "Networks fit random labels with weight decay too.",
    matters=FITTED,
    unit="%",
    ceiling=1.0,
)
LONGER = Claim(
    "small-factor-longer",
    "Zhang et al. Fig. 1",
    "Fitting random labels takes longer than fitting true ones, by a small constant factor only.",
    matters=EPOCHS,
    unit="epochs",
)
NOISE = Claim(
    "fits-images-of-noise",
    "Zhang et al. Fig. 1",
    "Networks fit true labels of shuffled pixels, of random pixels and of Gaussian noise as well.",
    matters=FITTED,
    unit="%",
    ceiling=1.0,
)
CLAIMS = (FITS, NO_TRUTH, WITHOUT, NOT_STOPPED, LONGER, NOISE)


class Fits:
    """What a run recorded of the digits. A network that diverged does not count: its numbers are NaN."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.seeds = int(run.config["seeds"])
        self.per_epoch = run.config["images"] // run.config["image_batch"]
        self.epochs = run.steps(f"{DEEP}/scores/train") / self.per_epoch

    def curve(self, shape: str, kind: str, what: str = "train") -> Any:
        """(points, seeds)."""
        values = self._run.array(f"{shape}/scores/{what}").astype(float)
        place = SHAPES[shape].kinds.index(kind)
        members = slice(place * self.seeds, (place + 1) * self.seeds)
        diverged = self._run.array(f"{shape}/diverged_at")[-1, members] >= 0
        return np.where(diverged, np.nan, values[:, members])

    def end(self, shape: str, kind: str, what: str = "train") -> Any:
        """(seeds,)."""
        return self.curve(shape, kind, what)[-1]

    def epochs_to_fit(self, kind: str, shape: str = DEEP) -> Any:
        """(seeds,): when the training accuracy first reaches FIT_AT, between measuring points; NaN if never."""
        curves = self.curve(shape, kind)
        found = np.full(self.seeds, np.nan)
        for seed in range(self.seeds):
            after = np.flatnonzero(curves[1:, seed] >= FIT_AT)
            if after.size:
                i = after[0] + 1
                found[seed] = np.interp(FIT_AT, curves[[i - 1, i], seed], self.epochs[[i - 1, i]])
        return found


def judge_fits(run: Run) -> Finding:
    fits = Fits(run)
    linear = fits.end(LINEAR, RANDOM)
    ends = {shape: fits.end(shape, RANDOM) for shape in (DEEP, SHALLOW)}
    return of_learned(
        FITS,
        {shape: compare(end, linear) for shape, end in ends.items()},
        what="training accuracy on random labels (control: a linear classifier of the same images)",
        expected="100 % with three hidden layers of 512, 99.34 % with one",
        size=[
            at_least(f"training accuracy, {shape}", mean_known(end), PRINTED_TRAIN[shape] - 5e-4, "%")
            for shape, end in ends.items()
        ],
        details={"data": {"images": run.config["images"], "pixels": run.config["side"] ** 2}},
    )


def judge_no_truth(run: Run) -> Finding:
    fits = Fits(run)
    gap = {kind: fits.end(DEEP, kind) - fits.end(DEEP, kind, "test") for kind in (TRUE, RANDOM)}
    test = fits.end(DEEP, RANDOM, "test")
    true = fits.end(DEEP, TRUE, "test")
    return of_learned(
        NO_TRUTH,
        compare(gap[RANDOM], gap[TRUE]),
        what="training minus test accuracy with random labels (control: with true labels)",
        expected="100 % in training and 10.48 % in the test; 100 % and 52.39 % with true labels",
        size=[
            at_most(
                "distance of the test accuracy after random labels from chance",
                abs(mean_known(test) - CHANCE),
                0.01,
                "%",
            )
        ],
        details={
            "test accuracy": {TRUE: mean_known(true), RANDOM: mean_known(test), "chance": CHANCE},
            "linear classifier, test accuracy": {TRUE: mean_known(fits.end(LINEAR, TRUE, "test"))},
        },
    )


def judge_without(run: Run) -> Finding:
    fits = Fits(run)
    without, decayed = (fits.end(shape, TRUE, "test") for shape in (DEEP, DECAY))
    return of_learned(
        WITHOUT,
        compare(without, fits.curve(DEEP, TRUE, "test")[0]),
        what="test accuracy without weight decay (control: the untrained network)",
        expected="52.39 % without and 53.35 % with weight decay",
        size=[at_most("change of the test accuracy by weight decay", abs(mean_known(decayed - without)), 0.02, "%")],
        details={"with weight decay": {"test accuracy": mean_known(decayed)}},
    )


def judge_not_stopped(run: Run) -> Finding:
    fits = Fits(run)
    decayed = fits.end(DECAY, RANDOM)
    return of_learned(
        NOT_STOPPED,
        compare(decayed, fits.end(LINEAR, RANDOM)),
        what="training accuracy on random labels with weight decay (control: a linear classifier)",
        expected="a perfect fit in spite of weight decay",
        size=[at_least("training accuracy", mean_known(decayed), 0.99, "%")],
        details={"without weight decay": {"training accuracy": mean_known(fits.end(DEEP, RANDOM))}},
    )


def judge_longer(run: Run) -> Finding:
    fits = Fits(run)
    random, true = fits.epochs_to_fit(RANDOM), fits.epochs_to_fit(TRUE)
    expected = f"more epochs, at most {FACTOR:g} times as many"
    return of_learned(
        LONGER,
        compare(random, true),
        what=f"epochs until {FIT_AT:.0%} of random labels are fitted (control: true labels)",
        expected=expected,
        size=[at_most("factor", mean_known(random / true), FACTOR)],
    )


def judge_noise(run: Run) -> Finding:
    fits = Fits(run)
    ends = {kind: fits.end(DEEP, kind) for kind in KINDS[2:]}
    return of_learned(
        NOISE,
        {kind: compare(end, fits.curve(DEEP, kind)[0]) for kind, end in ends.items()},
        what="training accuracy (control: the untrained network)",
        expected="100 % of each",
        size=[at_least(f"training accuracy, {kind}", mean_known(end), 0.9995, "%") for kind, end in ends.items()],
        details={"test accuracy": {kind: mean_known(fits.end(DEEP, kind, "test")) for kind in KINDS}},
    )


JUDGES = (judge_fits, judge_no_truth, judge_without, judge_not_stopped, judge_longer, judge_noise)
