"""What can be known of the built representations without sampling, and of the printed losses without training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from joma.studies.inductive_bias._config import Config
from joma.studies.inductive_bias._contrastive_law import (
    code_law,
    expected_loss,
    law_of_codes,
    least_loss,
    least_loss_of_bits,
)
from joma.studies.inductive_bias._hypercube import BUILT, Cubes, Representation, all_codes, contrastive_loss

LISTED_BITS = 5  # informative coordinates of the cube whose points are all listed: 2^10 points
PRINTED_BITS, PRINTED_BATCH, PRINTED_TEMPERATURE = 10, 512, 0.5
"""Not stated on the slide. With these the code x / sqrt(10) has the loss that is printed for linear, 5.134."""


def exact_losses(config: Config) -> np.ndarray:
    """Of the perfect, the spurious and the scrambled representation, by listing all points of a small cube."""
    bits = min(config.informative, LISTED_BITS)
    cubes = Cubes(replace(config, informative=bits, inputs=2 * bits, device="cpu", precision="float32"))
    points = all_codes(2 * bits).to(torch.float64)
    codes = [torch.nn.functional.normalize(cubes.built(name)(points).double(), dim=-1).numpy() for name in BUILT[:3]]
    batch, temperature = config.batch, config.temperature
    return np.array([expected_loss(law_of_codes(code), batch=batch, temperature=temperature) for code in codes])


def swap_residual(config: Config) -> float:
    """How far the spurious loss of a batch is from the perfect loss of the batch with both blocks of bits exchanged.

    The exchange maps the cube onto itself and keeps its uniform law, so a residual of zero for every batch says that
    the losses of both have the same law, and not only the same mean.
    """
    cubes = Cubes(replace(config, device="cpu", precision="float32"))
    views = [view.double() for view in cubes.views(-7, range(config.seeds))]
    perfect, spurious = (cubes.built(name) for name in BUILT[:2])
    one = _loss(spurious, views, config.temperature)
    other = _loss(perfect, [_exchanged(view, config.informative) for view in views], config.temperature)
    return float((one - other).abs().max())


def _loss(representation: Representation, views: list[Tensor], temperature: float) -> Tensor:
    first, second = (representation(view) for view in views)
    return contrastive_loss(first, second, temperature)


def _exchanged(view: Tensor, bits: int) -> Tensor:
    """The signs of the next bits in place of the informative ones, which then stand in their place."""
    return torch.cat([view[..., bits : 2 * bits].sign(), view[..., :bits], view[..., 2 * bits :]], dim=-1)


def view_residual(config: Config) -> np.ndarray:
    """How far codes of two views of a point differ at most, for each of `BUILT`."""
    cubes = Cubes(replace(config, device="cpu", precision="float32"))
    views = cubes.views(-8, range(config.seeds))
    return np.array([float((cubes.built(name)(views[0]) - cubes.built(name)(views[1])).abs().max()) for name in BUILT])


def printed_settings() -> np.ndarray:
    """At the settings above: loss of x / sqrt(10), least loss of a code of ten bits, least loss of any code."""
    batch, temperature = PRINTED_BATCH, PRINTED_TEMPERATURE
    linear = expected_loss(code_law(PRINTED_BITS), batch=batch, temperature=temperature)
    of_bits = least_loss_of_bits(PRINTED_BITS, batch=batch, temperature=temperature)
    return np.array([linear, of_bits, least_loss(batch=batch, temperature=temperature)])
