"""Depth against width: fair choices of the rate, and judges that the record can turn."""

import numpy as np
import pytest
from every_study import says_what_is_seen
from records import changed, found
from studies.depth_width.small_depth_width import TEXTS, TREES

from joma.studies.depth_width.depth_width.run import SHUFFLED
from joma.studies.depth_width.depth_width.study import DEEP, DEEPER, FLAT, STUDY, Sweep

pytestmark = pytest.mark.usefixtures("no_other_text")
SEEDS = np.array([-1.0, 0.0, 1.0])


def losses(deep, shallow=1.0, *, rate=0.1, spread=0.001):
    best = np.array([shallow, deep])[:, None] + spread * np.outer([1, -1], SEEDS)
    return np.stack([best, best + rate], 1)


def made(run, **kinds):
    """A copy of the run with these losses after the start, on both halves; other kinds gain nothing by depth."""
    named = {"wikitext": "wikitext-2", "deep": DEEP, "flat": FLAT}
    given = {named.get(name, name): values for name, values in kinds.items()}

    def change(name, step, value):
        if "/valid/" not in name:
            return value
        family, shape = name[:4], int(name.split(", ")[1][0]) - 1
        of = [given.get(kind, losses(1.0)) for kind in (TEXTS if family == "text" else TREES)]
        return np.concatenate([each[shape].flatten() for each in of]) + (5.0 if step == 0 else 0.0)

    return changed(run, change)


def judged(run, claim, **kinds):
    return found(STUDY, made(run, **kinds), claim).verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (losses(0.5), "holds"),
        (losses(0.985, rate=0.001), "only qualitative"),
        (losses(0.9, rate=0.2), "not above its control"),  # another rate changes more
        (losses(0.9, rate=0.1, spread=0.01), "undecided"),  # or as much, as far as seeds tell
        (losses(0.999, rate=0.0, spread=0.00005), "only qualitative"),
        (losses(0.95, spread=0.1), "undecided"),
        (losses(1.3), "fails"),
    ],
)
@pytest.mark.parametrize("kind", ["sympy", "wikitext", "deep"])
def test_deeper_must_beat_chance_and_another_rate(tiny, kind, values, verdict):
    claim = DEEPER[{"wikitext": "wikitext-2", "deep": DEEP}.get(kind, kind)]
    assert judged(tiny, claim, **{kind: values}) == verdict


def test_the_best_shape_is_asked_on_every_data_set(tiny):
    everywhere = dict.fromkeys(("sympy", "wikitext", "deep"), losses(0.9))
    assert judged(tiny, "best-shape-is-deeper", **everywhere) == "holds"
    assert judged(tiny, "best-shape-is-deeper", **everywhere | {"deep": losses(1.2)}) == "mixed"
    assert judged(tiny, "best-shape-is-deeper", **dict.fromkeys(everywhere, losses(1.2))) == "fails"


def test_shape_against_rate(tiny):
    large, small = losses(1.3, rate=0.1), losses(1.05, rate=0.4)
    for _name, values, verdict in (("large", large, "holds"), ("small", small, "fails")):
        kinds = dict.fromkeys(("sympy", "wikitext", "deep"), values)
        assert judged(tiny, "shape-matters-more-than-rate", **kinds) == verdict


@pytest.mark.parametrize(
    ("claim", "kind", "control"),
    [("deep-trees-favour-depth", "deep", "flat"), ("order-favours-depth", "sympy", SHUFFLED)],
)
def test_gains_are_compared_with_data_without_hierarchy(tiny, claim, kind, control):
    gain, none = losses(0.5), losses(1.0)
    assert judged(tiny, claim, **{kind: gain, control: none}) == "holds"
    same = losses(0.5, spread=0.002)  # but not to the last digit of every seed
    assert judged(tiny, claim, **{kind: gain, control: same}) == "not above its control"
    assert judged(tiny, claim, **{kind: none, control: gain}) == "fails"


def test_networks_that_learned_nothing_tell_nothing(tiny):
    idle = losses(9.0, 9.0)
    run = made(tiny, sympy=idle, deep=idle)
    for claim in (
        DEEPER["sympy"],
        "best-shape-is-deeper",
        "shape-matters-more-than-rate",
        "deep-trees-favour-depth",
        "order-favours-depth",
    ):
        finding = found(STUDY, run, claim)
        assert finding.verdict == "not run"
        assert "1 layer learned nothing: their loss is 9.000 nats" in finding.reason
    some = made(tiny, sympy=losses(9.0))
    assert "no deeper shape learned" in found(STUDY, some, "best-shape-is-deeper").reason
    assert "networks of 2 layers learned nothing" in found(STUDY, some, DEEPER["sympy"]).reason


def test_a_loss_must_be_well_below_that_of_frequencies_to_be_learned(tiny):
    known = float(Sweep(made(tiny), "sympy").known_without)
    for away, learned in ((-0.06, True), (-0.04, False), (0.04, False)):
        run = made(tiny, sympy=losses(known + away, 0.5))
        assert (found(STUDY, run, DEEPER["sympy"]).verdict != "not run") == learned


def test_shuffled_text_need_not_be_learned(tiny):
    kinds = {"sympy": losses(0.5), SHUFFLED: losses(9.0, 9.0)}
    assert judged(tiny, "order-favours-depth", **kinds) == "holds"


def test_no_seed_chooses_its_own_rate(tiny):
    """The last seed would be much better at the second rate, but the others are not."""
    values = losses(1.0, rate=0.1, spread=0.0)
    values[:, 1, 2] = 0.5
    sweep = Sweep(made(tiny, sympy=values), "sympy")
    np.testing.assert_allclose(sweep.at_best(0)[2], 1.0)
    np.testing.assert_allclose(sweep.at_best(0)[:2], 1.1)  # to them it spoke for the second rate
    assert sweep.best_rate(0) == 1


def test_the_rate_is_not_chosen_on_what_is_judged(tiny):
    values = losses(1.0, spread=0.0)
    base = made(tiny, sympy=values)

    def turned(name, step, value):
        return value[::-1].copy() if name.startswith("text") and name.endswith("judging") else value

    sweep = Sweep(changed(base, turned), SHUFFLED)
    chosen = np.array([sweep.ranked(0, seed)[0] for seed in range(3)])
    assert chosen.tolist() == [0, 0, 0]
    np.testing.assert_allclose(sweep.at_best(0), 1.1, atol=0.01)


def test_a_network_is_read_where_the_choosing_half_is_lowest(tiny):
    base = made(tiny)
    last = int(base.steps("text, 1 layers/valid/judging")[-1])

    def later(name, step, value):
        worse = {"choosing": 1.0, "judging": -0.5}  # after the best point one half rises and the other falls
        return value + worse[name.rpartition("/")[2]] if "/valid/" in name and step == last else value

    sweep = Sweep(changed(base, later), "sympy")
    np.testing.assert_allclose(sweep.at_best(0), 1.0, atol=0.01)


def test_networks_that_diverged_are_left_out_and_counted(tiny):
    base = made(tiny, sympy=losses(0.5))

    def lost(name, step, value):
        if name == "text, 2 layers/diverged_at":
            value = np.array(value)
            value[:3] = 4  # the best rate of the deep shape on python
        return value

    run = changed(base, lost)
    sweep = Sweep(run, "sympy")
    assert sweep.diverged == 3
    np.testing.assert_allclose(sweep.at_best(1), 0.6, atol=0.01)  # the other rate
    finding = found(STUDY, run, DEEPER["sympy"])
    assert finding.details["networks left out"] == {"diverged on Python source": 3.0}
    for drawing in STUDY.draw(run):
        says_what_is_seen(drawing)
