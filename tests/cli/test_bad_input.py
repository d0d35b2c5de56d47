"""Input that nobody thought of: every command answers in one short sentence, and no file is lost."""

import re
import shlex
import shutil

import pytest
import torch
from in_process import joma
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    for step in range(2):
        save_file({"model.layers.0.mlp.up_proj.weight": torch.eye(4) + step}, folder / f"step{step}.safetensors")
    (folder / "a.sqlite").touch()
    return folder


WORDS = {"LONG": "x" * 5000, "ONES": "1" * 5000, "NINES": "9" * 25}
TOO_LONG = f"{'x' * 120}... cannot be used: File name too long"
TOO_MANY = "must be at most 1,024, got '9999999999999999999999999'"
NO_REPORT = "joma report takes one folder, or several runs: "
NO_RUN = "is neither a folder nor a run; name a folder that `joma verify` wrote, or .sqlite files of runs"
NOT_OF_A_PART = "does not go with --shard, because a shard has only a part; give it to joma merge"
A_CLAIM = (
    "'thm2/who-wins' names a claim, and here a study is needed: `joma verify thm2` judges all claims of thm2, "
    "`joma show thm2/who-wins` prints this one"
)
REFUSED = {
    "scan SERIES --pattern 'mlp=a{99999999999}'": (
        "the pattern mlp is not a regular expression: the repetition number is too large (--pattern NAME=REGEX)"
    ),
    "scan SERIES --groups ,": "groups must name at least one group of matrices, such as mlp (--groups NAMES)",
    "scan SERIES --csv -": "csv must be a file; only JSON is written to standard output (--csv FILE)",
    "scan SERIES --csv OUT/a --json OUT/../out/a": "json and csv name the same file OUT/a (--csv FILE)",
    "scan SERIES --steps ٣": "SERIES has no step 3; it has 0, 1",
    "scan SERIES --steps ''": "steps takes numbers of at most 18 digits and ranges like",
    "scan SERIES --steps ONES": f"steps takes .* got '{'1' * 36}...' \\(--steps STEPS\\)",
    "scan SERIES --steps 0:ONES": f"steps takes .* got '0:{'1' * 34}...' \\(--steps STEPS\\)",
    "scan SERIES --device tpu": "device must be cpu, cuda or cuda:NUMBER, got 'tpu'",
    "scan SERIES --measures entropi": "measures must be among .* got 'entropi' \\(--measures NAMES\\)",
    "scan SERIES --measures entropy": "entropy runs the model on a text, and no text is given (--text FILE)",
    "scan SERIES --fail-if 'entropy<1'": (
        "the threshold entropy<1 speaks of entropy, but the measures are stable_rank (--measures NAMES)"
    ),
    "scan SERIES --root ema": (
        "the checkpoint has no weights under 'ema'; it holds one model, so no root is needed (--root NAME)"
    ),
    "scan SERIES --on slurm": "on must be local, ray, ray:ADDRESS or ray://HOST:PORT, got 'slurm' (--on PLACE)",
    "scan SERIES --on local --jobs 0": "jobs must be at least 1, got 0 (--jobs N)",
    "scan SERIES --on local --device cuda:1": (
        "device cuda:1 names one GPU, and `on` chooses one itself; say cuda (--device)"
    ),
    "scan a b": "joma scan takes one source, got 2 sources; --compare takes two",
    "scan a --compare": "--compare takes two sources, got 1 source",
    "scan a b c --compare": "--compare takes two sources, got 3 sources",
    "scan LONG": TOO_LONG,
    "watch LONG --once": TOO_LONG,
    "watch SERIES --json": "--json goes with --once: ",
    "watch /nowhere": "there is no /nowhere; joma watch takes a folder with runs, or one run",
    "view LONG --export OUT/p": TOO_LONG,
    "export LONG --to csv": "",
    "export /nowhere.sqlite --to csv": "/nowhere.sqlite does not exist; ",
    "export /dev/null --to npz": "/dev/null is a folder or a device, not a run",
    "report SERIES/step0.safetensors": f"SERIES/step0.safetensors {NO_RUN}",
    "report SERIES/step0.safetensors SERIES": f"SERIES/step0.safetensors {NO_RUN}",
    "report SERIES SERIES/a.sqlite": f"{NO_REPORT}got 1 folder of 2 paths",
    "report SERIES OUT SERIES/a.sqlite": f"{NO_REPORT}got 2 folders of 3 paths",
    "report SERIES/a.sqlite /gone /lost": f"{NO_REPORT}there is no /gone",
    "report /nowhere": "/nowhere holds no runs; `joma verify --out /nowhere` makes them",
    "show thm2/zebra": "thm2 has no claim called 'zebra'; `joma show thm2` lists its claims",
    "show toyy/a --out SERIES": "no study is called 'toyy'; ",
    "verify LONG": f"no study is called '{'x' * 36}...'; `joma list` has the names of all",
    "verify SERIES/step0.safetensors": "no study is called '",
    "verify thm22": "no study is called 'thm22'; did you mean 'thm2'?",
    "verify rebound": "no study is called 'rebound'; did you mean 'rebound-cause' or 'rebound-onset'?",
    "verify galore": "no study is called 'galore'; did you mean 'galore-table', 'galore-theory' or 'galore-lowrank'?",
    "verify zebra": "no study is called 'zebra'; `joma list` has the names of all ",
    "verify thm2/who-wins": A_CLAIM,
    "verify thm2 --threads NINES": f"--threads {TOO_MANY}",
    "verify -j 1000000": "--jobs must be at most 1,024, got '1000000'",
    "verify thm2 --out /proc/x": "/proc/x cannot be used: No such file",
    "verify thm2 --claims wrong": "a verdict is one of holds, .* got 'wrong' \\(--claims VERDICTS\\)",
    "verify thm2 --json /nowhere/a.json": "json is /nowhere/a.json, and there is no folder /nowhere (--json FILE)",
    "verify thm5 --shard 5/4": "shard must be I/N with I from 1 to N, as 2/4, got '5/4' (--shard I/N)",
    **{
        f"verify thm5 --shard 1/2 {given}": f"{given.split()[0]} {NOT_OF_A_PART}"
        for given in ("--json -", "--claims fails")
    },
    "verify thm5 --shard 1/2 -v": f"--verbose {NOT_OF_A_PART}",
    "list thm2/who-wins": A_CLAIM,
    "run": "a study must be named: joma run STUDY ",
    "run thm2/who-wins": A_CLAIM,
    "run ../thm2": "no study is called '../thm2'; ",
    "run thm2 --threads NINES": f"--threads {TOO_MANY}",
    "run thm2 --horizon 2": "horizon must lie between 0 and 1, ",
    "run thm1-rates --rates 1 2 3": "--rates takes values in groups of 2, got 3 values",
    "--bogus": "unknown option '--bogus'; see `joma --help`",
    "verfy": "no command is called 'verfy'; did you mean 'verify'? see `joma --help`",
    "cache SERIES --text a.txt --length 8": "unknown option '--length'; did you mean '--seq-len'? see ",
    "zzz": (
        "no command is called 'zzz'; there are verify, run, list, show, report, judge, plan, validate, scan, atlas, "
        "merge, cache, forecast, watch, view, export; see `joma --help`"
    ),
}
"""By the command: what its sentence begins with, or a pattern where that stands in its middle."""
TAKES_OUT = ("scan", "verify", "run ")


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_is_one_sentence(command, series, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    folder = shutil.copytree(series, tmp_path / "series")

    def placed(text):
        for word, stands_for in {**WORDS, "SERIES": str(folder), "OUT": str(out)}.items():
            text = text.replace(word, stands_for)
        return text

    where = ["--out", out] if command.startswith(TAKES_OUT) and "--out" not in command else []
    done = joma(*map(placed, shlex.split(command)), *where, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    sentence = placed(REFUSED[command])
    assert done.stderr.startswith(f"joma: {sentence}") or re.match(f"joma: {sentence}\n", done.stderr)
    assert len(done.stderr) < 400
    assert "a fault of joma" not in done.stderr
    assert not any(out.iterdir())
    for step in range(2):  # what the user has is as it was
        kept = load_file(folder / f"step{step}.safetensors")
        assert torch.equal(kept["model.layers.0.mlp.up_proj.weight"], torch.eye(4) + step)
