"""The picture of `collapse`: loss and entropy over training, and how early each rule rings."""

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, RED, Axes, panels
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.runs import Run
from joma.studies.stability.collapse import record
from joma.studies.stability.collapse.rules import CONTROLS, RULES
from joma.studies.stability.collapse.run import HEALTHY, PLAIN, QK_NORM, REMEDIES, RISING, SUDDEN

LINES = {
    "healthy": (PLAIN, HEALTHY, CONTROL, "-"),
    "too high at once": (PLAIN, SUDDEN, ORANGE, "-"),
    "rising": (PLAIN, RISING, RED, "-"),
    "rising, QK-norm": (QK_NORM, RISING, BLUE, "--"),
}


def draw(run: Run) -> Drawing:
    """Loss and lowest entropy, median over members; leads as bars."""
    figure, (loss, entropy, early) = panels(3, width=4.0, height=3.0)
    _draw_loss(loss, run)
    _draw_entropy(entropy, run)
    _draw_leads(early, run)
    return Drawing("warnings", _caption(run), figure)


def draw_remedies(run: Run) -> Drawing:
    """Bars of all remedies: how many runs diverge, and what each does to runs that do not."""
    figure, (gone, harm) = panels(2, width=4.6, height=3.0)
    names = list(record.BENCH)
    places = np.arange(len(names))[::-1]
    diverge = [1 - record.kept_whole(run, name) for name in names]
    above = [record.harm(run, name) for name in names]
    for axis, rows in ((gone, diverge), (harm, above)):
        found = [compare(row) for row in rows]
        values = np.nan_to_num([one.value for one in found])
        reach = np.nan_to_num([[one.value - one.low, one.high - one.value] for one in found]).T
        axis.barh(places, values, height=0.7, color=[CONTROL, *[BLUE] * (len(names) - 1)], alpha=0.75, label="_bars")
        axis.errorbar(values, places, xerr=reach, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
        axis.set_yticks(places, [f"{name} (at once)" if name == record.WARM_UP else name for name in names])
    gone.set(xlabel="share of runs that diverge", ylabel="remedy", title="At rates that are too high")
    harm.set(xlabel="loss at the end above the twin's (nats)", ylabel="remedy", title="Where the twin does not diverge")
    gone.set_xlim(0, 1.02)
    share = {name: float(np.nanmean(row)) for name, row in zip(names, diverge, strict=True)}
    best = min((*REMEDIES, QK_NORM), key=lambda name: share[name])
    return Drawing(
        "remedies",
        f"{number(share[best], '%')} of the runs diverge with the remedy {best}, {number(share[record.NOTHING], '%')} "
        "if nothing is done. Left: all runs in which remedies are compared, from the same seeds; a warm-up is compared "
        "where the rate is high at once. Right: how much higher the loss ends than that of the same run without the "
        f"remedy, where that run does not diverge. {run.config['seeds']} seeds, with the interval over seeds.",
        figure,
    )


def _median(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.median(np.where(np.isfinite(values), values, np.finfo(np.float32).max), axis=1))


def _draw_loss(axis: Axes, run: Run) -> None:
    steps = run.steps(f"{PLAIN}/probe/loss")
    for label, (name, kind, colour, style) in LINES.items():
        values = run.array(f"{name}/probe/loss")[:, record.of_kind(run, name, kind)].astype(float)
        axis.plot(steps, _median(values), color=colour, ls=style, label=label)
    axis.set(xlabel="training step", ylabel="loss (nats)", yscale="log", title="Loss, median of all runs of a kind")


def _draw_entropy(axis: Axes, run: Run) -> None:
    steps = run.steps(f"{PLAIN}/probe/loss")
    for label, (name, kind, colour, style) in LINES.items():
        values = run.array(f"{name}/probe/entropy")[:, record.of_kind(run, name, kind)].astype(float)
        lowest = np.where(np.isfinite(values), values, 0.0).min((2, 3))
        axis.plot(steps, np.median(lowest, axis=1), color=colour, ls=style, label=label)
    axis.set(xlabel="training step", ylabel="lowest entropy of a head (nats)", title="Attention, median of all runs")
    axis.set_ylim(bottom=0)


def _draw_leads(axis: Axes, run: Run) -> None:
    rows = [*RULES, "monitor, first alarm"]
    if record.nothing_learned(run) or record.nothing_diverged(run):
        found = [compare([0.0, 0.0])] * len(rows)
    else:
        found = [*record.mean_leads(run).values(), compare(record.usual_lead(run))]
    colours = [CONTROL if name in CONTROLS else GREEN if name not in RULES else BLUE for name in rows]
    values = np.array([one.value for one in found])
    places = np.arange(len(rows))[::-1]
    axis.barh(places, values, height=0.7, color=colours, alpha=0.75, label="_lead")
    low, high = (np.clip(np.nan_to_num([getattr(one, end) for one in found]), 0, 1) for end in ("low", "high"))
    reach = np.clip([values - low, high - values], 0, None)
    axis.errorbar(values, places, xerr=reach, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    axis.set_yticks(places, rows)
    axis.set(xlabel="lead (share of the steps until then)", ylabel="rule", title="How early each rings")
    axis.set_xlim(0, 1)


def _caption(run: Run) -> str:
    judged, text = int(record.judged(run).sum()), called(run.config["corpus"])
    if record.nothing_learned(run) or record.nothing_diverged(run):
        found = "Too few runs diverge to compare warnings"
    else:
        leads = {name: one.value for name, one in record.mean_leads(run).items()}
        best = max(leads, key=lambda name: leads[name])
        found = (
            f"The {best} rings first: {number(leads[best], '%')} of the steps before the loss diverges; a rule on the "
            f"loss itself has {number(leads['loss'], '%')}, the gradient norm {number(leads['gradient norm'], '%')}"
        )
    return (
        f"{found}. Left: the loss on a fixed batch. Middle: the entropy of the head that has least. Right: how long "
        f"before the divergence each rule rings, with the threshold at which it rings in 5 % of healthy runs of other "
        f"seeds; grey needs no look inside, green has the monitor's own thresholds. {judged} runs on {text} diverge "
        f"in time to be judged, {run.config['seeds']} seeds."
    )
