"""Figures 6 and 8 on a made-up language: what is recorded, what is judged, and that the judges can be turned."""

import json

import numpy as np
import pytest
import torch

from joma.data.text import Corpus, CorpusError
from joma.runs import Run
from joma.studies import _language_model_findings as findings
from joma.studies import _language_models as lm
from joma.studies import entropy_over_training as fig6
from joma.studies import learning_rate_sweep as fig8
from joma.studies.contract import NotRun, silent
from joma.studies.drawing import house_style
from joma.studies.execute import check_config, draw, execute, judge, plain_config

HOLDS = {"holds", "holds as corrected"}
SMALL = {
    "corpus": "wikitext-2", "vocabulary": 40, "width": 8, "mlp": 8, "streams": 4, "valid_streams": 3, "length": 6,
    "sequence": 5, "valid_sequences": 8, "steps": 48, "every": 4, "dropout": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder as users bring it: words that follow one another by a rule, with noise."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for split, count in (("train", 3000), ("valid", 400), ("test", 100)):
        place = folder / "wikitext-2" / f"{split}.txt"
        place.parent.mkdir(exist_ok=True)
        ids = [0]
        for _ in range(count):
            ids.append((3 * ids[-1] + 1) % 50 if generator.random() < 0.8 else int(generator.integers(50)))
        place.write_text(" ".join(f"w{i}" for i in ids), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("JOMA_DATA", raising=False)
    monkeypatch.setattr(fig8, "RESAMPLES", 200)


def carry_out(study, config, path):
    check_config(config)
    run = Run.create(path, study=study.name, config=plain_config(config), version=study.version)
    study.run(config, run, silent)
    return run


@pytest.fixture(scope="module")
def depths(data, tmp_path_factory):
    config = fig6.Config(**SMALL, data=str(data), layers=(1, 2), rate=0.02)
    return carry_out(fig6.STUDY, config, tmp_path_factory.mktemp("fig6") / "run.sqlite")


@pytest.fixture(scope="module")
def sweep(data, tmp_path_factory):
    config = fig8.Config(**SMALL, data=str(data), layers=2, rates=(0.3, 1e-3, 0.02))
    return carry_out(fig8.STUDY, config, tmp_path_factory.mktemp("fig8") / "run.sqlite")


def changed(run, path, change):
    """A copy of the run in which every series went through change(name, step, value)."""
    copy = Run.create(path, study=run.study, config=run.config, version=run.version)
    for name in run.names():
        for step in run.steps(name):
            copy.append(name, int(step), change(name, int(step), run.at(name, int(step))))
    return copy


def untrained(run):
    """What a run would have recorded if nothing had moved."""

    def change(name, step, value):
        return run.at(name, 0) if name.endswith(("/loss", "/entropy")) or "rank/" in name else value

    return change


def verdicts(run, study):
    return {finding.claim.name: finding.verdict for finding in judge(study, run)}


def found(run, study, claim):
    return next(finding for finding in judge(study, run) if finding.claim is claim)


def test_everything_is_recorded_per_layer_and_head(depths):
    assert lm.steps_of(depths, "L2").tolist() == list(range(0, 49, 4))
    shapes = {
        "valid/loss": (), "valid/entropy": (2, 1), "sequence/entropy": (2, 1), "rank/up": (2,), "rank/gradient": (2,),
        "rank/query_key": (2, 1), "coherence": (), "estimate/theorem": (), "estimate/frequency": (),
    }  # fmt: skip
    for name, shape in shapes.items():
        assert lm.curve(depths, "L2", name).shape == (1, 3, 13, *shape), name
    assert lm.layer_curves(depths, "L2").shape == (2, 3, 13)
    assert lm.alive(depths, "L2").all()
    assert (lm.best_loss(depths, "L2") < lm.curve(depths, "L2", "valid/loss")[..., 0]).all()
    sizes = depths.value("corpus/sizes")
    assert sizes.tolist() == [40, 3001, 401]
    # the untrained blocks are copies, and both read vectors of one scale
    start = lm.curve(depths, "L2", "rank/up")[0, :, 0]
    np.testing.assert_array_equal(start[:, 0], start[:, 1])


def test_members_are_rates_and_then_seeds(sweep):
    assert sweep.value("sweep/rates").tolist() == [1e-3, 0.02, 0.3]
    assert sweep.value("sweep/seeds").tolist() == [1, 2, 3]
    start = lm.curve(sweep, "sweep", "valid/loss")[..., 0]
    np.testing.assert_allclose(start[0], start[1], rtol=1e-6)  # one seed, one start, whatever the rate
    assert len(np.unique(start[0].round(6))) == 3


def test_a_step_reads_what_follows_and_an_epoch_reads_everything(data):
    config = lm.LanguageModelConfig(**SMALL, data=str(data))
    text = lm.corpus(config)
    made = lm.ensemble(lm.recipe(config, text), text)
    epoch = lm.epoch_steps(text, 4, 6)
    assert epoch == -(-749 // 6)
    whole = text.tokens["train"][: 4 * 750].view(4, 750)
    seen = torch.zeros(4, 750, dtype=torch.bool)
    for step in range(epoch):
        inputs, targets = made.batch(step, [0])
        assert inputs.shape == targets.shape == (4, 6)
        torch.testing.assert_close(inputs[:, 1:], targets[:, :-1])
        first = min(6 * step, 743)
        torch.testing.assert_close(targets, whole[:, first + 1 : first + 7].long())
        seen[:, first : first + 7] = True
    assert seen.all()
    torch.testing.assert_close(made.batch(epoch, [0])[0], made.batch(0, [0])[0])
    assert made.optimizer.renew_every == epoch


def test_the_two_quirks_are_options(data):
    config = lm.LanguageModelConfig(**SMALL, data=str(data), renew_each_epoch=False, decay=0.9)
    text = lm.corpus(config)
    optimizer = lm.recipe(config, text).optimizer
    assert (optimizer.renew_every, optimizer.decay, optimizer.decay_every) == (None, 0.9, 125)


def test_the_paper_scale_is_the_recipe_of_the_paper():
    config = fig6.STUDY.paper
    text = Corpus("x", tuple(map(str, range(28_782))), {"train": torch.zeros(2_049_990, dtype=torch.int32)}, "")
    assert 20 * lm.epoch_steps(text, config.streams, config.length) == config.steps == fig8.STUDY.paper.steps == 58_580
    made = lm.recipe(config, text, layers=5, rates=(1e-4,))
    shape, optimizer = made.decoder, made.optimizer
    assert (shape.width, shape.mlp, shape.heads, shape.context, shape.dropout) == (200, 200, 1, 35, 0.2)
    assert (shape.norm, shape.activation, shape.copies, shape.positions) == ("post-layer", "relu", True, "sinusoidal")
    assert (optimizer.kind, optimizer.clip, optimizer.renew_every, optimizer.decay) == ("adam", 0.5, 2_929, 1.0)
    assert made.seeds == (3, 4, 5, 6, 7, 8)
    assert fig8.STUDY.paper.seeds == 3 == fig8.STUDY.paper.seed
    assert not findings.differs(plain_config(config), layers=[1, 2, 5, 10], rate=1e-4)


def test_verdicts_of_small_runs(depths, sweep):
    for run, study in ((depths, fig6.STUDY), (sweep, fig8.STUDY)):
        of = verdicts(run, study)
        assert set(of) == {claim.name for claim in study.claims}
    of = verdicts(depths, fig6.STUDY)
    assert {name for name, verdict in of.items() if verdict == "not run"} == {
        "fig6-losses-wikitext-2", "fig6-losses-wikitext-103", "fig6-curves",
    }  # fmt: skip
    said = found(depths, fig6.STUDY, fig6.LOSSES["wikitext-103"]).measured
    assert "--corpus wikitext-103" in said
    assert "corpus is wikitext-2" in said


def test_an_untrained_network_holds_nothing(depths, sweep, tmp_path):
    for run, study in ((depths, fig6.STUDY), (sweep, fig8.STUDY)):
        still = changed(run, tmp_path / study.name, untrained(run))
        assert not HOLDS & set(verdicts(still, study).values())


def test_a_rate_of_zero_holds_nothing(data, tmp_path):
    config = fig6.Config(**SMALL | {"steps": 12}, data=str(data), rate=0.0)
    run = carry_out(fig6.STUDY, config, tmp_path / "run.sqlite")
    assert not HOLDS & set(verdicts(run, fig6.STUDY).values())
    assert np.ptp(lm.curve(run, "L1", "valid/entropy"), axis=2).max() == 0


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
    assert verdicts(run, fig6.STUDY)["fig6-one-layer"] == verdicts(run, fig6.STUDY)["fig6-top-layers"] == "holds"
    flat = changed(depths, tmp_path / "b", drop_and_rebound(0.0))
    assert verdicts(flat, fig6.STUDY)["fig6-one-layer"] == "not above its control"

    def falls(name, step, value):
        return value * 0 + 2 - step / 48 if name.endswith("valid/entropy") else value

    falling = changed(depths, tmp_path / "c", falls)
    assert verdicts(falling, fig6.STUDY)["fig6-one-layer"] == "not above its control"


def test_bottom_layers_are_judged_against_the_untrained_network(depths, tmp_path):
    def ends(gap):
        def change(name, step, value):
            if name != "L2/valid/entropy":
                return value
            noise = 0.01 * np.random.default_rng(step).standard_normal(value.shape)
            return value * 0 + 2 + np.array([0.0, 0.3 + gap * step / 48])[None, :, None] + noise

        return change

    for gap, verdict in ((0.5, "holds"), (0.0, "not above its control"), (-0.5, "not above its control")):
        run = changed(depths, tmp_path / f"{gap}", ends(gap))
        assert verdicts(run, fig6.STUDY)["fig6-bottom-layers"] == verdict


def test_deeper_must_be_better_by_more_than_seeds_differ(depths, tmp_path):
    def losses(one, two):
        def change(name, step, value):
            if not name.endswith("valid/loss"):
                return value
            return (one if name.startswith("L1") else two) + np.array([0.0, 0.01, -0.01]) + (3.0 if step == 0 else 0.0)

        return change

    for two, verdict in ((1.9, "holds"), (2.1, "fails"), (2.0, "not above its control")):
        run = changed(depths, tmp_path / f"{two}", losses(2.0, two))
        assert verdicts(run, fig6.STUDY)["fig6-deeper-is-better"] == verdict


def as_the_paper(monkeypatch, config, **changes):
    """Pretend that these sizes are the paper's."""
    plain = plain_config(config)
    monkeypatch.setattr(findings, "AS_THE_PAPER", {name: plain[name] for name in findings.AS_THE_PAPER} | changes)


def test_losses_are_compared_with_the_paper(depths, tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "AS_THE_PAPER", {name: depths.config[name] for name in findings.AS_THE_PAPER})
    ours = {layers: float(lm.best_loss(depths, f"L{layers}").mean()) for layers in (1, 2)}
    real = findings.differs
    monkeypatch.setattr(
        fig6, "differs", lambda config, **wanted: real(config) if wanted.get("corpus") != "wikitext-103" else "x"
    )
    for shift, verdict in ((0.01, "holds"), (0.05, "fails")):
        printed = {layers: loss + shift for layers, loss in ours.items()}
        monkeypatch.setattr(fig6, "PRINTED", {**fig6.PRINTED, "wikitext-2": printed})
        assert verdicts(depths, fig6.STUDY)["fig6-losses-wikitext-2"] == verdict


@pytest.mark.parametrize("study", [fig6, fig8])
def test_stored_curves_are_compared_and_not_kept(study, data, tmp_path, monkeypatch):
    options = {"layers": (1,), "rate": 0.02} if study is fig6 else {"layers": 1, "rates": (0.02, 1e-3, 0.1)}
    config = study.Config(**SMALL, data=str(tmp_path), seed=3, seeds=4, **options)  # one more than is stored
    as_the_paper(monkeypatch, config)
    (tmp_path / "wikitext-2").symlink_to(data / "wikitext-2")
    first = carry_out(study.STUDY, config, tmp_path / "first")
    variant = "L1" if study is fig6 else "sweep"
    index = 0 if study is fig6 else 1
    assert "stored" not in first
    assert "not in the folder" in found(first, study.STUDY, study.CURVES).measured
    ours = lm.curve(first, variant, "sequence/entropy")[index, :, :, :, 0]  # (seeds, points, layers)
    (tmp_path / "reference").mkdir()
    for shift, verdict in ((0.05, "holds"), (0.15, "fails")):
        stored = [
            {"layers": 1, "lr": 0.02, "seed": seed, "steps": list(range(0, 49, 4)), "entropy": (one + shift).tolist()}
            for seed, one in enumerate(ours[:3], start=1)
        ]
        (tmp_path / "reference" / "wikitext2_runs.json").write_text(json.dumps(stored))
        monkeypatch.setattr("joma.studies._stored_curves.NOISES", 1e9 if shift < 0.1 else 0.0)  # 0.02 is above 1e-3
        run = changed(first, tmp_path / f"{shift}", lambda name, step, value: value)
        study.run(config, run, silent)  # trained already
        assert run.value("stored")[:, 2] == pytest.approx([shift], abs=1e-6)
        assert verdicts(run, study.STUDY)[study.CURVES.name] in (
            verdict,
            "only qualitative" if shift > 0.1 else verdict,
        )
    (tmp_path / "reference" / "wikitext2_runs.json").write_text("[3]")
    with pytest.raises(ValueError, match="not a list of runs"):
        study.run(config, changed(first, tmp_path / "damaged", lambda name, step, value: value), silent)


def test_a_rate_that_diverges_is_marked_and_the_sweep_goes_on(data, tmp_path):
    config = fig8.Config(**SMALL, data=str(data), layers=1, rates=(1e-3, 0.02, 1e30))
    run = carry_out(fig8.STUDY, config, tmp_path / "run.sqlite")
    assert lm.alive(run, "sweep").tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert np.isfinite(lm.best_loss(run, "sweep")[:2]).all()
    said = found(run, fig8.STUDY, fig8.TOGETHER).measured
    assert "over 6 runs" in said
    assert "diverged and left out: 3 of 9 runs of sweep" in said
    with house_style():
        assert len(draw(fig8.STUDY, run)) == 1
    everything = fig8.Config(**SMALL, data=str(data), layers=1, rates=(1e28, 1e29, 1e30))
    result = execute(fig8.STUDY, everything, tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert result.run.exists()  # what was trained is not thrown away
    assert "9 of 9 runs" in result.findings[0].measured


def test_a_depth_that_diverges_is_said_to(data, tmp_path):
    config = fig6.Config(**SMALL | {"steps": 16}, data=str(data), rate=1e30)
    run = carry_out(fig6.STUDY, config, tmp_path / "run.sqlite")
    assert not HOLDS & set(verdicts(run, fig6.STUDY).values())
    assert "did not diverge" in found(run, fig6.STUDY, fig6.ONE).measured
    with house_style():
        assert len(draw(fig6.STUDY, run)) == 2


def sweep_like(scores, losses):
    """Entropy that falls from 2 to 1 and comes back by the rate's score; the rate's loss."""

    def change(name, step, value):
        each = np.repeat(np.array(scores), 3)
        noise = 1e-3 * np.random.default_rng(step).standard_normal(value.shape)
        if name == "sweep/valid/entropy":
            level = 2 - min(step, 24) / 24 + max(step - 24, 0) / 24 * each
            return level[:, None, None] + noise
        if name == "sweep/valid/loss":
            return np.repeat(np.array(losses), 3) + noise + (5.0 if step == 0 else 0.0)
        return value

    return change


def test_the_pattern_of_the_best_rate(sweep, tmp_path):
    cases = {
        (0.1, 0.8, 0.2): "holds",
        (0.1, 0.5, 0.9): "not above its control",
        (0.1, 0.5, 0.5): "not above its control",
        (0.0, 0.0, 0.0): "not above its control",
    }
    for scores, verdict in cases.items():
        run = changed(sweep, tmp_path / f"{scores}", sweep_like(scores, (3.0, 2.0, 2.5)))
        assert verdicts(run, fig8.STUDY)["fig8-pattern-of-the-best"] == verdict
        np.testing.assert_allclose(fig8.comes_back(run).mean(-1), scores, atol=0.06)


def test_rank_correlation_needs_more_than_chance(data, sweep, tmp_path):
    config = fig8.Config(**SMALL | {"steps": 44}, data=str(data), layers=1, rates=tuple(1e-3 * 2**i for i in range(7)))
    run = carry_out(fig8.STUDY, config, tmp_path / "seven")
    scores = np.linspace(0.1, 0.7, 7)
    for losses, verdict in ((3 - scores, "holds"), (2 + scores, "not above its control")):
        made = changed(run, tmp_path / f"{losses[0]}", sweep_like(scores, losses))
        assert verdicts(made, fig8.STUDY)["fig8-pattern-and-loss"] == verdict
    # three rates can be put in order by chance, however many seeds there are
    three = changed(sweep, tmp_path / "three", sweep_like((0.1, 0.4, 0.7), (3.0, 2.5, 2.0)))
    assert verdicts(three, fig8.STUDY)["fig8-pattern-and-loss"] == "not above its control"


def test_large_rates(sweep, tmp_path):
    def at_the_end(*layers):
        def change(name, step, value):
            if name != "sweep/valid/entropy" or step == 0:
                return value
            value = value.copy()
            value[6:] = np.array(layers)[None, :, None]  # the largest rate
            value[:6] = 1.0
            return value

        return change

    for layers, verdict in (((0.01, 0.02), "holds"), ((0.01, 2.0), "only qualitative"), ((0.5, 2.0), "fails")):
        run = changed(sweep, tmp_path / f"{layers}", at_the_end(*layers))
        assert verdicts(run, fig8.STUDY)["fig8-large-rate"] == verdict


def test_figures(depths, sweep):
    with house_style():
        assert [d.name for d in fig6.draw(depths)] == ["entropy-over-training", "weights-over-training"]
        assert [d.name for d in fig8.draw(sweep)] == ["learning-rate-sweep"]


def test_a_finished_run_is_not_trained_again(depths, data):
    before = depths.names()
    fig6.run(fig6.Config(**SMALL, data=str(data), layers=(1, 2), rate=0.02), depths, silent)
    assert depths.names() == before


def test_another_text_under_a_begun_run_is_refused(depths, data, tmp_path):
    other = tmp_path / "wikitext-2"
    other.mkdir()
    for split in ("train", "valid", "test"):
        (other / f"{split}.txt").write_text((data / "wikitext-2" / f"{split}.txt").read_text() + " more")
    with pytest.raises(ValueError, match="begun with another text"):
        fig6.run(fig6.Config(**SMALL, data=str(tmp_path), layers=(1, 2), rate=0.02), depths, silent)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"length": 800}, "a sequence of 800 tokens"),
        ({"sequence": 500}, "sequence 500 of the validation text was asked for, it has 22"),
        ({"streams": 2000}, "2000 streams need 4,000 tokens at least"),
    ],
)
def test_a_text_that_is_too_small_is_refused(data, tmp_path, changes, sentence):
    config = fig6.Config(**SMALL | changes, data=str(data))
    with pytest.raises(CorpusError, match=sentence):
        carry_out(fig6.STUDY, config, tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fig6.Config(corpus="wikitext-3"), "corpus must be one of python, wikitext-2, wikitext-103"),
        (lambda: fig6.Config(decay=0.0), "decay must lie above 0"),
        (lambda: fig6.Config(seeds=2), "seeds must be at least 3"),
        (lambda: fig6.Config(steps=30), "leave no valley"),
        (lambda: fig6.Config(vocabulary=1), "a vocabulary of one word"),
        (lambda: fig6.Config(heads=5), "width 32 cannot be shared by 5 heads"),
        (lambda: fig6.Config(dropout=1.0), "dropout must be at least 0 and less than 1"),
        (lambda: fig6.Config(rate=-1.0), "rate must be finite and not negative"),
        (lambda: fig6.Config(clip=-1.0), "clip must be positive"),
        (lambda: fig6.Config(device="tpu"), "device must be cpu or cuda"),
        (lambda: fig8.Config(rates=(1e-3, 1e-2, -1.0)), "rate must be finite and not negative"),
        (lambda: fig8.Config(rates=(1e-3, 1e-3, 1e-2)), "at least three different"),
        (lambda: fig8.Config(steps=100, every=50), "fewer than 12 points"),
    ],
)
def test_refusals(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_what_this_machine_lacks_is_not_run(tmp_path, data):
    with pytest.raises(NotRun, match=r"wikitext-2 is neither under --data nor under JOMA_DATA"):
        carry_out(fig6.STUDY, fig6.Config(**SMALL), tmp_path / "a")
    if not torch.cuda.is_available():
        config = fig6.Config(**SMALL, data=str(data), device="cuda")
        with pytest.raises(NotRun, match=r"needs a CUDA GPU; run it with: joma verify fig6 --scale paper"):
            carry_out(fig6.STUDY, config, tmp_path / "b")


def test_a_variant_may_read_fewer_words(data, tmp_path):
    """As an ablation with orthonormal embeddings does: the text is cut to the decoder's vocabulary."""
    config = lm.LanguageModelConfig(**SMALL | {"steps": 8}, data=str(data))
    text = lm.corpus(config)
    base = lm.recipe(config, text)
    frozen = base.with_decoder(vocabulary=8, embeddings="orthonormal")
    with Run.create(tmp_path / "run.sqlite", study="x", config={}) as run:
        lm.train_variants(
            {"frozen": frozen, "none": base.with_decoder(mlp=0, activation="identity")}, text, run, silent
        )
        assert np.abs(lm.curve(run, "frozen", "coherence")).max() < 1e-6
        assert "none/rank/up" not in run
        assert "none/estimate/theorem" not in run


def test_spearman():
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((2, 30))
    x[:5] = x[5]
    scipy = pytest.importorskip("scipy.stats")
    assert fig8.spearman(x, y) == pytest.approx(scipy.spearmanr(x, y).statistic)
    assert np.isnan(fig8.spearman(x, np.ones(30)))
