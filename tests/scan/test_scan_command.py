"""`joma scan` on local checkpoints: curves, resuming, bad input."""

import json
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from checkpoint_series import LAYERS, LOWER, make_series, save_model, scan
from patience import PATIENCE
from safetensors.torch import load_file, save_file

from joma.measure import stable_rank
from joma.runs import Run
from joma.scan import CheckpointError, open_series, plan, sweep
from joma.scan import scan as scan_call
from joma.scan.sources.series import steps_of


def reference(folder, steps):
    files = [load_file(folder / f"step{step}" / "model.safetensors") for step in steps]
    return [[float(stable_rank(file[LOWER.format(i)].double())) for i in range(LAYERS)] for file in files]


def test_curves_in_the_order_of_steps(series, tmp_path, capsys):
    status, found = scan(series, out=tmp_path / "out")
    assert status == 0
    assert found["steps"] == [0, 1, 2, 10, 100]
    curve = found["curves"]["stable_rank/mlp"]
    names = [LOWER.format(i) for i in range(LAYERS)]
    assert curve["rows"] == [{"layer": i, "expert": None, "name": name} for i, name in enumerate(names)]
    assert (curve["columns"], curve["columns_are"]) == (["stable rank"], "quantities")
    values = torch.tensor(curve["values"]).squeeze(2)
    torch.testing.assert_close(values, torch.tensor(reference(series, found["steps"])), rtol=1e-3, atol=0)
    assert {"stable_rank/mlp_down", "stable_rank/attention_qkv", "stable_rank/attention_o"} < set(found["curves"])
    assert found["coverage"]["mlp"] == {"layers": LAYERS, "of": LAYERS}
    assert (found["schema"], found["schema_version"]) == ("joma-scan", 2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert [line.split()[2] for line in lines] == ["0", "1", "2", "10", "100"]
    with Run.open(found["run"]) as run:
        assert run.study == "scan"
        assert run.array("stable_rank/mlp").tolist() == values.tolist()
        assert run.dims("stable_rank/mlp") == {"tensor": tuple(names)}
        assert list(run.dims("sketch/mlp")) == ["tensor", "entry"]
        assert len(run.array("identity")) == 5  # of one shape: an export wants that


def test_nothing_is_measured_twice_and_more_can_be_added(series, tmp_path, capsys):
    first = scan(series, "--steps", "0,1", out=tmp_path / "out")[1]
    capsys.readouterr()
    again = scan(series, out=tmp_path / "out")[1]
    shown = capsys.readouterr().out
    assert shown.count("recorded already") == 2
    assert again["curves"]["stable_rank/mlp"]["values"][:2] == first["curves"]["stable_rank/mlp"]["values"]
    wanted = ("--measures", "stable_rank,spectral_norm", "--groups", "mlp")
    status, more = scan(series, *wanted, out=tmp_path / "out")
    assert status == 0
    assert set(more["curves"]) == {"stable_rank/mlp", "spectral_norm/mlp"}
    assert more["run"] == first["run"]
    fresh = scan(series, "--fresh", *wanted, out=tmp_path / "out")[1]
    assert "recorded already" not in capsys.readouterr().out
    assert fresh["curves"] == more["curves"]


def test_jobs_change_nothing(pristine, scanned, tmp_path):
    assert scan(pristine, "--jobs", "3", out=tmp_path)[1]["curves"] == scanned["curves"]


def test_shards_and_torch_files_give_the_same_curves(series, scanned, neox, tmp_path):
    whole = scanned["curves"]["stable_rank/mlp"]["values"]
    sharded = make_series(neox, tmp_path / "sharded", (0, 1, 2, 10, 100), max_shard_size="40KB")
    assert len(list((sharded / "step1").glob("*.safetensors"))) > 2
    assert scan(sharded, out=tmp_path / "out")[1]["curves"]["stable_rank/mlp"]["values"] == whole
    for index in sharded.glob("*/*.index.json"):
        index.unlink()
    assert scan(sharded, "--fresh", out=tmp_path / "out")[1]["curves"]["stable_rank/mlp"]["values"] == whole
    files = tmp_path / "files"
    files.mkdir()
    for folder in series.iterdir():
        torch.save({"model": load_file(folder / "model.safetensors")}, files / f"{folder.name}.pt")
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        torch.save({}, folder / "optimizer.pt")
    assert scan(series, out=tmp_path / "out")[1]["curves"]["stable_rank/mlp"]["values"] == whole
    assert scan(files, out=tmp_path / "out")[1]["curves"]["stable_rank/mlp"]["values"] == whole


def test_patterns_and_coherence(series, tmp_path):
    wanted = ("--pattern", r"mine=.*attention\.dense\.weight", "--measures", "stable_rank,coherence")
    status, found = scan(series, *wanted, out=tmp_path / "out")
    assert status == 0
    assert {"stable_rank/mlp", "stable_rank/mine", "coherence/embedding"} < set(found["curves"])
    assert found["curves"]["stable_rank/mine"]["values"] == found["curves"]["stable_rank/attention_o"]["values"]
    few = scan(series, *wanted, "--groups", "mlp,mine", out=tmp_path / "out")[1]
    assert set(few["curves"]) == {"stable_rank/mlp", "stable_rank/mine", "coherence/embedding"}
    assert len(found["curves"]["coherence/embedding"]["values"][0][0]) == len(
        found["curves"]["coherence/embedding"]["columns"]
    )


# Bad input: one sentence, nothing written.


def refused(source, *arguments, out):
    with pytest.raises(ValueError) as caught:
        scan(source, *arguments, out=out)
    assert "\n" not in str(caught.value)
    assert list(out.iterdir()) == []
    return str(caught.value)


def test_sources_that_are_none(tmp_path):
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    assert "holds no checkpoint" in refused(tmp_path / "empty", out=out)
    assert "does not exist" in refused("/no/where/at/all", out=out)
    assert "must end in" in refused(tmp_path / "notes.txt", out=out)


def test_mixed_architectures(series, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=20))
    save_model(model, series / "step5")
    message = refused(series, out=tmp_path / "out")
    assert "mixes architectures" in message
    assert "gpt_neox" in message
    assert "gpt2" in message
    plain = tmp_path / "plain"
    plain.mkdir()
    save_file({"h.0.mlp.c_fc.weight": torch.ones(4, 4)}, plain / "step1.safetensors")
    save_file({"layers.0.fc1.weight": torch.ones(4, 4)}, plain / "step2.safetensors")
    assert "mixes architectures" in refused(plain, out=tmp_path / "out")


def test_an_unknown_architecture_names_the_option(tmp_path):
    save_file({"weird.0.weight": torch.ones(4, 4)}, tmp_path / "a.safetensors")
    message = refused(tmp_path / "a.safetensors", out=tmp_path / "out")
    assert "name them with a pattern mlp=REGEX" in message
    assert "weird.0.weight" in message
    assert scan(tmp_path / "a.safetensors", "--pattern", r"mlp=weird\.\d\.weight", out=tmp_path / "out")[0] == 0


def test_a_pattern_that_fits_vectors_is_refused_at_once(series, tmp_path):
    message = refused(series, "--pattern", r"norm=.*layernorm\.weight", out=tmp_path / "out")
    assert message.startswith("the pattern norm: gpt_neox.layers.0.input_layernorm.weight is torch.float32 (32,)")


def test_the_options_load_nothing_heavy():
    script = "import sys, joma.cli.scan; print(sorted({'torch', 'numpy', 'transformers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_json_on_standard_output_is_json_alone(series, tmp_path, capsys):
    scan(series, "--json", "-", out=tmp_path / "out")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] == [0, 1, 2, 10, 100]
    assert "5 of 5 steps usable" in captured.err


def test_options_that_make_no_sense(series, tmp_path):
    out = tmp_path / "out"
    for arguments, word in (
        (("--measures", "entropi"), "must be among"),
        (("--measures", ""), "at least one"),
        (("--measures", "entropy"), "runs the model on a text, and no text is given"),
        (("--text", "x"), "does not read a text"),
        (("--steps", "7"), "has no step 7"),
        (("--steps", "3:9"), "names none"),
        (("--steps", "a"), "takes numbers"),
        (("--steps", "0:9:0"), "stride"),
        (("--jobs", "0"), "jobs must be"),
        (("--budget", "nan"), "budget must be"),
        (("--budget", "0"), "budget must be"),
        (("--device", "tpu"), "device must be"),
        (("--pattern", "x=y"), "fits no tensor"),
        (("--groups", "mpl"), "none of the groups found here: mlp, mlp_down, attention_o, attention_qkv, embedding"),
        (("--tokenizer", "x"), "tokenizer is for a text, but measures stable_rank does not read one"),
        (("--seq-len", "16"), "seq_len is for a text, but measures stable_rank does not read one"),
        (("--root", "ema"), "ema"),
        (("--compare",), "--compare takes two sources, got 1 source"),
    ):
        assert word in refused(series, *arguments, out=out)
    if not torch.cuda.is_available():
        assert "torch sees none here" in refused(series, "--device", "cuda", out=out)


def test_an_index_cannot_lead_out_of_its_folder(series, tmp_path, capsys):
    folder = series / "step10"
    shutil.copy(folder / "model.safetensors", tmp_path / "secret.safetensors")
    (folder / "model.safetensors").unlink()
    for place in ("../../secret.safetensors", str(tmp_path / "secret.safetensors"), 3):
        index = {"weight_map": {LOWER.format(0): place}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert scan(folder, out=tmp_path / "out")[0] == 1
        assert "not a weights file beside it" in capsys.readouterr().out
    for text in ("{", "[]", "{}", '{"weight_map": {}}'):
        (folder / "model.safetensors.index.json").write_text(text)
        assert scan(folder, out=tmp_path / "out")[0] == 1


def test_steps_by_text():
    there = [0, 1, 2, 512, 1000, 2000, 3000]
    assert steps_of(":", there) == there
    assert steps_of("1000::1000", there) == [1000, 2000, 3000]
    assert steps_of("500::1000", [500, 1000, 1500, 2000, 2500]) == [500, 1500, 2500]  # counted from A, not from 0
    assert steps_of("::3", [1, 2, 3, 4, 7]) == [1, 4, 7]
    assert steps_of("::1000,1", there) == [0, 1, 1000, 2000, 3000]
    with pytest.raises(CheckpointError):
        steps_of("1:2:3:4", there)


@pytest.mark.long
def test_memory_stays_near_one_tensor(tmp_path):
    """Eight matrices of 16 MB each; the peak beyond a scan of small ones must stay far below their sum."""
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    for path, side in ((small, 64), (large, 2048)):
        w = torch.randn(side, side) / side
        save_file({f"h.{i}.mlp.c_fc.weight": w + i for i in range(8)}, path)
    script = (
        "import resource, sys, os\n"
        "sys.path.insert(0, os.path.dirname(sys.argv[1]))\n"
        "from checkpoint_series import scan\n"
        "scan(sys.argv[2], out=sys.argv[4])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert scan(sys.argv[3], out=sys.argv[4])[0] == 0\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    from checkpoint_series import __file__ as helper

    command = [sys.executable, "-c", script, helper, str(small), str(large), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, one = int(done.stdout.splitlines()[-1]), 4 * 2048**2
    assert grown < 3 * one


def test_an_interrupt_waits_for_the_tensors_under_way_alone(series, tmp_path, monkeypatch):
    module = sys.modules[sweep.__module__]
    here, free, read = threading.local(), threading.Event(), []

    class Stop(threading.Event):
        """What is under way goes on once the sweep has been told to stop, however long that takes."""

        def set(self):
            super().set()
            free.set()

    reading = sys.modules["joma.scan.sweep.reading"]
    measured_of, read_one = reading._measured, reading._read

    def measured(plan, place, *arguments, **named):
        here.step = place.step
        return measured_of(plan, place, *arguments, **named)

    def slow(*arguments):
        read.append(here.step)
        if here.step:
            assert free.wait(PATIENCE)
        return read_one(*arguments)

    def interrupted(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "Event", Stop)
    monkeypatch.setattr(reading, "_measured", measured)
    monkeypatch.setattr(reading, "_read", slow)
    settled = plan(open_series(series, downloads=tmp_path), groups=["mlp"])
    with Run.create(tmp_path / "run.sqlite", study="mine", config={}) as run:
        with pytest.raises(KeyboardInterrupt):
            sweep(settled, run, jobs=2, report=interrupted)
        assert not any(thread.name.startswith("joma-scan") for thread in threading.enumerate())
        assert run.steps("stable_rank/mlp").tolist() == [0]
    assert read.count(0) == LAYERS
    assert all(read.count(step) <= 1 for step in (1, 2, 10, 100))


def test_a_long_step_says_how_far_it_is(series, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[sweep.__module__], "_SILENCE", -1.0)
    lines = []
    with Run.create(tmp_path / "run.sqlite", study="mine", config={}) as run:
        sweep(plan(open_series(series / "step10", downloads=tmp_path), groups=["mlp"]), run, report=lines.append)
    assert lines[:-1] == [f"step 10  about to read {LOWER.format(i)}" for i in range(LAYERS)]
    assert lines[-1].startswith("[1/1] step 10")


def test_a_run_is_of_one_source_text_root_base_tokenizer_and_length():
    from joma.scan import Series, What, Which
    from joma.scan.scanning import _identity

    def identity(source="model", digest="words", **changes):
        base = {"base": changes.pop("base", None)}
        return _identity(Series(source, ()), Which(**base), What(**changes), digest)

    many = {"a": "b", "c": "d"}
    different = [
        identity(), identity("other"), identity(patterns={"a": "b"}), identity(root="ema"), identity(root="teacher"),
        identity(base="none"), identity(base="base"), identity(digest=None), identity(digest="others"),
        identity(tokenizer="one"), identity(tokenizer="two"), identity(seq_len=8), identity(seq_len=16),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert identity(text="a.txt") == identity(text="b.txt") == identity()  # its words count, not its name
    assert identity(patterns=many) == identity(patterns=dict(reversed(many.items())))


def test_an_argument_that_there_is_not_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'mesures'"):
        scan_call("here", mesures="alpha")
