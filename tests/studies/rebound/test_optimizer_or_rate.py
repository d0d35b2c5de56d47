"""The study `optimizer-or-rate`: runs are read at equal loss, and its judges can be turned."""

import numpy as np
import pytest
from records import changed, found, verdicts
from small_runs import small as sizes

from joma.claims.execute import draw, plain_config
from joma.runs import Run
from joma.studies.rebound import optimizer_or_rate as study
from joma.studies.rebound.optimizer_or_rate import at_equal, at_loss, reaching

pytestmark = pytest.mark.usefixtures("no_other_text")
RATES = {"Adam": (0.01, 0.02, 0.04), "SGD": (0.1, 0.2)}
STEPS = [0, *(2**i for i in range(2, 10))]
SEEDS = 4


@pytest.fixture(scope="module")
def small(small_run):
    return small_run("optimizer-or-rate")


def made(path, entropy, *, speed=None, spread=0.01, levels=(3.0, 2.0), diverged=()):
    """A record in which the loss falls from 5 by one per doubling of speed * step, and entropy is as given.

    entropy: by optimizer and rate, what the first layer has at loss 2; it falls from 2.5 at loss 5 in a straight line.
    The way goes as the entropy falls.
    """
    config = sizes("optimizer-or-rate", levels=levels, seeds=SEEDS, steps=STEPS[-1])
    run = Run.create(path, study=study.STUDY.name, config=plain_config(config), version=study.STUDY.version)
    for optimizer, by_rate in entropy.items():
        speeds = (speed or {}).get(optimizer, [1.0 * 2**i for i in range(len(by_rate))])
        rates = np.array(RATES[optimizer][: len(by_rate)])
        for name, value in {"rates": rates, "seeds": np.arange(SEEDS), "loss by frequency": 4.5}.items():
            run.append(f"{optimizer}/{name}", 0, value)
        chance = spread * np.tile(np.linspace(-1, 1, SEEDS), len(rates))
        end, fast = (np.repeat(np.array(part, float), SEEDS) for part in (by_rate, speeds))
        for step in STEPS:
            doublings = np.maximum(np.log2(np.maximum(step * fast / 4, 1)), 0)
            fallen = (2.5 - end) * np.minimum(doublings / 3, 1.5) + chance * (step > 0)
            series = {
                "valid/loss": 5 - np.minimum(doublings, 4) * (1 - 0.001 * np.tile(np.arange(SEEDS), len(rates))),
                "valid/entropy": np.stack([2.5 - fallen, 2.0 + 0 * fallen], 1)[..., None],
                "way/first QK": np.maximum(fallen, 0.0) + 0.1 * (step > 0),
                "way/all": 2 + fallen,
                "diverged_at": np.where(np.isin(np.arange(len(end)), diverged), 3, -1),
            }
            run.record(step, {f"{optimizer}/{name}": value for name, value in series.items()})
    return run


def test_runs_are_read_where_their_loss_is_equal(tmp_path):
    run = made(tmp_path / "run", {"Adam": (1.0, 1.0), "SGD": (1.3, 1.6)}, spread=0.0)
    adam, sgd = (at_loss(run, name, 2.0) for name in ("Adam", "SGD"))
    np.testing.assert_allclose(adam.entropy[:, 0, 0], 1.0, atol=1e-9)
    np.testing.assert_allclose(sgd.entropy[:, 0, 0], [1.3, 1.6], atol=1e-9)
    np.testing.assert_allclose(adam.steps[:, 0], [32, 16])  # twice the rate, half the steps
    between = at_loss(run, "Adam", 2.5)
    np.testing.assert_allclose(between.entropy[:, 0, 0], 1.25, atol=1e-9)
    np.testing.assert_allclose(between.steps[:, 0], np.array([32, 16]) / 2**0.5)
    nowhere = at_loss(run, "Adam", -9.0)
    assert np.isnan(nowhere.steps).all()
    assert np.isnan(nowhere.entropy).all()
    assert reaching(adam) == [0, 1]
    assert reaching(nowhere) == []
    assert np.isnan(at_loss(run, "Adam", 6.0).steps).all()  # they began below


def test_adam_is_read_between_its_rates(tmp_path):
    run = made(tmp_path / "run", {"Adam": (1.0, 1.0, 0.4), "SGD": (0.9, 0.2)}, speed={"SGD": [2**1.5, 64]}, spread=0.0)
    adam, sgd = (at_loss(run, name, 2.0) for name in ("Adam", "SGD"))
    pairs = at_equal(adam, sgd)
    assert pairs.rates.tolist() == [0.1]  # the second rate of SGD is faster than any of Adam
    np.testing.assert_allclose(
        pairs.adam[0, 0], 0.7, atol=1e-6
    )  # half way between 1.0 and 0.4 in the logarithm of the steps
    np.testing.assert_allclose(pairs.sgd[0, 0], 0.9, atol=1e-6)
    as_far = at_equal(adam, sgd, by="way")
    np.testing.assert_allclose(as_far.adam[0], as_far.sgd[0], atol=0.05)  # the way goes as the entropy falls


FLAT = {"Adam": (1.5, 1.5, 1.5), "SGD": (1.5, 1.5)}


@pytest.mark.parametrize(
    ("entropy", "rate", "optimizer"),
    [
        (FLAT, "not above its control", "not above its control"),
        ({"Adam": (1.5, 1.2, 0.6), "SGD": (1.5, 0.9)}, "holds", None),
        ({"Adam": (1.5, 1.2, 0.6), "SGD": (1.2, 1.2)}, "only qualitative", None),
        ({"Adam": (0.6, 1.2, 1.5), "SGD": (0.9, 1.5)}, "fails", None),
        ({"Adam": (1.5, 1.5, 1.5), "SGD": (0.9, 0.9)}, "not above its control", "holds"),
        ({"Adam": (0.9, 0.9, 0.9), "SGD": (1.5, 1.5)}, "not above its control", "fails"),
    ],
)
def test_verdicts_turn_with_what_is_read_at_equal_loss(tmp_path, entropy, rate, optimizer):
    run = made(tmp_path / "run", entropy, spread=1e-3)
    of = verdicts(study.STUDY, run)
    assert of["rate-at-equal-loss"] == rate
    assert optimizer is None or of["optimizer-at-equal-loss"] == optimizer


def test_few_and_noisy_runs_decide_nothing(tmp_path):
    noisy = made(tmp_path / "noisy", FLAT, spread=0.5)
    assert verdicts(study.STUDY, changed(noisy, _tossed))["rate-at-equal-loss"] == "undecided"
    gone = made(tmp_path / "gone", FLAT, diverged=range(2 * SEEDS))  # SGD diverged, and two of three rates of Adam
    for claim in study.STUDY.claims:
        finding = found(study.STUDY, gone, claim)
        assert finding.verdict == "not run"
        assert "too few runs reach a loss of 3, 2 nats" in finding.reason
    assert len(draw(study.STUDY, gone)) == 2


def _tossed(name, step, value):
    if not name.endswith("valid/entropy"):
        return value
    return value + 0.3 * np.random.default_rng([step, len(name)]).standard_normal(value.shape)


def test_a_level_that_no_run_reaches_is_left_out(tmp_path):
    run = made(tmp_path / "run", {"Adam": (1.5, 1.2, 0.6), "SGD": (1.5, 0.9)}, spread=1e-3, levels=(2.0, 1e-3))
    finding = found(study.STUDY, run, "rate-at-equal-loss")
    assert finding.verdict == "holds"
    assert "loss 2" in finding.measured
    assert "0.001" not in finding.measured
