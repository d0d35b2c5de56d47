"""`joma atlas`: scan every run of a list of public models, and write one page with intervals over their seeds."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.outputs import DEFAULT_OUT, add_folder
from joma.cli.shard import add_on, add_shard
from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.printing import say
from joma.host.words import counted

if TYPE_CHECKING:
    from joma.scan.atlas import ModelSeries

NONE_USABLE, LEFT_OUT = 1, 3
_PASSED_ON = ("steps", "measures", "groups", "text", "tokenizer", "seq_len", "device", "jobs", "on", "budget", "fresh")
_SHOWN = ("only", "steps", "measures", "groups", "text", "tokenizer", "seq_len")
_EPILOG = """\
MANIFEST is pythia, polypythias or olmo, or a TOML file with a [[series]] of runs for each model. The same command goes
on where it was broken off. Exit status: 0 all well, 3 runs, steps or measures were left out, 1 no run was usable, 2 bad
input, 130 and 143 after Ctrl-C and SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `atlas` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "atlas",
        help="scan every revision of a list of public models",
        description="Scan every revision of every run of a list, reading only the tensors that are needed, and write "
        "one page with intervals over runs that differ in their seed.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("manifest", metavar="MANIFEST", help="pythia, polypythias, olmo, or a TOML file")
    add("--list", action="store_true", help="list the series and what a scan reads of each, and measure nothing")
    add("--only", metavar="NAMES", help="these series, separated by commas (default: all)")
    add("--steps", metavar="STEPS", help="0,1,2 or A:B:C, from A to B in strides of C (default: all)")
    add("--measures", default="stable_rank", metavar="NAMES", help="as of joma scan (default: stable_rank)")
    add("--groups", default="mlp", metavar="NAMES", help="groups of matrices (default: mlp, the MLP's lower layer)")
    add("--text", type=Path, metavar="FILE", help="text for measures that run the model, or its token ids as .npy")
    add("--tokenizer", type=Path, metavar="PATH", help="for --text (default: that of each model)")
    add("--seq-len", type=int, metavar="N", help="tokens per window of --text")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--jobs", type=int, metavar="N", help="checkpoints at a time (default: 1; with --on as many as fit)")
    add_on(parser, "checkpoints are measured")
    add("--budget", type=float, default=20.0, metavar="GB",
        help="disk for downloads that cannot be read in part (default: 20)")  # fmt: skip
    add("--fresh", action="store_true", help="measure again what is already recorded")
    add_folder(parser, f"folder for page, runs and downloads (default: {DEFAULT_OUT})", DEFAULT_OUT, sent=True)
    add_shard(parser, "runs")
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma atlas` out; returns the exit status."""
    from joma.scan.atlas import read_manifest, scan_series

    listed = _chosen(read_manifest(options.manifest), options.only)
    if options.list:
        say("\n".join(_lines(listed)), keep="\n")
        return OK
    mine = listed if options.shard is None else _share(listed, options.shard)
    measured = scan_series(
        mine,
        out=options.out,
        progress=lambda line: say(line, sys.stderr if line.startswith("(") else sys.stdout),
        **{name: getattr(options, name) for name in _PASSED_ON},
    )
    runs, of = sum(len(one.scans) for one in measured), sum(len(one.runs) for one in mine)
    say(f"{runs} of {counted(of, 'run')} usable")
    if not runs:
        return NONE_USABLE
    if options.shard is not None:
        say(f"shard {options.shard} is done; when all are, and their runs lie in one folder: {_command(options)}")
    else:
        from joma.report import write_atlas

        path = options.out / f"atlas-{Path(options.manifest).stem}.html"
        say(f"page: {write_atlas(measured, path, made_by=_command(options))}")
    return OK if all(one.complete for one in measured) else LEFT_OUT


def _chosen(listed: list[ModelSeries], only: str | None) -> list[ModelSeries]:
    if only is None:
        return listed
    wanted, there = [name.strip() for name in only.split(",")], {one.name: one for one in listed}
    if unknown := [name for name in wanted if name not in there]:
        raise BadInput(f"no series is called {unknown[0]!r}; there are {', '.join(there)}", argument="only")
    return [there[name] for name in dict.fromkeys(wanted)]


def _share(listed: list[ModelSeries], shard: str) -> list[ModelSeries]:
    """The series with the runs of one share; runs are dealt out one by one, whatever series they are of."""
    from dataclasses import replace

    from joma.scale.shards import read_shard

    mine = set(read_shard(shard).dealt([(one.name, run) for one in listed for run in one.runs]))
    kept = (replace(one, runs=tuple(run for run in one.runs if (one.name, run) in mine)) for one in listed)
    return [one for one in kept if one.runs]


def _lines(listed: list[ModelSeries]) -> list[str]:
    lines, known = [], [one.gigabytes for one in listed if one.gigabytes is not None]
    for one in listed:
        reads = "size not known" if one.gigabytes is None else f"{one.gigabytes:,.1f} GB of the MLP's lower matrices"
        lines.append(f"{one.name}: {counted(len(one.runs), 'run')}, {reads}")
    return [*lines, f"together: {sum(known):,.1f} GB"] if known else lines


def _command(options: argparse.Namespace) -> str:
    words = ["joma", "atlas", options.manifest]
    for name in _SHOWN:
        given = getattr(options, name)
        words += [f"--{name.replace('_', '-')}", str(given)] if given is not None else []
    return shlex.join([*words, "--out", str(options.out)])
