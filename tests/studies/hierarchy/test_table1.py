"""Table 1: verdicts follow the recorded scores of networks that learned, seed by seed beside untrained ones."""

import dataclasses

import numpy as np
import pytest
import torch
from records import carried_out, found, verdicts

from joma.claims.execute import judge, plain_config
from joma.data.latent_sets import TABLE1
from joma.figures.style import house_style
from joma.runs import Run
from joma.studies.hierarchy import _networks as shared
from joma.studies.hierarchy import table1
from joma.training import class_loss

STUDY = table1.STUDY
SEEDS = 4
MEMBERS = 2 * SEEDS  # of columns 1 and 4
CONFIG = table1.Table1Config(columns=(1, 4), seeds=SEEDS, look_at=(10,))
PERMUTED = [table1.KINDS.index(kind) for kind in table1.KINDS if "permuted" in kind]
COLUMN = np.repeat([1, 4], SEEDS)


def published():
    """Scores as the table has them, (members, kinds, blocks, levels); permuted latents score nothing."""
    truth = np.zeros((MEMBERS, len(table1.KINDS), 3, 2))
    for member, column in enumerate(COLUMN):
        truth[member, :, 0, 0], truth[member, :, 1, 1] = (entry.mean for entry in TABLE1[column - 1].ncorr)
    truth[:, PERMUTED] = 0.0
    return truth


def noise(size=1e-3, seed=0):
    drawn = size * np.random.default_rng(seed).normal(size=(2, SEEDS, *published().shape[1:]))
    return (drawn - drawn.mean(1, keepdims=True)).reshape(published().shape)


def record(path, start, end, *, accuracy=1.0, diverged=()):
    run = Run.create(path, study="table1", config=plain_config(CONFIG), version=STUDY.version)
    run.record(0, {"column": COLUMN, "distinct inputs": np.full(MEMBERS, 20)})
    for step, scores in ((0, start), (10, (start + end) / 2), (CONFIG.steps, end)):
        told = np.broadcast_to(accuracy if step else 0.05, (MEMBERS,)).copy()
        lost = np.isin(np.arange(MEMBERS), diverged) & (step > 0)
        run.record(step, {"networks/scores": scores, "networks/accuracy": told,
                          "networks/diverged_at": np.where(lost, 7, -1), "networks/train_loss": told})  # fmt: skip
    return run


LOW = published() - 0.3 + noise()
ALIGN = ("lowest-latents-align", "upper-latents-align")
TABLE = (*ALIGN, "published-correlations", "latents-are-learned")


def test_a_record_as_the_table_has_it_holds(tmp_path):
    run = record(tmp_path / "run", LOW, published())
    seen = verdicts(STUDY, run)
    assert {seen[name] for name in TABLE} == {"holds"}
    assert seen["lowest-level-best"] == seen["more-latents-align-less"] == "not above its control"  # all gained alike


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (published() - 0.1, "only qualitative"),  # far from the table
        (published() - 0.29, "only qualitative"),  # a gain beyond chance, too small to matter
        (LOW + noise(seed=1), "not above its control"),
        (LOW + noise(0.1, seed=1), "undecided"),
        (LOW - 0.1 + noise(seed=1), "fails"),
    ],
)
def test_verdicts_follow_the_gain_and_its_interval(tmp_path, end, verdict):
    seen = verdicts(STUDY, record(tmp_path / "run", LOW, end))
    assert {seen[name] for name in ALIGN} == {verdict}


@pytest.mark.parametrize(("claim", "place"), [("lowest-latents-align", (0, 0)), ("upper-latents-align", (1, 1))])
def test_each_level_is_read_in_its_own_block(tmp_path, claim, place):
    end = LOW.copy()
    end[(slice(None), 0, *place)] = published()[(slice(None), 0, *place)]
    seen = verdicts(STUDY, record(tmp_path / "one", LOW, end))
    assert [name for name in ALIGN if seen[name] == "holds"] == [claim]
    others = published()
    others[(slice(None), 0, *place)] = LOW[(slice(None), 0, *place)]
    assert verdicts(STUDY, record(tmp_path / "others", LOW, others))[claim] != "holds"


def test_what_latents_of_other_classes_score_too_proves_nothing(tmp_path):
    start, end = LOW.copy(), published()
    end[:, PERMUTED] = end[:, [kind - 1 for kind in PERMUTED]]
    seen = verdicts(STUDY, record(tmp_path / "run", start, end))
    assert {seen[name] for name in (*ALIGN, "latents-are-learned")} == {"not above its control"}


def test_a_control_near_one_leaves_no_room(tmp_path):
    start = np.full_like(LOW, 0.99) + noise(1e-4)
    seen = verdicts(STUDY, record(tmp_path / "run", start, start + 0.005))
    assert {seen[name] for name in ALIGN} == {"undecided"}


def test_neurons_must_stand_for_classes_that_they_were_not_chosen_on(tmp_path):
    end = published()
    end[:, 2] = LOW[:, 2] + noise(seed=1)[:, 2]  # held out
    assert verdicts(STUDY, record(tmp_path / "run", LOW, end))["latents-are-learned"] == "not above its control"


def test_trained_networks_must_be_nearer_to_the_table_than_untrained_ones(tmp_path):
    seen = verdicts(STUDY, record(tmp_path / "run", published() - 0.03 + noise(), published() + 0.03))
    assert seen["published-correlations"] == "not above its control"
    assert verdicts(STUDY, record(tmp_path / "off", published() + noise(), LOW))["published-correlations"] == "fails"


@pytest.mark.parametrize(("by", "verdict"), [(0.1, "holds"), (-0.1, "fails")])
def test_the_lowest_level_must_gain_more_than_the_next(tmp_path, by, verdict):
    end = LOW + noise(seed=1)
    end[:, 0, 0, 0] += by
    assert verdicts(STUDY, record(tmp_path / "run", LOW, end))["lowest-level-best"] == verdict


@pytest.mark.parametrize(("column", "verdict"), [(4, "fails"), (1, "holds")])
def test_the_complex_column_must_gain_less_than_the_simple_one(tmp_path, column, verdict):
    end = LOW + noise(seed=1)
    end[column == COLUMN, 0] += 0.1
    assert verdicts(STUDY, record(tmp_path / "run", LOW, end))["more-latents-align-less"] == verdict


def test_networks_that_did_not_learn_are_no_evidence(tmp_path):
    for accuracy, diverged in ((0.4, ()), (1.0, range(MEMBERS))):
        lost = record(tmp_path / f"run{accuracy}", LOW, published(), accuracy=accuracy, diverged=diverged)
        assert set(verdicts(STUDY, lost).values()) == {"not run"}


def test_a_claim_on_two_columns_needs_both(tmp_path):
    run = record(tmp_path / "run", LOW, published(), accuracy=np.where(COLUMN == 4, 0.3, 1.0))
    seen = verdicts(STUDY, run)
    assert seen["more-latents-align-less"] == "not run"
    assert {seen[name] for name in TABLE} == {"holds"}  # of the column that learned, beside its own numbers
    lowest = found(STUDY, run, "lowest-latents-align")
    assert lowest.details["the table"]["mean"] == pytest.approx(TABLE1[0].ncorr[0].mean)


@pytest.mark.parametrize(
    ("lost", "why"), [({"diverged": [0]}, "diverged"), ({"accuracy": np.r_[0.2, np.ones(7)]}, "did not learn")]
)
def test_a_lost_network_is_left_out_and_counted(tmp_path, lost, why):
    end = published()
    end[0] = -5.0  # would turn every verdict
    run = record(tmp_path / "run", LOW, end, **lost)
    for finding in judge(STUDY, run):
        assert finding.details["networks left out"] == {why: 1.0}
        assert f"networks left out: {why} 1" in finding.measured
    seen = verdicts(STUDY, run)
    assert {seen[name] for name in TABLE} == {"holds"}


def test_what_is_not_a_number_is_left_out(tmp_path):
    end = published()
    end[0] = np.nan
    run = record(tmp_path / "run", LOW, end, diverged=[0])
    assert {verdicts(STUDY, run)[name] for name in TABLE} == {"holds"}
    assert "nan" not in str(judge(STUDY, run)[0].measured)
    with house_style():
        STUDY.draw(run)


def test_a_class_that_a_column_lacks_changes_nothing(tiny, tiny_runs, tmp_path):
    wider = dataclasses.replace(tiny["table1"][1], columns=(1, 4, 9))
    run = carried_out(STUDY, wider, tmp_path / "run")
    for series in ("networks/train_loss", "networks/scores", "networks/accuracy"):
        np.testing.assert_allclose(run.array(series)[:, :4], tiny_runs["table1"].array(series), rtol=1e-4, atol=1e-4)


def test_classes_computed_once_and_weighed_are_the_whole_batch(tiny):
    merged, whole = (table1.Members(dataclasses.replace(tiny["table1"][1], merge=merge)) for merge in (True, False))
    decoder = merged.networks(range(4)).double()
    losses = [table1.shared_loss(decoder, who.batch(5, range(4))) for who in (merged, whole)]
    torch.testing.assert_close(*losses, rtol=1e-7, atol=0)  # the shares are float32
    tokens, labels, _ = whole.batch(5, range(4))
    torch.testing.assert_close(losses[1], class_loss(decoder, (tokens, labels)), rtol=1e-7, atol=0)
    assert tokens.shape == (4, 32, 30)


def test_scores_of_the_table_equal_a_slow_count(tiny):
    who = table1.Members(tiny["table1"][1])
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
    across = table1._across_halves(activity, latents, order)
    for block in range(2):
        for latent in range(3):
            ways = []
            for one, other in ((slice(6), slice(6, 12)), (slice(6, 12), slice(6))):
                x, y = activity[block].numpy(), latents[:, latent].numpy()
                neuron = np.argmax([np.corrcoef(column, y[one])[0, 1] for column in x[one].T])
                ways.append(np.corrcoef(x[other, neuron], y[other])[0, 1])
            np.testing.assert_allclose(across[block, latent].item(), np.mean(ways), rtol=1e-9)
    assert across[:, 3].isnan().all()
