"""The recipe of language models: the reading of a text, the paper's sizes, and what is refused."""

import numpy as np
import pytest
import torch
from records import carried_out, found
from small_language_models import SMALL

from joma.claims.contract import NotRun, check_config, silent
from joma.claims.execute import draw, execute, plain_config
from joma.data.text import Corpus, CorpusError
from joma.recipes import language as lm
from joma.recipes.language import curves as recorded
from joma.runs import Run
from joma.studies.language import fig6, fig8
from joma.studies.language._published import differs

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
    assert not differs(plain_config(config), layers=[1, 2, 5, 10], rate=1e-4)


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
        check_config(fig6.Fig6Config(**SMALL, data=str(data_folder), seed=2**63))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"length": 800}, "length must be below 750, the number of tokens in a stream, got 800"),
        ({"sequence": 500}, "sequence must be below 22, .* got 500"),
        ({"streams": 2000}, "2000 streams need 4,000 tokens at least"),
    ],
)
def test_a_text_that_is_too_small_is_refused(data_folder, tmp_path, changes, sentence):
    config = fig6.Fig6Config(**SMALL | changes, data=str(data_folder))
    with pytest.raises(CorpusError, match=sentence):
        carried_out(fig6.STUDY, config, tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"corpus": "wikitext-3"}, "corpus must be one of sympy, wikitext-2, wikitext-103"),
        ({"decay": 0.0}, "decay must be above 0"),
        ({"seeds": 2}, "seeds must be at least 3"),
        ({"steps": 30}, "leave no valley"),
        ({"vocabulary": 1}, "a vocabulary of one word"),
        ({"heads": 5}, "width 32 cannot be shared by 5 heads"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1"),
        ({"rate": -1.0}, "rate must not be negative"),
        ({"clip": 0.0}, "clip must be above 0, a large number to clip nothing"),
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        fig6.Fig6Config(**changes)


def test_what_this_machine_lacks_is_not_run(tmp_path, data_folder):
    with pytest.raises(NotRun, match=r"wikitext-2 is neither under --data nor under JOMA_DATA"):
        carried_out(fig6.STUDY, fig6.Fig6Config(**SMALL), tmp_path / "a")
    if not torch.cuda.is_available():
        config = fig6.Fig6Config(**SMALL, data=str(data_folder), device="cuda")
        with pytest.raises(NotRun, match="device cuda needs a CUDA GPU") as lacks:
            carried_out(fig6.STUDY, config, tmp_path / "b")
        assert lacks.value.changes == {"device": "cpu"}


def test_a_text_file_of_ones_own(data_folder, tmp_path):
    path = data_folder / "wikitext-2" / "train.txt"
    config = fig6.Fig6Config(**SMALL | {"corpus": str(path), "sequence": 0}, layers=(1,))
    run = carried_out(fig6.STUDY, config, tmp_path / "run.sqlite")
    words, train, valid = run.value("corpus/sizes")
    assert (words, train, valid) == (40, 2701, 150)
    assert found(fig6.STUDY, run, "fig6-losses-wikitext-2").verdict == "at paper scale"
    assert "held-out text of train.txt" in draw(fig6.STUDY, run)[0].caption
    with pytest.raises(ValueError, match="corpus must be one of sympy, wikitext-2, wikitext-103, or a text file"):
        fig6.Fig6Config(**SMALL | {"corpus": "wikitext-4"})


def test_a_text_file_that_is_gone(data_folder, tmp_path):
    """What was made of it can still be shown; nothing new can be made, and nothing is left of the attempt."""
    path = tmp_path / "song.txt"
    path.write_bytes((data_folder / "wikitext-2" / "train.txt").read_bytes())
    config = fig6.Fig6Config(**SMALL | {"corpus": str(path), "sequence": 0}, layers=(1,))
    first = execute(fig6.STUDY, config, tmp_path / "out", pictures=False)
    path.unlink()
    again = execute(fig6.STUDY, config, tmp_path / "out", pictures=False)
    assert [f.verdict for f in again.findings] == [f.verdict for f in first.findings]
    with pytest.raises(CorpusError, match=f"there is no file {path}"):
        execute(fig6.STUDY, config, tmp_path / "elsewhere", pictures=False)
    assert not list((tmp_path / "elsewhere").rglob("*.sqlite*"))
    path.write_text("another song " * 1000)
    with pytest.raises(CorpusError, match="was made from another text"):
        execute(fig6.STUDY, config, tmp_path / "out", pictures=False)


def test_where_a_text_was_looked_for_is_said(data_folder, tmp_path, monkeypatch):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=f"data is {nowhere}: it has no folder wikitext-2") as error:
        lm.corpus(fig6.Fig6Config(**SMALL, data=nowhere))
    assert "JOMA_DATA" not in str(error.value)
    with pytest.raises(CorpusError, match=f"not wikitext-2 itself: {data_folder}"):
        lm.corpus(fig6.Fig6Config(**SMALL, data=str(data_folder / "wikitext-2")))
    monkeypatch.setenv("JOMA_DATA", str(data_folder))
    with pytest.raises(CorpusError, match=f"without data the search is under JOMA_DATA, {data_folder}"):
        lm.corpus(fig6.Fig6Config(**SMALL, data=nowhere))
    monkeypatch.setenv("JOMA_DATA", nowhere)
    with pytest.raises(NotRun, match=f"not under JOMA_DATA, '{nowhere}' and .* run it with: data=FOLDER"):
        lm.corpus(fig6.Fig6Config(**SMALL))


@pytest.mark.parametrize(
    ("precision", "here"), [("float32", "device=cpu$"), ("half-logits", "device=cpu, precision=float32$")]
)
def test_a_device_that_is_not_there_is_named(data_folder, tmp_path, monkeypatch, precision, here):
    config = fig6.Fig6Config(**SMALL, data=str(data_folder), device="cuda:1", precision=precision)
    with Run.create(tmp_path / "run", study="fig6", config=plain_config(config)) as run:
        for count, said in ((0, "none"), (1, "1")):
            monkeypatch.setattr(torch.cuda, "is_available", lambda count=count: count > 0)
            monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
            with pytest.raises(NotRun, match=f"needs a CUDA GPU, and torch sees {said} here.*run it with: {here}"):
                fig6.STUDY.run(config, run, silent)
