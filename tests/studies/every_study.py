"""What is asked of every study: it can be interrupted, its figures have labels and
alternative text, its findings survive JSON."""

import itertools
import json
from dataclasses import asdict, fields
from unittest import mock

import numpy as np
import pytest
from records import altered, found

from joma.claims.contract import Finding, silent
from joma.claims.evidence import Effect
from joma.claims.execute import judge, plain_config
from joma.figures.style import house_style
from joma.runs import Run


class Stop(Exception):
    """Somebody pressed Ctrl-C."""


def entries(run):
    return sum(len(run.steps(name)) for name in run.names())


def ends_the_same_after_an_interrupt(study, config, whole, path, *, after=0.4):
    """Stop a run of the study once it holds this share of what the whole one does, take it up again and compare.

    Or once its progress is as far and it holds something: some say seldom how far they are.
    """
    enough, looked = after * entries(whole), [0.0]

    def stop_later(share, doing):
        if share >= looked[-1] + 0.02:  # to count what a run holds takes longer than a step of a small network
            looked.append(share)
            held = entries(run)
            if held >= enough or (held and share >= after):
                raise Stop

    run = Run.create(path, study=study.name, config=plain_config(config), version=study.version)
    # A second for every look at the clock: training then tells of every few steps, however fast the machine is.
    clock = mock.patch("joma.training._telling.monotonic", itertools.count().__next__)
    with clock, pytest.raises(Stop):
        study.run(config, run, stop_later)
    assert 0 < entries(run) < entries(whole)
    run.close()
    with Run.open(path, write=True) as run:
        study.run(config, run, silent)
        assert run.names() == whole.names()
        for name in whole.names():
            np.testing.assert_array_equal(run.array(name), whole.array(name), err_msg=name)
    assert {each.suffix for each in path.parent.glob(f"{path.name}?*")} <= {".kept"}  # which branches begin with


def draws_labelled_figures(study, run, *, axes=True):
    """Every figure is made and described. How it is laid out is asked of kept records: test_every_drawing.py."""
    with run.remembering(), house_style():
        drawings = study.draw(run)
        for drawing in drawings:
            says_what_is_seen(drawing)
            assert not axes or all(panel.get_xlabel() and panel.get_ylabel() for panel in drawing.figure.axes)
    assert drawings


def is_laid_out_and_drawn(figure):
    from joma.figures._settled import settle

    for axes in figure.axes:
        axes.minorticks_off()
    settle(figure)
    figure.draw_without_rendering()


def says_what_is_seen(drawing):
    assert drawing.caption
    seen = drawing.alt or drawing.description
    assert len(seen) > 40, drawing.name
    assert any(character.isdigit() for character in seen), seen
    assert seen != drawing.caption
    assert seen not in drawing.caption
    assert drawing.caption not in seen
    assert not {"nan", "None", "no number"} & set(seen.replace(",", " ").split()), seen


def findings_survive_json(study, run):
    """A verdict can be worked out again from the file alone."""
    findings = judge(study, run)
    assert [finding.claim for finding in findings] == list(study.claims)
    for finding in findings:
        again = Finding.from_json(json.loads(json.dumps(finding.as_json(), allow_nan=False)))
        now, before = _kept(again), _kept(finding)
        before["claim"]["expected"] = ""  # the finding itself says it
        np.testing.assert_equal(now, before)  # what chance leaves open is NaN, which equals nothing
        assert again.verdict == finding.verdict


def _kept(finding):
    """As nested dicts, but for the numbers seed by seed, which stay in the run."""
    left_out = {field.name for field in fields(Effect) if not field.compare}

    def without(part):
        if isinstance(part, dict):
            return {name: without(one) for name, one in part.items() if name not in left_out}
        return part

    return without(asdict(finding))


def put(where, value):
    def change(array):
        array = np.array(array, dtype=np.float64)
        array[where] = value
        return array

    return change


def add(where, value):
    def change(array):
        array = np.array(array, dtype=np.float64)
        array[where] += value
        return array

    return change


def test_a_spoiled_series_changes_its_verdict(request, run, series, change, claim, verdict):
    study = request.module.STUDY
    now = found(study, altered(run, series, change), claim)
    assert now.verdict == verdict, now.as_json()


def test_every_claim_is_turned_by_one(request):
    claims = {claim.name for claim in request.module.STUDY.claims}
    assert {claim for _, _, claim, _ in request.module.SPOILED} == claims
