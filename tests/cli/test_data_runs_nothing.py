"""A file that is data never decides what is imported: shards and runs that name files, modules and packages."""

import json
import shutil

import pytest
from in_process import joma

pytestmark = pytest.mark.usefixtures("drawn_once")


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported, where Python and joma could find it."""
    folder, mark = tmp_path / "planted", tmp_path / "mark"
    folder.mkdir()
    text = f"with open({str(mark)!r}, 'w'): pass\n"
    for name in ("one_is", "evil"):
        (folder / f"{name}.py").write_text(text)
    about = folder / "evil-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[joma.studies]\nevil = evil:STUDY\n")
    monkeypatch.syspath_prepend(str(folder))
    from joma.studies import foreign

    foreign._offered.cache_clear()
    yield folder, mark
    monkeypatch.undo()
    foreign._offered.cache_clear()


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    from test_foreign import SOURCE

    folder = tmp_path_factory.mktemp("mine")
    file = folder / "one_is.py"
    file.write_text(SOURCE.replace("NAME", "'one-is'"), encoding="utf-8")
    done = joma("verify", file, "--shard", "1/1", "--out", folder / "parts")
    assert done.returncode == 0, done.stderr
    return file, folder / "parts" / "shard-1-of-1"


def renamed(content, name):
    return json.loads(json.dumps(content).replace('"one-is', f'"{name}'))


def attacks(content, folder):
    evil = str(folder / "evil.py")
    yield "as it was left, its file replaced", content
    yield "its file", {**content, "content": {**content["content"], "files": {"one-is": evil}}}
    for key in ("file", "title", "about"):
        changed = json.loads(json.dumps(content))
        changed["content"]["studies"]["one-is"][key] = evil
        yield key, changed
    for name in ("evil", evil, "evil.py", "planted.evil", "evil:STUDY", "../evil"):
        yield name, renamed(content, name)


def test_a_shard_decides_nothing_that_is_imported(mine, planted, tmp_path):
    _, part = mine
    folder, mark = planted
    shutil.copy(folder / "evil.py", folder / "one_is.py")
    content = json.loads((part / "shard.json").read_text())
    content["content"]["studies"]["one-is"]["file"] = str(folder / "one_is.py")
    statuses = []
    for at, (what, spoiled) in enumerate(attacks(content, folder)):
        copy = shutil.copytree(part, tmp_path / str(at) / "shard-1-of-1")
        (copy / "shard.json").write_text(json.dumps(spoiled))
        done = joma("merge", copy.parent, "--out", tmp_path / f"out{at}", cwd=folder)
        assert not mark.exists(), what
        assert done.returncode in (0, 2), (what, done.stderr)
        assert "a fault of joma" not in done.stderr
        statuses.append(done.returncode)
    assert statuses[:5] == [0] * 5  # merged, as data


def test_a_study_without_a_printable_name_is_damage(mine, tmp_path):
    _, part = mine
    content = json.loads((part / "shard.json").read_text())
    content["content"]["results"]["one-is"]["run"] = None  # which would have to be one of that study
    copy = shutil.copytree(part, tmp_path / "shard-1-of-1")
    (copy / "shard.json").write_text(json.dumps(renamed(content, r"one\u001b[2J")))
    done = joma("merge", copy, "--out", tmp_path / "out")
    assert (done.returncode, "\x1b" in done.stderr) == (2, False)
    assert "shard.json is damaged: " in done.stderr
    assert not (tmp_path / "out" / "findings.json").exists()


def test_findings_merge_as_they_were_recorded_and_a_named_study_judges_again(mine, tmp_path):
    file, part = mine
    as_data = joma("merge", part, "--out", tmp_path / "data", "--json", "-")
    (study,) = json.loads(as_data.stdout)["studies"]
    assert (study["title"], study["findings"][0]["verdict"]) == ("One is one", "holds")
    copy = shutil.copytree(part, tmp_path / "copy" / "shard-1-of-1")
    content = json.loads((copy / "shard.json").read_text())
    content["content"]["results"]["one-is"]["findings"][0]["expected"] = "whatever"
    (copy / "shard.json").write_text(json.dumps(content))
    for named, expected in (([], "whatever"), (["--study", file], "1")):
        done = joma("merge", copy, "--out", tmp_path / f"out{len(named)}", "--json", "-", *named)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["studies"][0]["findings"][0]["expected"] == expected


def test_a_run_that_is_not_of_its_study_is_not_copied(mine, tmp_path):
    """Nor any other file that the name of a run leads to."""
    _, part = mine
    secret = tmp_path / "secret.sqlite"
    secret.write_text("private")
    copy = shutil.copytree(part, tmp_path / "copy" / "shard-1-of-1")
    (run,) = (copy / "runs").iterdir()
    run.unlink()
    run.symlink_to(secret)
    done = joma("merge", copy, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "out" / "runs").exists()


def test_a_run_of_an_unnamed_study_is_told_and_one_that_is_named_is_judged(mine, planted, tmp_path):
    file, part = mine
    _, mark = planted
    out = shutil.copytree(part, tmp_path / "out")
    (out / "shard.json").unlink()
    (run,) = (out / "runs").iterdir()
    assert joma("verify", "thm5", "--out", out).returncode == 0
    done = joma("report", out)
    assert done.returncode == 0
    assert "runs of one-is are left out: not a study of joma's own; --study NAME|FILE loads it" in done.stderr
    refused = joma("export", run, "--to", "ro-crate")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "(--study NAME|FILE)" in refused.stderr
    assert not mark.exists()
    assert joma("report", out, "--study", file).returncode == 0
    assert {one["name"] for one in json.loads((out / "findings.json").read_text())["studies"]} >= {"one-is", "thm5"}
    assert joma("export", run, "--to", "ro-crate", "--study", file).returncode == 0
