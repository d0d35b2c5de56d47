"""`joma cache`: what a smaller key-value cache costs a model on a text. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.files import as_json, refuse_files, usable_file, usable_folder, write_json
from joma.host.printing import say
from joma.host.progress import ProgressLines
from joma.host.words import counted

if TYPE_CHECKING:
    from torch import Tensor

    from joma.cache.costs import Costs
    from joma.runs import Run
    from joma.scan.checkpoint import Place

LEFT_OUT = 3
VERSION = 1
"""Raised when what is measured changes: runs of before are not added to."""
_EPILOG = """\
MODEL is a folder with a causal language model of transformers, or one on the Hugging Face hub (owner/name). The table
shows what each policy adds to the loss of full attention, in nats per token, over the second half of every sequence,
with 95 % intervals over sequences.
Exit status: 0 all well, 3 a policy was left out, 2 bad input, 130 and 143 after Ctrl-C and SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `cache` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "cache",
        help="measure what a smaller key-value cache costs: windows, sinks, heavy hitters",
        description="Measure the loss of a language model against the share of its key-value cache that is kept.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model folder, or a hub model")
    add("--text", type=Path, required=True, metavar="FILE", help="the text to read, or its token ids as .npy")
    add("--tokenizer", type=Path, metavar="PATH", help="for --text (default: that of the model or its parent folder)")
    add("--step", metavar="STEP", help="which checkpoint, where MODEL has several")
    add(
        "--policies",
        nargs="+",
        metavar="NAME",
        help="any of window, sinks, h2o, h2o-oracle, snapkv, random, top-k (default: all)",
    )
    add(
        "--keep",
        nargs="+",
        default=["0.05", "0.1", "0.2", "0.5"],
        metavar="SHARE",
        help="shares of a sequence, as 0.1, or whole numbers of keys (default: 0.05 0.1 0.2 0.5)",
    )
    add("--seq-len", type=int, metavar="N", help="tokens per sequence (default: 512, or what the model was trained on)")
    add("--tokens", type=int, default=16_384, metavar="N", help="tokens of the text that are read (default: 16384)")
    add("--sinks", type=int, metavar="N", help="first tokens never evicted (default: 4 in sinks and random, else 0)")
    add(
        "--recent",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of the budget for the last tokens (default: 0.5)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the policy random (default: 0)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--json", metavar="FILE", help="write the numbers there as JSON, too; - for standard output")
    add(
        "--out",
        type=Path,
        default=Path("joma-out"),
        metavar="DIR",
        help="folder for figure, JSON and run (default: joma-out)",
    )
    add("--fresh", action="store_true", help="measure again what is already recorded")
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma cache` out; returns the exit status. Bad input raises BadInput with one sentence."""
    policies, keeps = _asked(options)
    screen = sys.stderr if options.json == "-" else sys.stdout
    place, tokens = _text(options)
    _must_fit(policies, keeps, tokens.shape[1], options)
    say(f"{place.name}: {counted(len(tokens), 'sequence')} of {tokens.shape[1]} tokens", screen)
    path = _run_path(options, place, tokens)
    model = _model(options, place)
    left = _positions(model, policies, screen)
    known = _warned(model.config, tokens.shape[1], screen)
    asked = {"sinks": options.sinks, "recent": options.recent, "seed": options.seed}
    from joma.cache.costs import measure

    with _run(path, options, place, tokens) as run:
        told = ProgressLines("cache", lambda line: say(line, sys.stderr), every=2.0)
        costs = measure(model, tokens, [one for one in policies if one not in left], keeps, run, progress=told, **asked)
    for warning in costs.warnings:
        if warning != known:
            say(f"warning: {warning}", screen)
    _tell(costs, place.name, path, options, left, screen)
    return LEFT_OUT if left else OK


def _asked(options: argparse.Namespace) -> tuple[list[str], list[float]]:
    """Policies and budgets, as far as they can be checked before anything is opened."""
    from joma.cache.rules import POLICIES, rule

    policies = [one for word in options.policies or POLICIES[1:] for one in word.split(",") if one]
    for one in policies:
        rule(one, 1.0, 2, sinks=options.sinks, recent=options.recent, seed=options.seed)
    if not {*policies} - {"full"}:
        raise BadInput(
            f"--policies must name at least one of {', '.join(POLICIES[1:])}: full attention is measured anyway"
        )
    keeps = [_keep(word) for word in options.keep]
    refuse_files(options.out)
    if options.json not in (None, "-"):
        usable_file(Path(options.json))
    from joma.host.devices import lacking
    from joma.host.errors import asked_for

    with asked_for():
        missing = lacking(options.device)
    if missing:
        raise BadInput(str(missing))
    return policies, keeps


def _keep(word: str) -> float:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    raise BadInput(f"--keep takes shares, as 0.1, or whole numbers of keys, got {word!r}")


def _text(options: argparse.Namespace) -> tuple[Place, Tensor]:
    """The checkpoint, and the token ids as (sequences, length)."""
    from joma.scan import open_series
    from joma.scan.running import config_of
    from joma.scan.text import tokens_of

    series = open_series(options.model, downloads=options.out).select(options.step)
    if len(series.places) > 1:
        steps = ", ".join([*map(str, series.steps[:4]), *["..."] * (len(series.steps) > 4)])
        raise BadInput(f"{options.model} has {len(series.places)} checkpoints ({steps}); name one with --step")
    (place,) = series.places
    config = config_of(place)
    from joma.cache.costs import SHORTEST
    from joma.cache.models import cannot_be_cut, default_seq_len
    from joma.probes.lengths import must_take

    if why := cannot_be_cut(config):
        raise BadInput(f"{place.name}: {why}")
    asked = None if options.seq_len is None else must_take(config, options.seq_len, least=SHORTEST)
    ids = tokens_of(place, config, options.text, options.tokenizer, seq_len=asked)
    length = min(default_seq_len(config), len(ids)) if asked is None else asked
    if options.tokens < length or len(ids) < length:
        given = f"--tokens {options.tokens}" if options.tokens < length else f"text {options.text}"
        have = min(options.tokens, len(ids))
        raise BadInput(f"{given} is too short: one sequence has {length} tokens, and there are {have}")
    count = min(len(ids), options.tokens) // length
    return place, ids[: count * length].view(count, length)


def _must_fit(policies: list[str], keeps: list[float], length: int, options: argparse.Namespace) -> None:
    from joma.cache.rules import rule

    for one in policies:
        for keep in keeps:
            rule(one, keep, length, sinks=options.sinks, recent=options.recent)


def _model(options: argparse.Namespace, place: Place) -> Any:
    import torch

    from joma.scan.loading import loaded_model
    from joma.scan.running import must_be_finite

    with place.folder() as folder:
        model = loaded_model(folder, torch.device(options.device), with_head=True)
    must_be_finite(model)
    return model.to(options.device)


def _positions(model: Any, policies: list[str], screen: Any) -> dict[str, str]:
    """Which policies the model cannot have, with the reason; and a note where positions stay what they are."""
    from joma.cache import CacheError
    from joma.cache._positions import turns

    if "sinks" not in policies:
        return {}
    try:
        if not any(turns(model).values()):
            say("note: sinks: this model has no rotary positions, so each key keeps its position in the text", screen)
    except CacheError as error:
        if "counted inside" not in str(error):
            raise
        say(f"left out: sinks: {error}", screen)
        return {"sinks": str(error)}
    return {}


def _warned(config: Any, length: int, screen: Any) -> str | None:
    """Say before the work what the config tells of the length; returns the warning, if there is one."""
    from joma.probes.lengths import beyond_training, unknown_training

    warning = beyond_training(config, length)
    if warning:
        say(f"warning: {warning}", screen)
    if note := unknown_training(config, length):
        say(f"note: {note}", screen)
    return warning


def _config(options: argparse.Namespace, place: Place, tokens: Tensor) -> dict[str, Any]:
    """What the numbers depend on, besides policy and budget."""
    digest = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
    return {
        "model": options.model,
        "step": options.step,
        "files": place.identity(),
        "tokens": digest,
        "sequences": list(tokens.shape),
        "sinks": options.sinks,
        "recent": options.recent,
        "seed": options.seed,
        "device": options.device.partition(":")[0],
    }


def _run_path(options: argparse.Namespace, place: Place, tokens: Tensor) -> Path:
    """One run for each model, text and setting: more policies and more budgets are added to it."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(options.model).resolve().name)[:60]
    identity = json.dumps(_config(options, place, tokens))
    return Path(options.out / "runs" / f"cache-{name}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}.sqlite")


def _run(path: Path, options: argparse.Namespace, place: Place, tokens: Tensor) -> Run:
    from joma.runs import Run

    usable_folder(path.parent)
    if options.fresh:
        Run.delete(path)
    if not path.exists():
        return Run.create(path, study="cache", config=_config(options, place, tokens), version=VERSION)
    run = Run.open(path, write=True)
    if run.version != VERSION:
        run.close()
        raise BadInput(f"{path} was measured by another version of joma cache; use --fresh to start over")
    return run


def _tell(costs: Costs, name: str, path: Path, options: argparse.Namespace, left: dict[str, str], screen: Any) -> None:
    """Table, JSON and figure."""
    content = {**costs.as_json(), "model": options.model, "text": str(options.text), "left_out": left, "run": str(path)}
    say(
        f"full attention: {costs.full:.3f} nats per token; what the policies add, by the share of the cache kept:",
        screen,
    )
    say(costs.table(), screen, keep="\n")
    over = f"±: 95 % interval over n = {costs.sequences} sequences, each compared with itself under full attention"
    say(f"no intervals: {costs.no_interval}" if costs.no_interval else over, screen)
    target = options.out / f"{path.stem}.json"
    write_json(target, content)
    if options.json == "-":
        say(as_json(content), keep="\n", end="")
    elif options.json is not None:
        write_json(Path(options.json), content)
    say(f"json: {target}", screen)
    from joma.cache.drawing import write_png

    try:
        spread = "one sequence, no intervals" if costs.no_interval else f"95 % intervals, n = {costs.sequences}"
        write_png(costs, target.with_suffix(".png"), title=f"{name} ({spread})")
    except ImportError:
        say("figure: none, since matplotlib is not installed (pip install 'joma[viz]')", screen)
    else:
        say(f"figure: {target.with_suffix('.png')}", screen)
