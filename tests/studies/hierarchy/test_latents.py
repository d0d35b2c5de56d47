"""What Table 1 and alignment on trees have in common: networks, seeds, interruptions, figures; who counts."""

import dataclasses
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from records import altered, carried_out
from scipy import stats

from joma.claims.contract import Claim
from joma.claims.execute import judge
from joma.claims.guards import clears
from joma.figures.style import house_style
from joma.measure.intervals import compare
from joma.studies.hierarchy import _networks as shared
from joma.studies.hierarchy import hblt_alignment as trees
from joma.studies.hierarchy import table1 as sets
from joma.studies.hierarchy._networks import Fates

BOTH = pytest.mark.parametrize("name", ["table1", "hblt-alignment"])
BOTH_IN_TIME = pytest.mark.parametrize("name", ["table1", pytest.param("hblt-alignment", marks=pytest.mark.long)])


def members(name, config):
    return sets.Members(config) if name == "table1" else trees.Members(config, 3)


@BOTH
def test_networks_that_did_not_learn_are_no_evidence(tiny, tmp_path, name):
    study, config = tiny[name]
    still = carried_out(study, dataclasses.replace(config, rate=0.0), tmp_path / "run")
    found = judge(study, still)
    assert {finding.verdict for finding in found} == {"not run"}
    assert {finding.command for finding in found} == {f"joma verify {name} --scale paper"}
    assert "networks learned their task (0 diverged)" in found[0].reason


@BOTH_IN_TIME
def test_groups_that_take_turns_end_with_the_same_numbers(tiny, tiny_runs, tmp_path, name):
    study, config = tiny[name]
    run = carried_out(study, dataclasses.replace(config, together=2), tmp_path / "run")
    for series in run.names():
        np.testing.assert_allclose(run.array(series), tiny_runs[name].array(series), atol=2e-3, err_msg=series)


@BOTH
def test_a_member_reads_the_same_in_any_company(tiny, name):
    who = members(name, tiny[name][1])
    for together, alone in zip(who.batch(3, [1, 2]), who.batch(3, [2]), strict=True):
        assert torch.equal(together[1], alone[0])
    assert not torch.equal(who.batch(3, [1])[-1], who.batch(4, [1])[-1])


def test_batches_drawn_ahead_are_those_of_their_step(tiny):
    config = tiny["hblt-alignment"][1]
    who, twin = trees.Members(config, 3), trees.Members(config, 3)
    for step in range(6):
        tokens, labels = who.batch(step, [2, 0])
        sample = twin.sample(range(step, step + 1), [2, 0], config.batch)
        assert torch.equal(tokens, sample.tokens)
        assert torch.equal(labels, sample.labels)


@BOTH
def test_every_seed_is_a_network_of_its_own_that_reads_data_of_its_own(tiny, name):
    """An interval over seeds that are copies of each other would have no width."""
    who = members(name, dataclasses.replace(tiny[name][1], seeds=3))
    for weights in who.networks(range(3)).state_dict().values():
        if weights.ndim > 1 and weights[0].std() > 0:
            assert all(not torch.equal(weights[i], weights[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    read = who.batch(0, range(3))[0] if name != "table1" else who.tokens[:3]
    assert not torch.equal(read[0], read[1])
    assert not torch.equal(read[1], read[2])
    drawn = who.batch(0, range(3))[-1]  # labels, or how often each class is drawn
    assert not torch.equal(drawn[0], drawn[1])


def test_the_same_seed_is_the_same_network_at_every_rho(tiny):
    who = trees.Members(tiny["hblt-alignment"][1], 3)
    weights = who.networks(range(4)).up
    assert torch.equal(weights[0], weights[2])  # two seeds for each of two rhos
    assert torch.equal(weights[1], weights[3])


@BOTH
def test_a_network_of_nan_scores_nan_and_the_others_go_on(tiny, name):
    who = members(name, tiny[name][1])
    decoder = who.networks([0, 1])
    sound = who.scores(decoder, [0, 1])
    with torch.no_grad():
        decoder.up[0] = torch.nan
    broken = who.scores(decoder, [0, 1])
    assert broken[0].isnan().all()
    torch.testing.assert_close(broken[1], sound[1], equal_nan=True)


def test_reading_takes_the_largest_activation_over_positions(tiny):
    more = dataclasses.replace(tiny["hblt-alignment"][1], samples=300)  # than are read at once
    who = trees.Members(more, 2)
    decoder = who.networks([0, 1])
    tokens = who.fresh([0, 1])[0].tokens
    activity, logits = shared.read(decoder, tokens)
    hidden = {}
    whole = decoder(tokens, look=lambda layer, name, value: hidden.update({(layer, name): value}))
    torch.testing.assert_close(logits, whole[:, :, -1])
    for block in range(3):
        torch.testing.assert_close(activity[:, block], hidden[block, "hidden"].amax(2))
    assert activity.shape == (2, 3, 300, 32)


def test_over_seeds_is_the_paired_t_interval_of_means_within_a_seed():
    trained, control = np.random.default_rng(1).normal(size=(2, 5, 3))
    found = shared.over_seeds(trained, control)
    expected = stats.ttest_rel(trained.mean(1), control.mean(1)).confidence_interval(0.95)
    np.testing.assert_allclose((found.difference_low, found.difference_high), expected, rtol=1e-8)
    trained[0] = np.nan
    without, with_a_failure = shared.over_seeds(trained[1:], control[1:]), shared.over_seeds(trained, control)
    assert with_a_failure == without._replace(failed=1, sign_p=with_a_failure.sign_p, numbers=with_a_failure.numbers)
    assert np.isnan(shared.over_seeds(trained[:2], control[:2]).low)
    trained[1, 0] = np.nan  # what is unknown of one is left out of both
    control[1, 0] = 100.0
    assert shared.over_seeds(trained, control).control < 2


def test_who_counts_and_who_is_counted_as_lost():
    fates = Fates(np.array([True, False, False, True]), np.array([True, True, False, False]))
    assert fates.kept.tolist() == [False, True, False, False]
    claim, found = Claim("gain", "JoMA Sec. 6", "It gains.", matters=0.1), {"all": compare([0.3, 0.4], [0.0, 0.0])}
    finding = fates.judged(claim, found, study="table1", expected="more")
    assert finding.details == {"networks left out": {"diverged": 2.0, "did not learn": 1.0}}
    assert fates.reason == "only 1 of 4 networks learned their task (2 diverged): too few to judge"
    whole = Fates(np.array([False]), np.array([True])).judged(claim, found, study="table1", expected="more")
    assert not whole.details


def test_a_finding_of_no_network_is_not_run_and_of_one_undecided():
    claim = Claim("gain", "JoMA Sec. 6", "It gains.", matters=0.1)
    fates = Fates(np.array([False, False]), np.array([True, False]))

    def verdict(*cases):
        found = {str(i): compare(case, np.zeros(len(case))) for i, case in enumerate(cases)}
        return fates.judged(claim, found, study="table1", expected="more").verdict

    assert verdict([0.3, 0.4], [np.nan, np.nan]) == "not run"
    assert verdict([0.3, 0.4], [0.3, np.nan]) == "undecided"
    assert verdict([0.3, 0.3], [0.4, 0.4]) == "holds"


def test_clears_is_the_lower_end_of_the_difference():
    assert clears("gain", compare([0.5, 0.6], [0.4, 0.5])).passes
    assert not clears("gain", compare([0.5, 0.7], [0.4, 0.5])).passes
    assert not clears("gain", compare([0.5], [0.4])).passes


def test_a_control_that_chance_may_hide_is_unknown():
    unclear, none = compare([0.5, 0.7], [0.4, 0.5]), compare([0.5, 0.5001], [0.5, 0.5])
    assert np.isnan(clears("gain", unclear, matters=0.1).value)
    assert clears("gain", none, matters=0.1).value < 0
    assert clears("gain", compare([0.5, 0.6], [0.4, 0.5]), matters=0.1).passes


@BOTH_IN_TIME
def test_figures_are_drawn_around_a_network_that_diverged(tiny, tiny_runs, name):
    def lose(value):
        value = value.copy()
        value[0] = np.nan
        return value

    scores = next(series for series in tiny_runs[name].names() if series.endswith("scores"))
    lost = altered(tiny_runs[name], scores, lose)
    with house_style():
        assert len(tiny[name][0].draw(lost)) == 2


@BOTH
def test_the_table_for_a_page(tiny_runs, capsys, monkeypatch, name):
    monkeypatch.setattr(sys, "argv", ["table1_table.py", str(tiny_runs[name].path)])
    runpy.run_path(str(Path(__file__).parents[3] / "docs" / "table1_table.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + (2 if name == "table1" else 6)
    if name == "table1":
        assert lines[2].startswith("| 20 | 2 | (10, 20) | 0.99 ± 0.01 | 0.")
