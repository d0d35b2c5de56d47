"""The study `depth-width`: what is trained, its claims with their judges, its sizes."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import NotRun, Progress, Study, silent
from joma.claims.guards import needs_device
from joma.recipes.language import PYTHON
from joma.runs import Run
from joma.studies.depth_width.depth_width.figures import draw
from joma.studies.depth_width.depth_width.judge import CLAIMS, PAPER, WIKITEXT
from joma.studies.depth_width.depth_width.networks import DepthWidthConfig, Family
from joma.studies.depth_width.depth_width.texts import TextReader, find_texts, must_be, remember_texts, shuffled
from joma.studies.depth_width.depth_width.trees import Tree, TreeReader, flattened
from joma.training import Ensemble, train_all


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
    flat = Tree(config.classes, (int(np.prod(config.branching)),), float(rho))
    reader = TreeReader(
        [deep, flat],
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
    claims=CLAIMS,
    quick=DepthWidthConfig(),
    paper=DepthWidthConfig(
        texts=(PYTHON, WIKITEXT),
        tokens=1_000_000_000,
        vocabulary=1024,
        layers=(2, 4, 12, 30),
        parameters=1_000_000,
        length=64,
        batch=32,
        rates=(1e-3, 2.2e-3, 5e-3),
        steps=2000,
        valid_sequences=400,
        classes=8,
        branching=(2, 2, 2, 2),
        rho=0.9,
        ideal_samples=20_000,
        tree_layers=(1, 4, 12),
        tree_parameters=100_000,
        tree_batch=32,
        tree_rates=(7e-4, 1.6e-3, 3.5e-3, 8e-3),
        tree_steps=2000,
        valid_samples=1500,
        seeds=4,
        points=5,
        head_width=32,
        multiple=8,
        device="cuda",
        precision="tf32",
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
)
