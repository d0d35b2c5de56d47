"""What the minutes of `joma verify --minutes` are spent on."""

from pathlib import Path
from types import SimpleNamespace

from joma.studies.further import Further, chosen, further


def result(name, seconds, *needs, had=4, judged=None, **config):
    """A study of `had` seeds, and of its claims how many seeds would decide them: None for what is decided."""
    findings = [SimpleNamespace(seeds_to_decide=one, main=SimpleNamespace(seeds=judged or had)) for one in needs]
    config = {"seed": 10, "seeds": had, **config}
    return SimpleNamespace(
        study=SimpleNamespace(name=name), seconds=seconds, findings=findings, config=config, run=Path()
    )


def test_seeds_are_new_ones_and_cost_what_they_cost_before():
    assert further(result("a", 8.0, 6, None, 12, 6)) == [Further("a", 14, 6, 12.0, 2), Further("a", 14, 12, 24.0, 3)]


def test_a_study_that_is_decided_or_has_no_seeds_is_left_alone():
    assert further(result("a", 8.0, None, None)) == []
    assert further(result("a", 8.0, 6, seeds=(1, 2))) == []
    assert further(result("a", 8.0, 6, seed=None)) == []


def test_of_networks_of_which_a_part_is_judged_the_part_grows():
    assert [one.seeds for one in further(result("a", 5.0, 6, had=5, judged=3))] == [10]


def test_a_round_has_more_seeds_than_the_one_before():
    assert [one.seeds for one in further(result("a", 5.0, 2))] == [5]


def test_most_claims_per_second_come_first_and_all_end_in_time():
    dear = result("dear", 40.0, 8)  # 80 s for one claim
    cheap = result("cheap", 4.0, 8, 8)  # 8 s for two
    between = result("between", 10.0, 8)  # 20 s for one
    names = lambda *how: [one.study for one in chosen([dear, cheap, between], *how)]
    assert names(7.9, 1) == []
    assert names(8.0, 1) == ["cheap"]
    assert names(28.0, 1) == ["cheap", "between"]
    assert names(27.9, 1) == ["cheap"]
    assert names(27.9, 2) == ["cheap", "between"]
    assert names(88.0, 2) == ["cheap", "between", "dear"]


def test_a_study_is_repeated_once_a_round_by_the_way_that_fits():
    few_or_many = result("a", 4.0, 5, 40, 40, 40)  # 5 s for one claim, 40 s for four: ten seconds each
    assert [one.seeds for one in chosen([few_or_many], 60.0, 2)] == [5]
    better = result("a", 4.0, 20, 40, 40, 40)  # 20 s for one claim, 40 s for four
    assert [one.seeds for one in chosen([better], 60.0, 2)] == [40]
    assert [one.seeds for one in chosen([better], 30.0, 2)] == [20]


def test_what_is_recorded_takes_no_time():
    some = [result("a", 4.0, 8), result("b", 4.0, 8)]
    assert [one.study for one in chosen(some, 0.0, 2, recorded=lambda one: one.study == "b")] == ["b"]
