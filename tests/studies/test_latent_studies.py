"""Table 1 and alignment on trees: tiny runs, their verdicts, and that an untrained network never passes."""

import dataclasses
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from records import altered, verdicts

from joma.data.latent_sets import TABLE1
from joma.runs import Run
from joma.studies import _hblt_networks as trees
from joma.studies import _latent_networks as shared
from joma.studies import _table1_networks as sets
from joma.studies import latent_alignment, latent_table
from joma.studies.contract import silent
from joma.studies.drawing import house_style
from joma.studies.execute import check_config, execute, judge, plain_config
from joma.training import class_loss

TINY_TABLE = sets.Config(columns=(1, 4), seeds=2, width=8, steps=6, look_at=(2,), rate=1e-2, batch=32)
TINY_TREES = trees.Config(
    depths=(2, 3), rhos=(1.0, 0.8), seeds=2, classes=3, tokens=2, width=8, steps=6, look_at=(2,), batch=8, samples=60
)
TINY = {"table1": (latent_table.STUDY, TINY_TABLE), "hblt-alignment": (latent_alignment.STUDY, TINY_TREES)}
NOT_ABOVE = "not above its control"


def carry_out(study, config, path, progress=silent):
    run = Run.create(path, study=study.name, config=plain_config(config), version=study.version)
    study.run(config, run, progress)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: carry_out(study, config, folder / name) for name, (study, config) in TINY.items()}


def rewritten(run, path, change):
    """A copy of the run with `change(untrained scores, step)` for the scores of every later step."""
    copy = Run.create(path, study=run.study, config=run.config, version=run.version)
    for name in run.names():
        for step in map(int, run.steps(name)):
            later = name.endswith("scores") and step > 0
            copy.append(name, step, change(run.at(name, 0).copy(), step) if later else run.at(name, step))
    return copy


def better(where, by=0.5):
    def change(start, step):
        start[where] += by
        return start

    return change


def untrained(start, step):
    return start


@pytest.mark.parametrize("name", TINY)
def test_it_judges_every_claim_from_what_was_recorded(runs, name):
    found = judge(TINY[name][0], runs[name])
    assert [finding.claim for finding in found] == list(TINY[name][0].claims)
    for finding in found:
        assert finding.claim.empirical
        assert finding.control


@pytest.mark.parametrize("name", TINY)
def test_an_untrained_network_never_passes(runs, tmp_path, name):
    seen = verdicts(TINY[name][0], rewritten(runs[name], tmp_path / "run", untrained))
    assert set(seen.values()) == {NOT_ABOVE}


@pytest.mark.parametrize("name", TINY)
def test_training_without_a_rate_passes_nothing(tmp_path, name):
    study, config = TINY[name]
    run = carry_out(study, dataclasses.replace(config, rate=0.0), tmp_path / "run")
    assert set(verdicts(study, run).values()) == {NOT_ABOVE}


def test_table_verdicts_follow_the_recorded_scores(runs, tmp_path):
    """Untrained 0.3 below the paper; trained as the paper, or in between."""
    truth = np.zeros((4, len(sets.KINDS), 3, 2))  # (members, kinds, blocks, levels)
    for member, column in enumerate((1, 1, 4, 4)):
        truth[member, :, 0, 0], truth[member, :, 1, 1] = (published.mean for published in TABLE1[column - 1].ncorr)
    noise = 1e-3 * np.random.default_rng(0).normal(size=truth.shape)

    start = altered(runs["table1"], tmp_path / "start", "networks/scores", lambda _: truth - 0.3 + noise)

    def after(off):
        return verdicts(latent_table.STUDY, rewritten(start, tmp_path / f"{off}", lambda *_: truth - off))

    seen = after(0.0)
    assert {seen[c.name] for c in (latent_table.LOWEST, latent_table.UPPER, latent_table.VALUES)} == {"holds"}
    assert seen["latents-are-learned"] == "holds"
    assert seen["lowest-level-best"] == seen["more-latents-align-less"] == NOT_ABOVE
    seen = after(0.1)
    assert seen["lowest-latents-align"] == seen["upper-latents-align"] == "only qualitative"
    assert set(after(0.29).values()) == {NOT_ABOVE}


@pytest.mark.parametrize(
    ("where", "claim"),
    [
        ((slice(None), 0, 3), "nodes-represent-latents"),
        ((slice(None), 0, 0, 0), "lowest-latents-in-first-block"),
        ((slice(None), 0, 1, -1), "higher-latents-above"),
        ((slice(None), 0, 2, -1), "levels-follow-blocks"),
        ((slice(None), 2, 3), "hierarchy-is-learned"),
    ],
)
def test_a_gain_in_the_right_place_is_seen(runs, tmp_path, where, claim):
    tiny, study = runs["hblt-alignment"], latent_alignment.STUDY
    before = verdicts(study, rewritten(tiny, tmp_path / "before", untrained))
    after = verdicts(study, rewritten(tiny, tmp_path / "after", better(where)))
    assert before[claim] == NOT_ABOVE
    assert after[claim] in ("holds", "only qualitative")
    assert after["lowest-latents-first"] == NOT_ABOVE  # all of it came at once, at every level


def test_a_probe_below_the_tokens_is_only_qualitative(runs, tmp_path):
    run = rewritten(runs["hblt-alignment"], tmp_path / "run", better((slice(None), 2, 3)))
    for depth in TINY_TREES.depths:
        run = altered(run, tmp_path / f"tokens{depth}", f"depth {depth}/tokens", lambda value: value + 2)
    assert verdicts(latent_alignment.STUDY, run)["hierarchy-is-learned"] == "only qualitative"


def test_the_order_of_learning_is_seen(runs, tmp_path):
    """The lowest latents have all of their gain at the first look, the top ones none."""

    def change(start, step):
        start[:, 0, 3, 0] += 0.3
        start[:, 0, 3, 1:] += 0.3 * (step == TINY_TREES.steps)
        return start

    run = rewritten(runs["hblt-alignment"], tmp_path / "run", change)
    assert verdicts(latent_alignment.STUDY, run)["lowest-latents-first"] == "holds"


@pytest.mark.parametrize("name", TINY)
def test_a_diverged_network_is_left_out_and_counted(runs, tmp_path, name):
    first = next(series for series in runs[name].names() if series.endswith("scores"))

    def lose(value):
        value = value.copy()
        value[0] = np.nan
        return value

    def mark(value):
        value = value.copy()
        value[0] = 3
        return value

    run = altered(runs[name], tmp_path / "a", first, lose)
    run = altered(run, tmp_path / "b", first.replace("scores", "diverged_at"), mark)
    study = TINY[name][0]
    assert "1 networks diverged" in judge(study, run)[0].measured
    with house_style():
        study.draw(run)
    assert "nan" not in judge(study, run)[0].measured


@pytest.mark.parametrize("name", TINY)
def test_an_interrupted_run_ends_with_the_same_numbers(runs, tmp_path, monkeypatch, name):
    class Stop(Exception):
        pass

    study, config = TINY[name]
    kind = sets.Members if name == "table1" else trees.Members
    whole = kind.accuracy
    calls = 0

    def stop(*arguments):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Stop
        return whole(*arguments)

    run = Run.create(tmp_path / "run", study=name, config=plain_config(config), version=study.version)
    monkeypatch.setattr(kind, "accuracy", stop)
    with run, pytest.raises(Stop):
        study.run(config, run, silent)
    monkeypatch.undo()
    with Run.open(tmp_path / "run", write=True) as run:
        study.run(config, run, silent)
        assert sorted(run.names()) == sorted(runs[name].names())
        for series in run.names():
            np.testing.assert_array_equal(run.array(series), runs[name].array(series), err_msg=series)


@pytest.mark.parametrize("name", TINY)
def test_groups_that_take_turns_end_with_the_same_numbers(runs, tmp_path, name):
    study, config = TINY[name]
    run = carry_out(study, dataclasses.replace(config, together=2), tmp_path / "run")
    for series in run.names():
        np.testing.assert_allclose(run.array(series), runs[name].array(series), atol=2e-3, err_msg=series)


def test_a_class_that_a_column_lacks_changes_nothing(runs, tmp_path):
    """With column 9 in the ensemble there are 50 outputs instead of 20."""
    wider = dataclasses.replace(TINY_TABLE, columns=(1, 4, 9))
    run = carry_out(latent_table.STUDY, wider, tmp_path / "run")
    for series in ("networks/train_loss", "networks/scores", "networks/accuracy"):
        np.testing.assert_allclose(run.array(series)[:, :4], runs["table1"].array(series), rtol=1e-4, atol=1e-4)


def test_classes_computed_once_and_weighed_are_the_whole_batch():
    merged, whole = (sets.Members(dataclasses.replace(TINY_TABLE, merge=merge)) for merge in (True, False))
    decoder = merged.networks(range(4)).double()
    losses = [sets.shared_loss(decoder, who.batch(5, range(4))) for who in (merged, whole)]
    torch.testing.assert_close(*losses, rtol=1e-7, atol=0)  # the shares are float32
    tokens, labels, _ = whole.batch(5, range(4))
    torch.testing.assert_close(losses[1], class_loss(decoder, (tokens, labels)), rtol=1e-7, atol=0)
    assert tokens.shape == (4, 32, 30)


@pytest.mark.parametrize("who", [sets.Members(TINY_TABLE), trees.Members(TINY_TREES, 3)], ids=list(TINY))
def test_a_member_reads_the_same_in_any_company(who):
    for together, alone in zip(who.batch(3, [1, 2]), who.batch(3, [2]), strict=True):
        assert torch.equal(together[1], alone[0])
    assert not torch.equal(who.batch(3, [1])[-1], who.batch(4, [1])[-1])


def test_what_is_measured_on_was_never_trained_on():
    who = trees.Members(TINY_TREES, 3)
    one, other = who.fresh([2, 3])
    trained = who.sample(0, [2, 3], TINY_TREES.samples)
    assert not torch.equal(one.on, other.on)
    assert not torch.equal(one.on, trained.on)
    assert torch.equal(one.on, who.fresh([2, 3])[0].on)


def test_reading_takes_the_largest_activation_over_positions():
    who = trees.Members(dataclasses.replace(TINY_TREES, samples=300), 2)  # more than are read at once
    decoder = who.networks([0, 1])
    tokens = who.fresh([0, 1])[0].tokens
    activity, logits = shared.read(decoder, tokens)
    hidden = {}
    whole = decoder(tokens, look=lambda layer, name, value: hidden.update({(layer, name): value}))
    torch.testing.assert_close(logits, whole[:, :, -1])
    for block in range(3):
        torch.testing.assert_close(activity[:, block], hidden[block, "hidden"].amax(2))
    assert activity.shape == (2, 3, 300, 32)


def test_scores_of_the_table_equal_a_slow_count():
    who = sets.Members(TINY_TABLE)
    decoder = who.networks(range(4)).double()
    scores = who.scores(decoder, range(4))
    activity = shared.read(decoder, who.tokens)[0].detach().numpy()
    for member, level, block in ((0, 0, 0), (3, 1, 1), (1, 1, 2)):
        latents = who.sets[member].latents[level].double().numpy()
        neurons = activity[member, block, : who.sets[member].classes]
        alive = neurons[:, np.ptp(neurons, 0) > 0]
        best = [np.corrcoef(alive.T, latent)[-1, :-1].max() for latent in latents.T if np.ptp(latent) > 0]
        np.testing.assert_allclose(scores[member, 0, block, level].item(), np.mean(best), rtol=1e-9)


def test_neurons_chosen_on_other_classes_equal_a_slow_count():
    generator = torch.Generator().manual_seed(0)
    activity = torch.rand(2, 12, 5, generator=generator, dtype=torch.float64)
    latents = torch.arange(12)[:, None] % torch.tensor([2, 3, 4, 12]) == 0  # the last one is constant in one half
    order = torch.arange(12)
    found = sets._across_halves(activity, latents, order)
    for block in range(2):
        for latent in range(3):
            ways = []
            for one, other in ((slice(6), slice(6, 12)), (slice(6, 12), slice(6))):
                x, y = activity[block].numpy(), latents[:, latent].numpy()
                neuron = np.argmax([np.corrcoef(column, y[one])[0, 1] for column in x[one].T])
                ways.append(np.corrcoef(x[other, neuron], y[other])[0, 1])
            np.testing.assert_allclose(found[block, latent].item(), np.mean(ways), rtol=1e-9)
    assert found[:, 3].isnan().all()


@pytest.mark.parametrize("who", [sets.Members(TINY_TABLE), trees.Members(TINY_TREES, 2)], ids=list(TINY))
def test_a_network_of_nan_scores_nan_and_the_others_go_on(who):
    decoder = who.networks([0, 1])
    sound = who.scores(decoder, [0, 1])
    with torch.no_grad():
        decoder.up[0] = torch.nan
    broken = who.scores(decoder, [0, 1])
    assert broken[0].isnan().all()
    torch.testing.assert_close(broken[1], sound[1], equal_nan=True)


def test_gain_is_the_paired_t_interval():
    from scipy import stats

    trained, control = np.random.default_rng(1).normal(size=(2, 5, 3))
    found = shared.gain(trained, control)
    expected = stats.ttest_rel(trained.mean(1), control.mean(1)).confidence_interval(0.95)
    np.testing.assert_allclose((found.mean - found.half_width, found.mean + found.half_width), expected, rtol=1e-8)
    assert found.margin(0.02) == max(0.02, found.half_width)
    trained[0] = np.nan
    assert shared.gain(trained, control) == shared.gain(trained[1:], control[1:])
    assert np.isnan(shared.gain(trained[:2], control[:2]).mean)


@pytest.mark.parametrize("name", TINY)
def test_figures(runs, tmp_path, name):
    with house_style():
        drawings = TINY[name][0].draw(runs[name])
        for drawing in drawings:
            drawing.figure.savefig(tmp_path / "figure.svg")
            if drawing.name != "table":
                assert all(axes.get_xlabel() and axes.get_ylabel() for axes in drawing.figure.axes)
    assert len(drawings) == 2


@pytest.mark.parametrize("name", TINY)
def test_the_table_for_a_page(runs, capsys, monkeypatch, name):
    monkeypatch.setattr(sys, "argv", ["table1_table.py", str(runs[name].path)])
    runpy.run_path(str(Path(__file__).parents[2] / "docs" / "table1_table.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + (2 if name == "table1" else 6)
    if name == "table1":
        assert lines[2].startswith("| 20 | 2 | (10, 20) | 0.99 ± 0.01 | 0.")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: sets.Config(columns=(1, 13)), "numbers from 1 to 12"),
        (lambda: sets.Config(columns=(1, 1, 4)), "different numbers"),
        (lambda: sets.Config(columns=(1, 2)), "each end of the table"),
        (lambda: sets.Config(seeds=1), "seeds must be at least 2"),
        (lambda: sets.Config(steps=50, look_at=(50,)), "look_at must lie below 50"),
        (lambda: trees.Config(depths=(2,)), "one of them at least 3"),
        (lambda: trees.Config(depths=(1, 3)), "depths must be 2 or more"),
        (lambda: trees.Config(depths=(3, 3)), "depths must differ"),
        (lambda: trees.Config(rhos=(1.0,)), "one of them below 1"),
        (lambda: trees.Config(rhos=(0.9, 0.8)), "rhos must hold 1"),
        (lambda: trees.Config(rhos=(1.0, 1.2)), r"rhos must lie in \(0, 1\]"),
        (lambda: trees.Config(seeds=1), "seeds must be at least 2"),
        (lambda: trees.Config(samples=5), "samples must be at least 10"),
        (lambda: trees.Config(look_at=(9999,)), "look_at must lie below"),
        (lambda: trees.Config(steps=0), "steps must be at least 1"),
        (lambda: trees.Config(classes=1), "classes must be at least 2"),
        (lambda: trees.Config(depths=(40,)), "at most 4096"),
        (lambda: trees.Config(width=31), "even width, got 31"),
        (lambda: sets.Config(width=47), "even width, got 47"),
        (lambda: sets.Config(steps=0), "steps must be at least 1"),
        (lambda: check_config(sets.Config(rate=-1.0)), "rate must not be negative, got -1.0"),
        (lambda: check_config(sets.Config(weight_decay=-1.0)), "weight_decay must not be negative"),
        (lambda: check_config(sets.Config(device="gpu")), "device must be cpu, cuda or cuda:NUMBER, got 'gpu'"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(config, reason):
    with pytest.raises(ValueError, match=reason):
        config()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
@pytest.mark.parametrize("name", TINY)
def test_without_a_gpu_the_paper_scale_is_not_run(tmp_path, name):
    study = TINY[name][0]
    check_config(study.paper)
    result = execute(study, study.paper, tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert f"joma verify {name} --scale paper" in result.findings[0].measured
