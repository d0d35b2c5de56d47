"""The study `collapse` on a made-up language: what is recorded, and judges that can be turned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import changed, found, verdicts
from small_runs import small

from joma.host.seeds import stream
from joma.recipes.language import corpus
from joma.studies.stability.collapse import record, rules
from joma.studies.stability.collapse import study as collapse
from joma.studies.stability.collapse.run import (
    HEALTHY,
    OPEN,
    PLAIN,
    QK_NORM,
    REMEDIES,
    RISING,
    SUDDEN,
    WARMED,
    built,
    members_of,
    plan,
)

pytestmark = pytest.mark.usefixtures("no_other_text")
POINTS = 45
NONE = "not above its control"
RULES = list(rules.RULES)


@pytest.fixture(scope="module")
def config(data_folder):
    return small("collapse", data=str(data_folder))


@pytest.fixture(scope="module")
def run(small_run):
    return small_run("collapse")


def test_each_seed_has_a_random_head_of_its_own_and_twins_have_the_same(run, config):
    """A share of all places by seed, from the stream of that seed and of nothing else."""
    places, seeds = run.value(f"{PLAIN}/place"), run.value(f"{PLAIN}/seed").astype(int)
    drawn = {seed: stream(int(seed), "random head") for seed in set(seeds.tolist())}
    wanted = {seed: float(torch.rand((), generator=torch.Generator().manual_seed(own), dtype=torch.float64))
              for seed, own in drawn.items()}  # fmt: skip
    assert len(wanted) == len(set(wanted.values())) == config.seeds + config.open_seeds
    np.testing.assert_array_equal(places, [wanted[seed] for seed in seeds.tolist()])


def test_who_the_members_are(config):
    members = members_of(config, PLAIN)
    kinds = [one.kind for one in members if not one.open and one.seed == 7]
    assert kinds == [HEALTHY] * 2 + [SUDDEN] * 2 + [WARMED] * 2 + [RISING] * 2
    assert {(one.rate, one.warm_up) for one in members if one.kind == RISING} == {(2.0, 88), (6.0, 88)}
    assert {one.warm_up for one in members if one.kind == WARMED} == {5}
    assert {one.warm_up for one in members if one.kind == SUDDEN} == {0}
    calibrate = [one for one in members if one.open]
    assert {one.seed for one in calibrate} == {7 + OPEN, 8 + OPEN}
    assert {one.kind for one in calibrate} == {HEALTHY}
    assert not {one.seed for one in calibrate} & {one.seed for one in members if not one.open}
    others = members_of(config, QK_NORM)
    assert {one.kind for one in others} == {SUDDEN, RISING}
    assert not any(one.open for one in others)


def test_what_the_networks_are(config):
    plain, normed = (plan(config, corpus(config))[name].decoder for name in (PLAIN, QK_NORM))
    assert (plain.norm, plain.layers, plain.heads, plain.copies, plain.qk_norm) == ("pre-layer", 2, 2, False, False)
    assert normed == plain.with_(qk_norm=True)


def test_each_member_has_its_own_rate_and_warm_up(config):
    text = corpus(config)
    variants = plan(config, text)
    for name, variant in ((name, variants[name]) for name in (PLAIN, QK_NORM)):
        members, made = members_of(config, name), built(config, name, variant, text)
        assert made.optimizer.rates(made.members) == tuple(one.rate for one in members)
        assert made.optimizer.warm_ups(made.members) == tuple(one.warm_up for one in members)
        assert made.optimizer.renew_every is None
        assert made.networks([0, len(members) - 1]).seeds.tolist() == [members[0].seed, members[-1].seed]


def test_what_is_recorded(run):
    for name, count in ((PLAIN, 8 * 4 + 4), (QK_NORM, 4 * 4)):
        assert run.array(f"{name}/probe/loss").shape == (POINTS, count)
        assert run.array(f"{name}/probe/entropy").shape == (POINTS, count, 2, 2)
    assert run.array(f"{PLAIN}/probe/stable_rank").shape == (POINTS, 36, 2, 4)
    assert run.array(f"{PLAIN}/probe/sign_diversity").shape == (POINTS, 36, 2, 2)
    assert list(run.dims(f"{PLAIN}/weights/update_entropy")) == ["member", "layer", "head"]


def test_twins_begin_alike_and_read_the_same(run):
    seeds, first = record.column(run, PLAIN, "seed"), run.array(f"{PLAIN}/probe/loss")[0]
    for seed in (7, 8, 9, 10):
        assert len(set(first[seeds == seed].tolist())) == 1
    rate, warm_up = (record.column(run, PLAIN, field) for field in ("rate", "warm_up"))
    later = run.array(f"{PLAIN}/probe/loss")[1]
    assert later[(seeds == 7) & (rate == 0.1) & (warm_up == 0)] != later[(seeds == 7) & (rate == 0.1) & (warm_up == 5)]


def test_rules_with_the_monitor_s_thresholds_ring_as_the_monitor_does(run):
    usual = dict(zip(rules.alarm_names(), run.value(f"{PLAIN}/usual rings"), strict=True))
    assert list(usual) == ["largest logit", "entropy floor", "entropy fall", "rank drop", "not finite"]
    assert sum((rings >= 0).any() for rings in usual.values()) >= 2  # some ring
    for name, rule in rules.RULES.items():
        if rule.own is not None:
            scores = rules.scores(name, run.array(f"{PLAIN}/{rule.series}"), np.log(6))
            points = rules.first_ring(scores, rule.own)
            np.testing.assert_array_equal(np.where(points < 0, -1, 2 * points), usual[name], err_msg=name)
            np.testing.assert_array_equal(points, record.usual(run)[name], err_msg=name)


def test_an_entropy_fall_planted_late_is_seen_by_rule_and_monitor_alike(run):
    def change(name, step, value):
        if name != f"{PLAIN}/probe/entropy":
            return value
        value = np.full(value.shape, 1.5 - 0.001 * step)
        value[3, 1, 0] -= 0.5 * (step >= 60)
        value[4, 0, 0] -= 0.5 * (step >= 20)  # while the history is made
        return value

    copy = changed(run, change)
    usual = dict(zip(rules.alarm_names(), rules.usual_rings(copy, PLAIN, 6), strict=True))
    scores = rules.scores("entropy fall", copy.array(f"{PLAIN}/probe/entropy"), np.log(6))
    assert np.flatnonzero(usual["entropy fall"] >= 0).tolist() == [3]
    assert usual["entropy fall"][3] == 60
    assert np.flatnonzero(rules.first_ring(scores, 3.0) >= 0).tolist() == [3]
    assert rules.first_ring(scores, 3.0)[3] == 30


def test_a_history_that_does_not_fit_is_refused(config):
    with pytest.raises(ValueError, match="steps must be at least 80, twice the 20 points of history, got 78"):
        replace(config, steps=78)


# The event


def losses(run, course):
    def change(name, step, value):
        if name == f"{PLAIN}/probe/loss":
            value = np.array(value, dtype=float)
            value[0] = course[step // 2]
        return value

    return changed(run, change)


@pytest.mark.parametrize(
    ("tail", "point"),
    [
        pytest.param([2.6] * 10, 35, id="for good"),
        pytest.param([2.4] * 10, -1, id="too little"),
        pytest.param([2.5] * 10, 35, id="just enough"),
        pytest.param([9.0] * 5 + [2.0] * 5, -1, id="a spike"),
        pytest.param([9.0] * 3 + [2.0] + [9.0] * 6, 39, id="a spike, then for good"),
        pytest.param([2.0] * 7 + [3.0] * 3, 42, id="three points at the end"),
        pytest.param([2.0] * 8 + [3.0] * 2, -1, id="too late to tell"),
        pytest.param([np.nan] * 10, 35, id="not a number"),
        pytest.param([np.inf] * 5 + [2.0] * 5, -1, id="infinite once"),
        pytest.param([1.0] * 5 + [1.6] * 5, 40, id="above the lowest so far"),
    ],
)
def test_when_a_run_diverges(run, tail, point):
    course = [*np.linspace(5.0, 2.0, 35), *tail]
    assert record.event(losses(run, course), PLAIN)[0] == point


# Judges: a record in which every kind of member does as told


EVENT = 30
RINGS = {"largest logit": 10, "entropy floor": 12, "entropy fall": 22, "rank drop": 14, "update entropy": 22,
         "drift entropy": 23, "sign diversity": 16, "gradient norm": 27, "loss": 28}  # fmt: skip
QUIET = {"largest_logit": 5.0, "entropy": 1.2, "stable_rank": 3.0, "update_entropy": 2.0, "drift_entropy": 2.0,
         "sign_diversity": 0.4, "gradient_norm": 1.0, "loss": 3.0}  # fmt: skip
BEYOND = {"largest_logit": 50.0, "stable_rank": 2.0, "update_entropy": 1.0, "drift_entropy": 1.0,
          "sign_diversity": 0.1, "gradient_norm": 3.0}  # fmt: skip


def told(run, *, rings=None, everywhere=False, event=EVENT, sudden=-1, qk=-1, healthy=-1, false=(), usual=8,
         usual_healthy=-1, usual_high=-1, qk_entropy=0.8, warm_entropy=0.5, late=0):  # fmt: skip
    """A copy of the run.

    rings: the point at which each rule has something to ring at, in rising members. everywhere: at all places, or at
    the first alone. event, sudden, qk, healthy: where rising, sudden, rising QK-norm and healthy members diverge; -1:
    nowhere. false: rules that have it at point 5 in healthy members that are judged. usual, usual_healthy, usual_high:
    where the monitor's largest logit rings in rising, healthy and other members. qk_entropy, warm_entropy: the lowest
    at the end of QK-norm and of warmed members, in nats. late: points by which seeds differ in the event.
    """
    rings = RINGS | (rings or {})
    at_step = 2  # steps between two points
    kinds = {name: record.column(run, name, "kind") for name in (PLAIN, QK_NORM)}
    seeds = {name: record.column(run, name, "seed") for name in (PLAIN, QK_NORM)}
    is_open = record.column(run, PLAIN, "open").astype(bool)
    series = {rule.series.rpartition("/")[2]: name for name, rule in rules.RULES.items()}

    def loss(name, step):
        at = {HEALTHY: healthy, SUDDEN: sudden, WARMED: -1, RISING: event if name == PLAIN else qk}
        begins = np.array([at[int(kind)] for kind in kinds[name]])
        begins = np.where(begins < 0, 99, begins + late * (seeds[name] == 9))
        if name == PLAIN:
            begins = np.where(is_open, 99, begins)
        value = np.maximum(3.0 - 0.05 * step, 1.5) + 2.0 * (step >= begins)
        if name == PLAIN and step in (rings["loss"], 5):
            bump = (kinds[name] == RISING) if step == rings["loss"] else np.zeros(len(value), bool)
            if step == 5 and "loss" in false:
                bump = bump | ((kinds[name] == HEALTHY) & ~is_open)
            value = value + 0.3 * bump
        return value

    def entropy(name, step, value):
        value = np.full(value.shape, 1.2)
        rising = kinds[name] == RISING
        where = slice(None) if everywhere else 0
        if name == PLAIN:
            if step >= rings["entropy floor"]:
                value[rising, where, where] = 1.0
            if step >= rings["entropy fall"]:
                value[rising, where, where] = 0.8
        if step == POINTS - 1:
            value[kinds[name] == SUDDEN] = qk_entropy if name == QK_NORM else 0.02
            value[kinds[name] == WARMED] = warm_entropy
        return value

    def change(name, step, value):
        step = step // at_step
        ensemble, _, rest = name.partition("/")
        what = rest.rpartition("/")[2]
        if ensemble in REMEDIES:  # test_collapse_remedies.py has those
            return value
        if rest == "probe/loss":
            return loss(ensemble, step)
        if rest == "probe/entropy":
            return entropy(ensemble, step, value)
        if ensemble == PLAIN and what in BEYOND:
            value = np.full(value.shape, QUIET[what])
            flat = value.reshape(len(value), -1)
            places = slice(None) if everywhere else slice(0, 1)
            if step >= rings[series[what]]:
                flat[kinds[PLAIN] == RISING, places] = BEYOND[what]
            if step == 5 and series[what] in false:
                flat[(kinds[PLAIN] == HEALTHY) & ~is_open, places] = BEYOND[what]
            return flat.reshape(value.shape)
        if rest == "usual rings":
            value = np.full(value.shape, -1)
            other = np.isin(kinds[PLAIN], (SUDDEN, WARMED))
            value[0, kinds[PLAIN] == RISING] = usual
            value[0, (kinds[PLAIN] == HEALTHY) & ~is_open] = usual_healthy
            value[0, other] = usual_high
            return np.where(value < 0, -1, at_step * value)
        once = {f"{PLAIN}/place": 0.9, "loss by frequency": 3.5}
        return np.full(np.shape(value), once[name]) if name in once else value

    return changed(run, change)


ALL_HOLD = {
    "largest-logit-warns": "holds",
    "low-entropy-warns": "holds",
    "falling-entropy-warns": "holds",
    "rank-drop-warns": "holds",
    "update-entropy-warns": "holds",
    "sign-diversity-warns": "holds",
    "usual-alarms-warn": "holds",
    "healthy-twins-are-quiet": "holds",
    "alarms-tell-divergence": "holds",
    "too-high-a-rate-diverges": NONE,
    "qk-norm-prevents-divergence": "holds",
    "qk-norm-prevents-collapse": "holds",
    "warm-up-prevents-collapse": "holds",
}


def test_a_record_in_which_all_rules_warn(run):
    copy = told(run)
    judged = verdicts(collapse.STUDY, copy)
    assert {claim: judged[claim] for claim in ALL_HOLD} == ALL_HOLD
    for rule in RULES:
        np.testing.assert_allclose(record.lead(copy, rule), (EVENT - RINGS[rule]) / EVENT, err_msg=rule)
    assert record.judged(copy).sum() == 8


@pytest.mark.parametrize(
    ("claim", "options", "verdict"),
    [
        ("largest-logit-warns", {"rings": {"loss": 10}}, NONE),
        ("largest-logit-warns", {"rings": {"gradient norm": 21, "largest logit": 21}}, NONE),
        ("largest-logit-warns", {"rings": {"loss": 4}}, "fails"),
        ("largest-logit-warns", {"rings": {"largest logit": 40}}, "fails"),  # after the event is no warning
        ("largest-logit-warns", {"rings": {"largest logit": 30, "loss": 30, "gradient norm": 30}}, NONE),
        ("largest-logit-warns", {"rings": {"largest logit": 26}}, "only qualitative"),
        ("largest-logit-warns", {"everywhere": True}, NONE),  # a random head rings as early
        ("low-entropy-warns", {"everywhere": True}, NONE),
        ("low-entropy-warns", {"rings": {"loss": 3}}, "fails"),
        ("falling-entropy-warns", {"rings": {"entropy fall": 99}}, "fails"),
        ("rank-drop-warns", {"rings": {"rank drop": 29}}, "fails"),
        ("update-entropy-warns", {"rings": {"update entropy": 99}}, "fails"),
        ("update-entropy-warns", {"rings": {"update entropy": 4}}, "fails"),  # its history has it too
        ("sign-diversity-warns", {"rings": {"sign diversity": 99}}, "fails"),
        ("sign-diversity-warns", {"rings": {"sign diversity": 3}}, "holds"),
        ("usual-alarms-warn", {"usual": -1}, "fails"),
        ("usual-alarms-warn", {"usual": 35}, "fails"),
        ("usual-alarms-warn", {"usual": 27}, NONE),
        ("healthy-twins-are-quiet", {"usual_healthy": 40}, NONE),
        ("healthy-twins-are-quiet", {"usual": -1}, NONE),
        ("alarms-tell-divergence", {"usual_high": 40}, NONE),
        ("alarms-tell-divergence", {"usual_high": 40, "usual": -1}, "fails"),
        ("too-high-a-rate-diverges", {"sudden": 25}, "holds"),
        ("too-high-a-rate-diverges", {"healthy": 25}, "not run"),
        ("qk-norm-prevents-divergence", {"qk": 30}, NONE),
        ("qk-norm-prevents-collapse", {"qk_entropy": 0.02}, NONE),
        ("qk-norm-prevents-collapse", {"qk_entropy": 0.15}, "only qualitative"),
        ("warm-up-prevents-collapse", {"warm_entropy": 0.02}, NONE),
        ("largest-logit-warns", {"event": -1}, "not run"),
        ("usual-alarms-warn", {"event": 15}, "not run"),  # before every rule can ring
        ("healthy-twins-are-quiet", {"event": -1}, "not run"),
        ("qk-norm-prevents-divergence", {"event": -1}, "not run"),
    ],
)
def test_the_verdict_follows_the_record(run, claim, options, verdict):
    assert verdicts(collapse.STUDY, told(run, **options))[claim] == verdict


@pytest.mark.parametrize("seeds", [1, 2])
def test_leads_need_two_seeds_with_a_run_that_diverges(run, seeds):
    copy, of = told(run), record.column(run, PLAIN, "seed")
    few = sorted(set(of[record.judged(copy)]))[:seeds]

    def change(name, step, value):
        return np.where(np.isin(of, few), value, value[0]) if name == f"{PLAIN}/probe/loss" else value

    rest = changed(copy, change)
    assert bool(record.nothing_diverged(rest)) == (seeds < 2)
    assert any("Too few runs diverge" in one.caption for one in collapse.STUDY.draw(rest)) == (seeds < 2)


def test_where_all_open_runs_diverge_nothing_is_calibrated(run):
    copy, is_open = told(run), record.column(run, PLAIN, "open").astype(bool)
    gone = np.flatnonzero(record.judged(copy))[0]

    def change(name, step, value):
        return np.where(is_open, value[gone], value) if name == f"{PLAIN}/probe/loss" else value

    assert record.nothing_learned(changed(copy, change)) == "every healthy run diverged"


def test_open_seeds_alone_calibrate(run):
    copy = told(run, false=("largest logit", "loss"))
    for rule in ("largest logit", "loss"):
        np.testing.assert_allclose(record.lead(copy, rule), (EVENT - RINGS[rule]) / EVENT)
        assert record.false_alarms(copy, record.rings(copy, rule)) == 1.0
    assert record.false_alarms(copy, record.rings(copy, "rank drop")) == 0.0
    details = found(collapse.STUDY, copy, "largest-logit-warns").details
    assert details["false alarms per healthy run"] == {"largest logit": 1.0, "gradient norm": 0.0, "loss": 1.0}
    assert details["lead, steps (median over runs)"]["largest logit"] == 40.0


def test_an_open_run_that_goes_further_raises_the_threshold(run):
    calm = told(run)
    open_one = int(np.flatnonzero(record.column(run, PLAIN, "open"))[0])

    def change(name, step, value):
        value = told(run).change(name, step, value)
        if name == f"{PLAIN}/probe/largest_logit" and step == 10:
            value = np.array(value)
            value[open_one, 1, 1] = 60.0
        return value

    wild = changed(run, change)
    assert (record.rings(calm, "largest logit")[record.judged(calm)] == 10).all()
    assert (record.rings(wild, "largest logit")[record.judged(wild)] == -1).all()
    assert (record.lead(wild, "largest logit") == 0).all()


def test_healthy_twins_that_ring_too_often_are_not_quiet(run):
    warm = (record.column(run, PLAIN, "kind") == HEALTHY) & (record.column(run, PLAIN, "warm_up") > 0)

    def change(name, step, value):
        value = plain.change(name, step, value)
        return np.where(warm & (np.arange(len(value)) == 1)[:, None], 80, value) if "usual" in name else value

    plain = told(run)
    copy = changed(run, change)
    assert record.false_alarms(copy, record.any_of(record.usual(copy))) == 0.5
    assert verdicts(collapse.STUDY, copy)["healthy-twins-are-quiet"] == "only qualitative"


def test_the_head_with_least_entropy_counts(run):
    def change(name, step, value):
        value = np.full(value.shape, 1.0) if name.endswith("probe/entropy") else value
        if name == f"{QK_NORM}/probe/entropy":
            value[:, 1, 0] = 0.5
        return value

    copy = changed(run, change)
    np.testing.assert_allclose(record.lowest_entropy(copy, QK_NORM, SUDDEN), 0.5 / np.log(6))
    np.testing.assert_allclose(record.lowest_entropy(copy, PLAIN, SUDDEN), 1.0 / np.log(6))


def test_seeds_are_averaged_over_their_runs(run):
    copy = told(run, late=6)
    share = record.lead(copy, "largest logit")
    np.testing.assert_allclose(share, [20 / 30, 20 / 30, 26 / 36, 20 / 30])


def test_the_first_of_several_alarms_counts():
    found = record.any_of({"a": np.array([5, -1, -1, 9]), "b": np.array([7, 3, -1, 0])})
    assert found.tolist() == [5, 3, -1, 0]


def test_thresholds_leave_the_share_of_false_alarms():
    highest = np.arange(40.0)[:, None, None] * np.array([0.5, 1.0])[None, :, None]
    bound = rules.threshold(highest)
    assert (rules.first_ring(highest, bound) >= 0).mean() == 0.05
    assert rules.threshold(highest[:19]) == 18.0  # fewer than twenty: none may


def test_what_is_not_finite_rings_from_there_on():
    values = np.ones((4, 2, 1))
    values[2, 1] = np.nan
    scores = rules.scores("sign diversity", values, 1.0)
    assert np.isposinf(scores[1, 2:]).all()
    assert np.isfinite(scores[0]).all()
    assert rules.first_ring(scores, 9.0).tolist() == [-1, 2]


def test_one_place_is_the_place_that_was_drawn():
    scores = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(rules.one_place(scores, np.array([0.0, 1.0]))[..., 0], [[0, 4, 8], [15, 19, 23]])
    np.testing.assert_array_equal(rules.one_place(scores, np.array([0.3, 0.74]))[..., 0], [[1, 5, 9], [14, 18, 22]])


def test_medians_are_of_the_points_before():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 2, 3))
    scores = rules.scores("update entropy", values, 1.0)
    assert np.isneginf(scores[:, :21]).all()
    for point in (21, 25, 29):
        wanted = np.median(values[point - 20 : point], axis=0) - values[point]
        np.testing.assert_allclose(scores[:, point], wanted)
    grown = rules.scores("gradient norm", np.exp(values[..., 0]), 1.0)
    assert np.isneginf(grown[:, :21]).all()
    np.testing.assert_allclose(grown[:, 24, 0], values[24, :, 0] - np.median(values[4:24, :, 0], axis=0))
