"""Studies of other people: named by a file, by JOMA_STUDIES or by an entry point, and refused in one sentence."""

import json
import sys

import pytest
from in_process import joma
from plugged_in import Site

from joma import studies
from joma.host.errors import BadInput
from joma.studies import foreign, task

SOURCE = """\
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from joma.claims.config import Least, StudyConfig
from joma.claims.contract import Claim, Study
from joma.claims.verdicts import by_residual

ONE = Claim("one-is-one", "Smith et al. 2031 Sec. 3", "One is one.")


@dataclass(frozen=True)
class OneConfig(StudyConfig):
    size: Annotated[int, Least(2, "two at least")] = 3


def run(config, run, progress):
    run.keep("ones", lambda: [1.0] * config.size)


def judge(run):
    return by_residual(ONE, printed=float(abs(run.value("ones") - 1).max()), tolerance=1e-9, expected="1")


STUDY = Study(NAME, "One is one", 1, {ONE: judge}, OneConfig(), OneConfig(size=9), run, lambda run: [])
"""


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    monkeypatch.delenv(foreign.VARIABLE, raising=False)
    yield
    for name in [name for name in sys.modules if name.startswith("joma_study_")]:
        del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    place = tmp_path / "one_is.py"
    place.write_text(SOURCE.replace("NAME", "'one-is'"), encoding="utf-8")
    return place


@pytest.mark.long
def test_a_file_is_verified_alone_and_among_others(file, tmp_path):
    for names in ([file.name], [file.name, "thm5"]):  # alone in this process, and in processes of their own
        done = joma("verify", *names, "--out", tmp_path / "out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = {one["name"]: one for one in json.loads((tmp_path / "out/findings.json").read_text())["studies"]}
        assert set(found) == {name.removesuffix(".py").replace("_", "-") for name in names}
        (finding,) = found["one-is"]["findings"]
        assert (finding["verdict"], finding["source"]) == ("holds", "Smith et al. 2031 Sec. 3")
        assert finding["command"] == f"joma verify {file}"


def test_it_can_be_run_with_options_which_its_bounds_check(file, tmp_path):
    assert joma("run", file, "--size", 5, "--out", tmp_path / "out", cwd=tmp_path).returncode == 0
    refused = joma("run", file, "--size", 1, "--out", tmp_path / "out", cwd=tmp_path)
    assert refused.returncode == 2
    assert "size must be at least 2, two at least, got 1" in refused.stderr


def test_the_variable_makes_it_known_to_every_command(file, tmp_path):
    known = {foreign.VARIABLE: str(file)}
    listed = joma("list", cwd=tmp_path, **known)
    assert "one-is" in listed.stdout
    assert "One is one" in listed.stdout
    assert joma("verify", "one-is", "--out", tmp_path / "out", cwd=tmp_path, **known).returncode == 0
    assert "holds" in joma("show", "one-is", "--out", tmp_path / "out", cwd=tmp_path, **known).stdout
    assert joma("verify", "one-is", cwd=tmp_path).returncode == 2


@pytest.fixture
def site(tmp_path, monkeypatch):
    found = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(found.folder))
    yield found
    monkeypatch.undo()
    found.forget()


def source(name="one-is"):
    return SOURCE.replace("NAME", repr(name))


def test_an_entry_point_makes_it_known(site, tmp_path):
    site.offer("one-is", source())
    done = joma("verify", "one-is", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "joma verify one-is" in (tmp_path / "out/findings.json").read_text()


def test_a_file_that_a_user_names_comes_before_a_package(site, file):
    site.offer("one-is", source())
    listed = joma("list", **{foreign.VARIABLE: str(file)})
    assert (
        f"left out: the package of_one_is 1.0 would be called 'one-is', as that of the file {file}, which comes first"
    ) in listed.stdout.splitlines()
    assert site.imported() == []


BROKEN = {
    "importing": ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
    "lacking": ("x = 1", "AttributeError: module 'of_lacking' has no attribute 'STUDY'"),
    "leaving": ("raise SystemExit(0)", "SystemExit: 0"),
    "throwing": ("class Odd(BaseException):\n  def __str__(self): raise SystemExit(0)\nraise Odd", "Odd"),
    "typed": ("STUDY = 3", "holds no study: it needs STUDY = Study(...) of joma.claims.contract"),
    "other": (SOURCE.replace("NAME", "'another'"), "must be called 'other', as its file or entry point is, got 'anoth"),
}  # fmt: skip
LEFT_OUT = {
    "thm2": "left out: the package of_thm2 1.0 would be called 'thm2', and joma has a study of that name; rename it",
    "away": "left out: the package of_away 1.0 offers 'away' in 'of_away:STUDY', and there is no such module",
}


def test_a_list_imports_no_package_and_names_what_is_left_out(site):
    for name, (text, _) in BROKEN.items():
        site.offer(name, text)
    site.offer("thm2", source("thm2"))
    site.offer("away", None)
    before = [name for name in studies.names() if studies.is_own(name)]
    listed, shown = joma("list"), joma("show", "thm5", "--scale", "paper")
    assert (listed.returncode, shown.returncode) == (0, 0)
    lines = listed.stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(before)]] == before
    for name in BROKEN:
        assert f"{name}: offered by the package of_{name} 1.0, not loaded; `joma list {name}` loads it" in lines
    for name in ("thm2", "away"):
        assert LEFT_OUT[name] in lines
    assert len(lines) == len(before) + len(BROKEN) + 2
    content = json.loads(joma("list", "--json").stdout)
    assert [one["name"] for one in content["studies"]] == before
    assert set(content["not_loaded"]) == set(BROKEN)
    assert site.imported() == []
    assert studies.title("thm2") == studies.load("thm2").title == "Theorem 2: winner take all under a linear MLP"
    assert site.imported() == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_that_is_named_is_one_sentence_and_hides_nothing(name, site, tmp_path):
    text, why = BROKEN[name]
    site.offer(name, text)
    done = joma("list", "thm5", name)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stdout.startswith("thm5  ")
    assert f"the package of_{name} 1.0 (of_{name}:STUDY)" in done.stderr
    assert why in done.stderr
    assert joma("verify", name, "--out", tmp_path / "out").returncode == 2
    lost = task.lost(name, "quick", "its process said why")  # among others it is one that broke
    assert (lost.study.name, lost.error) == (name, "its process said why")


def test_metadata_that_cannot_be_read_is_one_line(site):
    site.offer("one-is", source())
    (site.folder / "of_one_is-1.0.dist-info/entry_points.txt").write_bytes(b"\xff\xfe\0")
    listed = joma("list")
    assert listed.returncode == 0
    (line,) = (line for line in listed.stdout.splitlines() if line.startswith("left out: "))
    assert "of_one_is-1.0.dist-info cannot be read: UnicodeDecodeError: " in line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("a = 1\0", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_sentence(text, why, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    for command in (["verify", path, "--out", tmp_path / "out"], ["run", path], ["list", path]):
        done = joma(*command)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"mine.py cannot be loaded: {why}" in done.stderr
    listed = joma("list", **{foreign.VARIABLE: str(path)})
    assert listed.returncode == 0
    assert f"\nleft out: {path} cannot be loaded: {why}" in listed.stdout


def test_a_study_that_ends_the_program_broke(file, tmp_path):
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("    run.keep(", "    raise SystemExit(0)\n    run.keep("), encoding="utf-8")
    done = joma("verify", file, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "the study one-is raised SystemExit: 0" in done.stdout


def test_a_name_is_enough_after_the_file_was_added(file):
    assert studies.chosen(str(file)) == "one-is"
    assert studies.names()[-1] == "one-is"
    assert studies.room("one_is") == ""
    assert studies.title("one-is") == "One is one"
    assert studies.load("one-is") is not studies.load("thm5")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no study: it needs STUDY"),
        ("STUDY = 3", "holds no study: it needs STUDY"),
        (SOURCE.replace("NAME", "'other'"), "must be called 'one-is', as its file or entry point is, got 'other'"),
    ],
)
def test_what_holds_no_study_is_refused(file, text, sentence):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=sentence):
        studies.load(studies.chosen(str(file)))


def test_a_name_that_joma_has_is_refused(tmp_path):
    place = tmp_path / "thm2.py"
    place.write_text(SOURCE.replace("NAME", "'thm2'"), encoding="utf-8")
    with pytest.raises(BadInput, match="joma has a study of that name"):
        studies.chosen(str(place))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no file"):
        studies.chosen(str(tmp_path / "none.py"))


def test_a_file_in_the_working_directory_is_not_taken_for_a_study(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    with pytest.raises(BadInput, match="no study is called 'one-is'"):
        studies.chosen("one-is")


def test_two_files_of_one_name_are_two_studies(file, tmp_path, monkeypatch):
    assert studies.load(studies.chosen(str(file))).title == "One is one"
    other = tmp_path / "elsewhere" / file.name
    other.parent.mkdir()
    other.write_text(file.read_text(encoding="utf-8").replace('"One is one"', '"Another one"'), encoding="utf-8")
    monkeypatch.setenv(foreign.VARIABLE, str(other))
    assert studies.load("one-is").title == "Another one"


def test_a_file_that_broke_breaks_again(file):
    file.write_text("raise RuntimeError('half way')", encoding="utf-8")
    name = studies.chosen(str(file))
    for _ in range(2):
        with pytest.raises(BadInput, match=r"one_is\.py cannot be loaded: RuntimeError: half way"):
            studies.load(name)


def test_an_entry_point_is_called_as_studies_are(file, monkeypatch):
    """With an underscore or a capital it could not be named, and no list of studies could be made."""
    from importlib.metadata import EntryPoint

    offered = EntryPoint("One_Is", "one_is", foreign.GROUP)
    monkeypatch.setattr(foreign, "_offered", lambda: ((offered,), ()))
    monkeypatch.syspath_prepend(str(file.parent))
    assert studies.names()[-1] == "one-is"
    assert studies.title("One_Is") == "One is one"
    sys.modules.pop("one_is")


def test_an_entry_point_may_be_of_the_package_importlib_metadata(file, monkeypatch):
    """Once somebody loads it, it takes the place of the standard library's, and so does its class of entry points."""
    offered = pytest.importorskip("importlib_metadata").EntryPoint("one-is", "one_is", foreign.GROUP)
    monkeypatch.setattr(foreign, "_offered", lambda: ((offered,), ()))
    monkeypatch.syspath_prepend(str(file.parent))
    assert studies.title("one-is") == "One is one"
    sys.modules.pop("one_is")
