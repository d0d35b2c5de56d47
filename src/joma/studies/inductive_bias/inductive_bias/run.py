"""Scores the built representations, learns others by contrast, and trains classifiers of digits.

Of the built representations some things can be known without sampling, and of the printed losses without training.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, needs_device
from joma.runs import Run
from joma.studies.inductive_bias.inductive_bias import hypercube, random_labels
from joma.studies.inductive_bias.inductive_bias.hypercube import BUILT, Cubes, all_codes, contrastive_loss
from joma.studies.inductive_bias.inductive_bias.networks import InductiveBiasConfig
from joma.training import train_all

LISTED_BITS = 5  # informative coordinates of the cube whose points are all listed: 2^10 points
PRINTED_BITS, PRINTED_BATCH, PRINTED_TEMPERATURE = 10, 512, 0.5
"""Not stated on the slide. With these the code x / sqrt(10) has the loss that is printed for linear, 5.134."""


def run(config: InductiveBiasConfig, run: Run, progress: Progress) -> None:
    """Score the built representations, learn others by contrast, and train classifiers of digits."""
    needs_device(config.device, at_paper_scale("inductive-bias"))
    progress(0.0, "built representations")
    run.keep("printed settings", _printed_settings)
    run.keep("built/exact loss", lambda: _exact_losses(config))
    run.keep("built/swap residual", lambda: _swap_residual(config))
    run.keep("built/view residual", lambda: _view_residual(config))
    names = ("loss", "accuracy", "shuffled", "informative", "others", "same bits", "own plane")
    if not all(f"built/{name}" in run for name in names):
        cubes, members = Cubes(config), range(config.seeds)
        codes = [cubes.built(name) for name in BUILT]
        scores = [{**cubes.scores(code, members), "own plane": cubes.own_plane(code, members)} for code in codes]
        run.record(0, {f"built/{name}": torch.stack([score[name] for score in scores]).cpu() for name in names})
    train_all({**hypercube.ensembles(config), **random_labels.ensembles(config)}, run, progress=progress)


def _exact_losses(config: InductiveBiasConfig) -> np.ndarray:
    """Of the perfect, the spurious and the scrambled representation, by listing all points of a small cube."""
    bits = min(config.informative, LISTED_BITS)
    cubes = Cubes(replace(config, informative=bits, inputs=2 * bits, device="cpu", precision="float32"))
    points = all_codes(2 * bits).to(torch.float64)
    codes = [torch.nn.functional.normalize(cubes.built(name)(points).double(), dim=-1).numpy() for name in BUILT[:3]]
    settings: dict[str, Any] = {"batch": config.batch, "temperature": config.temperature}
    return np.array([hypercube.expected_loss(hypercube.law_of_codes(code), **settings) for code in codes])


def _swap_residual(config: InductiveBiasConfig) -> float:
    """How far the spurious loss of a batch is from the perfect loss of the batch with both blocks of bits exchanged.

    The exchange maps the cube onto itself and keeps its uniform law, so a residual of zero for every batch says that
    the losses of both have the same law, and not only the same mean.
    """
    cubes = Cubes(replace(config, device="cpu", precision="float32"))
    views = [view.double() for view in cubes.views(-7, range(config.seeds))]
    perfect, spurious = (cubes.built(name) for name in BUILT[:2])
    bits, temperature = config.informative, config.temperature
    # The signs of the next bits in place of the informative ones, which then stand in their place.
    swapped = [
        torch.cat([view[..., bits : 2 * bits].sign(), view[..., :bits], view[..., 2 * bits :]], dim=-1)
        for view in views
    ]
    one, other = (
        contrastive_loss(code(first), code(second), temperature)
        for code, (first, second) in ((spurious, views), (perfect, swapped))
    )
    return float((one - other).abs().max())


def _view_residual(config: InductiveBiasConfig) -> np.ndarray:
    """How far codes of two views of a point differ at most, for each of `BUILT`."""
    cubes = Cubes(replace(config, device="cpu", precision="float32"))
    first, second = cubes.views(-8, range(config.seeds))
    codes = [cubes.built(name) for name in BUILT]
    return np.array([float((code(first) - code(second)).abs().max()) for code in codes])


def _printed_settings() -> np.ndarray:
    """At the settings above: loss of x / sqrt(10), least loss of a code of ten bits, least loss of any code."""
    settings: dict[str, Any] = {"batch": PRINTED_BATCH, "temperature": PRINTED_TEMPERATURE}
    linear = hypercube.expected_loss(hypercube.code_law(PRINTED_BITS), **settings)
    return np.array([linear, hypercube.least_loss_of_bits(PRINTED_BITS, **settings), hypercube.least_loss(**settings)])
