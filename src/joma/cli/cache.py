"""`joma cache`: what a smaller key-value cache costs a model on a text. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.outputs import DEFAULT_OUT, add_folder, add_json, give_json, screen_beside
from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.extras import how_to_install
from joma.host.files import write_json
from joma.host.printing import say
from joma.host.progress import ProgressLines

if TYPE_CHECKING:
    from joma.cache.costs import Costs

LEFT_OUT = 3
_EPILOG = """\
MODEL is a folder with a causal language model of transformers, or one on the Hugging Face hub (owner/name). The table
shows what each policy adds to the loss of full attention, in nats per token, over the second half of every sequence,
with 95 % intervals over sequences.
Exit status: 0 all well, 3 a policy was left out, 2 bad input, 130 and 143 after Ctrl-C and SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `cache` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "cache",
        help="measure what a smaller key-value cache costs",
        description="Measure the loss of a language model against the share of its key-value cache that is kept.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model folder, or a hub model")
    add("--text", type=Path, required=True, metavar="FILE", help="the text to read, or its token ids as .npy")
    add("--tokenizer", type=Path, metavar="PATH", help="for --text (default: that of the model or its parent folder)")
    add("--step", metavar="STEP", help="which checkpoint of several")
    add("--policies", nargs="+", metavar="NAME",
        help="any of window, sinks, h2o, h2o-oracle, snapkv, random, top-k (default: all)")  # fmt: skip
    add("--keep", nargs="+", default=["0.05", "0.1", "0.2", "0.5"], metavar="SHARE",
        help="shares of a sequence, as 0.1, or whole numbers of keys (default: 0.05 0.1 0.2 0.5)")  # fmt: skip
    add("--seq-len", type=int, metavar="N", help="tokens per sequence (default: 512, or what the model was trained on)")
    add("--tokens", type=int, default=16_384, metavar="N", help="tokens of the text that are read (default: 16384)")
    add("--sinks", type=int, metavar="N", help="first tokens never evicted (default: 4 in sinks and random, else 0)")
    add("--recent", type=float, default=0.5, metavar="SHARE",
        help="share of the budget for the last tokens (default: 0.5)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="seed of the policy random (default: 0)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add_json(parser, "write the numbers there as JSON, too")
    add_folder(parser, f"folder for figure, JSON and run (default: {DEFAULT_OUT})", DEFAULT_OUT)
    add("--fresh", action="store_true", help="measure again what is already recorded")
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma cache` out; returns the exit status. Bad input raises BadInput with one sentence."""
    budgets = [_budget(word) for word in options.keep]
    from joma.cache import POLICIES, evaluate

    screen = screen_beside(options.json)
    given = ("seq_len", "tokens", "sinks", "recent", "seed", "tokenizer", "step", "device", "out", "fresh")
    costs = evaluate(
        options.model,
        options.text,
        policies=[one for word in options.policies or POLICIES[1:] for one in word.split(",") if one],
        budgets=budgets,
        progress=ProgressLines("cache", lambda line: say(line, sys.stderr), every=2.0),
        notify=lambda sentence: say(sentence, screen),
        **{name: getattr(options, name) for name in given},
    )
    _print(costs, options, screen)
    return LEFT_OUT if costs.left_out else OK


def _budget(word: str) -> float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    raise BadInput(f"--keep takes shares, as 0.1, or whole numbers of keys, got {word!r}")


def _print(costs: Costs, options: argparse.Namespace, screen: Any) -> None:
    run: Any = costs.run
    content = {**costs.as_json(), "model": options.model, "text": str(options.text)}
    content |= {"left_out": dict(costs.left_out), "run": str(run)}
    added = "what the policies add, by the share of the cache kept"
    say(f"full attention: {costs.full:.3f} nats per token; {added}:", screen)
    say(costs.table(), screen, keep="\n")
    over = f"±: 95 % interval over n = {costs.sequences} sequences, each compared with itself under full attention"
    say(f"no intervals: {costs.no_interval}" if costs.no_interval else over, screen)
    target = options.out / f"{run.stem}.json"
    write_json(target, content)
    give_json(options.json, content)
    say(f"json: {target}", screen)
    from joma.cache.drawing import write_png

    try:
        spread = "one sequence, no intervals" if costs.no_interval else f"95 % intervals, n = {costs.sequences}"
        write_png(costs, target.with_suffix(".png"), title=f"{costs.name} ({spread})")
    except ImportError:
        say(f"figure: none, since matplotlib is not installed ({how_to_install('viz')})", screen)
    else:
        say(f"figure: {target.with_suffix('.png')}", screen)
