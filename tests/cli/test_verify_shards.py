"""`joma verify` in shards, merged: the findings of one run, byte for byte but for times."""

import json
import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest
from in_process import joma

from joma import studies
from joma.claims.execute import attempt
from joma.claims.ledger import findings_json, with_q
from joma.cli.shard import how_to_merge
from joma.host.files import write_json
from joma.report import write_report
from joma.scale.parts import FILE, Part
from joma.scale.shards import Shard
from joma.studies.parts import times

pytestmark = pytest.mark.usefixtures("drawn_once")
QUICK = ("thm5", "eq6", "thm2-rank", "thm4")
"""Studies that take a second: one for each of four shards, so that none starts a process. Three of them have q values,
which depend on the findings of all three shards."""


def without_times(text: str) -> str:
    return re.sub(r'"seconds": [0-9.e-]+', '"seconds": 0', re.sub(r'"created": "[^"]+"', '"created": ""', text))


def findings(folder) -> str:
    return without_times((folder / "findings.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def together(tmp_path_factory, drawn_once):
    out = tmp_path_factory.mktemp("together")
    every = [studies.load(name) for name in QUICK]
    results = with_q([attempt(study, study.quick, out, alone=False) for study in every])
    write_json(out / "findings.json", findings_json(results))
    write_report(results, out, scale="quick")
    return out


@pytest.fixture(scope="module")
def parts(tmp_path_factory, drawn_once):
    out = tmp_path_factory.mktemp("parts")
    done = {n: joma("verify", *QUICK, "--out", out, "-j", 1, "--shard", f"{n}/4") for n in (4, 2, 1, 3)}
    assert [done[n].returncode for n in (1, 2, 3, 4)] == [0, 0, 0, 0], done
    return out, done


def entries(path) -> list:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    found = connection.execute(
        "SELECT name, step, dtype, shape, data FROM entries JOIN series ON id = series WHERE name NOT LIKE 'seconds%'"
    ).fetchall()
    connection.close()
    return found


def test_four_shards_merged_have_the_findings_of_one_run(parts, together, tmp_path):
    done = joma("merge", parts[0], "--out", tmp_path)
    assert done.returncode == 0
    assert findings(tmp_path) == findings(together)
    every = json.loads((tmp_path / "findings.json").read_text())["studies"]
    assert [study["name"] for study in every] == list(QUICK)
    assert sum(any(finding["q"] is not None for finding in study["findings"]) for study in every) == 3
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == sorted(path.name for path in (together / "runs").iterdir())
    assert all(entries(tmp_path / "runs" / name) == entries(together / "runs" / name) for name in names)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == (together / "report.html").read_text(encoding="utf-8").count("<svg")
    assert f"report: {tmp_path / 'report.html'}" in done.stdout
    assert str(parts[0]) not in page


def test_the_merged_folder_is_as_one_that_verify_wrote(parts, tmp_path):
    """Each study is asked for alone: several would start processes."""
    joma("merge", parts[0], "--out", tmp_path)
    assert ["cached" in joma("verify", name, "--out", tmp_path).stdout for name in QUICK] == [True] * len(QUICK)
    assert joma("merge", parts[0], "--out", tmp_path).returncode == 0  # the same runs are no obstacle


def test_every_study_is_in_one_shard_which_says_so(parts):
    shares = []
    for number in (1, 2, 3, 4):
        content = json.loads((parts[0] / f"shard-{number}-of-4" / FILE).read_text())
        shares.append(content["mine"])
        said = parts[1][number].stdout
        assert f"shard {number}/4 has {len(shares[-1])} of 4 studies: {', '.join(shares[-1])}\n" in said
        assert said.endswith(f"when all 4 shards are: joma merge {parts[0]} --out {parts[0]}\n")
        assert not (parts[0] / f"shard-{number}-of-4" / "findings.json").exists()
    assert sorted(name for share in shares for name in share) == sorted(QUICK)


def test_an_empty_shard_says_so_and_merges(tmp_path, together):
    for number in (1, 2, 3):
        done = joma("verify", "thm5", "lemma6", "--out", tmp_path, "-j", 1, "--shard", f"{number}/3")
        assert done.returncode == 0
        assert ("nothing is left for it to do" in done.stdout) == (number == 3)
    done = joma("merge", tmp_path, "--out", tmp_path / "out", "--json", "-")
    assert done.returncode == 0
    assert [study["name"] for study in json.loads(done.stdout)["studies"]] == ["thm5", "lemma6"]


def test_the_shares_of_all_studies_are_balanced_and_do_not_change_by_themselves():
    names = list(studies.names())
    for scale in ("quick", "paper"):
        known = times(names, scale)
        assert set(known) == set(names)
        for of in (2, 4, 8):
            loads = [sum(known[name] for name in Shard(n, of).balanced(known)) for n in range(1, of + 1)]
            assert max(loads) < 1.05 * sum(loads) / of
    unknown = times(["one", "two"], "quick")
    assert unknown["one"] == unknown["two"] > 0


def test_other_scales_threads_and_studies_are_refused(parts, tmp_path):
    folders = [parts[0] / f"shard-{number}-of-4" for number in (1, 3, 4)]
    content = (parts[0] / "shard-2-of-4" / FILE).read_text()
    for at, (old, new, said) in enumerate(
        (('"threads": 1', '"threads": 2', "was made with threads 1"), ('"thm5"', '"thm3"', "lists thm5"),
         ('"scale": "quick"', '"scale": "paper"', "was made with scale quick"))
    ):  # fmt: skip
        other = tmp_path / str(at)
        other.mkdir()
        (other / FILE).write_text(content.replace(old, new))
        done = joma("merge", *folders, other, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert said in done.stderr


def test_a_run_that_is_gone_or_differs_is_named(parts, tmp_path):
    joma("merge", parts[0], "--out", tmp_path)
    run = next((tmp_path / "runs").glob("thm5-*"))
    run.write_bytes(run.read_bytes() + b"x")
    done = joma("merge", parts[0], "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"joma: {run} is there already, and is another run; merge into another folder, or ")
    assert done.stderr.endswith("(--fresh)\n")
    assert joma("merge", parts[0], "--out", tmp_path, "--fresh").returncode == 0
    assert joma("merge", parts[0], "--out", parts[0] / "shard-1-of-4").returncode == 2


def test_nothing_is_copied_where_the_last_run_is_another_one(parts, tmp_path):
    (last,) = (parts[0] / "shard-4-of-4" / "runs").glob("*.sqlite")
    (tmp_path / "runs").mkdir()
    other = tmp_path / "runs" / last.name
    other.write_bytes(last.read_bytes() + b"x")
    done = joma("merge", parts[0], "--out", tmp_path)
    assert done.returncode == 2
    assert f"{other} is there already, and is another run" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == [other]


def test_a_run_of_another_study_is_not_taken(parts, tmp_path):
    shutil.copytree(parts[0], tmp_path / "parts")
    runs = {run.name.partition("-")[0]: run for run in (tmp_path / "parts").glob("*/runs/*.sqlite")}
    shutil.copyfile(runs["thm4"], runs["thm5"])
    done = joma("merge", tmp_path / "parts", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"is damaged: {runs['thm5'].name} is not a run of 'thm5'; remove it" in done.stderr
    assert not (tmp_path / "out" / "runs").exists()


def test_parts_of_another_machine_merge_and_the_report_has_their_scale(parts, tmp_path):
    """Their runs are those beside them: where they were made, there may be nothing any more, or something else."""
    shutil.copytree(parts[0], tmp_path / "parts")
    for path in (tmp_path / "parts").glob(f"*/{FILE}"):
        text = path.read_text()
        assert str(parts[0]) in text
        path.write_text(text.replace(str(parts[0]), "/gone").replace('"scale": "quick"', '"scale": "paper"'))
    done = joma("merge", tmp_path / "parts", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_bytes() for path in parts[0].glob("*/runs/*.sqlite")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out" / "runs").iterdir()} == made
    assert len(made) == len(QUICK)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("scale: paper" in page, "scale: quick" in page) == (True, False)


def test_the_merge_that_is_said_can_be_pasted_whatever_the_folder_is_called():
    part = Part(Path("my out/shard-1-of-2"), "verify", Shard(1, 2), {}, [], [])
    said = how_to_merge(part).partition("when all 2 shards are: ")[2]
    assert shlex.split(said) == ["joma", "merge", "my out", "--out", "my out"]


def test_a_broken_study_is_broken_in_the_merged_report(parts, together, tmp_path):
    """A process that died leaves a result without findings, and the status says so."""
    shutil.copytree(parts[0], tmp_path / "parts")
    path = next(one for one in (tmp_path / "parts").glob(f"*/{FILE}") if '"thm5": {' in one.read_text())
    content = json.loads(path.read_text())
    content["content"]["results"]["thm5"] |= {"findings": [], "pictures": [], "run": None, "error": "its process died"}
    path.write_text(json.dumps(content))
    done = joma("merge", tmp_path / "parts", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "broken: thm5" in done.stdout


def result_of(content):
    return content["content"]["results"]["thm4"]


def finding_of(content):
    return result_of(content)["findings"][0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda content: content["content"].pop("results"), "content.results is not what a shard of joma verify"),
        (lambda content: content["content"]["results"].pop("thm4"), "it lacks results of its studies"),
        (lambda content: content["content"]["results"]["thm4"].pop("findings"), "content.results.thm4.findings is not"),
        (lambda content: content["content"]["results"]["thm4"].update(run=7), "content.results.thm4.run is not what"),
        (lambda content: content["content"].update(studies=7), "content.studies is not what a shard of joma verify"),
        (lambda content: finding_of(content).update(unit=None), "its results of 'thm4' cannot be read"),
        (lambda content: finding_of(content).update(id="thm5/a"), "its results of 'thm4' cannot be read"),
        (lambda content: result_of(content).update(seconds=float("nan")), "its results of 'thm4' cannot be read"),
        (
            lambda content: result_of(content)["config"].update(size=float("inf")),
            "its results of 'thm4' cannot be read",
        ),
        (lambda content: result_of(content)["pictures"][0].update(svg="<meta>"), "the figure '"),
        (lambda content: result_of(content)["pictures"].append({"name": "a"}), "content.results.thm4.pictures[1]."),
    ],
)
def test_a_damaged_part_is_named(parts, tmp_path, spoil, said):
    shutil.copytree(parts[0], tmp_path / "parts")
    (damaged,) = (path for path in (tmp_path / "parts").glob(f"*/{FILE}") if '"thm4": {' in path.read_text())
    content = json.loads(damaged.read_text())
    spoil(content)
    damaged.write_text(json.dumps(content))
    done = joma("merge", tmp_path / "parts", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"joma: {damaged} is damaged: {said}")
    assert done.stderr.endswith("; remove it and give the shard's command again\n")


NO_SCALE = f"{FILE} is damaged: options.scale is not what a shard of joma verify leaves; remove it"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"options": {"threads": 1}}, NO_SCALE),
        ({"options": {"threads": 1, "scale": []}}, NO_SCALE),
        ({"options": {"threads": 1, "scale": "huge"}}, f"{FILE} is damaged: options.scale is none that joma has; "),
        ({"kind": "knit"}, "shard-1-of-4 is a shard of joma knit, which this joma cannot merge"),
    ],
)
def test_parts_without_a_scale_or_of_another_command_are_refused(parts, tmp_path, changed, said):
    shutil.copytree(parts[0], tmp_path / "parts")
    for path in (tmp_path / "parts").glob(f"*/{FILE}"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    done = joma("merge", tmp_path / "parts", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert said in done.stderr
