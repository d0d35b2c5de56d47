"""Does the optimizer make attention drop and rebound? Adam as in Figure 6, Adam that keeps its state, AdamW, SGD."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from joma.claims.contract import Above, Drawing, Finding, NotRun, Progress, Study
from joma.claims.guards import at_paper_scale
from joma.claims.verdicts import not_run
from joma.recipes.language import Recipe, corpus, recipe, same_text, train_variants
from joma.recipes.language.curves import curve
from joma.runs import Run
from joma.studies.ablations._figures import draw_curves, draw_summary
from joma.studies.ablations._twins import AT_PAPER_SCALE, AT_QUICK_SCALE, AblationConfig, in_nats, shows

TWIN = "Adam"
NEVER_RENEWED = "Adam, state kept"
TRIAL = "trial of SGD"
TRIAL_SHARE = 0.1  # of the study's time, for the progress bar


@dataclass(frozen=True)
class OptimizerConfig(AblationConfig):
    """Small models that differ in the optimizer; SGD's rate is chosen by a trial of its own."""

    weight_decay: float = 0.1
    """Of AdamW, at Adam's rate."""
    sgd_rates: Annotated[tuple[float, ...], Above(0)] = (0.1, 0.3, 1.0, 3.0, 10.0)
    """SGD trains with the one that has the lowest validation loss at the end of a short trial with the first seed."""
    trial: int = 48
    """Steps of that trial."""


SGD = in_nats(
    "rebound-with-sgd",
    "JoMA Sec. 7",
    "The joint dynamics are those of SGD. Under SGD, attention entropy drops and then rebounds.",
)
KEPT = in_nats(
    "rebound-with-adam-kept",
    "JoMA Fig. 6",
    "The curves show the dynamics of the network. Tested here: Adam whose state is not reset at every epoch.",
)
DECAY = in_nats(
    "rebound-with-adamw",
    "JoMA Sec. 6",
    "Attention entropy drops and rebounds, though less clearly, in Pythia, which is trained with weight decay.",
    uses=("fig7/entropy-over-checkpoints",),
)


def run(config: OptimizerConfig, run: Run, progress: Progress) -> None:
    """Choose SGD's rate, then train all four."""
    text = corpus(config, progress)
    adam = recipe(config, text, layers=config.layers, rates=(config.rate,))
    sgd = adam.with_optimizer(kind="sgd", renew_every=None)
    trial = sgd.with_(rates=config.sgd_rates, seeds=adam.seeds[:1], steps=config.trial, every=config.trial)
    train_variants({TRIAL: trial}, text, run, progress, share=TRIAL_SHARE)
    variants: dict[str, Recipe] = {
        TWIN: adam,
        NEVER_RENEWED: adam.with_optimizer(renew_every=None),
        "AdamW": adam.with_optimizer(kind="adamw", weight_decay=config.weight_decay),
        "SGD": sgd.with_(rates=(chosen_rate(run),)),
    }
    if adam.optimizer.renew_every is None or adam.optimizer.renew_every >= config.steps:
        del variants[NEVER_RENEWED]  # it would be its twin
    train_variants(variants, text, run, lambda share, doing: progress(TRIAL_SHARE + (1 - TRIAL_SHARE) * share, doing))


def chosen_rate(run: Run) -> float:
    """The rate with the lowest validation loss at the end of the trial."""
    losses = curve(run, TRIAL, "valid/loss")[:, 0, -1]
    if not np.isfinite(losses).any():
        lower = [rate / 1000 for rate in run.config["sgd_rates"]]
        raise NotRun("SGD diverged at every rate of the trial", sgd_rates=lower)
    return float(run.value(f"{TRIAL}/rates")[np.nanargmin(losses)])


def _sgd(run: Run) -> Finding:
    """SGD has rates of its own: where it diverged, lower ones are the remedy."""
    lower = [chosen_rate(run) / divisor for divisor in (30, 10, 3)]
    return shows(SGD, run, variant="SGD", twin=TWIN, changes={"sgd_rates": lower})


def _kept(run: Run) -> Finding:
    if NEVER_RENEWED in _names(run):
        return shows(KEPT, run, variant=NEVER_RENEWED, twin=TWIN)
    reason = "training ended before the first reset of Adam's state"
    return not_run(KEPT, "a rebound, whether Adam's state is reset or not", reason, at_paper_scale("optimizer"))


def _names(run: Run) -> list[str]:
    return [name for name in (TWIN, NEVER_RENEWED, "AdamW", "SGD") if f"{name}/rates" in run]


def draw(run: Run) -> list[Drawing]:
    """Curves of all of them, and their drops and rebounds."""
    curves = draw_curves(run, {"": _names(run)}, "optimizer")
    losses = curve(run, TRIAL, "valid/loss")[:, 0, -1]
    tried = ", ".join(
        f"{rate:g}: {loss:.2f}" if math.isfinite(loss) else f"{rate:g}: diverged"
        for rate, loss in zip(run.value(f"{TRIAL}/rates"), losses, strict=True)
    )
    caption = (
        f"{curves.caption} SGD's rate, {chosen_rate(run):g}, has the lowest loss of a trial of {run.config['trial']} "
        f"steps (loss in nats by rate: {tried})."
    )
    return [replace(curves, caption=caption), draw_summary(run, _names(run), "optimizer-summary")]


STUDY = Study(
    name="optimizer",
    title="Ablation: Adam, AdamW and SGD",
    version=2,
    claims={SGD: _sgd, KEPT: _kept, DECAY: lambda run: shows(DECAY, run, variant="AdamW", twin=TWIN)},
    quick=OptimizerConfig(**AT_QUICK_SCALE),
    paper=OptimizerConfig(**AT_PAPER_SCALE, trial=2_929),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "Figure 6's language model is trained with four optimizers, on the same text and from the same seeds. They "
        "are Adam whose state is reset every epoch (as in the original runs), Adam that keeps its state, AdamW, and "
        "SGD. The rate of SGD is chosen by a short trial with one seed: the rate with the lowest validation loss. The "
        "record holds the trial."
    ),
)
