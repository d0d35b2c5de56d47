"""What the tests of ablations share: sizes that train in a second, and records whose patterns are made up."""

import numpy as np
from records import carried_out, verdicts
from small_language_models import SMALL as SIZES

from joma.studies import (
    dropout_off,
    frozen_embeddings,
    mlp_nonlinearity,
    mlp_rank,
    normalisation,
    optimizers_compared,
    residual_branch,
)

NONE = "not above its control"
STUDIES = {
    module.STUDY.name: module.STUDY
    for module in (
        mlp_nonlinearity,
        residual_branch,
        frozen_embeddings,
        optimizers_compared,
        normalisation,
        mlp_rank,
        dropout_off,
    )
}
SMALL = SIZES | {"layers": 2, "rate": 0.02, "steps": 24, "every": 6}
SGD = {"trial": 8, "sgd_rates": (0.1, 1.0, 1e9), "tokens": 400}  # 17 steps an epoch


def carry_out(study, data_folder, path, **changes):
    sizes = SMALL | (SGD if study.name == "optimizer" else {})
    return carried_out(study, type(study.quick)(**sizes | {"data": str(data_folder)} | changes), path)


def run_on(claim, ablations):
    return ablations(next(name for name, study in STUDIES.items() if claim in study.claims))


class changed:
    """The run as judges and figures read it, every entry of every series gone through change(name, step, value)."""

    def __init__(self, run, change):
        self.run, self.change, self.study, self.config = run, change, run.study, run.config
        self.steps, self.names = run.steps, run.names

    def __contains__(self, name):
        return name in self.run

    def array(self, name):
        steps = self.run.steps(name)
        return np.stack(
            [self.change(name, int(at), value) for at, value in zip(steps, self.run.array(name), strict=True)]
        )

    def value(self, name):
        return self.array(name)[0]


def verdict(run, claim):
    return verdicts(STUDIES[run.study], run)[claim.name]


def patterns(measure="valid/entropy", **by_variant):
    """A record in which every variant learned, and drops by 1 and comes back as given (one number, or one a layer).

    A variant that is not named drops and comes back by 0.5; None stands for a curve that stays where it began.
    """

    def change(name, step, value):
        variant = name.split("/")[0]
        if name.endswith("valid/loss"):
            return value * 0 + (5.0 if step == 0 else 0.5) + np.linspace(0, 0.01, len(value))
        if name != f"{variant}/{measure}":
            return value
        back = by_variant.get(variant.replace(" ", "_").replace(",", ""), 0.5)
        rank = measure.startswith("rank")
        noise = 0.004 * np.random.default_rng(step).standard_normal(value.shape)
        if back is None:
            return value * 0 + 2 + noise
        back = np.broadcast_to(np.array(back, dtype=float), (2,))
        back = back[None, :] if rank else back[None, :, None]
        return value * 0 + 2 - min(step, 12) / 12 + max(step - 12, 0) / 12 * back + noise

    return change
