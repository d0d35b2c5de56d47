"""Alarms fire on what was planted, once, in one sentence, and stay silent on a healthy run."""

import math
import re

import numpy as np
import pytest
import torch
from networks import PROBE, made, train

from joma.host.errors import JomaError
from joma.monitor import (
    Alert,
    EntropyFall,
    EntropyFloor,
    LargestLogit,
    Monitor,
    NotFinite,
    RankDrop,
    TrainingStopped,
)
from joma.monitor.tables import Rows, Table
from joma.monitor.watch import Watch

HEADS = Rows(("h.0.attn",), (2,), (100,))
MATRICES = Rows(("up", "down"))


def entropy(*values):
    return {"entropy": Table(np.array([values], float), HEADS)}


def looked(alarm, *tables):
    for at, each in enumerate(tables[:-1]):
        assert list(alarm.look(at, each)) == []
    return list(alarm.look(len(tables) - 1, tables[-1]))


def test_a_largest_logit_above_100():
    table = {"largest_logit": Table(np.array([[99.0, 131.25]]), HEADS)}
    (found,) = looked(LargestLogit(), table)
    assert str(found) == "step 0: largest_logit of h.0.attn, head 1, is 131.2, above its limit 100"
    assert looked(LargestLogit(200), table) == []


def test_a_largest_logit_comes_with_its_slope():
    alarm, steps, logits = LargestLogit(), [0, 10, 30, 40, 50, 60], [900.0, 10.0, 50.0, 70.0, 90.0, 150.0]
    for step, value in zip(steps[1:], logits[1:], strict=True):
        found = list(alarm.look(step, {"largest_logit": Table(np.array([[value, 5.0 - value]]), HEADS)}))
    slope = np.polyfit(steps[1:], logits[1:], 1)[0]
    assert [each.slope for each in found] == [pytest.approx(slope)]
    assert str(found[0]).endswith(f"is 150, above its limit 100, rising by {slope:.3g} per step")
    # Five measurings count: what was before them does not.
    alarm = LargestLogit()
    for step, value in zip(steps, logits, strict=True):
        found = list(alarm.look(step, {"largest_logit": Table(np.array([[value, 0.0]]), HEADS)}))
    assert found[0].slope == pytest.approx(slope)


@pytest.mark.parametrize(("before", "moving"), [(300.0, ", falling by 100 per step"), (math.nan, "")])
def test_a_slope_is_said_in_words_but_not_through_nan(before, moving):
    alarm = LargestLogit()
    for step, value in enumerate([before, 200.0]):
        found = list(alarm.look(step, {"largest_logit": Table(np.array([[value, 0.0]]), HEADS)}))
    assert str(found[0]) == f"step 1: largest_logit of h.0.attn, head 0, is 200, above its limit 100{moving}"


def test_entropy_below_its_share_of_ln_t_where_it_did_not_begin_there():
    limit = 0.02 * math.log(100)
    (found,) = looked(EntropyFloor(), entropy(3.0, 0.01), entropy(limit - 0.01, 0.01))
    assert (found.head, found.limit) == (0, pytest.approx(limit))
    assert "below 2% of ln T, its limit 0.0921" in str(found)


def test_entropy_that_falls_further_than_its_first_measurings():
    past = [entropy(4.0, 4.0), entropy(3.0, 3.9), entropy(2.8, 3.8)]
    alarm = EntropyFall(first=3, times=2, least=0.1)
    # The first head fell by 1 before and may fall by 2, the second by a tenth of ln 100: 0.46.
    (found,) = looked(alarm, *past, entropy(1.0, 3.0))
    assert (found.head, found.limit) == (1, pytest.approx(3.8 - 0.1 * math.log(100)))
    assert "below what the falls of its first 3 measurings allow" in str(found)


def test_the_last_of_the_first_measurings_still_calibrates():
    steps = [entropy(4.0, 4.0), entropy(4.0, 4.0), entropy(3.0, 4.0), entropy(1.5, 3.5)]
    (found,) = looked(EntropyFall(first=3, times=2, least=0.1), *steps)
    assert found.head == 1


def test_a_stable_rank_below_its_share_of_the_start():
    tables = [{"stable_rank": Table(np.array(each), MATRICES)} for each in ([9.0, 0.0], [1.0, 0.0], [0.8, 0.0])]
    (found,) = looked(RankDrop(), *tables)
    assert (found.layer, found.head, found.value) == ("up", None, 0.8)
    assert str(found) == "step 2: stable_rank of up is 0.8, below 10% of its start, its limit 0.9"


def test_nan_is_found_in_any_measure_but_not_in_heads_that_are_not_there():
    table = Table(np.array([[1.0, math.nan], [math.nan, 1.0]]), Rows(("a", "b"), (1, 2), (4, 4)))
    found = looked(NotFinite(), {"anything": table})
    assert [(each.layer, each.head) for each in found] == [("b", 0)]


def test_a_number_is_told_once_until_it_comes_back():
    watch = Watch([LargestLogit()], "log", ["largest_logit"])
    told = []
    for step, value in enumerate([50, 150, 160, 50, 150]):
        tables = {"largest_logit": Table(np.array([[value, 0.0]]), HEADS)}
        told += [each.step for each in watch.new(step, tables)]
        assert watch.new(step, {}) == []
    assert told == [1, 4]


def test_each_monitor_has_alarms_of_its_own():
    mine = EntropyFloor()
    for first in (3.0, 0.01):  # the second run begins below the limit, and so has not collapsed
        watch = Watch([mine], "log", ["entropy"])
        assert watch.new(0, entropy(first, first)) == []
    assert watch.new(1, entropy(0.01, 0.01)) == []


ALARMS = (LargestLogit(), EntropyFloor(), EntropyFall(first=3), RankDrop(), NotFinite())


def planted(change, *, steps=6, **options):
    """What is found when `change` is made to a model that trained for some steps."""
    model = made()
    for block in model.h:
        torch.nn.init.normal_(block.attn.qkv.weight, std=0.2)
    with Monitor(model, **{"probe": PROBE, "every": 1, "alarms": ALARMS} | options) as monitor:
        for _ in range(steps):
            monitor.step()
        assert monitor.alerts == []
        with torch.no_grad():
            change(model)
        monitor.step()
    return monitor.alerts


def test_a_planted_collapse_of_attention_is_found():
    found = planted(lambda model: model.h[1].attn.qkv.weight.mul_(60))
    assert {(each.measure, each.layer) for each in found} == {("largest_logit", "h.1.attn"), ("entropy", "h.1.attn")}
    for each in found:
        assert re.fullmatch(r"step 7: \w+ of h\.1\.attn, head [01], is \S+, (above|below) .* \S+", str(each))


def test_a_planted_matrix_of_rank_one_is_found():
    (found,) = planted(
        lambda model: model.h[0].mlp[0].weight.copy_(torch.ones(16, 8)),
        alarms=[RankDrop(0.5)],
        measures=["stable_rank"],
    )
    assert (found.measure, found.layer, found.head) == ("stable_rank", "h.0.mlp.0.weight", None)
    assert found.value == pytest.approx(1.0)


def test_planted_nan_is_found_everywhere():
    found = planted(lambda model: model.h[0].mlp[0].weight.fill_(math.nan))
    (alert,) = found
    assert (alert.measure, alert.layer, alert.head) == ("entropy", "h.1.attn", 0)
    assert alert.cause == "9 other numbers of this step are not finite either"  # of 2 heads, and of the matrix


def test_a_healthy_run_is_silent(log):
    model = made()
    monitor = Monitor(model, probe=PROBE, every=2)
    train(model, monitor, steps=80, rate=1e-2)
    assert monitor.alerts == []
    assert log == []


def spoil(model):
    with torch.no_grad():
        model.h[1].attn.qkv.weight.mul_(1000)


def test_an_alarm_can_stop_the_training_or_call_a_function(log):
    with pytest.raises(
        TrainingStopped, match=r"step 7: largest_logit of h.1.attn, head 0, is .*, and 1 more"
    ) as stopped:
        planted(spoil, on_alarm="stop", alarms=[LargestLogit()])
    assert len(stopped.value.alerts) == 2
    assert isinstance(stopped.value, JomaError)
    called = []
    found = planted(spoil, on_alarm=called.append, alarms=[LargestLogit()])
    assert found == called
    assert isinstance(called[0], Alert)
    assert log == []


class Fails:
    """Told of the second alarm it raises."""

    def __init__(self, error):
        self.error, self.called = error, []

    def __call__(self, alert):
        self.called.append(alert)
        if len(self.called) == 2:
            raise self.error

    def __repr__(self):
        return "Fails()"


def test_a_function_that_raises_is_told_once_and_alarms_are_logged_from_then_on(log):
    fails = Fails(KeyError("no such channel"))
    found = planted(spoil, on_alarm=fails, alarms=[LargestLogit()])
    assert len(found) == len(fails.called) == 2
    says = "on_alarm Fails() failed at step 7, its alarms are logged from now on, training continues: KeyError: "
    assert log == [f"{says}'no such channel'", str(found[1])]


def test_a_function_that_raised_is_not_called_at_later_steps(log):
    called = []

    def fails(alert):
        called.append(alert)
        raise KeyError("no such channel")

    model = made()
    with Monitor(model, probe=PROBE, every=1, alarms=[LargestLogit()], on_alarm=fails) as monitor:
        for block in reversed(model.h):
            with torch.no_grad():
                block.attn.qkv.weight.mul_(1000)
            monitor.step()
    assert len({alert.step for alert in monitor.alerts}) == 2
    assert called == monitor.alerts[:1]
    assert [line.startswith("on_alarm ") for line in log].count(True) == 1


def test_a_function_may_stop_the_training_in_the_documented_way():
    with pytest.raises(TrainingStopped):
        planted(spoil, on_alarm=Fails(TrainingStopped([Alert(7, "norm", "up", None, 2.0, 1.0, "above")])),
                alarms=[LargestLogit()])  # fmt: skip


def test_a_log_of_many_alarms_is_short(log):
    planted(lambda model: [block.attn.qkv.weight.mul_(1e3) for block in model.h], alarms=[*ALARMS, LargestLogit(50)])
    assert len(log) == 6
    assert re.fullmatch(r"step 7: \d+ more alarms", log[-1])


def test_an_alarm_at_the_first_measuring_lets_go_of_the_record(tmp_path):
    model = made()
    spoil(model)
    options = {"probe": PROBE, "out": tmp_path / "run.joma", "alarms": [LargestLogit()]}
    with pytest.raises(TrainingStopped):
        Monitor(model, on_alarm="stop", **options).__enter__()
    with Monitor(model, on_alarm="stop", **options) as monitor:
        assert monitor.recorded == 0


@pytest.mark.parametrize(
    "make", [lambda: LargestLogit(0), lambda: EntropyFloor(1), lambda: EntropyFall(first=1), lambda: RankDrop("a")]
)
def test_limits_without_a_meaning_are_refused(make):
    with pytest.raises(JomaError, match="must"):
        make()
