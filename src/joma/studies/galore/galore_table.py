"""GaLore's Table 2 on text at hand: eight methods, each at its own best rate, against a tuned full-rank baseline.

Full rank has two kinds: one rate for all weights, as in the paper, and "scaled", with GaLore's smaller rate in the
blocks. The second was added after runs at quick scale, in which GaLore was ahead of the first, and before any run at
paper scale. What matters was set before both.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, nan

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Progress, Study, each_claim
from joma.claims.evidence import Test, at_most
from joma.claims.verdicts import Numbers, by_effect, by_residual, not_run
from joma.host.devices import lacking
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.galore._table_config import (
    FULL,
    GALORE,
    INSTALLED,
    LORA,
    LOW,
    METHODS,
    RANDOM,
    RELORA,
    SCALED,
    Config,
    shown,
)
from joma.studies.galore._table_costs import operations_per_token, states_by_formula
from joma.studies.galore._table_figures import draw_curves, draw_ends, draw_rates
from joma.studies.galore._table_record import LONG, SWEEP, Table, place
from joma.studies.galore._table_text import Reading, read_text, remember, same_text
from joma.studies.galore._table_training import Trainer, Trial

GAP = log(34.88 / 34.06)
"""Nats by which GaLore is behind full rank in the paper, at 60 million parameters."""
MATTERS = 0.02  # nats, 2 % of perplexity: the paper calls methods that are GAP = 0.024 apart comparable
SLOWER = 0.1  # of a step: what the paper calls negligible
ROUNDING = 0.05  # of the bytes: what the issue of memory allows between count and formula

CLOSE = Claim(
    "close-to-full-rank",
    "GaLore Table 2",
    "GaLore trains almost as well as full rank, and much better than factors of the same rank.",
    matters=MATTERS,
    unit="nats",
)
FIRST = Claim(
    "full-rank-is-best",
    "GaLore Table 2",
    "No method with low rank reaches the perplexity of full rank.",
    corrected="No method with low rank reaches full rank if full rank may have GaLore's smaller rate in the blocks.",
    matters=GAP / 2,  # half of what the paper prints between full rank and the next method
    unit="nats",
)
ADAPTERS = Claim(
    "better-than-adapters",
    "GaLore Table 2",
    "GaLore reaches a lower perplexity than LoRA and ReLoRA of the same rank.",
    matters=MATTERS,
    unit="nats",
)
FACTORS = Claim(
    "factors-are-worst",
    "GaLore Table 2",
    "Weights that are products of two factors have the highest perplexity of all methods.",
    matters=MATTERS,
    unit="nats",
)
SUBSPACE = Claim(
    "subspace-of-the-gradient",
    "GaLore Sec. 4",
    "The leading singular vectors of the gradient are the right subspace to train in: a random one is worse.",
    matters=MATTERS,
    unit="nats",
)
MEMORY = Claim(
    "memory-of-states",
    "GaLore Table 1",
    "For an m x n matrix with m <= n, GaLore keeps m r + 2 n r numbers where Adam keeps 2 m n.",
)
TIME = Claim(
    "little-overhead",
    "GaLore Sec. 4",
    "Computing subspaces and projecting costs less than a tenth of the time of a step.",
    matters=0.01,  # of a step: less would not be seen in a bill
    unit="%",
)
PRINTED = Claim(
    "printed-perplexities",
    "GaLore Table 2",
    "At 60 million parameters full rank has perplexity 34.06, GaLore 34.88, LoRA 34.99, ReLoRA 37.04, low rank 78.18.",
    matters=MATTERS,
    unit="nats",
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Find each method's rate at the short horizon, then compare at the long one. Every trial is kept when it ends."""
    if missing := lacking(config.device):
        raise NotRun(str(missing), AT_PAPER_SCALE)
    reading = Reading(config, read_text(config, progress))
    remember(reading, run)
    trainer = Trainer(config, reading)
    total = len(config.methods) * (len(config.rates) * config.sweep_steps + config.seeds * config.steps)
    done = 0
    for horizon, trial in trials(config, run):
        name = place(horizon, trial.method, trial.rate, trial.seed)
        progress(min(done / total, 0.99), f"training {name}")
        if f"{name}/held out" not in run:
            found = trainer.carry_out(trial)
            run.record(0, {f"{name}/{key}": value for key, value in found.items()})
        done += trial.steps


def trials(config: Config, run: Run) -> Iterator[tuple[str, Trial]]:
    """All trials, in an order in which later ones can depend on the record of earlier ones."""
    for method in config.methods:
        for rate in config.rates:
            yield SWEEP, Trial(method, rate, config.seed, config.sweep_steps)
    for method in config.methods:
        for rate in _rates_to_compare(config, Table(run), method):
            yield LONG, Trial(method, rate, config.seed, config.steps)
    for method in config.methods:  # the first ones carry most claims: what is stopped early has them
        chosen = Table(run).rate(method)
        for seed in range(config.seed + 1, config.seed + config.seeds):
            if chosen is not None:
                yield LONG, Trial(method, chosen, seed, config.steps)


def _rates_to_compare(config: Config, table: Table, method: str) -> list[float]:
    """The best rate of the short horizon, and for some methods the next lower one: long runs often want less."""
    best = table.best_of(SWEEP, method)
    if best is None:
        return []
    lower = [rate for rate in table.rates if rate < best]
    return [best, *lower[-1:]] if method in config.neighbours else [best]


AT_PAPER_SCALE = "joma verify galore-table --scale paper"


def _effect(
    claim: Claim,
    table: Table,
    cases: dict[str, Comparison],
    *,
    expected: str,
    what: str,
    corrected: dict[str, Comparison] | None = None,
    size: tuple[Test, ...] = (),
    details: Numbers | None = None,
) -> Finding:
    """By the interval over seeds; not run where a method did not learn with any seed."""
    if not all(found.seeds for found in [*cases.values(), *(corrected or {}).values()]):
        reason = "a method of this comparison learned no more than how frequent tokens are"
        return not_run(claim, expected, reason, AT_PAPER_SCALE)
    shown = {**(details or {}), **_perplexities(table)}
    return by_effect(claim, cases, corrected=corrected, expected=expected, what=what, size=size, details=shown)


def _perplexities(table: Table) -> Numbers:
    """Of each method that learned, with the rate it was compared at."""
    return {
        shown(method): {"perplexity": float(np.exp(np.nanmean(table.final(method)))), "rate": table.rate(method) or nan}
        for method in table.methods()
    }


def _clearly_at_most(what: str, found: Comparison, bound: float, unit: str) -> Test:
    """The test that a difference is at most a bound; unknown where the interval holds the bound."""
    low, high = found.low - found.control, found.high - found.control
    return at_most(what, nan if low <= bound < high else found.difference, bound, unit)


def _close(run: Run) -> Finding:
    """Against the better kind of full rank: the harder control."""
    table = Table(run)
    gap = table.more(GALORE, table.tuned)
    return _effect(
        CLOSE,
        table,
        {"": table.more(LOW, GALORE)},
        expected=f"a lower loss than low rank, and a loss at most {GAP:.3f} nats above tuned full rank, as printed",
        what="loss of low rank (control: GaLore)",
        size=(_clearly_at_most("GaLore minus tuned full rank", gap, GAP, "nats"),),
        details={
            f"GaLore minus {shown(method)}": {"nats": found.difference, "half of its interval": found.half_width}
            for method in (FULL, SCALED)
            if (found := table.more(GALORE, method)).seeds
        },
    )


def _first(run: Run) -> Finding:
    """As printed with one rate for all weights; as corrected against the better kind of full rank."""
    table = Table(run)
    printed, corrected = (
        {method: table.more(method, than) for method in (GALORE, LORA, RELORA, LOW)} for than in (FULL, table.tuned)
    )
    return _effect(
        FIRST,
        table,
        printed,
        corrected=corrected,
        expected="every method with low rank has a higher loss than full rank, each at its own best rate",
        what="loss (control: full rank)",
    )


def _adapters(run: Run) -> Finding:
    table = Table(run)
    return _effect(
        ADAPTERS,
        table,
        {method: table.more(method, GALORE) for method in (LORA, RELORA)},
        expected=f"LoRA and ReLoRA have a loss at least {MATTERS} nats above GaLore's",
        what="loss (control: GaLore)",
    )


def _factors(run: Run) -> Finding:
    table = Table(run)
    return _effect(
        FACTORS,
        table,
        {f"than {method}": table.more(LOW, method) for method in (FULL, GALORE, LORA, RELORA)},
        expected=f"low rank has a loss at least {MATTERS} nats above every other method of the table",
        what="loss of low rank (control: the other method)",
    )


def _subspace(run: Run) -> Finding:
    table = Table(run)
    return _effect(
        SUBSPACE,
        table,
        {"": table.more(RANDOM, GALORE)},
        expected=f"random subspaces of the same rank have a loss at least {MATTERS} nats above GaLore's",
        what="loss with random subspaces (control: GaLore)",
    )


def _memory(run: Run) -> Finding:
    table = Table(run)
    expected = "the bytes that the optimizers keep are those of the formula"
    off = {
        method: table.bytes(method)["states"] / states_by_formula(run.config, method) - 1 for method in (GALORE, FULL)
    }
    if not all(np.isfinite(value) for value in off.values()):
        return not_run(MEMORY, expected, "GaLore or full rank has no long run", AT_PAPER_SCALE)
    wrong = table.bytes(FULL)["states"] / states_by_formula(run.config, GALORE) - 1
    return by_residual(
        MEMORY,
        printed=max(off.values(), key=abs),
        tolerance=ROUNDING,
        expected=expected,
        what="share off",
        control={"Adam against GaLore's formula": wrong},
        details={shown(method): _mebibytes(table, method) for method in table.tried},
    )


def _mebibytes(table: Table, method: str) -> dict[str, float]:
    return {f"{name}, MiB": value / 2**20 for name, value in table.bytes(method).items()}


def _time(run: Run) -> Finding:
    table = Table(run)
    expected = f"a step of GaLore takes at most {1 + SLOWER:g} times as long as one of AdamW"
    if run.config["device"] == "cpu":
        reason = "the time of a small network on a busy CPU says nothing about training"
        return not_run(TIME, expected, reason, AT_PAPER_SCALE)
    galore, adam = table.seconds(GALORE), table.seconds(FULL)
    return by_effect(
        TIME,
        compare(np.full_like(galore, SLOWER), galore / adam - 1),
        expected=expected,
        what="overhead allowed (control: overhead measured)",
        details={shown(method): _speed(table, method) for method in table.tried if table.long_trials(method)},
    )


def _speed(table: Table, method: str) -> dict[str, float]:
    """Mean over seeds; operations are those of full rank, whatever the method does."""
    seconds, config = float(np.nanmean(table.seconds(method))), table.run.config
    tokens = config["batch"] * config["context"] / seconds
    useful = tokens * operations_per_token(config)
    return {"ms per step": 1e3 * seconds, "tokens per second": tokens, "full-rank TFLOP per second": useful / 1e12}


def _printed(run: Run) -> Finding:
    reason = "the printed numbers are for C4 and 1.3 billion tokens; this study has another text and fewer tokens"
    return not_run(PRINTED, "the printed numbers", reason, "the same methods on C4, which is not part of joma")


def draw(run: Run) -> list[Drawing]:
    """Rates at the short horizon, the ends of the long one with memory, and curves."""
    table = Table(run)
    ends = [draw_ends(table)] if table.methods() else []  # where nothing was learned there is nothing to compare
    return [draw_rates(table), *ends, draw_curves(table)]


STUDY = Study(
    name="galore-table",
    title="GaLore's table of perplexities, with a tuned baseline",
    version=1,
    claims=(CLOSE, FIRST, ADAPTERS, FACTORS, SUBSPACE, MEMORY, TIME, PRINTED),
    quick=Config(),
    paper=Config(
        methods=METHODS,
        text=INSTALLED,
        source=110_000_000,
        vocabulary=32_000,
        width=512,
        mlp=1376,
        heads=8,
        layers=8,
        context=256,
        batch=128,
        at_once=128,
        rank=128,
        refresh=200,
        alpha=32.0,
        rates=(0.01, 0.005, 0.001, 0.0005, 0.0001),
        restarts=4,
        sweep_steps=80,
        steps=512,
        looks=4,
        neighbours=(FULL, SCALED, GALORE),
        held_out=768,
        device="cuda",
    ),
    run=run,
    judge=each_claim(
        _close,
        _first,
        _adapters,
        _factors,
        _subspace,
        _memory,
        _time,
        _printed,
    ),
    draw=draw,
    check=same_text,
    about=(
        "A LLaMA is trained by eight methods: AdamW with one rate, AdamW with a smaller rate in the blocks (GaLore's "
        "scale), GaLore, GaLore with random subspaces, LoRA on frozen initial weights, ReLoRA, weights that are "
        "products of two factors, and Muon. Each method first tries all rates at a short horizon. Its best rate is "
        "then used at the long horizon, with several seeds. All methods read the same batches in the same order, with "
        "the same warm-up, cosine and clipping. The control is full rank at its own best rate. A verdict comes from "
        "the interval over seeds of the difference of held-out losses. A network that knows no more than how frequent "
        "tokens are does not count."
    ),
)
