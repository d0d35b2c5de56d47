"""Table 1: do hidden neurons of a trained Transformer stand for the latents of its data, more than untrained ones?"""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.data.latent_sets import TABLE1
from joma.runs import Run
from joma.studies._latent_networks import Gain, check_device, ensemble_of, gain
from joma.studies._table1_networks import ALL, COMPLEX, KINDS, SIMPLE, Config, Members, shared_loss
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, CONTROL, GREEN, ORANGE, PRINTED, panels
from joma.studies.verdicts import by_effect
from joma.training import train

MARGIN = 0.02  # of a correlation: what two decimals of the table can tell
NEAR = 0.05  # of the published number, whose spread over seeds is up to 0.08

LOWEST = Claim(
    "lowest-latents-align",
    "JoMA Table 1",
    "After training, each lowest latent has a hidden node in the first block that correlates with it by 0.94 to 1.00.",
    empirical=True,
)
UPPER = Claim(
    "upper-latents-align",
    "JoMA Table 1",
    "After training, each latent one level up has a hidden node in the second block that correlates with it by 0.55 to "
    "0.81.",
    empirical=True,
)
VALUES = Claim(
    "published-correlations",
    "JoMA Table 1",
    "The correlations in the table show what training did.",
    empirical=True,
)
LEARNED = Claim(
    "latents-are-learned",
    "JoMA Sec. 6",
    "Hidden nodes learn the latents: the node found on some of the classes stands for the latent on the others too.",
    empirical=True,
)
LEVELS = Claim(
    "lowest-level-best",
    "JoMA Sec. 6",
    "In trained networks the lowest level aligns better than the one above.",
    empirical=True,
)
HARDER = Claim(
    "more-latents-align-less",
    "JoMA Sec. 6",
    "In trained networks alignment falls a bit as latents and children become more.",
    empirical=True,
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
    """What a run recorded, by step, column and seed; level s is read from block s + 1, as in the paper."""

    def __init__(self, run: Run) -> None:
        self.steps = run.steps("networks/scores")
        columns = len(run.config["columns"])
        scores = run.array("networks/scores")  # (steps, members, kinds, blocks, levels)
        self.all = scores.reshape(len(self.steps), columns, -1, *scores.shape[2:])
        self.accuracy = run.array("networks/accuracy").reshape(len(self.steps), columns, -1)
        self.columns = [TABLE1[c - 1] for c in run.value("column").reshape(columns, -1)[:, 0]]
        self.diverged = int((run.array("networks/diverged_at")[-1] >= 0).sum())

    def at(self, kind: str, step: int, level: int) -> Any:
        """(seeds, columns); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self.all[step, :, :, KINDS.index(kind), level, level].T

    def gain(self, kind: str, level: int, step: int = -1) -> Gain:
        """Trained against untrained."""
        return gain(self.at(kind, step, level), self.at(kind, 0, level))

    def paper(self, level: int) -> Any:
        """(columns,)."""
        return np.array([column.ncorr[level].mean for column in self.columns])


def judge(run: Run) -> list[Finding]:
    """Every score of the trained networks against the same score of the same networks before training."""
    scores = Scores(run)
    return [
        _level_finding(LOWEST, scores, 0),
        _level_finding(UPPER, scores, 1),
        _values_finding(scores),
        _learned_finding(scores),
        _levels_finding(scores),
        _harder_finding(scores),
    ]


def _level_finding(claim: Claim, scores: Scores, level: int) -> Finding:
    found = scores.gain("best neuron", level)
    chance = scores.gain("permuted latents", level).trained
    paper = float(scores.paper(level).mean())
    gains = [scores.gain("best neuron", level, step).mean for step in range(1, len(scores.steps))]
    best = int(np.nanargmax([-np.inf if np.isnan(g) else g for g in gains]))
    return by_effect(
        claim,
        measured=found.trained,
        control=found.control,
        margin=found.margin(MARGIN),
        expected=f"above the untrained network by {MARGIN} and by more than the 95 % interval over seeds, and within "
        f"{NEAR} of the table's mean, {paper:.2f}",
        quantitative=abs(found.trained - paper) <= NEAR,
        shown=f"{found.trained:.3f} after {scores.steps[-1]} steps, {found} against untrained (largest gain "
        f"{gains[best]:+.3f}, after {scores.steps[1 + best]}); the paper's mean is {paper:.3f}" + _lost(scores),
        control_shown=f"untrained {found.control:.3f}; trained, permuted latents {chance:.3f}",
    )


def _values_finding(scores: Scores) -> Finding:
    """How far from the published numbers are trained networks, and how far are untrained ones?"""
    off = {
        step: np.stack([np.abs(scores.at("best neuron", step, s).T - scores.paper(s)[:, None]) for s in (0, 1)])
        for step in (-1, 0)
    }  # (levels, columns, seeds)
    found = gain(-off[-1].transpose(2, 0, 1), -off[0].transpose(2, 0, 1))
    return by_effect(
        VALUES,
        measured=found.trained,
        control=found.control,
        margin=found.margin(MARGIN),
        expected=f"trained networks nearer to the published numbers than untrained ones, by {MARGIN} and by more than "
        "the 95 % interval over seeds",
        shown=f"trained networks are off by {-found.trained:.3f} in the mean" + _lost(scores),
        control_shown=f"untrained ones by {-found.control:.3f}",
    )


def _learned_finding(scores: Scores) -> Finding:
    trained, untrained = (
        np.stack([scores.at("held out", step, s) for s in (0, 1)], axis=1) for step in (-1, 0)
    )  # (seeds, levels, columns)
    found = gain(trained, untrained)
    levels = [scores.gain("held out", s) for s in (0, 1)]
    chance = [scores.gain("held out, permuted latents", s).trained for s in (0, 1)]
    return by_effect(
        LEARNED,
        measured=found.trained,
        control=found.control,
        margin=found.margin(MARGIN),
        expected=f"above the untrained network by {MARGIN} and by more than the 95 % interval over seeds, the neuron "
        "chosen on one half of the classes and scored on the other",
        shown=f"{found} against untrained: s = 0 {levels[0].trained:.3f} ({levels[0]}), "
        f"s = 1 {levels[1].trained:.3f} ({levels[1]})" + _lost(scores),
        control_shown=f"untrained {levels[0].control:.3f} and {levels[1].control:.3f}; "
        f"trained, permuted latents {chance[0]:.3f} and {chance[1]:.3f}",
    )


def _levels_finding(scores: Scores) -> Finding:
    trained, untrained = (scores.at("best neuron", step, 0) - scores.at("best neuron", step, 1) for step in (-1, 0))
    return _difference(LEVELS, gain(trained, untrained), "s = 0 scores {:.3f} more than s = 1", scores)


def _harder_finding(scores: Scores) -> Finding:
    ends = [(column.children, column.latents) for column in scores.columns]
    drops = []
    for step in (-1, 0):
        both = np.stack([scores.at("best neuron", step, s) for s in (0, 1)], axis=-1)  # (seeds, columns, levels)
        simple, hard = (both[:, [end == wanted for end in ends]] for wanted in (SIMPLE, COMPLEX))
        drops.append(simple.mean((1, 2)) - hard.mean((1, 2)))
    return _difference(HARDER, gain(*drops), "from the simplest to the most complex column the score falls by {:.3f}",
                       scores)  # fmt: skip


def _difference(claim: Claim, found: Gain, words: str, scores: Scores) -> Finding:
    return by_effect(
        claim,
        measured=found.trained,
        control=found.control,
        margin=found.margin(MARGIN),
        expected=f"a difference larger than in the untrained network by {MARGIN} and by more than the 95 % interval "
        "over seeds",
        shown=f"{words.format(found.trained)}, {found} against untrained" + _lost(scores),
        control_shown=f"{words.format(found.control)} (untrained)",
    )


def _lost(scores: Scores) -> str:
    return f"; {scores.diverged} networks diverged and are left out" if scores.diverged else ""


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
            mean, wide = np.array([g.trained for g in over]), np.array([g.half_width for g in over])
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
    judge=judge,
    draw=draw,
    about=(
        "Three-block Transformers learn to tell the classes of Table 1's generator, all columns and seeds as one "
        "ensemble. At several lengths of training (the source gives none) each latent is compared with its best hidden "
        "neuron of the corresponding block, over the distinct inputs, of which there is one a class. The same is done "
        "before training, with latents permuted between classes, and with neurons chosen on one half of the classes "
        "and scored on the other. Training must beat the untrained network."
    ),
)
