"""What the tests of ablations share: sizes that train in a second, and records whose patterns are made up."""

import math

import numpy as np
from records import carried_out, changed, found
from small_runs import small

from joma.claims.execute import plain_config
from joma.measure.intervals import t_quantile
from joma.runs import Run
from joma.studies.ablations import dropout, embeddings, mlp_rank, nonlinearity, norm, optimizer, residual, text_order

NONE = "not above its control"
STUDIES = {
    module.STUDY.name: module.STUDY
    for module in (nonlinearity, residual, embeddings, optimizer, norm, mlp_rank, dropout, text_order)
}


def carry_out(study, data_folder, path, **changes):
    return carried_out(study, small(study.name, data=str(data_folder), **changes), path)


def verdict(run, claim):
    return found(STUDIES[run.study], run, claim).verdict


def patterns(measure="valid/entropy", noise=0.001, **by_variant):
    """A record in which every variant learned, and drops by 1 and comes back as given (one number, or one a layer).

    A variant that is not named drops and comes back by 0.5; None stands for a curve that stays where it began.
    Nothing that comes back is a trace within chance: three seeds that rise by exactly 0 would tell nothing.
    """

    def change(name, step, value):
        variant = name.split("/")[0]
        if name.endswith("valid/loss"):
            return value * 0 + (5.0 if step == 0 else 0.5) + np.linspace(0, 0.01, len(value))
        if name != f"{variant}/{measure}":
            return value
        back = by_variant.get(variant.replace(" ", "_").replace(",", ""), 0.5)
        rank = measure.startswith("rank")
        chance = noise * np.random.default_rng([step, *variant.encode()]).standard_normal(value.shape)
        if back is None:
            return value * 0 + 2 + chance
        back = np.broadcast_to(np.array(back, dtype=float), (2,))
        back = np.maximum(back, 2 * noise)
        back = back[None, :] if rank else back[None, :, None]
        return value * 0 + 2 - min(step, 12) / 12 + max(step - 12, 0) / 12 * back + chance

    return change


def idle(*variants):
    """On top of `patterns`: these variants learned no more than the words' frequencies."""

    def change(name, step, value):
        value = patterns()(name, step, value)
        return value + 50.0 if name in [f"{variant}/valid/loss" for variant in variants] else value

    return change


POINTS = 5


def with_half_width(mean, half_width, level, seeds=4):
    """(seeds, 1): numbers with this mean, and an interval of this half-width at this level."""
    spread = np.array([-1.0, 1.0] * (seeds // 2))
    unit = t_quantile(level, seeds - 1) * spread.std(ddof=1) / math.sqrt(seeds)
    return (mean + spread * half_width / unit)[:, None]


def curves(back=0.5, drop=1.0, *, noise=0.002, seeds=4, layers=2, draw=0):
    """(seeds, points, layers) that fall from 2 by `drop` and rise by `back`, each a number or one by seed and layer."""
    drop, back = (np.broadcast_to(np.asarray(part, float), (seeds, layers))[:, None] for part in (drop, back))
    down, up = (np.array(part)[:, None] for part in ([0, 0.5, 1, 1, 1], [0, 0, 0, 0.5, 1]))
    return 2 - drop * down + back * up + noise * np.random.default_rng(draw).standard_normal((seeds, POINTS, layers))


def still_falling(seeds=4, layers=2):
    """Curves whose end lies 0.5 below every seed's level where the other seeds have their valley."""
    made = np.ones((seeds, POINTS + seeds, layers))
    made[:, 0] = 2
    made[:, -POINTS:] = 1.4
    made[:, 1 : seeds + 1] = 0.9
    made[np.arange(seeds), np.arange(1, seeds + 1)] = 1.5
    made[:, -1] = 1.0 + 1e-3 * np.arange(seeds)[:, None]
    return made


def record(path, variants, *, study=residual.STUDY, config=None, losses=None, diverged=None):
    """A run of `study` in which attention entropy of every variant is as given, (seeds, points, layers).

    losses: by variant, if not 1 at the end; words' frequencies alone lose 2. diverged: by variant, which seeds did.
    """
    run = Run.create(path, study=study.name, config=plain_config(config or study.quick), version=study.version)
    for name, entropy in variants.items():
        seeds, points, _ = entropy.shape
        for entry, value in {"rates": np.array([1.0]), "seeds": np.arange(seeds), "loss by frequency": 2.0}.items():
            run.append(f"{name}/{entry}", 0, value)
        gone = np.isin(np.arange(seeds), (diverged or {}).get(name, ()))
        for point in range(points):
            end = np.broadcast_to((losses or {}).get(name, 1.0), (seeds,))
            values = {
                "valid/entropy": entropy[:, point, :, None],
                "valid/loss": np.full(seeds, 5.0) if point == 0 else end,
                "diverged_at": np.where(gone, 3, -1),
            }
            for entry, value in values.items():
                run.append(f"{name}/{entry}", 10 * point, value)
    return run


def must_need(run, claim, whole, without, part="rebound"):
    """The verdict on `claim` turns with what `whole` and its twin `without` do, and with whether they learned."""
    if part == "drop":
        cases = [({without: None}, "holds"), ({}, NONE), ({without: 0.0}, NONE), ({whole: None}, "fails")]
    else:
        cases = [
            ({whole: 0.5, without: 0.0}, "holds"),
            ({whole: 0.5, without: 0.2}, "only qualitative"),
            ({whole: (0.5, 0.0), without: 0.0}, "only qualitative"),
            ({whole: 0.5, without: 0.5}, NONE),
            ({whole: 0.0, without: 0.5}, "fails"),
        ]
    for back, expected in cases:
        assert verdict(changed(run, patterns(**back)), claim) == expected, back
    assert verdict(changed(run, patterns(noise=0.5, **cases[0][0])), claim) == "undecided"
    for network in (whole, without):
        assert verdict(changed(run, idle(network.replace("_", " "))), claim) == "not run"


def must_show(run, claim, variant, name=None):
    """The verdict on `claim` turns with what `variant` does, and with whether it learned."""
    cases = [
        ({variant: 0.5}, "holds"),
        ({variant: (0.5, 0.0)}, "only qualitative"),
        ({variant: 0.0}, NONE),
        ({variant: None}, NONE),
    ]
    for back, expected in cases:
        assert verdict(changed(run, patterns(**back)), claim) == expected, back
    assert verdict(changed(run, patterns(noise=0.5)), claim) == "undecided"
    assert verdict(changed(run, idle(name or variant.replace("_", " "))), claim) == "not run"
