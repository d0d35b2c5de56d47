"""Need, delay and neither, from records that are made up; valleys, windows and equal loss beside slow oracles."""

import math
from dataclasses import replace

import numpy as np
import pytest
from records import found, verdicts

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.rebound import need_or_delay as study
from joma.studies.rebound._cases import points
from joma.studies.rebound.need_or_delay import HELD, NOTHING, STUDY, Path, arm_name

CONFIG = replace(STUDY.quick, seeds=8, steps=400, every=20, valley=100, refresh=20, window=60, pairs=True)
BASE, SEEDS = "1 layer", 8
NONE = "not above its control"
STAYS, LATE = (0.0, 400), (0.4, 220)
"""The rise of a twin that needs what is frozen in it, and of one that is delayed; and the step of its valley."""
CLAIM = {arm: arm.lower().replace(" and ", "-or-") for arm in study.ARMS if arm != study.CONTROL}


def level(step, back, low):
    """Entropy falls from 2 to 1 by step 100, then slowly to 0.9 at `low`, and rises by `back` to the last step."""
    if step <= 100:
        return 2 - step / 100
    turned = 1 - 0.1 * (min(step, low) - 100) / 300
    return turned + back * max(step - low, 0) / max(400 - low, 1)


def made(folder, arms=(), *, losses=(), miss=0.01, config=CONFIG, diverged=(), base=(0.4, 100)):
    """A record whose arms rise by so much from a valley at such a step; seeds differ by a few hundredths.

    losses: by arm, by how much its loss is higher after the valley than that of the others.
    """
    run = Run.create(folder / "made.sqlite", study=STUDY.name, config=plain_config(config), version=STUDY.version)
    for turn, arm in enumerate(arm for arm in study.COLOURS if config.pairs or " and " not in arm):
        name, (back, low) = arm_name(BASE, arm), {NOTHING: base, **dict(arms)}.get(arm, (0.4, 100))
        chance = np.roll(np.linspace(-0.02, 0.02, SEEDS), 3 * turn)
        run.append(f"{name}/rates", 0, np.array([config.rate]))
        run.append(f"{name}/seeds", 0, np.arange(SEEDS))
        run.append(f"{name}/loss by frequency", 0, 4.2)
        for step in points(100, 400, 20):
            if arm == NOTHING or step >= 100:
                loss = 4 - 2.5 * step / 400 + dict(losses).get(arm, 0.0) * (step >= 100)
                values = level(step, back, low) + chance * (step > low) * (step - low) / 300
                gone = np.where(np.arange(SEEDS) < dict(diverged).get(arm, 0), 120, -1)
                run.append(f"{name}/valid/loss", step, np.full(SEEDS, loss))
                run.append(f"{name}/valid/entropy", step, values[:, None, None])
                run.append(f"{name}/diverged_at", step, gone)
                if arm == HELD:
                    run.append(f"{name}/held/miss", step, np.full((SEEDS, 1), miss * (step > 100)))
    return run


@pytest.mark.parametrize("arm", CLAIM)
def test_a_part_without_which_nothing_rises_is_needed(arm, tmp_path):
    with made(tmp_path, {arm: STAYS}) as run:
        judged = verdicts(STUDY, run)
        assert judged[f"needs-{CLAIM[arm]}"] == "holds"
        assert {judged[f"needs-{other}"] for other in CLAIM.values() if other != CLAIM[arm]} == {NONE}
        if arm in study.SINGLE:
            assert judged[f"delayed-by-{CLAIM[arm]}"] in (NONE, "fails", "undecided")


@pytest.mark.parametrize("arm", study.SINGLE)
def test_a_rise_from_a_later_valley_is_delayed_and_one_from_the_same_is_neither(arm, tmp_path):
    with made(tmp_path, {arm: LATE}) as run:
        judged = verdicts(STUDY, run)
        assert judged[f"delayed-by-{CLAIM[arm]}"] == "holds"
        assert judged[f"needs-{CLAIM[arm]}"] == NONE
        others = [CLAIM[one] for one in study.SINGLE if one != arm]
        assert {judged[f"delayed-by-{other}"] for other in others} == {"only qualitative"}


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        ({"arms": {"MLP": STAYS, "output": STAYS}}, {NONE}),  # the control loses as much
        ({"arms": {"MLP": (0.12, 300)}}, {"only qualitative"}),  # 0.12 nats are left
        ({"arms": {"MLP": STAYS}, "losses": {"MLP": 1.8}}, {NONE, "mixed", "only qualitative"}),  # not at equal loss
        ({"arms": {"MLP": STAYS}, "diverged": {"MLP": 6}}, {"not run"}),
        ({"arms": {"MLP": STAYS}, "diverged": {"output": 6}}, {"not run"}),
        ({"arms": {"MLP": STAYS}, "losses": {"embeddings": 9.0}}, {"not run"}),  # it learned nothing
        ({"arms": {"MLP": STAYS}, "base": (0.02, 100)}, {"not run"}),  # nothing comes back
    ],
)
def test_a_spoiled_record_turns_the_verdict_of_need(spoil, verdict, tmp_path):
    with made(tmp_path, **spoil) as run:
        assert verdicts(STUDY, run)["needs-mlp"] in verdict


@pytest.mark.parametrize("twin", [(0.4, 140), (0.03, 220)])  # hardly half a doubling later; hardly a rise
def test_a_spoiled_record_turns_the_verdict_of_delay(twin, tmp_path):
    with made(tmp_path, {"MLP": twin}) as run:
        assert verdicts(STUDY, run)["delayed-by-mlp"] in (NONE, "only qualitative")


def test_pairs_that_were_not_trained_are_not_judged(tmp_path):
    with made(tmp_path, config=replace(CONFIG, pairs=False)) as run:
        finding = found(STUDY, run, "needs-qk-or-mlp")
        assert (finding.verdict, finding.command) == ("not run", "joma verify need-or-delay --scale paper")


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ({"arms": {HELD: STAYS}}, "holds"),
        ({}, NONE),
        ({"arms": {HELD: STAYS}, "miss": 0.11}, "not run"),
        ({"arms": {HELD: STAYS, "QK": STAYS}}, "not run"),
    ],
)
def test_a_held_input_explains_the_rise_if_it_is_held_and_there_is_one(how, verdict, tmp_path):
    with made(tmp_path, **how) as run:
        assert verdicts(STUDY, run)["input-raises-frozen-logits"] == verdict


# ---- what is read from the record, one number at a time


def drawn(seed, seeds=5):
    draws = np.random.default_rng(seed)
    steps = np.array(points(6, 41, 2))
    entropy = draws.normal(size=(2, seeds, len(steps)))
    entropy[:, 1] = np.nan  # it diverged
    return Path(steps, entropy, draws.normal(size=(seeds, len(steps))))


def slow_valley(path, layer, seed):
    others = [s for s in range(path.entropy.shape[1]) if s != seed and not math.isnan(path.entropy[layer, s, 0])]
    means = [sum(path.entropy[layer, s, p] for s in others) / len(others) for p in range(len(path.steps))]
    return means.index(min(means))


def slow_rise(path, layer, seed, window, end):
    low, last = slow_valley(path, layer, seed), path.steps[end]
    near = [p for p in range(low, len(path.steps)) if last - window < path.steps[p] <= last]
    here = path.entropy[layer, seed]
    return sum(here[p] - here[low] for p in near) / len(near) if near else 0.0


@pytest.mark.parametrize("window", [1, 9, 30])
def test_a_rise_is_read_at_the_valley_of_the_other_seeds_and_ends_in_a_mean(window):
    path, ends = drawn(window), np.array([3, 7, 12, 5, 11])
    for layer in range(2):
        for seed in (0, 2, 3, 4):
            assert study.valleys(path)[layer, seed] == slow_valley(path, layer, seed)
            for given in (None, ends):
                end = len(path.steps) - 1 if given is None else given[seed]
                slow = slow_rise(path, layer, seed, window, end)
                assert study.rises(path, window, given)[layer, seed] == pytest.approx(slow, abs=1e-12)
            steps = path.entropy[layer, seed].tolist()
            assert study.valley_steps(path)[layer, seed] == path.steps[steps.index(min(steps))]
    assert np.isnan(study.valley_steps(path)[:, 1]).all()


def test_equal_loss_is_where_both_are_first_as_low_as_the_lowest_that_both_reach():
    one, other = drawn(3), drawn(4)
    ends = study.equal_loss(one, other)
    for seed in range(5):
        level = max(min(one.loss[seed]), min(other.loss[seed]))
        for path, end in zip((one, other), ends, strict=True):
            assert end[seed] == next(p for p, loss in enumerate(path.loss[seed]) if loss <= level)


def test_a_twin_has_its_base_s_way_down_and_a_later_valley_counts_in_doublings(tmp_path):
    with made(tmp_path, {"MLP": LATE}, losses={"MLP": 0.5}) as run:
        path = study.path(run, BASE, "MLP")
        assert path.steps.tolist() == list(points(100, 400, 20))
        np.testing.assert_allclose(path.loss[0], [4 - s / 160 + 0.5 * (s >= 100) for s in path.steps])
        (case,) = study.cases(run)
        np.testing.assert_allclose(study.doublings_later(run, case, "MLP"), math.log2(220 / 100))
        ends = np.mean([level(s, *LATE) for s in (380, 400)])  # the mean over the last 60 steps
        assert study.rise(run, case, "MLP").mean() == pytest.approx(ends - level(220, *LATE), abs=2e-3)
        np.testing.assert_allclose(
            study.lost(run, case, "MLP"), study.rise(run, case) - study.rise(run, case, "MLP"), atol=1e-12
        )


def test_a_network_is_frozen_in_what_its_name_says():
    from joma.data.text import Corpus

    text = Corpus.__new__(Corpus)
    object.__setattr__(text, "vocabulary", ["a"] * 9)
    with pytest.MonkeyPatch.context() as patch:
        plain = study.Recipe(decoder=None, optimizer=None)
        patch.setattr(study, "recipe", lambda *args, **more: plain)
        networks = study.plan(CONFIG, text)
    frozen = {name: set(one.frozen) for name, one in networks.items()}
    assert frozen[BASE] == set()
    assert frozen["1 layer, QK and MLP frozen"] == {"QK", "MLP"}
    assert frozen["1 layer, output frozen"] == {"output"}
    assert frozen[f"1 layer, {HELD}"] == {"QK"}
    assert len(networks) == 9
    assert all(one.own_start for one in networks.values())
    twins = [one for name, one in networks.items() if name != BASE]
    assert {(one.branch_of, one.branch_at) for one in twins} == {(BASE, 100)}


def test_a_window_longer_than_the_way_back_is_refused():
    with pytest.raises(ValueError, match="window must be at most 300, the steps after the valley, got 301"):
        replace(CONFIG, window=301)
