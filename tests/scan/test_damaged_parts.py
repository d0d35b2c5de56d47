"""Parts of a scan that are damaged or of something else: one sentence that names the file, or the right merge."""

import json
import re
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from joma.host.errors import JomaError
from joma.runs import Run
from joma.scale.parts import FILE
from joma.scan import merge_shards, scan
from joma.scan.sweep.parts import _explained

NAMES = [f"model.layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("mlp.up_proj", "self_attn.q_proj")]


def write_series(folder: Path, seed: int) -> Path:
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    for step in (0, 10, 20, 30):
        save_file({name: torch.randn(8, 6, generator=generator) for name in NAMES}, folder / f"step{step}.safetensors")
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("series") / "run", 0)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    for shard in ("1/2", "2/2"):
        scan(source, out=out, shard=shard)
    return out


@pytest.fixture
def parts(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "parts")


@pytest.fixture(scope="module")
def right(source, tmp_path_factory):
    return curves(scan(source, out=tmp_path_factory.mktemp("right")))


def curves(found) -> dict:
    return {name: (found.steps, curve.values.tolist()) for name, curve in found.curves.items()}


def record(parts: Path, number: int = 2) -> Path:
    (path,) = (parts / f"shard-{number}-of-2" / "runs").glob("scan-*.sqlite")
    return path


def changed(parts: Path, *way, to, both: bool = False) -> None:
    for number in (1, 2) if both else (2,):
        path = parts / f"shard-{number}-of-2" / FILE
        content = json.loads(path.read_text())
        at = content
        for key in way[:-1]:
            at = at[key]
        at.pop(way[-1]) if to is None else at.update({way[-1]: to})
        path.write_text(json.dumps(content))


def deleted(parts: Path, where: str, number: int = 2) -> None:
    with sqlite3.connect(record(parts, number)) as connection:
        gone = connection.execute(f"DELETE FROM {where}").rowcount
    connection.close()
    assert gone > 0


def lost_series(name: str) -> str:
    return f"entries WHERE series = (SELECT id FROM series WHERE name = '{name}')"


def of_other_checkpoints(parts: Path) -> None:
    scan(write_series(parts.parent / "other", 1), out=parts.parent / "elsewhere", shard="2/2")
    shutil.copy(record(parts.parent / "elsewhere"), record(parts))


def of_other_settings(parts: Path) -> None:
    series = json.loads((parts / "shard-1-of-2" / FILE).read_text())["options"]["source"]
    scan(series, out=parts.parent / "elsewhere", shard="2/2", measures=["spectral_norm"])
    shutil.copy(record(parts.parent / "elsewhere"), record(parts))


def of_another_study(parts: Path) -> None:
    path = record(parts)
    with Run.open(path) as run:
        config = run.config
    path.unlink()
    with Run.create(path, study="thm2", config=config) as run:
        run.append("loss", 0, 1.0)


def exchanged(parts: Path) -> None:
    one, two = record(parts, 1).read_bytes(), record(parts, 2).read_bytes()
    record(parts, 1).write_bytes(two)
    record(parts, 2).write_bytes(one)


DAMAGE = {
    "no notes": (lambda parts: changed(parts, "content", "notes", to=None), "content.notes is not what"),
    "no plan": (lambda parts: changed(parts, "content", "plan", to=None), "content.plan is not what"),
    "no groups": (lambda parts: changed(parts, "content", "plan", "groups", to=None), "content.plan.groups is not"),
    "null notes": (lambda parts: changed(parts, "content", "notes", "10", to=7), "content.notes.10 is not what"),
    "odd fault": (lambda parts: changed(parts, "content", "faults", to=[{"step": 10}]), "content.faults[0].checkpoint"),
    "no run": (lambda parts: changed(parts, "content", "run", to=None), "content.run is not what"),
    "another run": (lambda parts: changed(parts, "content", "run", to="x.sqlite"), "shard-2-of-2 settled on different"),
    "no options": (lambda parts: changed(parts, "options", "keep_suspicious", to=None, both=True), "keep_suspicious"),
    "another axis": (lambda parts: changed(parts, "content", "plan", "axis", to="epoch", both=True), "other checkp"),
    "a step less": (lambda parts: changed(parts, "content", "plan", "places", to=[], both=True), "other checkpoints"),
    "odd measure": (lambda parts: changed(parts, "content", "plan", "measures", to=["x"], both=True), "has measures"),
    "other source": (lambda parts: changed(parts, "content", "plan", "source", to="x", both=True), "of another scan"),
    "lost series": (lambda parts: deleted(parts, lost_series("stable_rank/mlp")), "has lost its steps"),
    "lost name": (lambda parts: deleted(parts, "series WHERE name = 'stable_rank/mlp'"), "lacks stable_rank/mlp of"),
    "lost step": (lambda parts: deleted(parts, lost_series("stable_rank/mlp") + " AND step = 30"), "of step 30; "),
    "lost sketch": (lambda parts: deleted(parts, lost_series("sketch/mlp") + " AND step = 30"), "lacks sketch/mlp"),
    "lost checksum": (lambda parts: deleted(parts, lost_series("checksum/mlp") + " AND step = 30"), "lacks checksum/"),
    "lost identity": (lambda parts: deleted(parts, lost_series("identity") + " AND step = 30"), "lacks identity of"),
    "lost in the first": (lambda parts: deleted(parts, lost_series("sketch/mlp") + " AND step = 0", 1), "of step 0; "),
    "no config": (lambda parts: deleted(parts, "meta WHERE key = 'config'"), "its config cannot be read"),
    "cut off": (lambda parts: record(parts).write_bytes(record(parts).read_bytes()[:5000]), "damaged or cut off"),
    "empty": (lambda parts: record(parts).write_bytes(b""), "empty or cut off"),
    "not a run": (lambda parts: record(parts).write_bytes(b"x" * 5000), "is not a joma run"),
    "gone": (lambda parts: record(parts).unlink(), "does not exist"),
    "other checkpoints": (of_other_checkpoints, "is of another scan"),
    "other settings": (of_other_settings, "it lacks stable_rank/"),
    "another study": (of_another_study, "is of another scan"),
    "exchanged records": (exchanged, "it lacks "),
    "twice the same": (lambda parts: changed(parts, "shard", to="1/2"), "shard 1/2 is there twice"),
    "unfinished": (lambda parts: changed(parts, "done", to=False), "is not finished"),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_to_a_part_is_one_sentence_that_names_it(parts, tmp_path, how):
    spoil, said = DAMAGE[how]
    spoil(parts)
    with pytest.raises(JomaError) as error:
        merge_shards([parts], tmp_path / "out")
    sentence = str(error.value)
    assert said in sentence
    assert re.search(r"shard-\d-of-2", sentence)
    assert "\n" not in sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["null notes", "lost step", "lost checksum", "exchanged records", "another study"])
def test_what_the_sentence_says_mends_it(parts, source, right, tmp_path, how):
    DAMAGE[how][0](parts)
    with pytest.raises(JomaError) as error:
        merge_shards([parts], tmp_path / "out")
    anew = str(error.value).endswith("; measure this shard anew (fresh)")
    assert anew or str(error.value).endswith("; remove it and give the shard's command again")
    for number in (1, 2):
        if not anew:
            (parts / f"shard-{number}-of-2" / FILE).unlink()
        scan(source, out=parts, shard=f"{number}/2", fresh=anew)
    assert curves(merge_shards([parts], tmp_path / "out")) == right


def test_a_shard_that_is_given_again_does_not_take_up_damaged_notes(parts, source):
    DAMAGE["null notes"][0](parts)
    with pytest.raises(JomaError, match=r"content\.notes\.10 is not what a shard of joma scan leaves; remove it"):
        scan(source, out=parts, shard="2/2")


@pytest.mark.parametrize("lost", ["key = 'reason'", "key LIKE 'dims/%'"])
def test_what_the_other_part_says_too_may_be_lost(parts, right, tmp_path, lost):
    deleted(parts, f"meta WHERE {lost}")
    assert curves(merge_shards([parts], tmp_path / "out")) == right


@pytest.mark.parametrize(("lacking", "why", "unexplained"), [
    ({"rank/a", "sketch/a", "checksum/a"}, {"rank/a"}, set()),  # NaN in a tensor of the group
    ({"rank/a", "sketch/a", "checksum/a"}, {"rank/b"}, {"rank/a", "sketch/a", "checksum/a"}),
    ({"rank/a", "checksum/a"}, {"rank/a"}, {"checksum/a"}),  # both fingerprints, or none
    ({"sketch/c", "checksum/c"}, set(), set()),  # a group that only the gate reads says nothing of a NaN
    ({"entropy"}, {"entropy"}, set()),
    ({"sparsity/top"}, {"sparsity"}, set()),
    ({"entropy", "identity"}, {"entropy"}, {"identity"}),
    ({"rank/a", "rank/b"}, {None}, set()),
])  # fmt: skip
def test_what_a_step_may_lack(lacking, why, unexplained):
    curves = [("rank/a", "a"), ("rank/b", "b"), ("entropy", None), ("sparsity/top", None)]
    prints = [(f"{kind}/{group}", group) for group in "abc" for kind in ("sketch", "checksum")]
    curves, prints = ([SimpleNamespace(curve=curve, group=group) for curve, group in rows] for rows in (curves, prints))
    plan = SimpleNamespace(groups="abc", curves=curves, rows=[*curves, *prints])
    assert lacking - _explained(lacking, why, plan) == unexplained


def test_a_step_of_which_nothing_could_be_measured_has_no_identity_either():
    plan = SimpleNamespace(groups={}, rows=[SimpleNamespace(curve="entropy", group=None)])
    assert _explained({"entropy", "identity"}, {"entropy"}, plan) == {"entropy", "identity"}


def test_files_of_a_step_that_there_is_not_are_not_asked_for(parts, right, tmp_path):
    changed(parts, "content", "weights", "9" * 5000, to={"files": [], "index": None})
    assert curves(merge_shards([parts], tmp_path / "out")) == right
