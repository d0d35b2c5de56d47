"""Run the tests as other machines would: `make machines`, or `python tests/as_other_machines.py [--quick]`.

With --pin PATH ... the numbers of studies are kept anew instead, and how far other instructions move them: see
tests/studies/pins.py.

Numbers may round otherwise with other instructions of the processor, or with more threads. Clocks show more time where
a machine is slow or busy. A test that is right passes on all of them. One line per machine, and what failed below it;
status 1 if anything did. `make test` does the quick part.

The rooms that compute run on every machine; on the slow one, the tests that deal with time and with processes.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cores import cores

TESTS = Path(__file__).parent
X86 = platform.machine().lower() in ("x86_64", "amd64")
STUDIES = (
    "studies/cdag",
    "studies/galore",
    "studies/isotropic",
    "studies/linear",
    "studies/reversal",
    "studies/salience",
)
NUMERIC = ("theory", "measure", "claims", "probes", "optim", "training", "models", "cache")
QUICK_NUMBERS = (
    "theory/test_arrays.py",
    "theory/test_flow.py",
    "measure/test_arguments.py",
    "measure/test_forecast.py",
    "measure/test_allocation.py",
    "optim/test_projector.py",
    "studies/galore/test_galore_table.py",
    "studies/isotropic/test_lemma1.py",
    "studies/linear/test_thm2.py",
    "studies/salience/test_lemma6.py",
)
SLOW = (
    "scale",
    "host",
    "runs",
    "cli",
    "claims/test_execute.py",
    "training/test_signals.py",
    "training/test_ensemble.py",
    "training/test_several_ensembles.py",
    "scan",
    "fuzz",
    "docs/test_pages.py",
)
QUICK_SLOW = (
    "scale",
    "host/test_children.py",
    "host/test_exit_status.py",
    "host/test_files.py",
    "runs/test_processes.py",
    "claims/test_execute.py",
    "scan/sources/test_lying_hub.py",
)
PYTHONS = ("3.11", "3.12", "3.13")
PROBE = "import hypothesis, pytest, safetensors, sys, torch; print(sys.version.split()[0], torch.__version__)"


def instructions(kind: str) -> dict[str, str]:
    """What makes torch and the libraries below it compute as on a processor that has no more than this."""
    torch_alone = {"ATEN_CPU_CAPABILITY": kind}
    if not X86:
        return torch_alone
    mkl, dnn, blas = {"default": ("SSE4_2", "SSE41", "Nehalem"), "avx2": ("AVX2", "AVX2", "Haswell")}[kind]
    return {**torch_alone, "MKL_ENABLE_INSTRUCTIONS": mkl, "ONEDNN_MAX_CPU_ISA": dnn, "OPENBLAS_CORETYPE": blas}


@dataclass(frozen=True)
class Machine:
    """A name, what makes this one behave like it, what runs there (also what is marked long?), or why nothing does."""

    name: str
    environment: Mapping[str, str]
    paths: Sequence[str] = NUMERIC
    python: str = sys.executable
    missing: str = ""
    long: bool = True

    def command(self) -> list[str]:
        own = ("-p", "other_machine", "-p", "no:cacheprovider", "-q", "--tb=short")
        marked = () if self.long else ("-m", "not long")
        return [self.python, "-m", "pytest", *own, *marked, *(str(TESTS / path) for path in self.paths)]

    def settings(self) -> dict[str, str]:
        own = (str(TESTS / "other_machine"), str(TESTS.parent / "src"))  # an other Python need not have joma
        path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **self.environment}


@dataclass
class Found:
    """What became of the tests on a machine."""

    words: str
    failed: bool = False
    output: str = field(default="", repr=False)


THREADS = {"OMP_NUM_THREADS": "4", "JOMA_TEST_THREADS": "4"}
CLOCK = {"JOMA_TEST_CLOCK": "20"}


def quick_machines() -> list[Machine]:
    """All that differs at once, in a choice of tests, none of them long."""
    return [
        Machine("few instructions, 4 threads", {**instructions("default"), **THREADS}, QUICK_NUMBERS, long=False),
        Machine("20 times slower", CLOCK, QUICK_SLOW, long=False),
    ]


def pinning_machines(paths: Sequence[str]) -> Iterator[Machine]:
    """This machine keeps the numbers of studies; others say how far they are from them."""
    yield Machine("this machine keeps", {"JOMA_PIN": "keep"}, paths)
    for name, kind in (("few instructions", "default"), *([("AVX2", "avx2")] if X86 else [])):
        yield Machine(name, {"JOMA_PIN": "spread", **instructions(kind)}, paths)


def machines(pythons: Sequence[str]) -> Iterator[Machine]:
    """One difference at a time, so that a failure says what it came from; then other Pythons."""
    meaningless = "" if X86 else f"means nothing on {platform.machine()}"
    with_studies = (*NUMERIC, *STUDIES)
    yield Machine("few instructions", instructions("default"), with_studies)
    yield Machine("AVX2", instructions("avx2") if X86 else {}, with_studies, missing=meaningless)
    yield Machine("1 thread", {})
    yield Machine("4 threads", THREADS, with_studies)
    yield Machine("20 times slower", CLOCK, SLOW)
    for python in pythons or [f"python{version}" for version in PYTHONS]:
        yield other_python(python)


def other_python(name: str) -> Machine:
    """The machine with this interpreter, if it is there and has what the tests need."""
    path = shutil.which(name)
    if path is None:
        return Machine(name, {}, missing="not found")
    probed = subprocess.run([path, "-c", PROBE], capture_output=True, text=True)
    if probed.returncode:
        return Machine(name, {}, missing="it lacks torch, pytest or another package that the tests need")
    version, torch = probed.stdout.split()
    return Machine(f"Python {version}, torch {torch}", {}, python=path)


def outcome_of(machine: Machine) -> Found:
    if machine.missing:
        return Found(f"left out: {machine.missing}")
    start = time.perf_counter()
    done = subprocess.run(machine.command(), env=machine.settings(), cwd=TESTS.parent, capture_output=True, text=True)
    output = done.stdout + done.stderr
    last = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|skipped|error).*?)(?: in [\d.]+s.*)?$", output, re.MULTILINE)
    words = last[-1] if last else f"pytest ended with status {done.returncode}"
    return Found(f"{words}; {time.perf_counter() - start:.0f} s", done.returncode != 0, output)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two machines and a choice of tests, in about a minute")
    parser.add_argument("--only", default="", metavar="WORD", help="machines whose name has this word")
    parser.add_argument("--pin", nargs="+", default=[], metavar="PATH", help="tests of studies, below tests/")
    parser.add_argument("--python", action="append", default=[], help="an interpreter that has torch and pytest")
    options = parser.parse_args()
    if not X86:
        print(f"{platform.machine()}: instructions are limited for torch's own kernels alone, and AVX2 is left out")
    every = quick_machines() if options.quick else machines(options.python)
    every = pinning_machines(options.pin) if options.pin else every
    chosen = [machine for machine in every if options.only in machine.name]
    found: list[Found] = []
    with ThreadPoolExecutor(cores() if options.quick else 1) as pool:
        for machine, one in zip(chosen, pool.map(outcome_of, chosen), strict=True):
            print(f"{machine.name:<40} {one.words}", flush=True)
            if one.failed:
                print("\n".join(line for line in one.output.splitlines() if re.match("FAILED|ERROR|E  ", line)))
            found.append(one)
    failed, ran = sum(one.failed for one in found), sum(not machine.missing for machine in chosen)
    outcome = f"tests fail on {failed}" if failed else "all tests pass" if ran else "nothing was tried"
    print(f"{ran} machines: {outcome}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
