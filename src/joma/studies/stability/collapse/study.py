"""Which alarm rings before the loss of a network that diverges, and how often does it ring where nothing is wrong?

What was fixed when: rules, thresholds, the event and what matters, after a pilot on seeds 1,000 and 1,001 at widths of
16 to 64, and before any other run. The claim `alarms-tell-divergence` and the rates at paper scale came after a run at
quick scale had been seen. No run at paper scale had been seen; its seeds are 300 to 307, and 5,300 to 5,311 for the
thresholds. Version 2 has the remedies: their rates, limits and what matters were fixed after a look at seeds 900 and
901 without them, and before any run with them.

What matters was decided before any judged run: a lead of 5 % of the steps beyond the control's, a quarter of the runs
where shares of runs are compared, a tenth of ln T of entropy.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from joma.claims.contract import Claim, Finding, NotRun, Study
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, hardest
from joma.claims.verdicts import Numbers, at_most, by_effect
from joma.measure.intervals import compare
from joma.recipes.language import PAPER, same_text
from joma.runs import Run
from joma.studies.stability.collapse import record
from joma.studies.stability.collapse.figures import draw, draw_remedies
from joma.studies.stability.collapse.rules import CONTROLS, FALSE_ALARMS, RULES
from joma.studies.stability.collapse.run import (
    CLIPPED,
    HEALTHY,
    PLAIN,
    QK_CLIP,
    QK_NORM,
    REMEDIES,
    RESTORED,
    RISING,
    SUDDEN,
    WARMED,
    CollapseConfig,
    run,
)

LEAD = 0.05  # of the steps until the loss diverges
QUARTER = 0.25  # of all runs
TENTH = 0.1  # of ln T
NATS = 0.1  # of the loss at the end
EARLY = "share of the steps by which it rings early"
WRONG = 0.1  # the share of healthy runs in which the monitor's alarms may ring

CLAIMS = Claims(unit="%")
KIMI, ZHAI, WORTSMAN = "Kimi K2 Sec. 2.1", "Zhai et al. 2023 Sec. 3", "Wortsman et al. 2023 Sec. 3.1"
WARNS = {
    "largest logit": (
        "largest-logit-warns",
        KIMI,
        "Attention logits explode before training does.",
        "the largest logit",
    ),
    "entropy floor": (
        "low-entropy-warns",
        ZHAI,
        "Low attention entropy goes with instability.",
        "the lowest entropy of a head",
    ),
    "entropy fall": (
        "falling-entropy-warns",
        ZHAI,
        "Attention entropy collapses when training becomes unstable.",
        "a fall of a head's entropy beyond its own history",
    ),
    "rank drop": (
        "rank-drop-warns",
        "JoMA Fig. 7",
        "Stable ranks fall while networks learn.",
        "a fall of a matrix's stable rank",
    ),
    "update entropy": (
        "update-entropy-warns",
        "Huang et al. 2026 Sec. 1",
        "The spectral entropy of the update of W_Q W_K^T becomes abnormal before the loss collapses.",
        "a fall of that entropy below its own history",
    ),
    "sign diversity": (
        "sign-diversity-warns",
        "Qiu et al. 2025 Sec. 1",
        "Inputs lie on one side of a matrix's leading singular vector before the loss explodes.",
        "the loss of that diversity",
    ),
}
"""Of every rule the claim, its source, what the source says, and what rings here."""


def judge_warning(run: Run, claim: Claim, rule: str) -> Finding:
    """The lead of a calibrated rule, beside the hardest of its controls at the same rate of false alarms."""
    _must_diverge(run)
    ours = record.lead(run, rule)
    against = {f"the {control}": compare(ours, record.lead(run, control)) for control in CONTROLS}
    against["one random place"] = compare(ours, record.lead(run, rule, place=True))
    found = {f"against {name}": one for name, one in hardest(claim, against).items()}
    return by_effect(claim, found, what=EARLY, details=_details(run, rule))


for rule, (name, source, says, what) in WARNS.items():
    CLAIMS.declare(
        name,
        source,
        f"{says} Tested here, with every rule ringing in 5 % of healthy runs: {what} rings before the loss diverges, "
        "earlier than the loss itself, the gradient norm, or the same rule on one random place does.\n\n"
        f"Expected: the rule rings at least {100 * LEAD:g} % of the steps until the divergence earlier than its "
        f"hardest control, beyond chance, both ringing in {100 * FALSE_ALARMS:g} % of healthy runs",
        matters=LEAD,
        ceiling=1.0,
    )(partial(judge_warning, rule=rule))


@CLAIMS.declare("usual-alarms-warn", KIMI, matters=LEAD, ceiling=1.0)
def judge_usual(run: Run, claim: Claim) -> Finding:
    """Attention logits above 100 are a sign of instability. Tested here: the alarms of joma.monitor, with thresholds of
    their own, ring before the loss diverges, earlier than a rule on the loss or on the gradient norm does.

    Expected: the first of the monitor's alarms rings at least 5 % of the steps until the divergence earlier than the
    loss and the gradient norm, beyond chance
    """
    _must_diverge(run)
    ours = record.usual_lead(run)
    against = {f"the {control}": compare(ours, record.lead(run, control)) for control in CONTROLS}
    found = {f"against {name}": one for name, one in hardest(claim, against).items()}
    return by_effect(claim, found, what=EARLY, details=_usual_details(run))


@CLAIMS.declare("healthy-twins-are-quiet", KIMI, matters=QUARTER)
def judge_quiet(run: Run, claim: Claim) -> Finding:
    """Attention logits above 100 are a sign of instability. Tested here: the alarms of joma.monitor ring in runs that
    diverge, before they do, and not in their healthy twins.

    Expected: an alarm rings in at least 25 % more of the runs that diverge than of their healthy twins, beyond chance,
    and in at most 10 % of the twins
    """
    _must_diverge(run)
    ring = record.any_of(record.usual(run))
    warned = record.by_seed(run, PLAIN, (record.leads(run, ring) > 0).astype(float), record.judged(run))
    wrong = record.by_seed(run, PLAIN, (ring >= 0).astype(float), record.quiet(run, is_open=False))
    most = at_most("share of healthy runs in which an alarm rings", record.false_alarms(run, ring), WRONG, "%")
    found = compare(warned, wrong)
    what = "share of runs in which an alarm rings"
    return by_effect(claim, found, what=what, size=[most], details=_usual_details(run))


@CLAIMS.declare("alarms-tell-divergence", ZHAI, matters=QUARTER)
def judge_tells(run: Run, claim: Claim) -> Finding:
    """Collapse of attention entropy goes with divergence. Tested here: the alarms of joma.monitor ring in runs that
    diverge, before they do, more often than in runs of the same seeds at rates that are too high and do not diverge.

    Expected: an alarm rings in at least 25 % more of the runs that diverge than of those that have too high a rate and
    do not, beyond chance
    """
    _must_diverge(run)
    still = record.unharmed(run)
    if not still.any():
        raise NotRun("every run with too high a rate diverges", at_paper_scale(run.study))
    ring = record.any_of(record.usual(run))
    warned = record.by_seed(run, PLAIN, (record.leads(run, ring) > 0).astype(float), record.judged(run))
    others = record.by_seed(run, PLAIN, (ring >= 0).astype(float), still)
    what = "share of runs in which an alarm rings"
    rules = {name: float((record.rings(run, name)[still] >= 0).mean()) for name in RULES}
    usual = {name: float((each[still] >= 0).mean()) for name, each in record.usual(run).items()}
    details = {
        "rings in runs with too high a rate that do not diverge, calibrated": rules,
        "the same with the thresholds of the monitor": usual,
        "runs": {"with too high a rate that do not diverge": float(still.sum())},
    }
    return by_effect(claim, compare(warned, others), what=what, details=details)


@CLAIMS.declare("too-high-a-rate-diverges", WORTSMAN, matters=QUARTER)
def judge_diverges(run: Run, claim: Claim) -> Finding:
    """Logits of attention grow and training becomes unstable where the learning rate is too high. Tested here: at rates
    that are too high from the first step, the loss of a small decoder with norms before diverges.

    Expected: at least 25 % more of the runs diverge than of their healthy twins, beyond chance
    """
    _must_learn(run)
    found = compare(record.share_diverged(run, PLAIN, SUDDEN), record.share_diverged(run, PLAIN, HEALTHY))
    return by_effect(claim, found, what="share of runs that diverge", details=_kinds(run))


@CLAIMS.declare("qk-norm-prevents-divergence", WORTSMAN, matters=QUARTER)
def judge_prevents(run: Run, claim: Claim) -> Finding:
    """Norms on queries and keys prevent the instability. Tested here: with them, fewer runs diverge at rates that rise
    without end.

    Expected: with the norms at least 25 % more of the runs do not diverge, beyond chance
    """
    _must_diverge(run)
    ours, control = (1 - record.share_diverged(run, name, RISING) for name in (QK_NORM, PLAIN))
    what = "share of runs that do not diverge"
    return by_effect(claim, compare(ours, control), what=what, details=_kinds(run))


def _judge_entropy(run: Run, claim: Claim, name: str, kind: int) -> Finding:
    _must_learn(run)
    found = compare(record.lowest_entropy(run, name, kind), record.lowest_entropy(run, PLAIN, SUDDEN))
    return by_effect(claim, found, what="lowest entropy as a share of ln T", details=_kinds(run))


@CLAIMS.declare("qk-norm-prevents-collapse", WORTSMAN, matters=TENTH)
def judge_kept(run: Run, claim: Claim) -> Finding:
    """Norms on queries and keys bound the logits of attention. Tested here: with them, the lowest entropy of a head at
    the end is higher, at rates that are too high from the first step.

    Expected: it is at least 10 % of ln T higher, beyond chance
    """
    return _judge_entropy(run, claim, QK_NORM, SUDDEN)


@CLAIMS.declare("warm-up-prevents-collapse", "Wortsman et al. 2023 Sec. 3.2", matters=TENTH)
def judge_warm_up(run: Run, claim: Claim) -> Finding:
    """A warm-up makes training less sensitive to the learning rate. Tested here: with one, the lowest entropy of a head
    at the end is higher, at rates that are too high.

    Expected: it is at least 10 % of ln T higher, beyond chance
    """
    return _judge_entropy(run, claim, PLAIN, WARMED)


SAVES = {
    QK_CLIP: (
        "qk-clip-saves-runs",
        KIMI,
        "Scaling queries and keys of heads above a limit prevents loss spikes.",
        "a QK-clip than without",
    ),
    RESTORED: (
        "restored-rank-saves-runs",
        "Ren et al. 2026 Sec. 5",
        "Restoring stable ranks prevents failures.",
        "restored rank than without",
    ),
    CLIPPED: (
        "clipped-gradients-save-runs",
        "Pascanu et al. 2013 Sec. 3.2",
        "Clipping prevents exploding gradients.",
        "gradients clipped at a tenth of their twins' norm than among those twins",
    ),
}
"""Of every remedy the claim, its source, what the source says, and what is compared."""


def judge_saved(run: Run, claim: Claim, remedy: str) -> Finding:
    """The share of runs that do not diverge, beside that of twins to which nothing is done."""
    _must_diverge(run)
    if not (record.of_bench(run, record.NOTHING, "diverged") == 1).any():
        raise NotRun("no run of those that remedies are compared on diverges", at_paper_scale(run.study))
    found = compare(record.kept_whole(run, remedy), record.kept_whole(run, record.NOTHING))
    return by_effect(claim, found, what="share of runs that do not diverge", details=_bench(run))


for remedy, (name, source, says, what) in SAVES.items():
    CLAIMS.declare(
        name,
        source,
        f"{says} Tested here, at rates that are too high: fewer runs diverge with {what}."
        "\n\nExpected: at least 25 % more of the runs do not diverge, beyond chance",
        matters=QUARTER,
    )(partial(judge_saved, remedy=remedy))


@CLAIMS.declare("qk-clip-helps-where-nothing-diverges", KIMI, matters=NATS, unit="nats")
def judge_helps(run: Run, claim: Claim) -> Finding:
    """Clipping queries and keys does no harm. Tested here: where the rate is too high and the loss never diverges,
    although the alarms ring, the loss ends lower with a QK-clip than without.

    Expected: it ends at least 0.1 nats lower, beyond chance
    """
    _must_learn(run)
    if not (record.of_bench(run, record.NOTHING, "diverged") == 0).any():
        raise NotRun("every run with too high a rate diverges", at_paper_scale(run.study))
    found = compare(record.learned(run, QK_CLIP), record.learned(run, record.NOTHING))
    return by_effect(claim, found, what="loss below that of the words' frequencies", details=_bench(run))


def _bench(run: Run) -> Numbers:
    alone, end = (record.of_bench(run, record.NOTHING, what) for what in ("diverged", "loss"))
    found: dict[str, dict[str, float]] = {}
    for remedy in record.BENCH:
        gone, loss = (record.of_bench(run, remedy, what) for what in ("diverged", "loss"))
        there = np.isfinite(gone)
        rows = {
            "runs that diverge": gone[there],
            "runs saved, of those whose twin diverges": 1 - gone[there & (alone == 1)],
            "loss at the end where the twin diverges (median)": loss[there & (alone == 1)],
            "runs lost, of those whose twin does not diverge": gone[there & (alone == 0)],
            "loss at the end above the twin's, where that does not diverge": (loss - end)[there & (alone == 0)],
        }
        for what, values in rows.items():
            middle = np.nanmedian if "median" in what else np.nanmean
            found.setdefault(what, {})[remedy] = float(middle(values)) if np.isfinite(values).any() else np.nan
    work = {remedy: float(run.value(f"{remedy}/work")) for remedy in REMEDIES}
    return {**found, "multiplications added to a step": work}


def _details(run: Run, rule: str) -> Numbers:
    at, steps = record.judged(run), record.event(run, PLAIN) * int(run.config["every"])
    names = (rule, *CONTROLS)
    found = {name: record.rings(run, name) for name in names}
    every = int(run.config["every"])
    in_steps = {
        name: float(np.median(np.where(record.leads(run, ring) > 0, steps - ring * every, 0)[at]))
        for name, ring in found.items()
    }
    details = {
        "lead, share of the steps": {name: compare(record.lead(run, name)).value for name in names},
        "lead, steps (median over runs)": in_steps,
        "false alarms per healthy run": {name: record.false_alarms(run, ring) for name, ring in found.items()},
        "runs": {"that diverge in time to be judged": float(at.sum()), "that diverge": float(_all_diverged(run))},
    }
    if RULES[rule].own is not None:
        ring = record.usual(run)[rule]
        details["with the threshold of the monitor"] = {
            "lead, share of the steps": compare(record.usual_lead(run, (rule,))).value,
            "false alarms per healthy run": record.false_alarms(run, ring),
        }
    if rule == "update entropy":
        details["its change since the start instead"] = {
            "lead, share of the steps": compare(record.lead(run, "drift entropy")).value,
            "false alarms per healthy run": record.false_alarms(run, record.rings(run, "drift entropy")),
        }
    return details


def _all_diverged(run: Run) -> int:
    return int((record.diverged(run, PLAIN) & ~record.of_kind(run, PLAIN, HEALTHY)).sum())


def _usual_details(run: Run) -> Numbers:
    found = record.usual(run)
    return {
        "lead, share of the steps": {name: compare(record.usual_lead(run, (name,))).value for name in found},
        "false alarms per healthy run": {name: record.false_alarms(run, ring) for name, ring in found.items()},
    }


def _kinds(run: Run) -> Numbers:
    kinds = {"healthy": HEALTHY, "too high at once": SUDDEN, "too high, warm-up": WARMED, "rising": RISING}
    networks = {name: (PLAIN, kind) for name, kind in kinds.items()}
    networks |= {f"{name}, QK-norm": (QK_NORM, kinds[name]) for name in ("too high at once", "rising")}
    tables: dict[str, Callable[..., float]] = {
        "share that diverges": lambda *which: compare(record.share_diverged(run, *which)).value,
        "loss at the end (median)": partial(record.final_loss, run),
        "lowest entropy at the end, share of ln T": lambda *which: compare(record.lowest_entropy(run, *which)).value,
    }
    return {what: {name: of(*which) for name, which in networks.items()} for what, of in tables.items()}


def _must_learn(run: Run) -> None:
    if reason := record.nothing_learned(run):
        raise NotRun(reason, steps=2 * run.config["steps"])


def _must_diverge(run: Run) -> None:
    _must_learn(run)
    if reason := record.nothing_diverged(run):
        raise NotRun(reason, at_paper_scale(run.study))


STUDY = Study(
    name="collapse",
    title="What warns before training diverges",
    version=2,
    claims=CLAIMS,
    # Shares of five seeds that are all alike leave it open whether others differ, those of ten do not. With seeds of
    # 7000 and 7100 on, rates that rise to 1.5 or 3 made one to three seeds of ten diverge too early to be judged: so
    # half of 1 beside 1. At 0.3 at once, norms kept 9 % of the entropy, at 0.1 22 %; nothing diverged at either.
    quick=CollapseConfig(
        seeds=10, seed=500, steps=160, high_rates=(0.1,), bench_high_rates=(0.1,), top_rates=(0.5, 1.0),
    ),
    # Heads are 16 wide, so that the spectra of all heads are found at once on a GPU. The words are the most frequent
    # ones: all of them would take most of the time. Logits are not made in half precision, which has its own overflow.
    paper=CollapseConfig(
        **PAPER | {
            "vocabulary": 8_000, "width": 64, "mlp": 256, "heads": 4, "valid_sequences": 2, "steps": 4_000, "every": 32,
            "seeds": 8, "seed": 300, "precision": "tf32",
        }, dropout=0.0, length=35, layers=3, healthy_rate=3e-3, high_rates=(0.03, 0.1, 0.3), top_rates=(0.3, 0.6, 1.2),
        bench_high_rates=(0.1, 0.3), bench_top_rates=(0.6,), restore_every=100, warm_up=400, open_seeds=12,
    ),
    run=run,
    draw=lambda run: [draw(run), draw_remedies(run)],
    check=same_text,
    about=(
        "Decoders with norms before attention and MLP are trained with Adam at rates that are too high from the first "
        "step, with and without a short warm-up, and at rates that never stop rising, with and without norms on "
        "queries and keys. At some of these rates remedies are compared: a QK-clip, restored ranks, gradients clipped "
        "at a tenth and a lower rate. Healthy runs have the same seeds and read the same text. A run diverges at the "
        f"first point from which its loss stays {record.MARGIN:g} nats above its lowest so far, to the end. Every rule "
        "gets the threshold at which it rings in 5 % of the healthy runs of other seeds. A lead is how long before the "
        "divergence it rings, as a share of the steps until then; 0 where it does not. Judged are runs that diverge "
        "after their first 20 measuring points. Quick scale trains small models on Python source."
    ),
)  # fmt: skip
