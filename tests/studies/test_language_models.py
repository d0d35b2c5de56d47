"""What Figures 6 and 8 share: the reading of a text, the recipe, the stored curves, and what is refused."""

import json

import numpy as np
import pytest
import torch
from records import carried_out, changed, found, verdicts
from small_language_models import SMALL, as_the_paper

from joma.data.text import Corpus, CorpusError
from joma.runs import Run
from joma.studies import _language_model_curves as recorded
from joma.studies import _language_model_findings as findings
from joma.studies import _language_models as lm
from joma.studies import entropy_over_training as fig6
from joma.studies import learning_rate_sweep as fig8
from joma.studies.contract import NotRun, check_config, silent
from joma.studies.execute import plain_config

pytestmark = pytest.mark.usefixtures("no_other_text")


def test_a_step_reads_what_follows_and_an_epoch_reads_everything(data_folder):
    config = lm.LanguageModelConfig(**SMALL, data=str(data_folder))
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


def test_the_two_quirks_are_options(data_folder):
    config = lm.LanguageModelConfig(**SMALL, data=str(data_folder), renew_each_epoch=False, decay=0.9)
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
    assert made.seeds == (3, 4, 5, 6, 7)
    assert fig8.STUDY.paper.seeds == 3 == fig8.STUDY.paper.seed
    assert not findings.differs(plain_config(config), layers=[1, 2, 5, 10], rate=1e-4)


def test_a_variant_may_read_fewer_words(data_folder, tmp_path):
    """As an ablation with orthonormal embeddings does: the text is cut to the decoder's vocabulary."""
    config = lm.LanguageModelConfig(**SMALL | {"steps": 8}, data=str(data_folder))
    text = lm.corpus(config)
    base = lm.recipe(config, text)
    frozen = base.with_decoder(vocabulary=8, embeddings="orthonormal")
    with Run.create(tmp_path / "run.sqlite", study="x", config={}) as run:
        lm.train_variants(
            {"frozen": frozen, "none": base.with_decoder(mlp=0, activation="identity")}, text, run, silent
        )
        assert np.abs(recorded.curve(run, "frozen", "coherence")).max() < 1e-6
        assert "none/rank/up" not in run
        assert "none/estimate/theorem" not in run


def test_a_seed_that_no_record_can_hold_is_refused(data_folder):
    with pytest.raises(ValueError, match="seed must be below 2"):
        check_config(fig6.Config(**SMALL, data=str(data_folder), seed=2**63))


@pytest.mark.parametrize("study", [fig6, fig8])
def test_stored_curves_are_compared_and_not_kept(study, data_folder, tmp_path, monkeypatch):
    options = {"layers": (1,), "rate": 0.02} if study is fig6 else {"layers": 1, "rates": (0.02, 1e-3, 0.1)}
    config = study.Config(**SMALL, data=str(tmp_path), seed=3, seeds=4, **options)  # one more than is stored
    as_the_paper(monkeypatch, plain_config(config))
    monkeypatch.setattr(fig8, "RESAMPLES", 200)
    (tmp_path / "wikitext-2").symlink_to(data_folder / "wikitext-2")
    first = carried_out(study.STUDY, config, tmp_path / "first")
    variant = "L1" if study is fig6 else "sweep"
    index = 0 if study is fig6 else 1
    assert "stored" not in first
    assert "not in the folder" in found(study.STUDY, first, study.CURVES).measured
    ours = recorded.curve(first, variant, "sequence/entropy")[index, :, :, :, 0]  # (seeds, points, layers)
    (tmp_path / "reference").mkdir()
    for shift, verdict in ((0.05, "holds"), (0.15, "fails")):
        stored = [
            {
                "layers": 1,
                "lr": 0.02,
                "seed": seed,
                "steps": list(range(0, 49, 4)),
                "val_loss": [3.0] * 13,
                "entropy": (one + shift).tolist(),
            }
            for seed, one in enumerate(ours[:3], start=1)
        ]
        (tmp_path / "reference" / "wikitext2_runs.json").write_text(json.dumps(stored))
        monkeypatch.setattr("joma.studies._stored_curves.NOISES", 1e9 if shift < 0.1 else 0.0)  # 0.02 is above 1e-3
        run = changed(first, tmp_path / f"{shift}", lambda name, step, value: value)
        study.run(config, run, silent)  # trained already
        assert run.value("stored")[:, 2] == pytest.approx([shift], abs=1e-6)
        assert verdicts(study.STUDY, run)[study.CURVES.name] in (
            verdict,
            "only qualitative" if shift > 0.1 else verdict,
        )
    none = changed(first, tmp_path / "no curves", lambda name, step, value: value)
    none.keep("stored", lambda: np.zeros((0, 8)))
    assert "has no curves of these depths, rates" in found(study.STUDY, none, study.CURVES).measured
    (tmp_path / "reference" / "wikitext2_runs.json").write_text("[3]")
    with pytest.raises(ValueError, match="not a list of runs"):
        study.run(config, changed(first, tmp_path / "damaged", lambda name, step, value: value), silent)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"length": 800}, "a sequence of 800 tokens"),
        ({"sequence": 500}, "sequence 500 of the validation text was asked for, it has 22"),
        ({"streams": 2000}, "2000 streams need 4,000 tokens at least"),
    ],
)
def test_a_text_that_is_too_small_is_refused(data_folder, tmp_path, changes, sentence):
    config = fig6.Config(**SMALL | changes, data=str(data_folder))
    with pytest.raises(CorpusError, match=sentence):
        carried_out(fig6.STUDY, config, tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"corpus": "wikitext-3"}, "corpus must be one of python, wikitext-2, wikitext-103"),
        ({"decay": 0.0}, "decay must lie above 0"),
        ({"seeds": 2}, "seeds must be at least 3"),
        ({"steps": 30}, "leave no valley"),
        ({"vocabulary": 1}, "a vocabulary of one word"),
        ({"heads": 5}, "width 32 cannot be shared by 5 heads"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1"),
        ({"rate": -1.0}, "rate must be finite and not negative"),
        ({"clip": 0.0}, "clip must be positive, a large number to clip nothing"),
        ({"device": "tpu"}, "device must be cpu or cuda"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        fig6.Config(**changes)


def test_what_this_machine_lacks_is_not_run(tmp_path, data_folder):
    with pytest.raises(NotRun, match=r"wikitext-2 is neither under --data nor under JOMA_DATA"):
        carried_out(fig6.STUDY, fig6.Config(**SMALL), tmp_path / "a")
    if not torch.cuda.is_available():
        config = fig6.Config(**SMALL, data=str(data_folder), device="cuda")
        with pytest.raises(NotRun, match=r"device cuda needs a CUDA GPU, .* joma run fig6 with --device cpu"):
            carried_out(fig6.STUDY, config, tmp_path / "b")
