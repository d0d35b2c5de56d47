"""A run remembers which text it read, its findings carry the hash, and the reader is told where it is another one."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joma.claims.claim import Claim
from joma.claims.evidence import Evidence, at_most
from joma.claims.execute import provenance
from joma.claims.finding import Finding, Provenance
from joma.claims.text_source import other_text, remember_source, source_of
from joma.cli import show
from joma.data.python_source import REFERENCE, source_release
from joma.report.claims.layout import Entry
from joma.report.claims.study import claim_html
from joma.runs import Run
from joma.studies import load

SOURCE = Path(__file__).parents[2] / "src" / "joma"
OTHER = "ab" * 32


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "a.sqlite", study="thm2", config={}, version=1) as made:
        yield made


def finding(sha256):
    claim = Claim("winner", "JoMA Thm 2", "One token takes all attention.")
    evidence = Evidence(tests=(at_most("others' share", 0.0, 1e-9),))
    return Finding(claim, "one token", evidence, study="thm2", provenance=Provenance(text_sha256=sha256))


def shown(found):
    return show.text(found)


def test_a_run_without_such_a_text_has_no_hash(run):
    assert source_of(run) == provenance(run).text_sha256 == ""


def test_the_hash_is_kept_and_carried(run):
    remember_source(run)
    assert source_of(run) == provenance(run).text_sha256 == source_release().sha256
    assert len(source_of(run)) == 64


def test_the_text_of_a_run_that_is_taken_up_again_is_the_first_one(run):
    remember_source(run, OTHER)
    remember_source(run, "cd" * 32)
    assert source_of(run) == OTHER
    assert run.value("text source sha256").dtype == np.uint8


@pytest.mark.parametrize("sha256", ["", REFERENCE.sha256])
def test_nothing_is_said_of_the_reference(sha256):
    assert other_text(sha256) == ""
    assert "another text" not in shown(finding(sha256))
    assert "another text" not in claim_html(Entry(finding(sha256), "a", None))


def test_another_text_is_said_beside_the_verdict():
    found = finding(OTHER)
    assert "not the source of sympy 1.14.0" in shown(found)
    head, _, folded = claim_html(Entry(found, "a", None)).partition("</summary>")
    assert "from another text" in head
    assert "not the source of sympy 1.14.0" in folded


def test_findings_are_read_with_and_without_a_hash():
    for found in (finding(OTHER), finding("")):
        assert Finding.from_json(found.as_json()) == found
    assert "text_sha256" not in finding("").as_json()["provenance"]
    assert finding(OTHER).as_json()["provenance"]["text_sha256"] == OTHER
    assert finding(OTHER).verdict == replace(finding(OTHER), provenance=Provenance()).verdict


def test_every_study_that_reads_this_text_remembers_it():
    """By the source: a file that reads it stands in a room (or kit) where the hash is kept."""
    reads = re.compile(r"\b(source_text|python_tokens|python_corpus)\(")
    rooms = {}
    for path in [*SOURCE.glob("studies/*/**/*.py"), *SOURCE.glob("recipes/*/*.py")]:
        rooms.setdefault(path.relative_to(SOURCE).parts[1], []).append(path.read_text(encoding="utf-8"))
    reading = {room for room, files in rooms.items() if any(map(reads.search, files))}
    assert reading >= {"language", "syntax", "checkpoints", "sparsity", "galore"}
    for room in reading:
        calls = sum(file.count("remember_source(run") for file in rooms[room])
        assert calls >= (2 if room == "checkpoints" else 1), room


LATER = ("fig10", "python-hierarchy")  # they read their text for a second or more


@pytest.mark.parametrize(
    "name",
    [
        "fig7",
        "kv-cache",
        "galore-table",
        "depth-width",
        *(pytest.param(name, marks=pytest.mark.long) for name in LATER),
    ],
)
def test_it_is_kept_before_anything_is_trained(name, tmp_path, monkeypatch):
    """A run that is stopped at its first word of progress about training knows its text already."""
    study = load(name)
    few = {"python-hierarchy": "tokens", "depth-width": "tokens", "galore-table": "source"}
    few = {few[name]: 60_000} if name in few else {}

    def stop(share, doing):
        if "source sha256" in " ".join(run.names()):
            raise Stop

    with Run.create(tmp_path / "run.sqlite", study=name, config={}, version=1) as run:
        with pytest.raises(Stop):
            study.run(replace(study.quick, **few), run, stop)
        assert source_of(run) == source_release().sha256


class Stop(Exception):
    """Enough was seen."""
