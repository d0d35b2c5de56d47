"""Figure 6 on a made-up language: what is recorded, what is judged, and that its judges can be turned."""

import re

import numpy as np
import pytest
import torch
from records import HOLDS, carried_out, changed, found, verdicts
from small_language_models import SMALL, as_the_paper, untrained

from joma.data.errors import CorpusError
from joma.runs import Run
from joma.studies import _language_model_curves as recorded
from joma.studies import _language_model_findings as findings
from joma.studies import _language_models as lm
from joma.studies import entropy_over_training as fig6
from joma.studies.contract import NotRun, silent
from joma.studies.drawing import house_style
from joma.studies.execute import draw, execute, judge, plain_config

pytestmark = pytest.mark.usefixtures("no_other_text")


@pytest.fixture(scope="module")
def depths(data_folder, tmp_path_factory):
    config = fig6.Config(**SMALL, data=str(data_folder), layers=(1, 2), rate=0.02)
    return carried_out(fig6.STUDY, config, tmp_path_factory.mktemp("fig6") / "run.sqlite")


def test_everything_is_recorded_per_layer_and_head(depths):
    assert recorded.steps_of(depths, "L2").tolist() == list(range(0, 49, 4))
    shapes = {
        "valid/loss": (), "valid/entropy": (2, 1), "sequence/entropy": (2, 1), "rank/up": (2,), "rank/gradient": (2,),
        "rank/query_key": (2, 1), "coherence": (), "estimate/theorem": (), "estimate/frequency": (),
    }  # fmt: skip
    for name, shape in shapes.items():
        assert recorded.curve(depths, "L2", name).shape == (1, 3, 13, *shape), name
    assert recorded.layer_curves(depths, "L2").shape == (2, 3, 13)
    assert recorded.alive(depths, "L2").all()
    assert (recorded.best_loss(depths, "L2") < recorded.curve(depths, "L2", "valid/loss")[..., 0]).all()
    sizes = depths.value("corpus/sizes")
    assert sizes.tolist() == [40, 3001, 401]
    # the untrained blocks are copies, and both read vectors of one scale
    start = recorded.curve(depths, "L2", "rank/up")[0, :, 0]
    np.testing.assert_array_equal(start[:, 0], start[:, 1])


def test_verdicts_of_small_runs(depths):
    of = verdicts(fig6.STUDY, depths)
    assert set(of) == {claim.name for claim in fig6.STUDY.claims}
    assert {name for name, verdict in of.items() if verdict == "not run"} == {
        "fig6-losses-wikitext-2", "fig6-losses-wikitext-103", "fig6-curves",
    }  # fmt: skip
    said = found(fig6.STUDY, depths, fig6.LOSSES["wikitext-103"]).measured
    assert "--corpus wikitext-103" in said
    assert "corpus is wikitext-2" in said


def test_an_untrained_network_holds_nothing(depths, tmp_path):
    still = untrained(depths, tmp_path / "still")
    assert not HOLDS & set(verdicts(fig6.STUDY, still).values())


def test_a_rate_of_zero_holds_nothing(data_folder, tmp_path):
    config = fig6.Config(**SMALL | {"steps": 12}, data=str(data_folder), rate=0.0)
    run = carried_out(fig6.STUDY, config, tmp_path / "run.sqlite")
    assert not HOLDS & set(verdicts(fig6.STUDY, run).values())
    assert np.ptp(recorded.curve(run, "L1", "valid/entropy"), axis=2).max() == 0
    logits = found(fig6.STUDY, run, fig6.LOGITS)
    assert logits.verdict == "not run"
    assert "cannot be worked out" in logits.measured


def drop_and_rebound(depth):
    """Entropy of all layers and members along 0, 4, ..., 48: down to the middle, then up again by half."""

    def change(name, step, value):
        if not name.endswith("valid/entropy"):
            return value
        noise = 0.01 * np.random.default_rng(step).standard_normal(value.shape)
        return 2 - np.minimum(step, 24) / 24 * depth + np.maximum(step - 24, 0) / 24 * depth / 2 + noise

    return change


def test_entropy_that_drops_and_rebounds_is_found(depths, tmp_path):
    run = changed(depths, tmp_path / "a", drop_and_rebound(1.0))
    assert verdicts(fig6.STUDY, run)["fig6-one-layer"] == verdicts(fig6.STUDY, run)["fig6-top-layers"] == "holds"
    flat = changed(depths, tmp_path / "b", drop_and_rebound(0.0))
    assert verdicts(fig6.STUDY, flat)["fig6-one-layer"] == "not above its control"

    def falls(name, step, value):
        return value * 0 + 2 - step / 48 if name.endswith("valid/entropy") else value

    falling = changed(depths, tmp_path / "c", falls)
    assert verdicts(fig6.STUDY, falling)["fig6-one-layer"] == "not above its control"


def ends(gap):
    """Entropy of the model of two layers: the top one leaves the bottom one by `gap`."""

    def change(name, step, value):
        if name != "L2/valid/entropy":
            return value
        noise = 0.01 * np.random.default_rng(step).standard_normal(value.shape)
        return value * 0 + 2 + np.array([0.0, 0.3 + gap * step / 48])[None, :, None] + noise

    return change


def test_bottom_layers_are_judged_against_the_untrained_network(depths, tmp_path):
    for gap, verdict in ((0.5, "holds"), (0.0, "not above its control"), (-0.5, "not above its control")):
        run = changed(depths, tmp_path / f"{gap}", ends(gap))
        assert verdicts(fig6.STUDY, run)["fig6-bottom-layers"] == verdict


def learned_no_more_than_frequencies(change):
    """The same with losses that rise, as under a rate that is too high, and stay finite."""

    def both(name, step, value):
        return value * 0 + 6.4 + 1e6 * step if name.endswith("valid/loss") else change(name, step, value)

    return both


@pytest.mark.parametrize(
    ("change", "claims"), [(drop_and_rebound(1.0), (fig6.ONE, fig6.TOP)), (ends(0.5), (fig6.BOTTOM,))]
)
def test_networks_that_learned_nothing_hold_nothing(depths, tmp_path, change, claims):
    run = changed(depths, tmp_path / "idle", learned_no_more_than_frequencies(change))
    assert recorded.alive(run, "L2").all()
    for claim in claims:
        finding = found(fig6.STUDY, run, claim)
        assert finding.verdict == "not above its control"
        assert "no more was learned than the words' frequencies (best loss 6.400 against" in finding.measured


def test_deeper_must_be_better_by_more_than_seeds_differ(depths, tmp_path):
    def losses(one, two):
        def change(name, step, value):
            if not name.endswith("valid/loss"):
                return value
            return (one if name.startswith("L1") else two) + np.array([0.0, 0.01, -0.01]) + (3.0 if step == 0 else 0.0)

        return change

    for two, verdict in ((1.9, "holds"), (2.1, "fails"), (2.0, "not above its control")):
        run = changed(depths, tmp_path / f"{two}", losses(2.0, two))
        assert verdicts(fig6.STUDY, run)["fig6-deeper-is-better"] == verdict


def test_losses_are_compared_with_the_paper(depths, tmp_path, monkeypatch):
    as_the_paper(monkeypatch, depths.config)
    ours = {layers: float(recorded.best_loss(depths, f"L{layers}").mean()) for layers in (1, 2)}
    real = findings.differs
    monkeypatch.setattr(
        fig6, "differs", lambda config, **wanted: real(config) if wanted.get("corpus") != "wikitext-103" else "x"
    )
    for shift, verdict in ((0.01, "holds"), (0.05, "fails")):
        printed = {layers: loss + shift for layers, loss in ours.items()}
        monkeypatch.setattr(fig6, "PRINTED", {**fig6.PRINTED, "wikitext-2": printed})
        assert verdicts(fig6.STUDY, depths)["fig6-losses-wikitext-2"] == verdict
    monkeypatch.setattr(fig6, "PRINTED", {**fig6.PRINTED, "wikitext-2": ours})

    def lost(name, step, value):
        return np.zeros_like(value) if name == "L2/diverged_at" else value

    assert verdicts(fig6.STUDY, depths)["fig6-losses-wikitext-2"] == "holds"
    run = changed(depths, tmp_path / "a depth diverged", lost)
    assert verdicts(fig6.STUDY, run)["fig6-losses-wikitext-2"] == "fails"


def test_a_depth_that_diverges_is_said_to(data_folder, tmp_path):
    config = fig6.Config(**SMALL | {"steps": 16}, data=str(data_folder), rate=1e30)
    run = carried_out(fig6.STUDY, config, tmp_path / "run.sqlite")
    assert set(verdicts(fig6.STUDY, run).values()) == {"not run"}
    for claim in (fig6.ONE, fig6.TOP, fig6.BOTTOM, fig6.DEEPER, fig6.LOGITS):
        said = found(fig6.STUDY, run, claim).measured
        assert re.match("all runs of L[12](, L2)? diverged; ", said)
        assert "a lower --rate than 1e+30" in said
    assert len(draw(fig6.STUDY, run)) == 2


@pytest.mark.parametrize("left", [0, 1, 2])
def test_what_is_left_of_a_depth_is_said(depths, tmp_path, left):
    """Of L = 2; of the other depth nothing diverged."""

    def lost(name, step, value):
        return np.where(np.arange(3) < left, -1, 4) if name == "L2/diverged_at" else value

    findings = judge(fig6.STUDY, changed(depths, tmp_path / "run", lost))
    of = {finding.claim.name: finding.verdict for finding in findings}
    assert of["fig6-one-layer"] != "not run"
    assert of["fig6-top-layers"] == "not run"
    assert (of["fig6-bottom-layers"] == "not run") == (of["fig6-deeper-is-better"] == "not run") == (left < 2)
    said = " ".join(f"{finding.measured} {finding.control}" for finding in findings)
    assert "nan" not in said
    assert "inf" not in said
    assert f"{3 - left} of 3 runs of L2" in said


def test_figures(depths):
    with house_style():
        assert [d.name for d in fig6.draw(depths)] == ["entropy-over-training", "weights-over-training"]


def test_a_finished_run_is_not_trained_again(depths, data_folder):
    before = depths.names()
    fig6.run(fig6.Config(**SMALL, data=str(data_folder), layers=(1, 2), rate=0.02), depths, silent)
    assert depths.names() == before


def test_another_text_under_a_begun_run_is_refused(depths, data_folder, tmp_path):
    other = tmp_path / "wikitext-2"
    other.mkdir()
    for split in ("train", "valid", "test"):
        (other / f"{split}.txt").write_text((data_folder / "wikitext-2" / f"{split}.txt").read_text() + " more")
    with pytest.raises(ValueError, match="another text"):
        fig6.run(fig6.Config(**SMALL, data=str(tmp_path), layers=(1, 2), rate=0.02), depths, silent)


def test_another_text_is_not_held_against_the_papers_numbers(depths, monkeypatch):
    as_the_paper(monkeypatch, depths.config)
    monkeypatch.setattr(fig6, "differs", lambda config, **wanted: "")
    monkeypatch.setattr(findings, "SIZES", (28_782, 2_049_990, 214_417))
    for claim in (fig6.LOSSES["wikitext-2"], fig6.CURVES):
        finding = found(fig6.STUDY, depths, claim)
        assert finding.verdict == "not run"
        assert finding.measured.startswith("the text is not WikiText-2: it has 40 words and 3001 + 401 tokens")


def test_a_text_file_of_ones_own(data_folder, tmp_path):
    path = data_folder / "wikitext-2" / "train.txt"
    config = fig6.Config(**SMALL | {"corpus": str(path), "sequence": 0}, layers=(1,))
    run = carried_out(fig6.STUDY, config, tmp_path / "run.sqlite")
    words, train, valid = run.value("corpus/sizes")
    assert (words, train, valid) == (40, 2701, 150)
    assert found(fig6.STUDY, run, fig6.LOSSES["wikitext-2"]).verdict == "not run"
    assert "held-out text of train.txt" in draw(fig6.STUDY, run)[0].caption
    with pytest.raises(ValueError, match="corpus must be one of python, wikitext-2, wikitext-103, or a text file"):
        fig6.Config(**SMALL | {"corpus": "wikitext-4"})


def test_a_text_file_that_is_gone(data_folder, tmp_path):
    """What was made of it can still be shown; nothing new can be made, and nothing is left of the attempt."""
    path = tmp_path / "song.txt"
    path.write_bytes((data_folder / "wikitext-2" / "train.txt").read_bytes())
    config = fig6.Config(**SMALL | {"corpus": str(path), "sequence": 0}, layers=(1,))
    first = execute(fig6.STUDY, config, tmp_path / "out", pictures=False)
    path.unlink()
    again = execute(fig6.STUDY, config, tmp_path / "out", pictures=False)
    assert [f.verdict for f in again.findings] == [f.verdict for f in first.findings]
    with pytest.raises(CorpusError, match=f"{path} is no file"):
        execute(fig6.STUDY, config, tmp_path / "elsewhere", pictures=False)
    assert not list((tmp_path / "elsewhere").rglob("*.sqlite*"))
    path.write_text("another song " * 1000)
    with pytest.raises(CorpusError, match="was made of another text"):
        execute(fig6.STUDY, config, tmp_path / "out", pictures=False)


def test_where_a_text_was_looked_for_is_said(data_folder, tmp_path, monkeypatch):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=f"--data {nowhere}: there is no folder wikitext-2 in it") as error:
        lm.corpus(fig6.Config(**SMALL, data=nowhere))
    assert "JOMA_DATA" not in str(error.value)
    with pytest.raises(CorpusError, match=f"not wikitext-2 itself: {data_folder}"):
        lm.corpus(fig6.Config(**SMALL, data=str(data_folder / "wikitext-2")))
    monkeypatch.setenv("JOMA_DATA", str(data_folder))
    with pytest.raises(CorpusError, match=f"without --data it is looked for under JOMA_DATA, {data_folder}"):
        lm.corpus(fig6.Config(**SMALL, data=nowhere))
    monkeypatch.setenv("JOMA_DATA", nowhere)
    with pytest.raises(NotRun, match=f"not under JOMA_DATA, '{nowhere}', nor .* run it with: JOMA_DATA=FOLDER"):
        lm.corpus(fig6.Config(**SMALL))


@pytest.mark.parametrize(
    ("precision", "here"), [("float32", "--device cpu$"), ("half-logits", "cpu --precision float32$")]
)
def test_a_device_that_is_not_there_is_named(data_folder, tmp_path, monkeypatch, precision, here):
    config = fig6.Config(**SMALL, data=str(data_folder), device="cuda:1", precision=precision)
    with Run.create(tmp_path / "run", study="fig6", config=plain_config(config)) as run:
        for count, said in ((0, "none"), (1, "1")):
            monkeypatch.setattr(torch.cuda, "is_available", lambda count=count: count > 0)
            monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
            with pytest.raises(NotRun, match=f"needs a CUDA GPU, and torch sees {said} here.*run fig6 with .*{here}"):
                fig6.STUDY.run(config, run, silent)
