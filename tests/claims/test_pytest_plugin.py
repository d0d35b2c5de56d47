"""`pytest --joma-claims` in a process of its own: what becomes of a claim's test, and what the reports say."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from xml.etree import ElementTree

import pytest
from kept_records import RECORDS, needs_records

from joma.cli.main import main

ROOT = RECORDS.parent
CLAIMS = '''
NEW, OLD = [0.91, 0.87, 0.93, 0.89, 0.90], [0.71, 0.74, 0.69, 0.75, 0.70]

def test_new_is_better(judge_claim):
    """New is better than old."""
    finding = judge_claim(NEW, OLD, matters=0.05, unit="%", source="a paper, Table 2")
    assert finding.main.difference == sum(NEW) / 5 - sum(OLD) / 5
    assert (finding.claim.says, finding.claim.unit) == ("New is better than old.", "%")
    assert finding.claim.source == "a paper, Table 2"

def test_beats_a_number(judge_claim):
    assert judge_claim(NEW, 0.5, matters=0.05).main.control_effect == 0.5

def test_other_seeds(judge_claim):
    assert judge_claim(NEW, OLD[:4], matters=0.05, paired=False).main.seeds == 4

def test_less_is_better(judge_claim):
    judge_claim(NEW, OLD, matters=0.05, lower=True, says="New has less.")

def test_as_published(judge_claim):
    judge_claim(NEW, OLD, matters=0.05, lower=True, verdict="fails")

def test_wrongly_stated(judge_claim):
    judge_claim(NEW, OLD, matters=0.05, verdict="fails")

def test_open(judge_claim):
    judge_claim([0.9, 0.1, 0.92], 0.5, matters=0.05)

def test_no_longer_holds(judge_claim):
    judge_claim([0.9, 0.1, 0.92], 0.5, matters=0.05, verdict="holds")

def test_misspelt(judge_claim):
    judge_claim(NEW, OLD, matters=0.05, verdict="fials")
'''
ENDS = {
    "new_is_better": "passed", "beats_a_number": "passed", "other_seeds": "passed", "less_is_better": "failed",
    "as_published": "xfailed", "wrongly_stated": "failed", "open": "skipped", "no_longer_holds": "failed",
    "misspelt": "failed",
}  # fmt: skip
TABLE = "seed,new,old,worse\n" + "".join(f"{at},0.9{at},0.7{at % 3},0.3{at}\n" for at in range(5))
TOML = """
results = ["r.csv"]
[verdicts]
worse = "fails"
[claims.better]
effect = "new"
control = "old"
matters = 0.05
[claims.worse]
effect = "worse"
control = "old"
matters = 0.05
"""


def run(folder, *words, plugin=True):
    loaded = ["-p", "joma.claims.pytest_plugin"] if plugin else []
    command = [sys.executable, "-P", "-m", "pytest", *loaded, "-p", "no:cacheprovider", "-ra", "--junit-xml=r.xml"]
    settings = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300"}
    done = subprocess.run([*command, *words], cwd=folder, env=settings, capture_output=True, text=True, check=False)
    ends = {}
    for case in ElementTree.parse(folder / "r.xml").iter("testcase"):
        kind = next((one for one in case if one.tag in ("failure", "skipped", "error")), None)
        end = "passed" if kind is None else {"failure": "failed", "pytest.xfail": "xfailed"}.get(
            kind.tag if kind.tag == "failure" else kind.get("type"), kind.tag)  # fmt: skip
        ends[case.get("name")] = end, {one.get("name"): one.get("value") for one in case.iter("property")}
    return done.stdout, ends


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    (folder / "test_mine.py").write_text(CLAIMS)
    return run(folder, "--joma-claims")


@pytest.mark.parametrize("name", ENDS)
def test_a_test_ends_as_its_claim_does(name, ended):
    assert ended[1][f"test_{name}"][0] == ENDS[name], ended[0]


def test_reports_have_the_verdict(ended):
    text, ends = ended
    assert ends["test_new_is_better"][1] == {
        "joma claim": "test_mine/new-is-better", "joma verdict": "holds (size shown)",
        "joma p": ends["test_new_is_better"][1]["joma p"]}  # fmt: skip
    assert float(ends["test_new_is_better"][1]["joma p"]) < 0.01
    lines = text.partition("verdicts of claims")[2].splitlines()
    assert "test_mine/new-is-better: holds (size shown)" in lines
    assert "test_mine/as-published: fails" in lines
    assert "test_mine/open: undecided" in lines
    assert re.search(r"XFAIL .*test_as_published.* - fails as published, fails: -0\.900 \[", text)
    assert re.search(r"SKIPPED .*: undecided: .*; \d+ seeds would probably decide", text)
    assert "New has less. fails: -0.900" in text
    assert "the verdict that was stated is 'fails'" in text
    assert "the verdict of 'misspelt' must be one of holds" in text


def test_without_the_option_nothing_is_judged(tmp_path):
    (tmp_path / "test_mine.py").write_text(CLAIMS)
    (tmp_path / "claims.toml").write_text(TOML)
    text, ends = run(tmp_path)
    assert {end for end, _ in ends.values()} == {"skipped"}
    assert "claims are judged with --joma-claims" in text
    assert "verdicts of claims" not in text


@pytest.fixture
def table(tmp_path):
    (tmp_path / "r.csv").write_text(TABLE)
    (tmp_path / "claims.toml").write_text(TOML)
    (tmp_path / "other.toml").write_text("[claims]\nresults = 3\n")
    return tmp_path


def test_a_file_of_claims_is_a_test_per_claim(table):
    text, ends = run(table, "--joma-claims")
    assert {name: end for name, (end, _) in ends.items()} == {"better": "passed", "worse": "xfailed"}
    assert ends["better"][1]["joma verdict"] == "holds (size shown)"
    assert "r/worse: fails" in text


def test_findings_are_tests_with_the_verdict_that_they_state(table):
    assert main(["judge", str(table / "r.csv"), "--claims", str(table / "claims.toml"), "--json",
                 str(table / "findings.json")]) == 0  # fmt: skip
    _, ends = run(table, "--joma-claims", "findings.json")
    assert {name: end for name, (end, _) in ends.items()} == {"better": "passed", "worse": "xfailed"}
    content = json.loads((table / "findings.json").read_text())
    content["findings"][0]["verdict"] = "fails"
    (table / "findings.json").write_text(json.dumps(content))
    text, ends = run(table, "--joma-claims", "findings.json")
    assert ends["better"][0] == "failed"
    assert "the verdict that was stated is 'fails'" in text


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        (TOML.replace("worse = ", "wores = "), "states a verdict of 'wores'; did you mean 'worse'?"),
        (TOML.replace('"fails"', '"false"'), "the verdict of 'worse' must be one of holds,"),
        (TOML.replace('control = "old"', 'control = "odl"', 1), "there is no arm 'odl'; did you mean 'old'?"),
        (TOML.replace("r.csv", "none.csv"), "there is no file "),
        (TOML.replace('[verdicts]\nworse = "fails"', "verdicts = 3"), "verdicts must be a table"),
    ],
)
def test_a_wrong_file_is_one_sentence(table, toml, sentence):
    (table / "claims.toml").write_text(toml)
    text, _ = run(table, "--joma-claims")
    (line,) = [line for line in text.splitlines() if sentence in line and not line.startswith("ERROR")]
    assert "Traceback" not in text
    assert line.startswith(("claim ", str(table), "there is no file"))


def test_many_claims_are_judged_as_many(tmp_path):
    nothing = "def test_n{}(judge_claim):\n    judge_claim([0.1, -0.1, 0.05, -0.05, 0.0], 0.0, matters=1.0)\n"
    some = "def test_some(judge_claim):\n    judge_claim([0.1, 0.2, 0.3, 0.02, 0.22], 0.0, matters=0.01)\n"
    (tmp_path / "test_many.py").write_text("".join(map(nothing.format, range(9))) + some)
    text, ends = run(tmp_path, "--joma-claims")
    p = float(ends["test_some"][1]["joma p"])
    assert f"test_many/some: holds (size shown, fragile), q {10 * p:.2g} among all of these" in text
    assert text.count("among all of these") == 1


@needs_records
def test_joma_s_own_findings_and_the_public_example_run_as_tests(tmp_path):
    text, ends = run(tmp_path, "--joma-claims", str(RECORDS / "thm2" / "findings.json"),
                     str(ROOT / "examples" / "judge" / "fp8.toml"))  # fmt: skip
    assert ends["costs-loss"][0] == "xfailed"
    assert ends["faster"][0] == "passed"
    assert "failed" not in {end for end, _ in ends.values()}, text


def test_pytest_finds_the_plug_in_by_its_entry_point():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    ((name, module),) = declared.items()
    assert name == module  # else `-p` would load it a second time
    assert importlib.import_module(module).OPTION == "--joma-claims"
