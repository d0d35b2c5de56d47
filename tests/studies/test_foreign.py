"""Studies of other people: named by a file, by JOMA_STUDIES or by an entry point, and refused in one sentence."""

import json
import sys

import pytest
from in_process import joma

from joma import studies
from joma.host.errors import BadInput
from joma.studies import foreign

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


def test_an_entry_point_makes_it_known(file, tmp_path, monkeypatch):
    package = tmp_path / "site"
    (package / "mine-1.0.dist-info").mkdir(parents=True)
    (package / "mine-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (package / "mine-1.0.dist-info/entry_points.txt").write_text("[joma.studies]\none-is = mine\n")
    (package / "mine.py").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    foreign._offered.cache_clear()
    try:
        done = joma("verify", "one-is", "--out", tmp_path / "out", cwd=tmp_path)
    finally:
        monkeypatch.undo()
        foreign._offered.cache_clear()
        sys.modules.pop("mine", None)
    assert done.returncode == 0, done.stderr
    assert "joma verify one-is" in (tmp_path / "out/findings.json").read_text()


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
    """Else what stood above the error would be taken for the file, and the sentence would be another one."""
    file.write_text("raise RuntimeError('half way')", encoding="utf-8")
    name = studies.chosen(str(file))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="half way"):
            studies.load(name)


def test_an_entry_point_is_called_as_studies_are(file, monkeypatch):
    """With an underscore or a capital it could not be named, and no list of studies could be made."""
    from importlib.metadata import EntryPoint

    offered = EntryPoint("One_Is", "one_is", foreign.GROUP)
    monkeypatch.setattr(foreign, "_offered", lambda: (offered,))
    monkeypatch.syspath_prepend(str(file.parent))
    assert studies.names()[-1] == "one-is"
    assert studies.title("One_Is") == "One is one"
    sys.modules.pop("one_is")


def test_an_entry_point_may_be_of_the_package_importlib_metadata(file, monkeypatch):
    """Once somebody loads it, it takes the place of the standard library's, and so does its class of entry points."""
    offered = pytest.importorskip("importlib_metadata").EntryPoint("one-is", "one_is", foreign.GROUP)
    monkeypatch.setattr(foreign, "_offered", lambda: (offered,))
    monkeypatch.syspath_prepend(str(file.parent))
    assert studies.title("one-is") == "One is one"
    sys.modules.pop("one_is")
