"""How long the windows of a scan are, and what is said where they are longer than those of training."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoint_series import WORDS, change, make_series, scan
from llama2c import load_model

from joma.cli.main import main
from joma.runs import Run
from joma.scan import open_series, plan, sweep
from joma.scan.sweep.record import remember, stored_scan

SHAPE = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def shapes(monkeypatch):
    """(windows, tokens) of every reading by a GPT-NeoX or a Llama."""
    from transformers import GPTNeoXModel, LlamaModel

    found = []
    for kind in (GPTNeoXModel, LlamaModel):

        def forward(self, input_ids=None, *args, real=kind.forward, **options):
            found.append(tuple(input_ids.shape))
            return real(self, input_ids, *args, **options)

        monkeypatch.setattr(kind, "forward", forward)
    return found


def saved(folder, kind, **fields):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    return make_series(model, folder, (0, 1))


def entropy(series, tokens, out, *arguments):
    return scan(series, "--measures", "entropy", "--text", tokens, *arguments, out=out)


@pytest.mark.parametrize(("asked", "length"), [(None, 16), (10, 10), (40, 40)])
def test_the_model_reads_windows_of_that_length(series, tokens, tmp_path, shapes, asked, length):
    """Unless asked, no more than the 16 tokens that the config allows."""
    arguments = [] if asked is None else ["--seq-len", asked]
    status, found = entropy(series, tokens, tmp_path / "out", *arguments)
    assert (status, found["seq_len"]) == (0, length)
    assert {width for _, width in shapes} == {length}
    assert sum(rows for rows, _ in shapes) == 5 * (100 // length)  # 5 checkpoints


def test_a_length_of_before_positions_were_rescaled_is_the_default(tokens, tmp_path, shapes):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 12}
    fields = {"max_position_embeddings": 48, "rope_parameters": yarn, "intermediate_size": 16}
    folder = saved(tmp_path / "llama", "llama", **SHAPE, **fields)
    status, found = entropy(folder, tokens, tmp_path / "out")
    assert (status, found["seq_len"], found["warnings"]) == (0, 12, [])
    assert {width for _, width in shapes} == {12}
    (warning,) = entropy(folder, tokens, tmp_path / "out", "--seq-len", 13)[1]["warnings"]
    assert "trained on at most 12 before its positions were rescaled (original_max_position_embeddings)" in warning


@pytest.mark.long
def test_beyond_training_is_said_on_screen_in_json_in_the_record_and_on_the_page(series, tokens, tmp_path, capsys):
    words = ["scan", series, "--measures", "entropy", "--text", tokens, "--out", tmp_path / "out", "--seq-len", 20]
    words += ["--json", tmp_path / "a.json"]
    assert main([str(word) for word in words]) == 0
    lines = capsys.readouterr().out.splitlines()
    (warning,) = json.loads((tmp_path / "a.json").read_text())["warnings"]
    assert warning.startswith("sequences have 20 tokens, and as far as the config says the model was trained on at mos")
    assert lines.count(f"warning: {warning}") == 1
    assert lines.index(f"warning: {warning}") < next(at for at, line in enumerate(lines) if line.startswith("[1/5]"))
    (path,) = (tmp_path / "out" / "runs").glob("*.sqlite")
    with Run.open(path) as run:
        kept = stored_scan(run)
    assert (kept.warnings, kept.seq_len) == ((warning,), 20)
    (page,) = (tmp_path / "out").glob("*.html")
    assert f'<p class="notice">Warning: {warning}.</p>' in page.read_text()
    assert "--seq-len 20" in page.read_text()  # the command that would do it again
    assert main(["report", str(path), "--out", str(tmp_path / "again")]) == 0
    assert any(warning in one.read_text() for one in (tmp_path / "again").glob("**/*.html"))


def test_a_config_that_says_nothing_is_a_note(tokens, tmp_path, capsys):
    folder = saved(tmp_path / "bloom", "bloom", vocab_size=WORDS, hidden_size=16, n_layer=1, n_head=2)
    status, found = entropy(folder, tokens, tmp_path / "out", "--seq-len", 50)
    (note,) = [one for one in found["notes"] if "the config does not say" in one]
    assert (status, found["warnings"]) == (0, [])
    assert note.endswith("if they had fewer than 50 tokens, choose a smaller seq_len")
    assert f"note: {note}" in capsys.readouterr().out.splitlines()
    (path,) = (tmp_path / "out" / "runs").glob("*.sqlite")
    with Run.open(path) as run:
        assert note in stored_scan(run).notes


@pytest.mark.parametrize(("asked", "sentence"), [
    (25, "seq_len must be at most 24, where the positions of this gpt2 model end, got 25"),
    (1, "seq_len must be a number of tokens, at least 2, got 1"),
])  # fmt: skip
def test_what_no_model_can_read_is_refused_before_anything_is_written(tokens, tmp_path, capsys, asked, sentence):
    folder = saved(tmp_path / "gpt2", "gpt2", vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=24)
    words = ["scan", folder, "--measures", "entropy", "--text", tokens, "--seq-len", asked, "--out", tmp_path / "out"]
    assert main([str(word) for word in words]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"joma: {sentence}"  # transformers may say that it saved
    assert not list((tmp_path / "out").glob("**/*.sqlite"))


def test_a_text_shorter_than_the_default_is_one_window(tokens, tmp_path, shapes):
    fields = {"max_position_embeddings": 2048, "intermediate_size": 16}
    folder = saved(tmp_path / "llama", "llama", **SHAPE, **fields)
    status, found = entropy(folder, tokens, tmp_path / "out")
    assert (status, found["seq_len"]) == (0, 100)
    assert set(shapes) == {(1, 100)}
    assert any("1 window of 100 tokens" in note for note in found["notes"])


def test_allocation_reads_windows_of_that_length_too(series, tokens, tmp_path, shapes):
    text = tmp_path / "few.npy"
    np.save(text, np.load(tokens)[:24])
    status, found = scan(
        series, "--steps", "0,1", "--measures", "allocation", "--text", text, "--seq-len", 8, out=tmp_path / "out"
    )
    assert (status, found["seq_len"]) == (0, 8)
    assert {width for _, width in shapes} == {8}


def test_a_checkpoint_that_can_read_less_than_the_others_is_a_fault_of_its_step(tokens, tmp_path):
    folder = saved(tmp_path / "gpt2", "gpt2", vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=24)
    path = folder / "step1" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "n_positions": 12}))
    change(folder / "step1", lambda t: t.update({"transformer.wpe.weight": t["transformer.wpe.weight"][:12].clone()}))
    status, found = entropy(folder, tokens, tmp_path / "out")
    assert (status, found["steps"]) == (3, [0])
    assert "reads at most 12 tokens at a time, context is 24" in found["left_out"][0]["what"]


def test_a_record_of_before_lengths_were_kept_still_opens(series, tokens, tmp_path):
    settled = plan(open_series(str(series), downloads=tmp_path), measures=["entropy"], text=tokens)
    with Run.create(tmp_path / "a.sqlite", study="scan", config=settled.config()) as run:
        found = sweep(settled, run)
        before = {"faults": [], "refused": {}, "notes": ["as it was"], "coverage": {}, "epochs": {}}
        run.append("about", 0, np.frombuffer(json.dumps(before).encode(), dtype=np.uint8))
        kept = stored_scan(run)
        assert (kept.warnings, kept.seq_len, kept.notes) == ((), None, ("as it was",))
        remember(run, found, settled.series.steps)
        assert stored_scan(run).seq_len == 16


def test_a_trained_model_is_scanned_at_its_length(tmp_path, shapes):
    data = os.environ.get("JOMA_DATA")
    if not data or not (Path(data) / "stories260K").is_dir():
        pytest.skip("JOMA_DATA names no folder with stories260K")
    load_model(Path(data) / "stories260K" / "stories260K.bin").save_pretrained(tmp_path / "story" / "step1")
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 512, 1200))
    found = entropy(tmp_path / "story", tmp_path / "ids.npy", tmp_path / "out")[1]
    assert (found["seq_len"], found["warnings"], shapes) == (512, [], [(2, 512)])
    found = entropy(tmp_path / "story", tmp_path / "ids.npy", tmp_path / "out", "--seq-len", 600)[1]
    assert (found["seq_len"], shapes[1:]) == (600, [(2, 600)])
    assert "trained on at most 512 (max_position_embeddings)" in found["warnings"][0]
