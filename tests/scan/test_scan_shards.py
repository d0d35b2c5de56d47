"""A scan in shards, merged, is the scan: record, curves and table, but for times."""

import json
import shutil
import sqlite3
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from in_process import joma
from safetensors.torch import load_file, save_file

from joma.host.errors import BadInput
from joma.scale.parts import FILE
from joma.scale.shards import Shard
from joma.scan import merge_shards, scan
from joma.scan.formats.checkpoint import Weights
from joma.scan.sweep.parts import _weights, part_of

STEPS = (0, 1, 2, 5, 10, 20, 30, 40, 60, 80)
SHARDS = 4
NAMES = [f"model.layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("mlp.up_proj", "self_attn.q_proj")]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Ten steps with all that a scan has to say something about.

    Step 2 is cut off, step 20 holds the weights of step 10, one matrix stays as it began up to step 5, and step 40
    has a NaN in one tensor.
    """
    folder = tmp_path_factory.mktemp("series") / "run"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    start, goal = ({name: torch.randn(12, 8, generator=generator) for name in NAMES} for _ in range(2))
    for step in STEPS:
        share = (10 if step == 20 else step) / max(STEPS)
        weights = {name: start[name] + share * (goal[name] - start[name]) for name in NAMES}
        if step <= 5:
            weights[NAMES[-1]] = start[NAMES[-1]].clone()
        if step == 40:
            weights[NAMES[1]][0, 0] = torch.nan
        weights["model.embed_tokens.weight"] = torch.randn(16, 8, generator=generator)
        save_file(weights, folder / f"step{step}.safetensors")
    spoilt = folder / "step2.safetensors"
    spoilt.write_bytes(spoilt.read_bytes()[:100])
    return folder


MEASURES = ("--measures", "stable_rank,spectral_norm,coherence")


@pytest.fixture(scope="module")
def together(pristine, tmp_path_factory):
    out = tmp_path_factory.mktemp("together")
    done = joma("scan", pristine, *MEASURES, "--out", out, "--csv", out / "a.csv", "--json", out / "a.json")
    assert done.returncode == 3, done.stderr
    return out, done


@pytest.fixture(scope="module")
def parts(pristine, tmp_path_factory):
    out = tmp_path_factory.mktemp("parts")
    said = {}
    for number in (3, 1, 4, 2):  # in any order
        done = joma("scan", pristine, *MEASURES, "--out", out, "--shard", f"{number}/{SHARDS}")
        said[number] = done
    return out, said


def rows(folder: Path) -> dict:
    """Everything that the record of a scan holds, but for when it was made."""
    (path,) = (folder / "runs").glob("scan-*.sqlite")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    entries = (
        "SELECT name, step, dtype, shape, checksum, data FROM entries JOIN series ON id = series ORDER BY id, step"
    )
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    meta.pop("created")
    found = {"entries": connection.execute(entries).fetchall(), "meta": meta, "name": path.name}
    connection.close()
    return found


def without_run(path: Path) -> dict:
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "run"}


def test_the_merged_scan_is_the_scan(parts, together, tmp_path):
    out, one = together
    done = joma("merge", parts[0], "--out", tmp_path, "--csv", tmp_path / "a.csv", "--json", tmp_path / "a.json")
    assert done.returncode == one.returncode == 3
    assert rows(tmp_path) == rows(out)
    assert len(rows(out)["entries"]) > 50
    assert (tmp_path / "a.csv").read_bytes() == (out / "a.csv").read_bytes()
    assert without_run(tmp_path / "a.json") == without_run(out / "a.json")
    left_out = {fault["step"] for fault in json.loads((tmp_path / "a.json").read_text())["left_out"]}
    assert left_out == {2, 20, 40}
    assert "identical to step 10" in done.stdout
    assert "not yet trained" in done.stdout
    assert "step20.safetensors" in done.stdout
    assert (tmp_path / f"{Path(rows(out)['name']).stem}.html").is_file()


def test_which_checkpoints_a_shard_measures_is_said_and_follows_from_the_steps_alone(parts):
    for number, done in parts[1].items():
        mine = STEPS[number - 1 :: SHARDS]
        assert f"shard {number}/{SHARDS} has {len(mine)} of 10 checkpoints: " in done.stdout
        assert all(f"step {step} (step{step}.safetensors)" in done.stdout for step in mine)
        assert all(f"] step {step}  " in done.stdout for step in mine)
        assert f"when all {SHARDS} shards are: joma merge {parts[0]} --out {parts[0]}" in done.stdout
    assert [parts[1][number].returncode for number in (1, 2, 3, 4)] == [0, 0, 3, 3]


def test_a_later_scan_adds_to_the_merged_record(parts, together, pristine, tmp_path):
    joma("merge", parts[0], "--out", tmp_path, "--no-page")
    done = joma("scan", pristine, *MEASURES, "--out", tmp_path, "--no-page", "--csv", tmp_path / "a.csv")
    assert done.returncode == 3
    assert done.stdout.count("recorded already") == len(STEPS) - 2  # two are tried again, because they have faults
    assert (tmp_path / "a.csv").read_bytes() == (together[0] / "a.csv").read_bytes()


def test_merging_reads_no_checkpoint(parts, together, pristine, tmp_path, monkeypatch):
    for name in ("open_file", "open_folder"):
        monkeypatch.setattr(f"joma.scan.sources.folder.{name}", None)
    found = merge_shards([parts[0]], tmp_path)
    assert found.steps == json.loads((together[0] / "a.json").read_text())["steps"]


def test_a_shard_that_was_stopped_goes_on_and_merges_the_same(pristine, parts, together, tmp_path, monkeypatch):
    from joma.scan.sweep import reading as one_step

    real, count = one_step._measured, 0

    def killed(*arguments, **named):
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(one_step, "_measured", killed)
    with pytest.raises(KeyboardInterrupt):
        scan(pristine, measures=MEASURES[1], out=tmp_path / "parts", shard="1/4")
    monkeypatch.undo()
    folders = [parts[0] / f"shard-{number}-of-4" for number in (2, 3, 4)]
    done = joma("merge", tmp_path / "parts", *folders, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "shard 1/4" in done.stderr
    assert "is not finished" in done.stderr
    told = []
    scan(pristine, measures=MEASURES[1], out=tmp_path / "parts", shard="1/4", progress=told.append)
    assert sum("recorded already" in line for line in told) == 1
    merge_shards([tmp_path / "parts", *folders], tmp_path / "out")
    assert rows(tmp_path / "out") == rows(together[0])


def test_a_shard_that_is_given_again_keeps_what_it_said(pristine, parts, tmp_path):
    before = json.loads((parts[0] / "shard-2-of-4" / FILE).read_text())
    joma("scan", pristine, *MEASURES, "--out", parts[0], "--shard", "2/4")
    assert json.loads((parts[0] / "shard-2-of-4" / FILE).read_text()) == before


def test_suspicious_steps_are_kept_where_that_was_asked_for(pristine, tmp_path):
    for number in (1, 2):
        scan(pristine, out=tmp_path / "parts", shard=f"{number}/2", keep_suspicious=True)
    merged = merge_shards([tmp_path / "parts"], tmp_path / "out")
    alone = scan(pristine, keep_suspicious=True)
    assert 20 in merged.steps
    assert (merged.steps, merged.notes, merged.faults) == (alone.steps, alone.notes, alone.faults)


@pytest.mark.parametrize(("more", "said"), [
    (("--measures", "stable_rank"), "was made with measures"),
    ((*MEASURES, "--groups", "mlp"), "was made with groups"),
    ((*MEASURES, "--keep-suspicious"), "was made with keep_suspicious"),
    ((*MEASURES, "--steps", "0:60"), "lists step 80 (step80.safetensors)"),
])  # fmt: skip
def test_parts_of_other_options_are_refused(pristine, parts, tmp_path, more, said):
    joma("scan", pristine, *more, "--out", tmp_path, "--shard", "2/4")
    folders = [parts[0] / f"shard-{number}-of-4" for number in (1, 3, 4)]
    done = joma("merge", *folders, tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_checkpoints_that_changed_between_two_shards_are_refused(pristine, tmp_path):
    source = shutil.copytree(pristine, tmp_path / "run")
    for shard in ("1/3", "2/3"):
        scan(source, out=tmp_path, shard=shard)
    for step in (step for step in STEPS if step != 2):
        path = source / f"step{step}.safetensors"
        save_file({name: one for name, one in load_file(path).items() if "q_proj" not in name}, path)
    scan(source, out=tmp_path, shard="3/3")
    with pytest.raises(BadInput, match="settled on different tensors; a checkpoint has changed between them"):
        merge_shards([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_record_that_is_there_is_not_replaced_unless_asked(parts, together, tmp_path):
    merge_shards([parts[0]], tmp_path)
    with pytest.raises(BadInput, match="is there already"):
        merge_shards([parts[0]], tmp_path)
    merge_shards([parts[0]], tmp_path, fresh=True)
    assert rows(tmp_path) == rows(together[0])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [rows(tmp_path)["name"]]


def test_a_merge_that_is_killed_leaves_no_record(parts, together, tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("joma.scan.sweep.parts"), "remember", killed)
    with pytest.raises(KeyboardInterrupt):
        merge_shards([parts[0]], tmp_path)
    assert not list((tmp_path / "runs").glob("scan-*"))
    monkeypatch.undo()
    merge_shards([parts[0]], tmp_path)
    assert rows(tmp_path) == rows(together[0])


@pytest.mark.parametrize("shard", ["0/4", "5/4", "a/b", "1/0", "1/" + "9" * 400])
def test_a_wrong_shard_is_refused_before_anything_is_read(pristine, tmp_path, shard):
    done = joma("scan", pristine, "--shard", shard, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("joma: shard must be ")
    assert done.stderr.endswith(" (--shard I/N)\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "option", [("--csv", "a.csv"), ("--json", "-"), ("--fail-if", "stable_rank<1"), ("--list",), ("--parquet", "a")]
)
def test_what_only_all_shards_can_give_is_refused(pristine, tmp_path, option):
    done = joma("scan", pristine, "--shard", "1/2", *option, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 2
    assert f"{option[0]} does not go with --shard" in done.stderr
    assert ("give it to joma merge" in done.stderr) == (option != ("--list",))  # merge lists nothing
    assert not (tmp_path / "out").exists()


def test_thresholds_are_for_the_merged_scan(parts, tmp_path):
    done = joma("merge", parts[0], "--out", tmp_path, "--no-page", "--fail-if", "stable_rank/mlp<100")
    assert done.returncode == 4
    assert "beyond: " in done.stdout
    done = joma("merge", parts[0], "--out", tmp_path / "b", "--claims", "fails")
    assert done.returncode == 2
    assert done.stderr == "joma: --claims is for shards of joma verify, and these are of joma scan\n"


def test_a_shard_needs_a_folder_and_no_pairs(pristine, tmp_path):
    pairs = SimpleNamespace(pairs=["allocation"])
    with pytest.raises(
        BadInput, match="allocation is of two neighbouring checkpoints, and those lie in different shards"
    ):
        part_of(pairs, Shard(1, 2), tmp_path, {})
    with pytest.raises(BadInput, match="a shard is kept in a folder"):
        scan(pristine, shard="1/2")
    done = joma("merge", tmp_path / "nothing", "--out", tmp_path / "out")
    assert done.stderr == f"joma: there is no folder {tmp_path / 'nothing'}\n"


def test_a_run_outside_of_the_folder_is_not_read(parts, tmp_path):
    shutil.copytree(parts[0], tmp_path / "parts")
    for path in (tmp_path / "parts").glob(f"*/{FILE}"):
        content = json.loads(path.read_text())
        content["content"]["run"] = f"../../{content['content']['run']}"
        path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="it names a run outside of its folder"):
        merge_shards([tmp_path / "parts"], tmp_path / "out")


def noting(monkeypatch, how):
    one_step = import_module("joma.scan.sweep.reading")
    real = one_step._measured

    def noted(plan, place, *arguments, **named):
        values, faults, notes = real(plan, place, *arguments, **named)
        return values, faults, (*notes, f"{place.name} was read {how}")

    monkeypatch.setattr(one_step, "_measured", noted)


def test_what_is_noted_of_single_steps_stays_in_the_order_of_steps(pristine, tmp_path, monkeypatch):
    """Also where a shard is given again and measures nothing."""
    noting(monkeypatch, "slowly")
    alone = scan(pristine, out=tmp_path / "alone")
    for shard in ("2/3", "1/3", "3/3", "2/3"):
        scan(pristine, out=tmp_path / "parts", shard=shard)
    assert sum("slowly" in note for note in alone.notes) > 5
    merged = merge_shards([tmp_path / "parts"], tmp_path / "out")
    assert merged.notes == alone.notes
    assert merged.faults == alone.faults
    assert list(dict.fromkeys(fault.step for fault in merged.faults)) == [2, 40]  # of shards 3 and 2
    assert any("steps 10 (step10.safetensors), 20 (step20.safetensors)" in note for note in merged.notes)
    monkeypatch.undo()
    for shard in ("1/3", "2/3", "3/3"):
        scan(pristine, out=tmp_path / "parts", shard=shard, fresh=True)
    assert not any("slowly" in note for note in merge_shards([tmp_path / "parts"], tmp_path / "again").notes)


def test_a_step_that_is_measured_again_says_what_it_says_now(pristine, tmp_path, monkeypatch):
    """Step 40 has a fault and is tried again; step 30 is recorded, and keeps its note."""
    for how in ("slowly", "quickly"):
        noting(monkeypatch, how)
        scan(pristine, out=tmp_path, shard="1/1")
        monkeypatch.undo()
    notes = json.loads((tmp_path / "shard-1-of-1" / FILE).read_text())["content"]["notes"]
    assert [notes[step][-1].split()[-1] for step in ("30", "40")] == ["slowly", "quickly"]


def test_a_part_remembers_the_files_of_the_tensors_that_judging_can_name():
    gated = {"mlp": SimpleNamespace(tensors=("a", "b")), "attention": SimpleNamespace(tensors=("c",))}
    plan = SimpleNamespace(fingerprints=lambda kind: gated)
    files = ("one.safetensors", "two.safetensors")
    index = {"a": files[0], "b": files[1], "c": files[0], "norm": files[1]}
    place = SimpleNamespace(weights=lambda: Weights(files, index))
    assert _weights(plan, place) == {"files": list(files), "index": {"a": files[0], "b": files[1], "c": files[0]}}
    assert _weights(plan, SimpleNamespace(weights=lambda: Weights(files[:1]))) == {"files": [files[0]], "index": None}
