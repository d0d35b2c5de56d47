"""`joma scan`: its options, and what it prints. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.outputs import DEFAULT_OUT, add_folder, add_json, add_tables, give_json, screen_beside
from joma.cli.shard import add_on, add_shard, how_to_merge, refuse_with_shard
from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.files import named_file
from joma.host.printing import say
from joma.host.words import counted

if TYPE_CHECKING:
    from joma.report import ShownScan
    from joma.scan import Fault, Scan
    from joma.scan.result.thresholds import Threshold

NONE_USABLE, LEFT_OUT, BEYOND = 1, 3, 4
_MOST = 10  # numbers beyond a threshold that are printed
_EPILOG = """\
SOURCE is a model on the Hugging Face hub (owner/name, with revisions named by step), a folder of checkpoints
(checkpoint-100, step1000: one folder per step), a single checkpoint (a model folder, a .safetensors file, a state
dict in .pt, .bin or .ckpt), or the address of one of these (s3://, gs://, az://; https:// of a file). The last line
printed is the path of a page with figures. Exit status: 0 all well, 3 steps or measures were left out (with --strict:
or matrices), 4 a number is beyond a --fail-if, 1 no step was usable, 2 bad input, 130 and 143 after Ctrl-C and
SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `scan` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "scan",
        help="measure every checkpoint of a training run",
        description="Measure every checkpoint of a training run, reading only the tensors that are needed.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE", help="a hub model, a folder of checkpoints, or one checkpoint")
    add("--compare", action="store_true", help="two sources, or earlier scans (.sqlite), on one axis")
    add("--list", action="store_true", help="list the tensors with their groups, and measure nothing")
    add("--steps", metavar="STEPS", help="0,1,2 or A:B:C, from A to B in strides of C (default: all)")
    add("--axis", metavar="NAME", help="order by tokens or date in the names (default: step, or epoch without one)")
    add(
        "--measures",
        default="stable_rank",
        metavar="NAMES",
        help="any of stable_rank, spectral_norm, alpha, coherence, entropy, sparsity, spread, allocation; separated by "
        "commas (default: stable_rank)",
    )
    add("--groups", metavar="NAMES", help="groups of matrices, as mlp,attention_q (default: all that are found)")
    add("--root", metavar="NAME", help="which model of a checkpoint that has several, such as ema")
    add("--base", metavar="FOLDER", help="model that adapters are merged with, or none to measure them alone")
    add("--text", type=Path, metavar="FILE", help="text for measures that run the model, or its token ids as .npy")
    add("--tokenizer", type=Path, metavar="PATH", help="for --text (default: that of the checkpoint or its parent)")
    add("--seq-len", type=int, metavar="N", help="tokens per window of --text (default: 512, or what was trained on)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--jobs", type=int, metavar="N", help="checkpoints at a time (default: 1; with --on as many as fit)")
    add_on(parser, "checkpoints are measured")
    add_json(parser, "write the curves there as JSON")
    add_tables(parser)
    add(
        "--fail-if", action="append", default=[], metavar="RULE",
        help="end with status 4 if a rule is met: MEASURE[/GROUP][@LAYER] as in stable_rank/mlp@3<5; may be repeated",
    )  # fmt: skip
    add("--strict", action="store_true", help="end with status 3 if a matrix has an unknown name")
    add("--no-page", action="store_true", help="write no page with figures")
    add("--keep-suspicious", action="store_true", help="keep steps whose weights seem to be those of another step")
    add_folder(parser, f"folder for page, run and downloads (default: {DEFAULT_OUT})", DEFAULT_OUT, sent=True)
    add("--pattern", action="append", default=[], dest="patterns", metavar="NAME=REGEX",
        help="matrices to measure, by full tensor name; mlp and embedding replace the usual groups")  # fmt: skip
    add("--roles", metavar="FILE", help='TOML file of further names: [names], then lines as "a.b" = "group"')
    add("--budget", type=float, default=20.0, metavar="GB",
        help="disk for downloads that cannot be read in part (default: 20)")  # fmt: skip
    add("--fresh", action="store_true", help="measure again what is already recorded")
    add_shard(parser, "checkpoints")
    parser.set_defaults(call=call)


_PASSED_ON = (
    "steps", "axis", "measures", "groups", "roles", "root", "base", "text", "tokenizer", "seq_len", "device", "jobs",
    "on", "out", "budget", "fresh", "keep_suspicious", "shard",
)  # fmt: skip
"""Options that are arguments of `joma.scan.scan` under the same name."""


@dataclass(frozen=True)
class Done:
    """A scan that is over: what it found, and what is beyond a threshold."""

    found: Scan
    run: Path
    beyond: tuple[str, ...] = ()
    summaries: tuple[str, ...] = ()  # of what is beyond a threshold, one per threshold
    earlier: bool = False  # whether it was only read: then this command would not measure it again
    strict: bool = False

    @property
    def status(self) -> int:
        if not self.found.steps:
            return NONE_USABLE
        lost = not self.found.complete or (self.strict and self.found.not_taken)
        return BEYOND if self.beyond else LEFT_OUT if lost else OK


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma scan` out; returns the exit status. Bad input raises ValueError with one sentence."""
    from joma.scan import NoneUsable

    _check(options)
    screen = screen_beside(options.json)
    if options.list:
        return _list(options, screen)
    rules: list[Threshold] = []
    if options.fail_if:
        from joma.scan.result.thresholds import read_thresholds

        rules = read_thresholds(options.fail_if, [name.strip() for name in options.measures.split(",")])
    try:
        done = [_one(source, options, rules, screen) for source in options.source]
    except NoneUsable as error:
        _tell(error.faults, screen)
        say(f"joma: {error}", sys.stderr)
        return NONE_USABLE
    if options.shard is not None:
        return _end_shard(done[0], options, screen)
    return end_scan(done, options, screen)


def _end_shard(one: Done, options: argparse.Namespace, screen: Any) -> int:
    """The last lines of a shard: pages and tables come when all shards are merged."""
    from joma.scale.parts import read_part
    from joma.scale.shards import read_shard

    _tell(one.found.faults, screen)
    part = read_part(read_shard(options.shard).folder(options.out))
    say(f"{len(one.found.steps)} of {counted(len(part.mine), 'checkpoint')} measured", screen)
    say(how_to_merge(part), screen)
    return OK if one.found.complete else LEFT_OUT


def end_scan(done: Sequence[Done], options: argparse.Namespace, screen: Any) -> int:
    """Tables, the page and the last lines of scans that are over; returns the exit status."""
    _write(done, options)
    page = None if options.no_page else _page(done, options)
    for one in done:
        _summarise(one, screen, on_page=page is not None)
    if page:
        say(f"page: {page}", screen)
    return max((one.status for one in done), key=_RANK.index)


_RANK = (OK, LEFT_OUT, BEYOND, NONE_USABLE)  # exit statuses, the worse the later


def _check(options: argparse.Namespace) -> None:
    if len(options.source) != (2 if options.compare else 1):
        given = counted(len(options.source), "source")
        raise BadInput(f"--compare takes two sources, got {given}" if options.compare else
                       f"joma scan takes one source, got {given}; --compare takes two")  # fmt: skip
    if options.shard is not None:
        refuse_with_shard(options, "compare", "list", "json", "csv", "parquet", "fail_if")
    if options.parquet:
        from joma.scan.result.tidy import must_be_writable

        must_be_writable("parquet")


def _list(options: argparse.Namespace, screen: Any) -> int:
    from joma.scan.names.architecture import read_patterns
    from joma.scan.names.roles import read_roles
    from joma.scan.result.listing import list_tensors
    from joma.scan.sources.places import Which, find_series

    which = Which(**{name: getattr(options, name) for name in ("steps", "axis", "base", "budget")})
    series = find_series(options.source[0], which, options.out)
    given = {"patterns": read_patterns(options.patterns), "roles": read_roles(options.roles) if options.roles else None}
    listing = list_tensors(series.places[-1], root=options.root, **given)
    say(f"{series.source}: {counted(len(series.places), 'checkpoint')}; this is {listing.checkpoint}", screen)
    say(listing.text(), screen, keep="\n")
    give_json(options.json, listing.as_json())
    return LEFT_OUT if options.strict and listing.not_taken else OK


def _one(source: str, options: argparse.Namespace, rules: Sequence[Threshold], screen: Any) -> Done:
    """Scan one source, or read an earlier scan where its run is named."""
    if source.endswith(".sqlite") and Path(source).is_file():
        return _earlier(Path(source), options, rules)
    from joma.scan import scan
    from joma.scan.names.architecture import read_patterns

    found = scan(
        source,
        patterns=read_patterns(options.patterns),
        progress=lambda line: say(line, sys.stderr if line.startswith("(") else screen),  # in brackets: only if slow
        **{name: getattr(options, name) for name in _PASSED_ON},
    )
    assert found.run is not None  # there is always a folder for it
    return Done(found, found.run, *beyond_thresholds(rules, found), strict=options.strict)


def _earlier(path: Path, options: argparse.Namespace, rules: Sequence[Threshold]) -> Done:
    from joma.runs import Run
    from joma.scan.sweep.record import stored_scan

    if not options.compare:
        raise BadInput(f"{path} is the run of an earlier scan; joma report {path} shows it, --compare takes it as well")
    with Run.open(path) as run:
        found = stored_scan(run)
    if not found.steps:
        raise BadInput(f"{path} holds no measured step")
    return Done(found, path, *beyond_thresholds(rules, found), earlier=True, strict=options.strict)


def beyond_thresholds(rules: Sequence[Threshold], found: Scan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The numbers beyond a threshold, and a summary for each threshold."""
    if not rules or not found.steps:
        return (), ()
    from joma.scan.result.thresholds import summaries, violations

    return tuple(map(str, violations(rules, found))), tuple(summaries(rules, found))


def _page(done: Sequence[Done], options: argparse.Namespace) -> Path:
    """Write the page of one scan, or of two compared; returns its path."""
    from joma.report import write_comparison, write_scan_page

    shown = [_shown(one, options) for one in done]
    if len(shown) == 1:
        return write_scan_page(shown[0], options.out / f"{done[0].run.stem}.html")
    stems = [one.run.stem.removeprefix("scan-") for one in done]
    path = options.out / f"compare-{stems[0]}-{stems[1]}.html"
    return write_comparison((shown[0], shown[1]), path, made_by=_command(options, options.source))


def _shown(one: Done, options: argparse.Namespace) -> ShownScan:
    from joma.report import show_scan
    from joma.runs import Run

    with Run.open(one.run) as run:
        again = f"joma report {one.run}" if one.earlier else _command(options, [one.found.source])
        return show_scan(one.found, run, command=again, violations=one.beyond, draw=not options.compare)


def _command(options: argparse.Namespace, sources: Sequence[str]) -> str:
    words = ["joma", "scan", *(["--compare"] if len(sources) == 2 else []), *sources]
    for name in ("steps", "axis", "measures", "groups", "roles", "root", "base", "text", "tokenizer", "seq_len"):
        given = getattr(options, name)
        words += [f"--{name.replace('_', '-')}", str(given)] if given is not None else []
    for option, several in (("--pattern", options.patterns), ("--fail-if", options.fail_if)):
        words += [word for given in several for word in (option, given)]
    for option in ("keep_suspicious", "strict"):
        words += [f"--{option.replace('_', '-')}"] if getattr(options, option) else []
    return shlex.join([*words, "--out", str(options.out)])


def _write(done: Sequence[Done], options: argparse.Namespace) -> None:
    each = [{**one.found.as_json(), "run": str(one.run)} for one in done]
    head = {key: each[0][key] for key in ("schema", "schema_version", "joma")}
    content = each[0] if len(each) == 1 else {**head, "scans": each}
    give_json(options.json, content)
    from joma.scan.result.tidy import write_table

    for to in ("csv", "parquet"):
        if path := getattr(options, to):
            write_table([one.found for one in done], to, named_file(path))


def _summarise(one: Done, screen: Any, *, on_page: bool) -> None:
    _tell(one.found.faults, screen)
    for warning in one.found.warnings if one.earlier else ():
        say(f"warning: {warning}", screen)
    for note in one.found.notes:
        say(f"note: {note}", screen)
    for line in one.summaries:
        say(f"fail-if: {line}", screen)
    for line in one.beyond[:_MOST]:
        say(f"beyond: {line}", screen)
    if len(one.beyond) > _MOST:
        rest = "the page lists them, and --csv FILE" if on_page else "--csv FILE"
        say(f"beyond: {len(one.beyond) - _MOST:,} more; {rest} writes every number", screen)
    say(f"{len(one.found.steps)} of {one.found.looked_at} {one.found.axis.removesuffix('s')}s usable", screen)
    say(f"run: {one.run}", screen)


def _tell(faults: list[Fault], screen: Any) -> None:
    """One line per step and measure: its first fault, and how many more tensors it has."""
    together: dict[tuple[int, str | None], list[Fault]] = {}
    for fault in faults:
        together.setdefault((fault.step, fault.measure), []).append(fault)
    for several in together.values():
        more = f" (and {len(several) - 1} more tensors)" if len(several) > 1 else ""
        say(f"left out: {str(several[0]).replace('(fresh)', '(--fresh)')}{more}", screen)
