"""`joma scan`: its options, and what it prints. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.files import as_json, refuse_files, usable_file, write_json
from joma.host.printing import say
from joma.host.words import counted

if TYPE_CHECKING:
    from joma.runs import Run
    from joma.scan import Fault, Plan, Scan, Series

NONE_USABLE, LEFT_OUT = 1, 3
_EPILOG = """\
SOURCE is a model on the Hugging Face hub (owner/name, with revisions named by step), a folder of checkpoints
(checkpoint-100, step1000: one folder per step), or a single checkpoint (a model folder, a .safetensors file, a state
dict in .pt, .bin or .ckpt). Exit status: 0 all well, 3 steps were left out, 1 no step was usable, 2 bad input,
130 and 143 after Ctrl-C and SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `scan` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "scan",
        help="measure a series of checkpoints: stable ranks, norms, coherence, attention entropy",
        description="Measure every checkpoint of a training run, reading only the tensors that are needed.",
        epilog=_EPILOG,
    )
    parser.add_argument("source", metavar="SOURCE", help="a hub model, a folder of checkpoints, or one checkpoint")
    parser.add_argument("--steps", metavar="STEPS", help="0,1,2 or A:B:C, from A to B in strides of C (default: all)")
    parser.add_argument(
        "--measures",
        default="stable_rank",
        metavar="NAMES",
        help="of stable_rank, spectral_norm, coherence, entropy; separated by commas (default: stable_rank)",
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="text for entropy, or its token ids as .npy")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="checkpoints at a time (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="the curves as JSON; - for standard output")
    parser.add_argument("--out", type=Path, default=Path("joma-out"), metavar="DIR", help="for the run and downloads")
    parser.add_argument(
        "--pattern",
        action="append",
        default=[],
        metavar="NAME=REGEX",
        help="matrices to measure, by full tensor name; mlp and embedding replace those that are found",
    )
    parser.add_argument(
        "--budget", type=float, default=20.0, metavar="GB", help="disk for downloads that cannot be read in part"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what is already recorded")
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma scan` out; returns the exit status. Bad input raises ValueError with one sentence."""
    from joma.scan import NoneUsable, open_series, plan, sweep
    from joma.scan.architecture import read_patterns

    _check(options)
    patterns = read_patterns(options.pattern)
    screen = sys.stderr if options.json == "-" else sys.stdout
    series = open_series(options.source, downloads=options.out, budget=options.budget * 1e9)
    series = series.select(options.steps)
    say(f"{series.source}: {counted(len(series.places), 'checkpoint')}", screen)
    names = [name.strip() for name in options.measures.split(",") if name.strip()]
    try:
        settled = plan(series, measures=names, patterns=patterns, text=options.text, device=options.device)
    except NoneUsable as error:
        _tell(error.faults, screen)
        say(f"joma: {error}", sys.stderr)
        return NONE_USABLE
    path = _run_path(options, series, patterns)
    with _run(path, settled, fresh=options.fresh) as run:
        found = sweep(settled, run, jobs=options.jobs, report=lambda line: say(line, screen))
    _write(found, path, options.json)
    _tell(found.faults, screen)
    usable, total = len(found.steps), len(series.places)
    say(f"{usable} of {total} steps usable", screen)
    say(f"run: {path}", screen)
    return OK if not found.faults else LEFT_OUT if found.steps else NONE_USABLE


def _check(options: argparse.Namespace) -> None:
    if options.jobs < 1:
        raise BadInput(f"--jobs must be at least 1, got {options.jobs}")
    if not 0 < options.budget < 1e9:
        raise BadInput(f"--budget must be a positive number of gigabytes, got {options.budget}")
    refuse_files(options.out)
    if options.json not in (None, "-"):
        usable_file(Path(options.json))


def _run_path(options: argparse.Namespace, series: Series, patterns: dict[str, str]) -> Path:
    """One run for each source, set of patterns and text: more steps and more measures are added to it."""
    text = None if options.text is None else hashlib.sha256(options.text.read_bytes()).hexdigest()
    identity = json.dumps([series.source, sorted(patterns.items()), text])
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(series.source).name)[:60]
    return Path(options.out / "runs" / f"scan-{name}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}.sqlite")


def _run(path: Path, settled: Plan, *, fresh: bool) -> Run:
    """The run to add to. It is never finished: a training run that goes on brings further steps."""
    from joma.runs import Run, plain_config
    from joma.scan.sweep import VERSION

    config = plain_config(settled.config())
    if fresh:
        Run.delete(path)
    if not path.exists():
        return Run.create(path, study="scan", config=config, version=VERSION)
    run = Run.open(path, write=True)
    if run.config != config or run.version != VERSION:
        run.close()
        raise BadInput(f"{path} was measured from other tensors or by another version; use --fresh to start over")
    return run


def _write(found: Scan, run: Path, target: str | None) -> None:
    content = {**found.as_json(), "run": str(run)}
    if target == "-":
        say(as_json(content), keep="\n", end="")
    elif target is not None:
        write_json(Path(target), content)


def _tell(faults: list[Fault], screen: Any) -> None:
    """One line per step: its first fault, and how many more tensors it has."""
    by_step: dict[int, list[Fault]] = {}
    for fault in faults:
        by_step.setdefault(fault.step, []).append(fault)
    for several in by_step.values():
        more = f" (and {len(several) - 1} more tensors)" if len(several) > 1 else ""
        say(f"left out: {several[0]}{more}", screen)
