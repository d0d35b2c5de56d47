"""Shapes of one parameter count: for a number of layers, the width that makes a decoder as large as the others."""

from __future__ import annotations

from math import log

from joma.host.words import counted
from joma.models.decoder import DecoderConfig

NEAR = 0.01
"""Shapes count as equally large if they are within this share of the number that was asked for."""
TIMES_WIDTH = 4
"""The MLP's hidden width should be this many times the width; what is left over of the count is put there."""


def parameters_of(shape: DecoderConfig) -> int:
    """All trained numbers of a pre-norm decoder with LayerNorm: embeddings, blocks, last norm, output matrix.

    >>> parameters_of(DecoderConfig(9, width=4, mlp=16, norm="pre-layer", activation="gelu"))
    333
    """
    width = shape.width
    return embeddings_of(shape) + (shape.outputs or shape.vocabulary) + 2 * width + shape.layers * _block(shape)


def embeddings_of(shape: DecoderConfig) -> int:
    """The weights that grow with the vocabulary: word vectors and the output matrix, which are not tied."""
    return (shape.vocabulary + (shape.outputs or shape.vocabulary)) * shape.width


def _block(shape: DecoderConfig) -> int:
    """Four matrices of attention and two of the MLP, with their biases, and two norms."""
    width, mlp = shape.width, shape.mlp
    return 4 * width * (width + 1) + 2 * width * mlp + mlp + width + 4 * width


def operations_of(shape: DecoderConfig) -> float:
    """Floating-point operations per token of a training step, forward and back: three times those forward.

    Two per weight of every matrix that a token passes, and those of attention over the whole context, because masked
    places are computed too. A class is read at one place only: its output matrix is counted once per token all the
    same.
    """
    matrices = shape.layers * (4 * shape.width**2 + 2 * shape.width * shape.mlp)
    matrices += (shape.outputs or shape.vocabulary) * shape.width
    return 3.0 * (2 * matrices + 4 * shape.layers * shape.context * shape.width)


def find_shape(
    parameters: int,
    layers: int,
    *,
    vocabulary: int,
    context: int,
    outputs: int | None = None,
    head_width: int = 32,
    multiple: int = 2,
) -> DecoderConfig:
    """The pre-norm decoder of so many layers whose count is within 1 % of `parameters`.

    Its width is the multiple of `multiple` for which the MLP comes nearest to four times the width. The MLP's hidden
    width takes up what is left. It is a multiple too where that is fine enough. Heads are about `head_width` wide.

    >>> shape = find_shape(50_000, 4, vocabulary=200, context=32)
    >>> shape.width, shape.mlp, parameters_of(shape)
    (28, 110, 50088)
    """
    if multiple % 2:
        raise ValueError(f"multiple must be even, as sinusoidal positions need even widths, got {multiple}")
    found: list[DecoderConfig] = []
    for width in range(multiple, int(parameters**0.5) + multiple, multiple):
        shape = DecoderConfig(
            vocabulary,
            outputs=outputs,
            layers=layers,
            width=width,
            heads=heads_of(width, head_width),
            mlp=TIMES_WIDTH * width,
            context=context,
            norm="pre-layer",
            activation="gelu",
        )
        found += _filled(shape, parameters, multiple)
    if not found:
        raise ValueError(
            f"parameters must leave room for {counted(layers, 'layer')} beside the embeddings of {vocabulary} words, "
            f"got {parameters}"
        )
    return min(found, key=lambda shape: abs(log(shape.mlp / (TIMES_WIDTH * shape.width))))


def _filled(shape: DecoderConfig, parameters: int, multiple: int) -> list[DecoderConfig]:
    """The shape with the MLP that makes its count right; none if no MLP between 2 and 8 times the width does."""
    slope = shape.layers * (2 * shape.width + 1)
    mlp = shape.mlp + (parameters - parameters_of(shape)) / slope
    wanted = [multiple * round(mlp / multiple), round(mlp)]
    fitting = [each for each in wanted if 2 * shape.width <= each <= 8 * shape.width]
    shapes = [shape.with_(mlp=each) for each in fitting]
    return [each for each in shapes if abs(parameters_of(each) / parameters - 1) <= NEAR][:1]


def heads_of(width: int, head_width: int) -> int:
    """The number of heads that divides the width and comes nearest to heads of `head_width`.

    >>> heads_of(96, 32), heads_of(26, 16), heads_of(8, 16)
    (3, 2, 1)
    """
    possible = [heads for heads in range(1, width + 1) if width % heads == 0]
    return min(possible, key=lambda heads: abs(log(width / heads / head_width)))
