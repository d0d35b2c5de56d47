"""What the tests of `shallow-first` share: a tiny config, and its record as Section 5 tells it, to be spoiled."""

import numpy as np
from records import verdicts
from small_runs import small

from joma.runs import Run
from joma.studies.hierarchy.shallow_first import study as claims
from joma.studies.hierarchy.shallow_first.study import STUDY

TINY = small("shallow-first")
OF_DATA = {"pull-towards-a-token", "pull-towards-the-class"}
TOKEN, CLASS = "residual token", "residual class"
TRUE, PERMUTED = 0, 1
EVERY = (*claims.NETWORKS, claims.SHALLOW)
CHANCE = {name: np.log(20) * (1 if name == claims.DECODER else 20) for name in EVERY} | {
    name: np.log(2) * 20 for name in ("bare class", "residual class")
}


def ideal(name, values):
    """What Section 5 would look like: siblings lead from the start, and attention at H peaks later the higher H is."""
    if name.endswith("train_loss"):
        return np.full_like(values, CHANCE[name.split("/")[0]] / 2)
    if name.split("/")[-1] not in ("attention", "weights", "says"):
        return values
    values = np.zeros_like(values)
    points = len(values)
    t = np.arange(points)[:, None]
    if name.endswith("says"):  # each level told from the next, one after the other
        steps = np.stack([(t[:, 0] > i * (points - 1) / 3) * 1.0 for i in (0, 1, 2)], -1)
        values[:, :, TRUE, :4] = -np.cumsum(np.concatenate([np.zeros((points, 1)), steps], 1), 1)[:, None]
    else:
        values[..., :4] = 1
        peaks = 1 + np.array([1, 2, 3]) * (points - 2) / 3
        rise = np.exp(-(((t - peaks) / 2) ** 2)) + np.array([0, 0, 0.3]) * (t == points - 1)
        values[:, :, TRUE, :3] += (rise - rise[0])[:, None]
        values[1, :, PERMUTED, :3] += 1e-3  # all heights peak together
        values[-1, :, TRUE, claims.ALONE] = 1.0
        values[:, :, TRUE, claims.ORDER] = 1.0
        values[..., claims.MOVED] = t[..., None] / points
    return values + 1e-6 * np.random.default_rng(0).normal(size=values.shape)


def spoiled(run, path, *networks, spoil, what=("attention", "weights", "says"), further=0):
    """The ideal record with `spoil(values)` applied, in place, to what was measured on these networks.

    further: so many members more. Peaks come at whole points: three that all come together would tell nothing.
    """

    def change(name, values):
        values = ideal(name, np.concatenate([values, *[values[:, :1]] * further], axis=1))
        network, _, measured = name.partition("/")
        if network in networks and measured in what:
            spoil(values)
        return values

    return verdicts(STUDY, rewritten(run, path, change))


def reversed_heights(values):
    values[:, :, TRUE, :3] = values[:, :, TRUE, 2::-1]


def as_permuted(values):
    values[:, :, TRUE] = values[:, :, PERMUTED]


def rewritten(run, path, change):
    copy, steps = Run.create(path, study=run.study, config=run.config, version=run.version), {}
    for name in run.names():
        for step, value in zip(run.steps(name), change(name, run.array(name)), strict=True):
            steps.setdefault(int(step), {})[name] = value
    for step, values in steps.items():
        copy.record(step, values)
    return copy
