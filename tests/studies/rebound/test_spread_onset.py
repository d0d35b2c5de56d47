"""When entropy and the rank of what a layer reads turn: the lowest point, and a judge that can be turned."""

import numpy as np
import pytest
from records import changed, found

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.rebound.spread import onset
from joma.studies.rebound.spread import study as spread
from joma.studies.rebound.spread.run import SpreadConfig

STEPS = np.array([0, *(round(16 * 2 ** (n / 2)) for n in range(17))])  # to 4,096, √2 apart
LOGS = np.log(np.maximum(STEPS, 1))
LEARNS = 128  # the first step at which networks know more than how frequent words are
VALLEY = 512
CONFIG = SpreadConfig(steps=4_096, valley=VALLEY, layers=(1, 2), others=False, seeds=8)
NONE = "not above its control"
SEEDS = 8
TURNS = np.log(VALLEY) + 0.3 + np.where(np.arange(SEEDS) % 2, 0.4, -0.4) + 0.01 * np.arange(SEEDS)
"""Where the seeds turn, in ln of the step: early and late in turn, so that the next one is about 0.8 away."""
ORDER = [*range(1, SEEDS), 0]
APART = np.abs(TURNS - TURNS[ORDER]).mean()


def parabola(x, turn):
    return 1.0 + 0.3 * (x - turn) ** 2 + 20.0 * (x > LOGS[-2] + 0.2)


def recorded(path, entropy, rank, *, learns=LEARNS):
    """A run of one and of two layers. entropy, rank: of ln of the step, (seeds,); learns: a step, or one a seed.

    Layers of two turn 0.1 earlier and later than they are told, so that they turn together in the mean.
    """
    run = Run.create(path, study="spread", config=plain_config(CONFIG), version=spread.STUDY.version)
    for layers in (1, 2):
        variant = f"{layers} layer{'s' if layers > 1 else ''}"
        for entry, value in {"rates": np.array([0.1]), "seeds": np.arange(SEEDS), "loss by frequency": 2.0}.items():
            run.append(f"{variant}/{entry}", 0, value)
        shift = 0.1 * (np.arange(layers) - (layers - 1) / 2)
        for step, x in zip(STEPS.tolist(), LOGS, strict=True):
            curves = [np.stack([of(x - by) for by in shift], 1) for of in (entropy, rank)]  # (seeds, layers)
            run.record(step, {
                f"{variant}/valid/loss": np.where(step < np.broadcast_to(learns, SEEDS), 1.96, 1.94),
                f"{variant}/valid/entropy": np.stack([curves[0] - 0.5, curves[0] + 0.5], -1),  # two heads
                f"{variant}/spread/rank": curves[1],
                f"{variant}/diverged_at": np.full(SEEDS, -1),
            })  # fmt: skip
    return run


def turning(path, entropy=TURNS, rank=TURNS, **options):
    return recorded(path, lambda x: parabola(x, entropy), lambda x: parabola(x, rank), **options)


# ---- the lowest point


def by_brute_force(x, y):
    """The lowest point of the parabola through three points, on a fine grid, by Lagrange's formula."""
    fine = np.linspace(x[0], x[2], 20_001)
    curve = sum(y[i] * np.prod([(fine - x[j]) / (x[i] - x[j]) for j in range(3) if j != i], axis=0) for i in range(3))
    return fine[curve.argmin()]


def test_the_lowest_point_is_that_of_the_parabola_through_its_neighbours():
    draws = np.random.default_rng(0)
    for _ in range(20):
        x = np.cumsum(draws.uniform(0.2, 0.5, 9))  # points are not equally far apart
        y = draws.uniform(1.0, 2.0, 9)
        at = int(draws.integers(3, 8))
        y[at] = draws.uniform(0.5, 0.9)
        around = slice(at - 1, at + 2)
        for first in (0, 2):
            assert onset.lowest(x, y, first) == pytest.approx(by_brute_force(x[around], y[around]), abs=1e-4)


def test_the_lowest_point_may_be_an_end_and_is_never_before_the_first():
    x = np.array([0.0, 1.0, 2.5, 3.0, 5.0])
    y = np.array([0.0, 3.0, 2.0, 1.0, 4.0])
    assert onset.lowest(x, y, 0) == 0.0, "an end has one neighbour"
    assert onset.lowest(x, -x, 0) == 5.0
    assert onset.lowest(x, x, 2) == 2.5, "what came before does not count, and is no neighbour"
    assert 2.5 < onset.lowest(x, y, 1) < 5.0
    assert onset.lowest(x, y, 3) == 3.0


def test_a_flat_bottom_is_lowest_between_its_first_two_points():
    assert onset.lowest(np.arange(5.0), np.array([1.0, 0.0, 0.0, 0.0, 1.0]), 0) == pytest.approx(1.5)
    assert onset.lowest(np.arange(4.0), np.ones(4), 0) == 0.0, "a curve that never moves is lowest where it begins"


# ---- from a record


def test_turns_are_those_of_every_layer_and_seed(tmp_path):
    run = turning(tmp_path / "run", rank=TURNS[::-1])
    for variant, shift in (("1 layer", [0.0]), ("2 layers", [-0.05, 0.05])):
        for what, turns in (("valid/entropy", TURNS), ("spread/rank", TURNS[::-1])):
            wanted = np.asarray(shift)[:, None] + turns
            np.testing.assert_allclose(onset.log_turns(run, variant, what), wanted, atol=1e-6)
    np.testing.assert_allclose(onset.distances(run, "2 layers"), np.tile(np.abs(TURNS - TURNS[::-1]), (2, 1)))
    following = TURNS[::-1][ORDER]  # the next seed's, of the same layer
    np.testing.assert_allclose(
        onset.distances(run, "2 layers", others=True), np.tile(np.abs(TURNS - following), (2, 1)), atol=1e-6
    )


def test_a_dip_before_a_network_has_learned_does_not_count(tmp_path):
    learns = np.array([128, 128, 256, 16] * 2)

    def dipping(x):
        last = LOGS[[STEPS.tolist().index(step) - 1 for step in learns]]
        return np.where((x <= last + 1e-9) & (learns > 16), 0.1, parabola(x, TURNS)) - 5.0 * (x == 0)

    plain = lambda x: parabola(x, TURNS)
    run = recorded(tmp_path / "run", dipping, plain, learns=learns)
    np.testing.assert_allclose(onset.log_turns(run, "1 layer", "valid/entropy")[0], TURNS, atol=1e-6)


def test_the_point_at_which_a_network_has_learned_counts(tmp_path):
    turn = np.full(SEEDS, np.log(LEARNS))
    run = recorded(tmp_path / "run", lambda x: np.where(x < turn - 1e-9, 9.0, x - turn), lambda x: parabola(x, turn))
    np.testing.assert_allclose(onset.log_turns(run, "1 layer", "valid/entropy")[0], turn)


def test_seeds_that_diverged_or_learned_nothing_have_no_turn(tmp_path):
    run = turning(tmp_path / "run", learns=np.where(np.arange(SEEDS) == 1, 10**6, 128))

    def lose(name, step, value):
        if name == "2 layers/diverged_at":
            return np.where(np.arange(SEEDS) == 2, 700, value)
        return value

    lost = changed(run, lose)
    for what in ("valid/entropy", "spread/rank"):
        for variant, without in (("1 layer", [1]), ("2 layers", [1, 2])):
            for layer in onset.log_turns(lost, variant, what):
                assert np.flatnonzero(np.isnan(layer)).tolist() == without


def test_what_must_be_learned_is_more_than_a_twentieth_of_a_nat(tmp_path):
    """The losses are 0.04 and 0.06 below that of frequencies."""
    run = turning(tmp_path / "run")
    none = changed(run, lambda name, step, v: v + 0.02 if name.endswith("valid/loss") else v)
    assert np.isnan(onset.log_turns(none, "1 layer", "valid/entropy")).all()


# ---- the judge


def verdict(run):
    return found(spread.STUDY, run, "turns-with-the-rank").verdict


def test_a_rank_that_turns_with_its_own_entropy(tmp_path):
    run = turning(tmp_path / "run")
    finding = found(spread.STUDY, run, "turns-with-the-rank")
    assert finding.verdict == "holds"
    assert set(finding.printed.effects) == {"1 layer", "2 layers: layer 1", "2 layers: layer 2"}
    for case in finding.printed.effects.values():
        assert case.effect - case.control_effect == pytest.approx(APART, abs=1e-6)
    middle = np.exp(TURNS.mean())
    steps = finding.details["1 layer, step of the lowest"]
    assert steps == pytest.approx({"entropy": middle, "rank": middle})
    later = found(spread.STUDY, turning(tmp_path / "later", rank=TURNS + 0.2), "turns-with-the-rank")
    assert later.verdict == "holds"
    assert later.details["2 layers: layer 2, step of the lowest"] == pytest.approx(
        {"entropy": middle * np.exp(0.05), "rank": middle * np.exp(0.25)}
    )


@pytest.mark.parametrize(
    ("entropy", "rank", "expected"),
    [
        (TURNS, np.full(SEEDS, TURNS.mean()), NONE),  # all ranks turn at one step
        (np.full(SEEDS, TURNS[2]), np.full(SEEDS, TURNS[2]), NONE),  # everything does
        (TURNS, TURNS - 0.25, "only qualitative"),  # seed by seed, and too far apart
        (TURNS, TURNS + 0.25, "only qualitative"),
        (5.9 + TURNS / 10, 5.9 + TURNS / 10, "only qualitative"),  # seeds differ by less than what matters
        (TURNS, TURNS[[-1, *range(SEEDS - 1)]], "fails"),  # every rank turns with the entropy of the seed before
        (TURNS, TURNS[[1, 0, 3, 2, 4, 5, 6, 7]], "undecided"),  # half of them with their own
    ],
)
def test_a_rank_that_turns_with_others_or_at_another_time(tmp_path, entropy, rank, expected):
    assert verdict(turning(tmp_path / "run", entropy, rank)) == expected


def test_layers_that_do_not_come_back_are_not_judged(tmp_path):
    def falls_on(name, step, value):
        if name == "2 layers/valid/entropy" and step == STEPS[-1]:
            value[:, 1] -= 25.0
        return value

    falling = changed(turning(tmp_path / "run"), falls_on)
    finding = found(spread.STUDY, falling, "turns-with-the-rank")
    assert set(finding.printed.effects) == {"1 layer", "2 layers: layer 1"}
