"""Table 1: do hidden neurons of a trained Transformer stand for the latents of its data, more than untrained ones?"""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import at_most
from joma.data.latent_sets import TABLE1
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, PRINTED, panels
from joma.measure.intervals import Comparison
from joma.runs import Run
from joma.studies.hierarchy._judging import Fates, beyond, check_device, of_learned
from joma.studies.hierarchy._latents import ensemble_of, mean_known, over_seeds
from joma.studies.hierarchy._table1_networks import ALL, COMPLEX, KINDS, SIMPLE, Config, Members, shared_loss
from joma.training import train

MARGIN = 0.02  # of a correlation: what two decimals of the table can tell
NEAR = 0.05  # of the published number, whose spread over seeds is up to 0.08
TOLD = 0.5  # a network learned if it tells so many of its classes right; one that knows nothing tells at most 5 %

ALIGN = ("table1/lowest-latents-align", "table1/upper-latents-align")
LOWEST = Claim(
    "lowest-latents-align",
    "JoMA Table 1",
    "Training gives each lowest latent a hidden node in the first block that correlates with it by 0.94 to 1.00.",
    empirical=True,
    matters=MARGIN,
    ceiling=1.0,
)
UPPER = Claim(
    "upper-latents-align",
    "JoMA Table 1",
    "Training gives each latent one level up a hidden node in the second block that correlates with it by 0.55 to "
    "0.81.",
    empirical=True,
    matters=MARGIN,
    ceiling=1.0,
)
VALUES = Claim(
    "published-correlations",
    "JoMA Table 1",
    "The correlations in the table show what training did.",
    empirical=True,
    matters=MARGIN,
    ceiling=0.0,  # the effect is minus a distance
    uses=ALIGN,
)
LEARNED = Claim(
    "latents-are-learned",
    "JoMA Sec. 6",
    "Hidden nodes learn the latents: the node found on some of the classes stands for the latent on the others too.",
    empirical=True,
    matters=MARGIN,
    ceiling=1.0,
    uses=ALIGN,
)
LEVELS = Claim(
    "lowest-level-best",
    "JoMA Sec. 6",
    "Training aligns the lowest level better than the one above.",
    empirical=True,
    matters=MARGIN,
    uses=ALIGN,
)
HARDER = Claim(
    "more-latents-align-less",
    "JoMA Sec. 6",
    "Training aligns hidden nodes a bit less as latents and children become more.",
    empirical=True,
    matters=MARGIN,
    uses=ALIGN,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all members at once, measuring them as they go."""
    check_device(config.device, "table1")
    who = Members(config)
    run.keep("column", lambda: np.array(who.column))
    run.keep("distinct inputs", lambda: np.array([int(sets.distinct) for sets in who.sets]))
    ensemble = ensemble_of(who, shared_loss)
    train(ensemble, run, name="networks", progress=progress, checkpoint_every=config.checkpoint_every)


class Scores:
    """What a run recorded, by step, column and seed; level s is read from block s + 1, as in the paper.

    only_learned: scores of networks that diverged or did not learn their classes are NaN, before training too.
    """

    def __init__(self, run: Run, *, only_learned: bool = False) -> None:
        self.steps = run.steps("networks/scores")
        columns = len(run.config["columns"])
        scores = run.array("networks/scores")  # (steps, members, kinds, blocks, levels)
        self.all = scores.reshape(len(self.steps), columns, -1, *scores.shape[2:])
        self.accuracy = run.array("networks/accuracy").reshape(len(self.steps), columns, -1)
        self.columns = [TABLE1[c - 1] for c in run.value("column").reshape(columns, -1)[:, 0]]
        diverged = (run.array("networks/diverged_at")[-1] >= 0).reshape(columns, -1)
        self.fates = Fates(diverged, self.accuracy[-1] >= TOLD)  # (columns, seeds) each
        if only_learned:
            self.all = np.where(self.fates.kept[None, :, :, None, None, None], self.all, np.nan)

    def at(self, kind: str, step: int, level: int) -> Any:
        """(seeds, columns); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self.all[step, :, :, KINDS.index(kind), level, level].T

    def both(self, kind: str, step: int) -> Any:
        """(seeds, columns, levels)."""
        return np.stack([self.at(kind, step, level) for level in (0, 1)], axis=-1)

    def gain(self, kind: str, level: int, step: int = -1) -> Comparison:
        """Trained against untrained."""
        return over_seeds(self.at(kind, step, level), self.at(kind, 0, level))

    def paper(self, level: int) -> Any:
        """(columns,)."""
        return np.array([column.ncorr[level].mean for column in self.columns])

    def published(self, level: int) -> float:
        """The mean of the published values, over the networks that count at the end."""
        counted = np.isfinite(self.at("best neuron", -1, level))
        return float(mean_known(np.where(counted, self.paper(level), np.nan), (0, 1)))


def _lowest(run: Run) -> Finding:
    return _level(LOWEST, run, 0)


def _upper(run: Run) -> Finding:
    return _level(UPPER, run, 1)


def _level(claim: Claim, run: Run, level: int) -> Finding:
    scores = Scores(run, only_learned=True)
    found = scores.gain("best neuron", level)
    permuted = over_seeds(scores.at("best neuron", -1, level), scores.at("permuted latents", -1, level))
    published = scores.published(level)
    return _finding(
        claim,
        found,
        scores,
        what="correlation of a latent with its best hidden neuron",
        expected=f"above the untrained network by {MARGIN}, within {NEAR} of the table's mean, and above latents "
        "permuted between classes",
        size=[at_most("distance from the table's mean", abs(found.value - published), NEAR)],
        controls=[beyond("the gain over permuted latents", permuted, matters=MARGIN)],
        beside={"the table": {"mean": published}, **_most(scores, level)},
    )


def _most(scores: Scores, level: int) -> dict[str, dict[str, float]]:
    """When training had added most, of the measuring points after the first."""
    gains = [scores.gain("best neuron", level, step).difference for step in range(1, len(scores.steps))]
    if not np.isfinite(gains).any():
        return {}
    best = int(np.nanargmax(gains))
    return {"largest gain over the untrained network": {"gain": gains[best], "step": float(scores.steps[1 + best])}}


def _values(run: Run) -> Finding:
    """How far from the published numbers are trained networks, and how far are untrained ones?"""
    scores = Scores(run, only_learned=True)
    paper = np.stack([scores.paper(level) for level in (0, 1)], axis=-1)  # (columns, levels)
    near = [-np.abs(scores.both("best neuron", step) - paper) for step in (-1, 0)]
    return _finding(
        VALUES,
        over_seeds(*near),
        scores,
        what="minus the mean distance from the published correlations",
        expected=f"trained networks nearer to the published correlations than untrained ones, by {MARGIN}",
    )


def _learned(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    trained, untrained, permuted = (
        scores.both(kind, step)
        for kind, step in (("held out", -1), ("held out", 0), ("held out, permuted latents", -1))
    )
    levels = [scores.gain("held out", level) for level in (0, 1)]
    return _finding(
        LEARNED,
        over_seeds(trained, untrained),
        scores,
        what="correlation on classes that the neuron was not chosen on",
        expected=f"above the untrained network by {MARGIN}, and above latents permuted between classes",
        controls=[beyond("the gain over permuted latents", over_seeds(trained, permuted), matters=MARGIN)],
        beside={f"s = {s}": {"trained": one.value, "untrained": one.control} for s, one in enumerate(levels)},
    )


def _levels(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    ahead = [scores.at("best neuron", step, 0) - scores.at("best neuron", step, 1) for step in (-1, 0)]
    return _finding(
        LEVELS,
        over_seeds(*ahead),
        scores,
        what="correlation at s = 0 minus that at s = 1",
        expected=f"a lead of the lowest level that training makes larger, by {MARGIN}",
    )


def _harder(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    ends = [(column.children, column.latents) for column in scores.columns]
    simple, complex_ = (np.array([end == wanted for end in ends]) for wanted in (SIMPLE, COMPLEX))
    drops = [
        mean_known(both[:, simple], (1, 2)) - mean_known(both[:, complex_], (1, 2))
        for both in (scores.both("best neuron", step) for step in (-1, 0))
    ]
    return _finding(
        HARDER,
        over_seeds(*drops),
        scores,
        what="fall of the correlation from the simplest to the most complex column",
        expected=f"a fall that training makes larger, by {MARGIN}",
        of=simple | complex_,
    )


def _finding(claim: Claim, found: Comparison, scores: Scores, *, of: Any = slice(None), **evidence: Any) -> Finding:
    """of: the columns that it rests on."""
    return of_learned(claim, found, fates=scores.fates.of(of), study="table1", **evidence)


ENTRIES = ("paper", "trained", "untrained", "permuted")
TITLES = ("C", "N_ch", "(N₀, N₁)", *(f"s = {s}: {entry}" for s in (0, 1) for entry in ENTRIES))


def table(run: Run) -> list[tuple[str, ...]]:
    """Table 1 beside its controls as text: C, N_ch, (N0, N1), then paper, trained, untrained, permuted for both s.

    Means over seeds; the spread is the standard deviation, as far as one can tell that of the paper.
    """
    scores = Scores(run)
    lines = []
    for c, column in enumerate(scores.columns):
        line = [str(column.classes), str(column.children), str(column.latents)]
        for s in (0, 1):
            published = column.ncorr[s]
            measured = (("best neuron", -1), ("best neuron", 0), ("permuted latents", -1))
            line.append(f"{published.mean:.2f} ± {published.spread:.2f}")
            for kind, step in measured:
                values = scores.at(kind, step, s)[:, c]
                values = values[np.isfinite(values)]
                line.append(f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else "diverged")
        lines.append(tuple(line))
    return lines


def draw(run: Run) -> list[Drawing]:
    """The table with its controls, and the scores over training."""
    return [_draw_table(run), _draw_training(run)]


def _draw_table(run: Run) -> Drawing:
    lines = table(run)
    figure, (axis,) = panels(width=8.2, height=0.235 * (len(lines) + 2) + 0.1)
    left = (0.0, 0.4, 0.95, 2.0, 3.05, 4.1, 5.15, 6.35, 7.4, 8.45, 9.5)
    axis.set(xlim=(-0.1, 10.5), ylim=(len(lines) - 0.4, -2.5))
    axis.axis("off")
    heads = (*TITLES[:3], *ENTRIES, *ENTRIES)
    for x, title in ((left[3], "s = 0, first block"), (left[7], "s = 1, second block")):
        axis.text(x, -2, title, fontweight="bold", fontsize=9, va="center")
        axis.plot([x, x + 4.0], [-1.5, -1.5], color="gray", lw=0.6)
    for column, x in enumerate(left):
        colour = {0: PRINTED, 1: BLUE}.get((column - 3) % 4) if column > 2 else None
        for row, text in enumerate((heads[column], *(line[column] for line in lines)), start=-1):
            style: dict[str, Any] = {"color": colour} if colour else {}
            axis.text(x, row, text, fontsize=8.5, va="center", fontweight="bold" if row < 0 else "normal", **style)
    axis.plot([0, 10.45], [-0.5, -0.5], color="gray", lw=0.8)
    config = run.config
    caption = (
        "Table 1 with its controls: mean ± standard deviation over seeds of the correlation between a latent and its "
        f"best hidden neuron, as published, trained for {config['steps']} steps at a rate of {config['rate']:g} "
        f"(width {config['width']}), untrained, and trained against latents permuted between classes."
    )
    return Drawing("table", caption, figure)


def _draw_training(run: Run) -> Drawing:
    scores = Scores(run)
    figure, axes = panels(2, height=3.3)
    place = np.arange(len(scores.steps))  # measuring points, far apart in time, are evenly spaced
    looks = (
        ("best neuron", BLUE, "best neuron, as in the table"),
        ("held out", ORANGE, "chosen and scored on different classes"),
        ("permuted latents", CONTROL, "best neuron, permuted latents"),
    )
    for s, axis in enumerate(axes):
        for kind, colour, label in looks:
            over = [scores.gain(kind, s, step) for step in range(len(scores.steps))]
            mean, wide = np.array([g.value for g in over]), np.array([g.half_width for g in over])
            axis.plot(place, mean, "o-", ms=3, color=colour, label=label)
            axis.fill_between(place, mean - wide, mean + wide, color=colour, alpha=0.2, lw=0)
            axis.axhline(mean[0], ls=":", lw=1.2, color=colour)
        axis.axhline(scores.paper(s).mean(), ls="--", lw=1.2, color=PRINTED, label="mean of the published values")
        told = scores.accuracy.mean((1, 2))
        axis.plot(place, told, lw=1, color=GREEN, label="share of classes told right")
        axis.set(xlabel="training steps", ylabel="correlation", ylim=(-0.05, 1.05), title=f"s = {s}, block {s + 1}")
        axis.set_xticks(place, [str(step) for step in scores.steps])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=2)
    caption = (
        "Alignment over training, mean over all columns and seeds. Dotted: the untrained networks. Shaded: the 95 % "
        "interval of the difference from them, paired by seed."
    )
    return Drawing("over-training", caption, figure)


STUDY = Study(
    name="table1",
    title="Table 1: hidden neurons and the latents of their data",
    version=2,
    claims=(LOWEST, UPPER, VALUES, LEARNED, LEVELS, HARDER),
    quick=Config(),
    paper=Config(
        columns=ALL,
        seeds=5,
        width=1024,
        steps=2000,
        look_at=(100, 300, 1000),
        rate=1e-4,
        merge=False,
        device="cuda",
        precision="half",
        together=60,
        checkpoint_every=400.0,
    ),
    run=run,
    judge=each_claim(_lowest, _upper, _values, _learned, _levels, _harder),
    draw=draw,
    about=(
        "Three-block Transformers learn to tell the classes of Table 1's generator, all columns and seeds as one "
        "ensemble. At several lengths of training (the source gives none) each latent is compared with its best hidden "
        "neuron of the corresponding block, over the distinct inputs, one per class. The same is done "
        "before training, with latents permuted between classes, and with neurons chosen on one half of the classes "
        "and scored on the other. A verdict comes from the interval over seeds of trained minus untrained. A network "
        f"that tells fewer than {TOLD:.0%} of its classes right at the end did not learn and does not count."
    ),
)
