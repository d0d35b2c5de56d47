"""Input that nobody thought of: every command answers in one short sentence, and no file is lost."""

import shutil

import pytest
import torch
from in_process import joma
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Two checkpoints, of a model that has one matrix."""
    folder = tmp_path_factory.mktemp("series")
    for step in range(2):
        save_file({"model.layers.0.mlp.up_proj.weight": torch.eye(4) + step}, folder / f"step{step}.safetensors")
    return folder


LONG = "x" * 5000
TOO_LONG = f"{LONG[:120]}... cannot be used: File name too long"
BAD = {
    "a pattern that repeats too often": (
        ["scan", "SERIES", "--pattern", "mlp=a{99999999999}"],
        "the pattern mlp is no regular expression: the repetition number is too large (--pattern NAME=REGEX)",
    ),
    "groups without a name": (
        ["scan", "SERIES", "--groups", ","],
        "groups must name at least one group of matrices, such as mlp (--groups NAMES)",
    ),
    "a table for standard output": (
        ["scan", "SERIES", "--csv", "-"],
        "csv must be a file; only JSON is written to standard output (--csv FILE)",
    ),
    "two files of one name": (
        ["scan", "SERIES", "--csv", "OUT/a", "--json", "OUT/../out/a"],
        "json and csv name the same file OUT/a (--csv FILE)",
    ),
    "a source of 5,000 letters": (["scan", LONG], TOO_LONG),
    "a folder of 5,000 letters": (["watch", LONG, "--once"], TOO_LONG),
    "runs of 5,000 letters": (["view", LONG, "--export", "OUT/p"], TOO_LONG),
    "a run of 5,000 letters": (["export", LONG, "--to", "csv"], None),
    "a study of 5,000 letters": (
        ["verify", LONG],
        f"no study is called '{LONG[:36]}...'; `joma list` has the names of all",
    ),
    "a file that is no study": (["verify", "SERIES/step0.safetensors"], "no study is called '"),
    "a folder as a study": (["run", "../thm2"], "no study is called '../thm2'; "),
    "more threads than there are numbers": (
        ["verify", "thm2", "--threads", "9" * 25],
        "--threads must be at most 1,024, got '9999999999999999999999999'",
    ),
    "more threads for one study": (
        ["run", "thm2", "--threads", "9" * 25],
        "--threads must be at most 1,024, got '9999999999999999999999999'",
    ),
    "a million studies at a time": (["verify", "-j", "1000000"], "--jobs must be at most 1,024, got '1000000'"),
    "a folder that cannot be made": (["verify", "thm2", "--out", "/proc/x"], "/proc/x cannot be used: No such file"),
    "no seconds": (["watch", "SERIES", "--once", "--every", "nan"], "--every takes seconds above 0, got nan"),
    "a device for a folder": (["export", "/dev/null", "--to", "npz"], "/dev/null is a folder or a device, not a run"),
    "digits of another script": (["scan", "SERIES", "--steps", "٣"], "SERIES has no step 3; it has 0, 1"),
    "nothing as steps": (["scan", "SERIES", "--steps", ""], "steps takes numbers of at most 18 digits and ranges like"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name, series, tmp_path):
    arguments, sentence = BAD[name]
    out = tmp_path / "out"
    out.mkdir()
    folder = shutil.copytree(series, tmp_path / "series")

    def placed(text):
        return text.replace("SERIES", str(folder)).replace("OUT", str(out))

    where = [] if "--out" in arguments or arguments[0] in ("watch", "view", "export") else ["--out", out]
    done = joma(*map(placed, arguments), *where, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"joma: {placed(sentence or '')}")
    assert len(done.stderr) < 400
    assert not any(out.iterdir())
    for step in range(2):  # what the user has is as it was
        kept = load_file(folder / f"step{step}.safetensors")
        assert torch.equal(kept["model.layers.0.mlp.up_proj.weight"], torch.eye(4) + step)
