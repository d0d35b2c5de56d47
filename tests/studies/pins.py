"""The numbers of small runs, kept: whatever changes what a study computes is seen, wanted or not.

Every run that a test makes with records.carried_out is compared with what the same settings gave before. Kept are, for
each array, its mean, its mean size and a weighted sum (which sees entries change places), to three digits: other
machines round otherwise. Kept is also which arrays are of float32. A change that is wanted is kept by

JOMA_PIN=keep python -m pytest tests/studies/ROOM/test_NAME.py

and looked at in the diff. These numbers are no oracle: they say that something changed, not what is right.
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib.metadata import version
from pathlib import Path

import numpy as np
from kept_records import RECORDS

from joma.claims.execute import judge, plain_config

FOLDER = Path(__file__).parent / "pinned"
SAME, NOTHING = 2e-3, 1e-6
"""Relative to the mean size of the entries; below NOTHING a number is rounding."""
ROUNDED = {"fig8": 10, "reversal-decoder": 10, "scan-snap-decoder": 10}
"""Small trainings in which rounding grows: x86 and Arm differ in the third digit by up to 5 times SAME. Of all other
studies, by at most a twentieth of it."""
CLOCK = ("second", "time", "per_s", "speed")
"""In the names of arrays that a clock decides."""

DEPENDS = {
    "depth-width": ("sympy",), "fig7": ("sympy", "transformers"), "fig10": ("sympy", "transformers"),
    "kv-cache": ("sympy", "transformers"), "python-hierarchy": ("sympy",),
}  # fmt: skip
"""What beside torch decides the numbers of a study."""
READS_WHAT_IS_THERE = ("depth-width",)
"""Without a folder of their own these read what text the machine has."""


def pin(study, config, run):
    """Compare a run with what is kept of it; keep it where JOMA_PIN says so."""
    now = {name: summary(np.asarray(run.array(name), dtype=np.float64)) for name in run.names() if _counts(name)}
    if not (RECORDS / study.name / f"{study.name}.sqlite").is_file():  # else test_records.py looks at what is found
        for finding in judge(study, run):
            found = list(numbers(finding.as_json() | {"provenance": None}))
            now[f"finding {finding.claim.name}: {finding.verdict}"] = summary(np.array(found, dtype=np.float64))
    path = FOLDER / f"{study.name}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if study.name in READS_WHAT_IS_THERE and not config.data:
        return
    key = f"version {study.version}, {settings(config)}{libraries(study.name)}"
    if os.environ.get("JOMA_PIN") == "keep":
        _keep_singles(study.name, run)
        kept[key] = now
        FOLDER.mkdir(exist_ok=True)
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
        path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    elif key in kept:
        assert now.keys() == kept[key].keys(), f"{study.name} records other arrays than before"
        _compare_singles(study.name, run)
        for name, (shape, *before) in kept[key].items():
            assert now[name][0] == shape, f"{name} of {study.name} has another shape than before"
            far = SAME * ROUNDED.get(study.name, 1) * abs(before[1]) + NOTHING
            np.testing.assert_allclose(now[name][1:], before, rtol=0, atol=far, err_msg=f"{name} of {study.name}")


def _compare_singles(study, run):
    """Three digits do not show in which precision they were computed."""
    single = _kept_singles().get(study)
    if single is not None:
        other = [name for name in run.names() if (run.array(name).dtype == np.float32) != (name in single)]
        assert not other, f"{study} records these in another precision than before: {other}"


def _kept_singles():
    """By study: the arrays that are recorded in float32."""
    path = FOLDER.with_name("pinned_float32.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _keep_singles(study, run):
    kept, here = _kept_singles(), set(run.names())
    single = {name for name in here if run.array(name).dtype == np.float32}
    kept[study] = sorted((set(kept.get(study, ())) - here) | single)
    text = ",\n".join(f"{json.dumps(study)}: {json.dumps(kept[study])}" for study in sorted(kept))
    FOLDER.with_name("pinned_float32.json").write_text("{\n" + text + "\n}\n", encoding="utf-8")


def libraries(study):
    """The versions of what gives a study its text or its network: with others nothing is known."""
    return "".join(f", {name} {version(name)}" for name in DEPENDS.get(study, ()))


def summary(array):
    """[shape, mean, mean size, weighted mean, how many are not finite]; the weights differ for all places."""
    flat = array.reshape(-1)
    sound = np.isfinite(flat)
    flat, places = flat[sound], np.cos(1 + np.arange(flat.size))[sound]
    means = [flat.mean(), np.abs(flat).mean(), (flat * places).mean()] if flat.size else [0.0, 0.0, 0.0]
    return [list(array.shape), *(float(f"{one:.5g}") for one in means), int((~sound).sum())]


def numbers(value):
    """Every number in a value of JSON, in its order."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield float(value)


def settings(config):
    """The settings, short; a folder differs from one run of the tests to the next."""
    plain = {name: value for name, value in plain_config(config).items() if name not in ("data", "device")}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _counts(name):
    bits = name == "identity" or name.startswith("checksum/")  # of a scan: the last digit of a weight changes them
    return not bits and not any(word in name for word in CLOCK)
