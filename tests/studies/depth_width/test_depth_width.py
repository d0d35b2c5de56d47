"""Depth against width: what a run records, that it can be interrupted, and what it does without a text."""

import itertools
from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from records import carried_out, changed, found
from studies.depth_width.small_depth_width import TINY, TREES

from joma.claims.contract import NotRun, silent
from joma.data.errors import CorpusError
from joma.runs import Run
from joma.studies.depth_width.depth_width import study as depth_width
from joma.studies.depth_width.depth_width.study import DEEP, DEEPER, STUDY, Sweep, facts, kinds_of

pytestmark = pytest.mark.usefixtures("no_other_text")


def test_members_of_one_seed_start_alike_at_every_rate(tiny):
    start = Sweep(tiny, "sympy").curves[0, 0]  # (rates, seeds)
    np.testing.assert_allclose(start[0], start[1], rtol=1e-6)
    assert len(np.unique(start[0].round(6))) == 3


def test_networks_of_trees_learn_from_their_own_tree(tiny):
    for kind in TREES:
        sweep = Sweep(tiny, kind)
        assert sweep.judging.shape == (2, 2, 3)
        assert sweep.curves[:, -1].mean() < sweep.curves[:, 0].mean()


def test_sizes_are_recorded(tiny, config):
    for name, count in (("text, 2 layers", config.parameters), ("tree, 1 layers", config.tree_parameters)):
        fact = facts(tiny, name)
        assert fact["parameters"] == pytest.approx(count, rel=0.01)
        assert 0 < fact["embedding share"] < 1
        assert np.isnan(fact["seconds per step"])  # not timed


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timed")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JOMA_DATA", raising=False)
        patch.setenv("JOMA_CACHE", str(folder / "cache"))
        return carried_out(STUDY, replace(TINY, timed=True), folder / "run.sqlite")


@pytest.mark.long
def test_steps_are_timed(timed):
    """By a clock that gives every step 2 s and every measurement 0.5 s: only the time between measurements counts."""

    def clock(name, step, value):
        part = name.rpartition("/")[2]
        return value * 0 + 2.0 * step + 0.5 * (part == "ends") if part in ("begins", "ends") else value

    run, name = changed(timed, clock), "text, 1 layers"
    steps, members = run.steps(f"{name}/begins").tolist(), run.array(f"{name}/begins").shape[1]
    each = [(2.0 * after - (2.0 * before + 0.5)) / (after - before) for before, after in itertools.pairwise(steps)]
    assert facts(run, name)["seconds per step"] == pytest.approx(median(each) / members)
    assert facts(timed, name)["seconds per step"] > 0
    assert "milliseconds per network and step" in found(STUDY, timed, DEEPER[DEEP]).details
    assert "“time of a step”" in STUDY.draw(timed)[0].description


@pytest.mark.long
def test_a_text_that_is_not_on_the_machine_is_not_run(timed):
    of = found(STUDY, timed, DEEPER["wikitext-2"])
    assert of.verdict == "not run"
    assert of.reason == "WikiText-2 was not on the machine"
    assert "wikitext-2" not in kinds_of(timed)


def test_a_text_that_this_scale_does_not_read_is_for_paper_scale():
    claim = next(claim for claim in STUDY.claims if claim.name == DEEPER["wikitext-2"])
    record = SimpleNamespace(config={"texts": ("sympy",)}, value=lambda name: np.array([True]))
    of = STUDY.claims[claim](record)
    assert of.verdict == "at paper scale"
    assert of.reason == "WikiText-2 is read at paper scale alone"


def test_a_run_without_any_text_is_not_run(tmp_path):
    with pytest.raises(NotRun, match="none of the texts wikitext-2 is on this machine"):
        carried_out(STUDY, replace(TINY, texts=("wikitext-2",)), tmp_path / "none")


def test_another_text_is_refused(config, tiny, tmp_path):
    depth_width.same_texts(config, tiny)
    with pytest.raises(CorpusError, match="sympy has changed"):
        depth_width.same_texts(replace(config, tokens=20_000), tiny)
    with Run.create(tmp_path / "other", study="depth-width", config={}) as run:
        run.keep("wikitext-2/sha256", lambda: np.zeros(32, np.uint8))
        run.keep("text/present", lambda: np.array([False, True]))
        with pytest.raises(CorpusError, match="wikitext-2 has changed"):
            STUDY.run(config, run, silent)
