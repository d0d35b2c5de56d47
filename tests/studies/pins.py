"""The numbers of small runs, kept: whatever changes what a study computes is seen, wanted or not.

Every run that a test makes with records.carried_out is compared with what the same settings gave before. Kept are, for
each array, its mean, its mean size and a weighted sum (which sees entries change places), to five digits. Kept are also
which arrays are of float32, the kind of machine and the commit that kept them, and how far other instructions of the
processor move them. On a machine of that kind little may differ; elsewhere as much as instructions explain. A change
that is wanted is kept, on three kinds of machines, by

python tests/as_other_machines.py --pin studies/ROOM/test_NAME.py

and looked at in the diff. These numbers are no oracle: they say that something changed, not what is right.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from kept_records import RECORDS

from joma.claims.execute import judge, plain_config

FOLDER = Path(__file__).parent / "pinned"
LEAST, NOTHING = 5e-4, 1e-6
"""Of the mean size of the entries: what may differ on any machine. Below NOTHING a number is rounding."""
ROUNDING = LEAST / 10  # of the mean size: a smaller spread over instruction sets is not written down
MARGIN = 2.0  # times the spread over three instruction sets: what may differ on a machine of another kind
AT_HOME = 0.25  # of that: what may differ on a machine of the kind that kept the numbers
CLOCK = ("second", "time", "per_s", "speed")  # in the names of arrays that a clock decides

DEPENDS = {
    "depth-width": ("sympy",), "fig7": ("sympy", "transformers"), "fig10": ("sympy", "transformers"),
    "kv-cache": ("sympy", "transformers"), "python-hierarchy": ("sympy",),
}  # fmt: skip
"""What beside torch decides the numbers of a study."""
READS_WHAT_IS_THERE = ("depth-width",)  # without a folder of their own these read what text the machine has


def pin(study, config, run):
    """Compare a run with what is kept of it; JOMA_PIN=keep keeps it, JOMA_PIN=spread keeps how far it is from that."""
    now = {name: summary(np.asarray(run.array(name), dtype=np.float64)) for name in run.names() if _counts(name)}
    if not (RECORDS / study.name / f"{study.name}.sqlite").is_file():  # else test_records.py looks at what is found
        for finding in judge(study, run):
            found = list(numbers(finding.as_json() | {"provenance": None}))
            now[f"finding {finding.claim.name}: {finding.verdict}"] = summary(np.array(found, dtype=np.float64))
    if study.name in READS_WHAT_IS_THERE and not config.data:
        return
    key, wanted = f"version {study.version}, {settings(config)}{libraries(study.name)}", os.environ.get("JOMA_PIN")
    with pins_of(study.name) as kept:
        if wanted == "keep":
            for old in [old for old in kept if not old.startswith(f"version {study.version},")]:
                del kept[old]
            kept[key] = {"machine": kind_of_machine(), "commit": head(), "spread": {}, "arrays": now}
            _keep_singles(study.name, run)
        elif key in kept:
            one = kept[key]
            assert now.keys() == one["arrays"].keys(), f"{study.name} records other arrays than before"
            _compare_singles(study.name, run)
            if wanted == "spread":
                one["spread"][kind_of_machine()] = spread(one["arrays"], now)
            else:
                compare(study.name, one, now)


@contextmanager
def pins_of(study):
    path = FOLDER / f"{study}.json"
    if "JOMA_PIN" not in os.environ:
        yield _read(path)
        return
    FOLDER.mkdir(exist_ok=True)
    lock = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield (kept := _read(path))
        _write(path, kept)
    finally:
        os.close(lock)


def _read(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write(path, kept):
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
    path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def tolerances(one):
    """Of every array of a pin, the share of its mean size by which a number may differ here."""
    home = AT_HOME if one["machine"] == kind_of_machine() else 1
    moved = {name: max((each.get(name, 0) for each in one["spread"].values()), default=0) for name in one["arrays"]}
    return {name: home * max(LEAST, MARGIN * share) for name, share in moved.items()}


def compare(study, one, now):
    share = tolerances(one)
    for name, (shape, *before) in one["arrays"].items():
        assert now[name][0] == shape, f"{name} of {study} has another shape than before"
        message = f"{name} of {study}, kept on {one['machine']} at {one['commit']}; here is {kind_of_machine()}"
        far = share[name] * abs(before[1]) + NOTHING
        np.testing.assert_allclose(now[name][1:], before, rtol=0, atol=far, err_msg=message)


def spread(before, now):
    gaps = {name: np.abs(np.subtract(now[name][1:], one[1:])).max() for name, one in before.items()}
    shares = {name: gap / abs(before[name][2]) for name, gap in gaps.items() if gap > NOTHING and before[name][2]}
    return {name: float(f"{share:.2g}") for name, share in shares.items() if share > ROUNDING}


def kind_of_machine():
    """What decides how numbers are rounded: the processor's maker and instructions, threads, and torch."""
    maker = next((line.split(":")[1].strip() for line in _processor() if line.startswith("vendor_id")), "")
    instructions = f"{platform.machine()} {maker} {torch.backends.cpu.get_cpu_capability()}".replace("  ", " ")
    return f"{instructions}, threads {torch.get_num_threads()}, torch {torch.__version__}"


def _processor():
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def head():
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def _compare_singles(study, run):
    """Three digits do not show in which precision they were computed."""
    single = _kept_singles().get(study)
    if single is not None:
        other = [name for name in run.names() if (run.array(name).dtype == np.float32) != (name in single)]
        assert not other, f"{study} records these in another precision than before: {other}"


def _kept_singles():
    """By study: the arrays that are recorded in float32."""
    return _read(FOLDER.with_name("pinned_float32.json"))


def _keep_singles(study, run):
    kept, here = _kept_singles(), set(run.names())
    single = {name for name in here if run.array(name).dtype == np.float32}
    kept[study] = sorted((set(kept.get(study, ())) - here) | single)
    _write(FOLDER.with_name("pinned_float32.json"), kept)


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


DERIVED = ("failed", "sign_p", "half_width")
"""Of a finding: what came later and only says how sure its other numbers are."""


def numbers(value):
    """Every number in a value of JSON, in its order."""
    if isinstance(value, dict | list):
        kept = [each for name, each in value.items() if name not in DERIVED] if isinstance(value, dict) else value
        for each in kept:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield float(value)


def settings(config):
    """The settings, short; a folder differs from one run of the tests to the next."""
    plain = {name: value for name, value in plain_config(config).items() if name not in ("data", "device")}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _counts(name):
    # Of a scan: the last digit of a weight changes them. The digest of a recipe is no number.
    bits = name == "identity" or name.startswith("checksum/") or name.endswith("/recipe")
    return not bits and not any(word in name for word in CLOCK)
