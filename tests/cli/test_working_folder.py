"""Commands that start processes, given from a folder with hostile files: none of these is run, all else is as ever."""

import os
import subprocess
import sys

import numpy as np
import pytest
from patience import PATIENCE
from planted_files import HOME, MODULES, Planted, installed_command, plain_environment
from tiny_models import TOKENS, fresh

SCAN = ("scan", ".", "--measures", "entropy", "--text", "t.txt")
CACHE = ("cache", ".", "--text", "t.npy", "--policies", "window", "--keep", "8")
VERIFY = ("verify", "lemma6", "thm4", "-j", "2")


@pytest.fixture
def model(tmp_path):
    """The folder of a checkpoint with its tokenizer, a text and token ids beside the weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "model"
    fresh("llama").save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(TOKENS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    np.save(folder / "t.npy", np.arange(200) % TOKENS)
    (folder / "t.txt").write_text(" ".join(f"w{i % TOKENS}" for i in range(200)))
    return folder


def given(command, folder, out, **environment):
    return subprocess.run(
        [*command, "--out", str(out)],
        cwd=folder,
        env=plain_environment(**environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.long
def test_a_checkpoint_is_measured_from_within_its_folder(model, tmp_path):
    """By both commands, in one process that loads transformers once. The scan starts one more, for the tokenizer.

    Both processes find what PYTHONPATH names: that somebody wrote.
    """
    planted = Planted(model, tmp_path / "marks")
    named = Planted(tmp_path / "named", tmp_path / "marks of named", ("sitecustomize",))
    path = os.pathsep.join([str(HOME), str(named.folder)])
    done = given(installed_command(tmp_path / "bin", SCAN, CACHE), model, tmp_path / "out", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {place.name.partition("-")[0] for place in (tmp_path / "out").rglob("*.sqlite")} == {"scan", "cache"}
    assert planted.run == []
    assert len(list(named.marks.iterdir())) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "modules"),
    [
        (("joma", "verify", "lemma6"), MODULES),
        (("joma.studies", "lemma6"), ("numpy", "torch", "safetensors", "json", "argparse")),
    ],
    ids=["joma", "joma.studies"],
)
def test_python_m_takes_the_working_folder_off_its_path(tmp_path, command, modules):
    """By then Python has loaded some of its own modules from there, and joma: for these there is `python -P -m`."""
    planted = Planted(tmp_path / "here", tmp_path / "marks", modules)
    done = given([sys.executable, "-m", *command], planted.folder, tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert planted.run == []


def test_workers_find_what_pythonpath_names(tmp_path, monkeypatch):
    from joma.scale.local import Done, Task, side_by_side

    (tmp_path / "of_the_user.py").write_text("def call(arguments, progress):\n    return arguments['n'] + 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    events = list(side_by_side("of_the_user:call", [Task("a", {"n": 1})], jobs=1))
    assert [event.value for event in events if isinstance(event, Done)] == [2]
