"""The study `python-hierarchy`: its claims with their judges, its sizes, its figures."""

from __future__ import annotations

from joma.claims.contract import Study
from joma.studies.syntax.python_hierarchy.figures import draw
from joma.studies.syntax.python_hierarchy.judge import CLAIMS
from joma.studies.syntax.python_hierarchy.run import PythonHierarchyConfig, run

STUDY = Study(
    name="python-hierarchy",
    title="Section 5 on real code: hidden nodes and the syntax of Python",
    version=3,
    claims=CLAIMS,
    quick=PythonHierarchyConfig(),
    paper=PythonHierarchyConfig(
        tokens=2_000_000,
        held_out=0.2,
        vocabulary=4096,
        layers=4,
        width=256,
        heads=4,
        mlp=1024,
        context=256,
        dropout=0.2,
        batch=16,
        steps=3000,
        rate=5e-4,
        points=16,
        seeds=5,
        shuffled=2,
        windows=128,
        device="cuda",
    ),
    run=run,
    draw=draw,
    about=(
        "Decoders learn to predict the next token of the source of sympy. They are tested on files they never saw. "
        "Every frequent label of the syntax tree (expressions, statements, blocks, definitions) is a latent. The best "
        "hidden node for a label is chosen on one half of these files and scored on the other half, "
        "over training. There are three controls: the same network before training, networks trained on shuffled "
        "tokens, and labels rotated within their file. Much of the syntax can be read from the current token. "
        "Therefore the part of the label that the token does not tell is scored too: the label minus its mean given "
        "the token. Every seed has its own weights, its own batches and its own halves of the files."
    ),
)
