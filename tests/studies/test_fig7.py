"""Figure 7's study on a series of two tiny layers: it runs, cleans up after itself, and its judge can be turned."""

import dataclasses

import numpy as np
import pytest

from joma.runs import Run
from joma.studies import load
from joma.studies.execute import execute, judge

pytest.importorskip("transformers", reason="transformers is not installed here (the extra hf)")

STUDY = load("fig7")
TINY = dataclasses.replace(
    STUDY.quick, layers=2, width=32, heads=2, vocabulary=300, context=32, batch=8, steps=36, every=3, characters=60_000,
    held_out=4_000,
)  # fmt: skip


def test_a_series_that_cannot_be_trained_is_refused_with_the_config():
    with pytest.raises(ValueError, match="width 64 cannot be shared by 5 heads"):
        dataclasses.replace(STUDY.quick, heads=5)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return execute(STUDY, TINY, tmp_path_factory.mktemp("out"))


def test_it_runs_judges_and_draws(result):
    assert [finding.claim for finding in result.findings] == list(STUDY.claims)
    assert all(finding.control is not None for finding in result.findings)
    assert len(result.pictures) == 1
    assert not list(result.run.parent.glob("*.series")), "the checkpoints are not kept"
    with Run.open(result.run) as run:
        assert run.value("layers/stable rank").shape == (len(run.value("steps")), 2)
        assert run.value("coherence").shape == (3, 3, 2)


class Record:
    """A recorded run with some of its arrays replaced."""

    def __init__(self, run, changed):
        self.run, self.changed = run, changed

    def value(self, name):
        return self.changed[name] if name in self.changed else self.run.value(name)


def verdicts(run, changed):
    return {finding.claim.name: finding.verdict for finding in judge(STUDY, Record(run, changed))}


def test_verdicts_follow_the_record(result):
    yes, no = np.array([True, True]), np.array([False, False])
    back = {
        f"{name}/{part}": np.array([3.0, 3.0]) for name in ("stable rank", "entropy") for part in ("drop", "rebound")
    }
    margin = {f"{n}/{p}_margin": np.array([1.0, 1.0]) for n in ("stable rank", "entropy") for p in ("drop", "rebound")}
    drops = {f"{name}/drops": yes for name in ("stable rank", "entropy")}
    with Run.open(result.run) as run:
        rising = verdicts(run, back | margin | drops | {f"{n}/rebounds": yes for n in ("stable rank", "entropy")})
        flat = verdicts(run, back | margin | drops | {f"{n}/rebounds": no for n in ("stable rank", "entropy")})
        noise = verdicts(run, back | margin | drops | {"stable rank/rebound": np.array([0.5, 0.5])})
        half = verdicts(run, back | margin | drops | {"entropy/rebounds": np.array([False, True])})
        orthogonal = verdicts(run, {"coherence": np.full((3, 3, 2), 0.1)})
    assert (rising["rank-of-top-layers"], rising["entropy-over-checkpoints"]) == ("holds", "holds")
    assert rising["rank-of-bottom-layers"] == "only qualitative"  # it drops, but comes back
    assert flat["rank-of-top-layers"] == "only qualitative"  # above chance, below 2 % of the drop
    assert noise["rank-of-top-layers"] == "not above its control"
    assert flat["rank-of-bottom-layers"] == "holds"
    assert half["entropy-over-checkpoints"] == "only qualitative"
    assert orthogonal["embeddings-nearly-orthogonal"] == "holds"


def test_a_series_needs_a_text(tmp_path):
    with pytest.raises(ValueError, match="--series needs a text"):
        execute(STUDY, dataclasses.replace(TINY, series="somewhere"), tmp_path)


def test_wikitext_that_is_not_there_is_not_run(tmp_path, monkeypatch):
    monkeypatch.delenv("JOMA_DATA", raising=False)
    result = execute(STUDY, dataclasses.replace(TINY, wikitext=True), tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert "JOMA_DATA" in result.findings[0].measured


def test_too_few_checkpoints_are_not_judged(tmp_path):
    few = dataclasses.replace(TINY, steps=4, every=4)
    assert {finding.verdict for finding in execute(STUDY, few, tmp_path).findings} == {"not run"}
