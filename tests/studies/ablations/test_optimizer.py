"""Adam, Adam that keeps its state, AdamW and SGD."""

from dataclasses import replace

import numpy as np
import pytest
from small_ablations import STUDIES, carry_out, changed, must_show, patterns, verdict

from joma.claims.contract import NotRun, silent
from joma.claims.execute import draw, judge
from joma.recipes.language import curves as recorded
from joma.studies.ablations import optimizer


@pytest.mark.parametrize(
    ("claim", "variant", "name"),
    [
        (optimizer.SGD, "SGD", "SGD"),
        (optimizer.KEPT, "Adam_state_kept", "Adam, state kept"),
        (optimizer.DECAY, "AdamW", "AdamW"),
    ],
)
def test_every_optimizer_shows_the_pattern_or_not(small_run, claim, variant, name):
    must_show(small_run("optimizer"), claim, variant, name)


def test_the_rate_of_sgd_is_the_best_of_a_trial(small_run):
    run = small_run("optimizer")
    losses = recorded.curve(run, optimizer.TRIAL, "valid/loss")[:, 0, -1]
    assert recorded.steps_of(run, optimizer.TRIAL).tolist() == [0, 8]
    assert run.value("SGD/rates") == run.value("trial of SGD/rates")[np.nanargmin(losses)]

    def first_is_best(name, step, value):
        return np.array([0.1, 1.0, np.nan]) if name == "trial of SGD/valid/loss" else value

    assert optimizer.chosen_rate(changed(run, first_is_best)) == 0.1

    def none(name, step, value):
        return value * np.nan if name == "trial of SGD/valid/loss" else value

    with pytest.raises(NotRun, match="SGD diverged at every rate") as raised:
        optimizer.chosen_rate(changed(run, none))
    assert raised.value.changes == {"sgd_rates": pytest.approx([0.0001, 0.001, 1e6])}


def test_sgd_that_diverged_is_repeated_with_rates_of_its_own(small_run):
    def gone(series, step, value):
        value = patterns()(series, step, value) if not series.startswith(optimizer.TRIAL) else value
        return np.full_like(value, 3) if series == "SGD/diverged_at" else value

    run = changed(small_run("optimizer"), gone)
    first, *others = judge(STUDIES["optimizer"], run)
    assert first.reason == "3 of 3 runs of SGD diverged"
    rate = optimizer.chosen_rate(run)
    assert f"--sgd-rates {rate / 30:g} {rate / 10:g} {rate / 3:g}" in first.command
    assert all(finding.verdict == "holds" for finding in others)


def test_within_one_epoch_no_state_is_kept(small_run, monkeypatch):
    trained, config = [], small_run.config("optimizer")
    monkeypatch.setattr(optimizer, "train_variants", lambda variants, *_, **__: trained.append(set(variants)))
    for each in (config, replace(config, tokens=3000, steps=12)):
        optimizer.run(each, small_run("optimizer"), silent)
    assert trained[1] - trained[3] == {optimizer.NEVER_RENEWED}


@pytest.mark.long
def test_a_state_that_was_never_renewed_tells_nothing(data_folder, tmp_path):
    run = carry_out(STUDIES["optimizer"], data_folder, tmp_path / "run", tokens=3000, steps=12)
    assert "Adam, state kept/rates" not in run
    assert verdict(run, optimizer.KEPT) == "not run"
    assert len(draw(STUDIES["optimizer"], run)) == 2
