"""Every series that a judge reads is spoiled in ten ways: each verdict must be the one that was kept.

To keep them anew after a judge was changed on purpose, and to see in the difference what that did to other verdicts:
`JOMA_SPOILED=keep pytest tests/studies/test_spoiled_series.py -k NAME`. What is spoiled are the small runs of studies
whose numbers are the same on every machine: of theorems and lemmas.
"""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from records import changed, found
from test_every_study import VERDICTS

from joma.runs import RunError
from joma.studies import load

KEPT = Path(__file__).with_name("spoiled_verdicts.json")
LETTERS = {"holds": "H", "holds as corrected": "C", "only qualitative": "Q", "not above its control": "B", "fails": "F",
           "undecided": "U", "mixed": "M", "not run": "N", "at paper scale": "P"}  # fmt: skip
NO_NUMBER, HANGS_ON_ROUNDING = "E", "?"
SERIES = 16  # of what one judge reads; of more, so many at equal distances
JITTERS = (0.0, 1e-12)  # by so much other machines may round another number: verdicts that this turns are not kept
KEEPS = os.environ.get("JOMA_SPOILED") == "keep"
STUDIES = VERDICTS if KEEPS else json.loads(KEPT.read_text(encoding="utf-8"))


def wave(values):
    return np.sin(1 + np.arange(values.size)).reshape(values.shape)


def at(place, change):
    def spoil(values):
        flat = values.copy().reshape(-1)
        flat[place] = change(flat[place], np.nanmax(np.abs(flat), initial=0.0) or 1.0)
        return flat.reshape(values.shape)

    return spoil


SPOILS = {
    "one is lost": at(slice(-1, None), lambda x, size: np.nan * x),
    "the last are lost": lambda x: np.where(np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) < len(x) - 1, x, np.nan),
    "the first is off": at(slice(1), lambda x, size: x + 1e-6 * max(size, 1)),
    "the last is far off": at(slice(-1, None), lambda x, size: x + 0.05 * size),
    "nothing moves": lambda x: np.broadcast_to(x[:1], x.shape).copy(),
    "nothing": lambda x: 0 * x,
    "half": lambda x: 0.5 * x,
    "another sign": lambda x: -x,
    "turned round": lambda x: x[::-1].copy(),
    "noise": lambda x: x * (1 + 0.3 * wave(x)),
}


class Spoiled(changed):
    """The run with one series spoiled, all entries of a step as one; numbers that count stay whole."""

    def __init__(self, run, series="", spoil=None, jitter=0.0):
        super().__init__(run, self.spoiled)
        self.series, self.spoil, self.jitter, self.asked = series, spoil, jitter, set()

    def spoiled(self, name, step, value):
        if not np.issubdtype(value.dtype, np.number):
            return value
        values = self.spoil(np.atleast_1d(np.asarray(value, dtype=np.float64)) * (1 + self.jitter)).reshape(value.shape)
        return np.nan_to_num(np.rint(values)).astype(value.dtype) if np.issubdtype(value.dtype, np.integer) else values

    def array(self, name):
        self.asked.add(name)
        return super().array(name) if name == self.series else self.run.array(name)

    def at(self, name, step):
        self.asked.add(name)
        return super().at(name, step) if name == self.series else self.run.at(name, step)


def letter(study, claim, run):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return LETTERS[found(study, run, claim).verdict]
        except (ValueError, ArithmeticError, LookupError, RunError, np.linalg.LinAlgError):
            return NO_NUMBER


def series_read(study, run):
    for claim in study.claims:
        heard = Spoiled(run)
        letter(study, claim, heard)
        read = sorted(heard.asked)
        yield from ((claim, series) for series in read[:: max(1, -(-len(read) // SERIES))])


def letters(study, claim, run, series, jitters=(0.0,)):
    several = [{letter(study, claim, Spoiled(run, series, spoil, j)) for j in jitters} for spoil in SPOILS.values()]
    return "".join(each.pop() if len(each) == 1 else HANGS_ON_ROUNDING for each in several)


def keep(study, run):
    found_letters = {f"{claim.name}: {series}": letters(study, claim, run, series, JITTERS)
                     for claim, series in series_read(study, run)}  # fmt: skip
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    kept[study.name] = {row: found for row, found in found_letters.items() if len({*found}) > 1}
    KEPT.write_text(json.dumps(kept, indent=0, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", STUDIES)
def test_a_spoiled_series_gives_the_verdict_that_was_kept(name, small_run):
    study, run = load(name), small_run(name)
    claims = {claim.name: claim for claim in study.claims}
    with run.remembering():
        if KEEPS:
            keep(study, run)
        for row, kept in json.loads(KEPT.read_text(encoding="utf-8"))[name].items():
            claim, _, series = row.partition(": ")
            now = letters(study, claims[claim], run, series)
            same = (other in (one, HANGS_ON_ROUNDING) for one, other in zip(now, kept, strict=True))
            assert all(same), f"{row}: {dict(zip(SPOILS, now, strict=True))} was {kept}"
