"""The study `depth-width`: what is trained, its claims with their judges, its sizes."""

import numpy as np

from joma.claims.contract import Drawing, NotRun, Progress, Study, silent
from joma.claims.guards import needs_device
from joma.figures.bands import mean_and_band
from joma.figures.beyond import mark_beyond
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, INK, ORANGE, depth_colours, panels, rate_colours, step_axis
from joma.figures.types import Axes, Figure
from joma.measure.intervals import compare
from joma.recipes.language import PYTHON
from joma.runs import Run
from joma.studies.depth_width.depth_width import judge
from joma.studies.depth_width.depth_width.judge import DEEPER, PAPER, Sweep, kinds_of, layers_of, words
from joma.studies.depth_width.depth_width.networks import DepthWidthConfig, Family
from joma.studies.depth_width.depth_width.texts import TextReader, find_texts, must_be, remember_texts, shuffled
from joma.studies.depth_width.depth_width.trees import Tree, TreeReader, flattened
from joma.training import Ensemble, train_all


def draw(run: Run) -> list[Drawing]:
    """Both figures."""
    sweeps = [Sweep(run, kind) for kind in kinds_of(run)]
    figure, axes = _grid(len(sweeps) + 1)
    for axis, sweep in zip(axes, sweeps, strict=False):
        _draw_losses(axis, run, sweep)
    _draw_costs(axes[-1], sweeps[0])
    return [Drawing("loss-against-depth", _caption(sweeps), figure), _over_training(sweeps)]


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """As many panels as are needed, three in a row, four as two by two."""
    columns = 2 if count == 4 else 3
    figure, axes = panels(columns, -(-count // columns))
    for axis in axes[count:]:
        figure.delaxes(axis)
    return figure, axes[:count]


def _draw_losses(axis: Axes, run: Run, sweep: Sweep) -> None:
    """Thick: every shape at its best rate, with its interval over seeds. Thin: one rate for all shapes, in order."""
    for rate, colour in zip(np.argsort(sweep.rates), rate_colours(len(sweep.rates)), strict=True):
        losses, name = sweep.judging[:, rate].mean(-1), f"rate {sweep.rates[rate]:g}"
        axis.plot(sweep.layers, losses, color=colour, lw=1.0, marker=".", ms=4, label=name)
    found = [compare(sweep.at_best(shape)) for shape in range(len(sweep.layers))]
    means, halves = (np.array([getattr(one, name) for one in found]) for name in ("value", "half_width"))
    axis.plot(sweep.layers, means, color=BLUE, lw=2.0, marker="o", ms=4, label="best rates", zorder=2.5)
    axis.errorbar(sweep.layers, means, halves, color=BLUE, ls="none", lw=1.2, capsize=3)
    if sweep.family == "tree":
        ideal = run.value("tree/ideal")[sweep.place]
        axis.axhline(ideal[0], ls=":", lw=1.0, color=INK, label="lowest possible")
        axis.axhline(ideal[1], ls="--", lw=1.0, color=INK, label="adds up tokens")
    # The best rates and what is near: a rate that fails would press everything else flat.
    low, high = np.nanmin(means - halves), np.nanmax(means + halves)
    room = max(high - low, 0.05)
    low = min(low, *axis.get_ylim()) if sweep.family == "tree" else low - 0.1 * room
    axis.set_ylim(low, high + 0.5 * room)
    _depth_axis(axis, sweep.layers)
    axis.set(ylabel="validation loss (nats)", title=words(sweep.kind))
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0.0, handlelength=1.4, fontsize=8)
    mark_beyond(axis)


def _depth_axis(axis: Axes, layers: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(layers, [str(count) for count in layers])
    axis.minorticks_off()
    axis.set_xlabel("layers, at equal size")


def _draw_costs(axis: Axes, sweep: Sweep) -> None:
    """Each as a multiple of the shallowest shape's."""
    facts = [sweep.facts(shape) for shape in range(len(sweep.layers))]
    drawn = {"operations": ("operations per token", ORANGE), "time of a step": ("seconds per step", BLUE)}
    for name, (key, colour) in drawn.items():
        values = np.array([fact[key] for fact in facts])
        if np.isfinite(values).all():
            axis.plot(sweep.layers, values / values[0], color=colour, marker="o", ms=4, label=name)
    _depth_axis(axis, sweep.layers)
    axis.set_ylim(bottom=0)
    axis.set(ylabel=f"times that of {layers_of(sweep, 0)}", title="cost of a language model")
    label_lines(axis)


def _caption(sweeps: list[Sweep]) -> str:
    """The finding first: on which data the deepest shape is better than the shallowest."""
    gains = [_gain_in_words(sweep) for sweep in sweeps if sweep.kind in DEEPER]
    edge = [words(sweep.kind) for sweep in sweeps if sweep.at_the_edge]
    beyond = f" On {listing(edge)}, the best rate of some shape is at the edge of the grid." if edge else ""
    return (
        f"{' '.join(gains)} All shapes of a panel have the same number of parameters. Blue: each shape at its own best "
        "rate, mean over seeds and its interval (95 %; 99 % over four seeds or fewer). Differences between "
        "shapes are taken seed by seed. The rate of a "
        "seed is chosen on the other seeds and on other validation data. Thin, from indigo (lowest) to lime (highest): "
        "one rate for all shapes, mean over seeds. An arrow at an edge marks a loss beyond the panel, with its value."
        f"{beyond} The last panel shows what depth costs at equal size."
    )


def _gain_in_words(sweep: Sweep) -> str:
    last = len(sweep.layers) - 1
    gain = compare(sweep.at_best(0) - sweep.at_best(last))
    deep, shallow = layers_of(sweep, last), layers_of(sweep, 0)
    if not np.isfinite(gain.low):
        return f"On {words(sweep.kind)}, too few networks are left to compare {deep} with {shallow}."
    change = f"{number(abs(gain.value))} ± {number(gain.half_width, 'nats')}"
    if gain.low <= 0 <= gain.high:
        return f"On {words(sweep.kind)}, seeds do not tell {deep} from {shallow} (difference {change})."
    better = "lower" if gain.value > 0 else "higher"
    return f"On {words(sweep.kind)}, {deep} have a loss {change} {better} than {shallow}."


def _over_training(sweeps: list[Sweep]) -> Drawing:
    figure, axes = _grid(len(sweeps))
    for axis, sweep in zip(axes, sweeps, strict=True):
        # (points, seeds) of every shape; untrained networks lie far above
        curves = [sweep.curves[shape, 1:, sweep.best_rate(shape)] for shape in range(len(sweep.layers))]
        for shape, (curve, colour) in enumerate(zip(curves, depth_colours(len(curves)), strict=True)):
            mean_and_band(axis, sweep.steps[1:], curve, color=colour, label=layers_of(sweep, shape))
        axis.set(ylabel="validation loss (nats)", title=words(sweep.kind))
        low, high = float(np.nanmin(curves)), float(np.nanmax(curves))
        room = 0.05 * max(high - low, 0.02)
        axis.set_ylim(low - room, high + room)
        step_axis(axis)
        label_lines(axis)
    caption = (
        f"{_fastest(sweeps)} One line per shape at its best rate: mean over seeds, and a band from the lowest to the "
        "highest seed. Lines begin at the first point after the start: the untrained networks lie far above."
    )
    return Drawing("loss-over-steps", caption, figure)


def _fastest(sweeps: list[Sweep]) -> str:
    """The shape with the lowest mean loss at the first measuring point after the start, and at the end."""
    best = []
    for sweep in sweeps:
        curves = [sweep.curves[i, :, sweep.best_rate(i)].mean(-1) for i in range(len(sweep.layers))]
        at = [layers_of(sweep, int(np.nanargmin([curve[point] for curve in curves]))) for point in (1, -1)]
        best.append(f"{words(sweep.kind)} {at[0]}, then {at[1]}")
    return f"The shape with the lowest loss early in training and at the end: {'; '.join(best)}."


def run(config: DepthWidthConfig, run: Run, progress: Progress) -> None:
    """Train all shapes of both families, one after the other, so that the time of a step is theirs."""
    needs_device(config.device, PAPER)
    ensembles: dict[str, Ensemble] = {}
    for family in (_texts(config, run, progress), _trees(config, run)):
        run.keep(f"{family.name}/known without", family.reader.known_without)
        for name, facts in family.facts().items():
            run.keep(f"{name}/shape", lambda facts=facts: facts)  # type: ignore[misc]
        ensembles |= family.ensembles()
    train_all(ensembles, run, side_by_side=False, progress=progress)


def _trees(config: DepthWidthConfig, run: Run) -> Family:
    deep = Tree(config.classes, config.branching, config.rho)
    rho = run.keep("tree/rho of the flat one", lambda: flattened(deep, config.ideal_samples).rho)
    reader = TreeReader(
        [deep, Tree(config.classes, (int(np.prod(config.branching)),), float(rho))],
        seed=config.seed,
        seeds=config.seeds,
        batch=config.tree_batch,
        valid_samples=config.valid_samples,
        device=config.device,
    )
    run.keep("tree/ideal", lambda: reader.ideal(config.ideal_samples))
    return Family("tree", config, reader, kinds=2)


def _texts(config: DepthWidthConfig, run: Run, progress: Progress) -> Family:
    found = find_texts(config, progress)
    present = run.keep("text/present", lambda: np.array([name in found for name in config.texts]))
    if not present.any():
        raise NotRun(f"none of the texts {', '.join(config.texts)} is on this machine", PAPER)
    texts = {name: found[name] for name, there in zip(config.texts, present, strict=True) if there}
    remember_texts(texts, run)
    reader = TextReader(
        [*texts.values(), shuffled(next(iter(texts.values())), config.length)],
        seeds=config.seeds,
        batch=config.batch,
        length=config.length,
        valid_sequences=config.valid_sequences,
        device=config.device,
    )
    return Family("text", config, reader, kinds=len(texts) + 1)


def same_texts(config: DepthWidthConfig, run: Run) -> None:
    """The texts of a finished run are still those that are found, or none is found."""
    for name, text in find_texts(config, silent).items():
        if f"{name}/sha256" in run.names():
            must_be(name, text, run.value(f"{name}/sha256"), run)


STUDY = Study(
    name="depth-width",
    title="MobileLLM: deep and thin against shallow and wide",
    version=1,
    claims=judge.CLAIMS,
    quick=DepthWidthConfig(),
    paper=DepthWidthConfig(
        texts=(PYTHON, judge.WIKITEXT), tokens=1_000_000_000, vocabulary=1024, layers=(2, 4, 12, 30),
        parameters=1_000_000, length=64, batch=32, rates=(1e-3, 2.2e-3, 5e-3), steps=2000, valid_sequences=400,
        classes=8, branching=(2, 2, 2, 2), rho=0.9, ideal_samples=20_000, tree_layers=(1, 4, 12),
        tree_parameters=100_000, tree_batch=32, tree_rates=(7e-4, 1.6e-3, 3.5e-3, 8e-3), tree_steps=2000,
        valid_samples=1500, seeds=4, points=5, head_width=32, multiple=8, device="cuda", precision="tf32",
    ),
    run=run,
    draw=draw,
    check=same_texts,
    about=(
        "Decoders of one parameter count and several depths learn Python source, WikiText-2 and HBLT trees. The width "
        "of each depth is found so that the counts agree within 1 %. Every shape is trained with several learning "
        "rates and seeds as one ensemble, and compared at its own best rate. No seed has a part in choosing its rate: "
        "the other seeds choose it, on the half of the validation data that is not judged. A gain by depth must also "
        "exceed what the next-best rate changes. Two controls ask why depth helps: a tree of one level that says as "
        "much about the class, and text whose words are shuffled within each sequence."
    ),
)  # fmt: skip
