"""Small images of ten classes that every machine can draw: digits of seven strokes, moved, slanted and noisy."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import integer
from joma.host.words import brief_repr

CLASSES = 10
CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (1.0, 2.0))
"""Of the display, x to the right and y downwards."""
STROKES = ((0, 1), (1, 3), (3, 5), (4, 5), (2, 4), (0, 2), (2, 3))
"""From corner to corner: top, upper right, lower right, bottom, lower left, upper left, middle."""
DIGITS = ("012345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356")
"""Which strokes each digit has."""
CHUNK = 2048  # images drawn at once: distances of all pixels to all strokes take memory


@brief_repr
class Images(NamedTuple):
    """Images and their digits.

    >>> stroke_digits(3, side=8, generator=torch.Generator().manual_seed(0)).labels.dtype
    torch.int64
    """

    pixels: Tensor
    """(images, side, side) float32: 0 is the ground, about 1 a stroke."""
    labels: Tensor
    """(images,) int64: the digit."""


def stroke_digits(
    count: int, *, side: int, generator: torch.Generator, noise: float = 0.35, vary: float = 1.0
) -> Images:
    """Digits of seven strokes, each at its own place, size, slant, thickness and contrast, with bent corners and noise.

    Digits are drawn uniformly. noise is the standard deviation of what is added to every pixel. vary scales how far
    place, size, slant and corners differ between images; with 0 only thickness, contrast and noise do. The images lie
    on the generator's device, and depend on the generator alone.

    >>> images = stroke_digits(5, side=12, generator=torch.Generator().manual_seed(0))
    >>> images.pixels.shape, images.labels.tolist()
    (torch.Size([5, 12, 12]), [4, 9, 3, 0, 3])
    """
    if integer(side, "side", 1) < 8:
        raise ValueError(f"side must be at least 8 pixels to show seven strokes, got {side}")
    for name, value in (("noise", noise), ("vary", vary)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value}")
    starts = range(0, integer(count, "count", 1), CHUNK)
    parts = [_drawn(min(CHUNK, count - start), side, noise, vary, generator) for start in starts]
    return Images(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))


def _drawn(count: int, side: int, noise: float, vary: float, generator: torch.Generator) -> Images:
    device = generator.device
    labels = torch.randint(CLASSES, (count,), generator=generator, device=device)
    luck = torch.rand(count, 6, generator=generator, device=device)
    thickness, contrast = 0.16 + 0.16 * luck[:, 4], 0.6 + 0.6 * luck[:, 5]
    # The corners in a frame where the image goes from -2 to 2: moved, scaled, slanted and bent.
    upright = torch.tensor(CORNERS, device=device) - torch.tensor((0.5, 1.0), device=device)
    bent = upright + 0.1 * vary * torch.randn(count, len(CORNERS), 2, generator=generator, device=device)
    off = vary * (luck - 0.5)
    scale, slant, move = 1.05 + 0.5 * off[:, :1], 0.8 * off[:, 1:2], 1.2 * off[:, 2:4]
    x, y = scale * bent[..., 0], scale * bent[..., 1]
    distance = _distances(torch.stack([x - slant * y, y], -1) + move[:, None], side)
    drawn = torch.tensor([[str(stroke) in digit for stroke in range(len(STROKES))] for digit in DIGITS], device=device)
    distance = distance.masked_fill(~drawn[labels][:, None], torch.inf)
    ink = torch.sigmoid((thickness[:, None] - distance.amin(-1)) / 0.06) * contrast[:, None]
    speckle = torch.randn(count, side * side, generator=generator, device=device)
    return Images((ink + noise * speckle).view(count, side, side), labels)


def _distances(corners: Tensor, side: int) -> Tensor:
    """(images, pixels, strokes): from every pixel to every stroke."""
    place = (torch.arange(side, device=corners.device) + 0.5) * (4 / side) - 2
    pixels = torch.stack(torch.meshgrid(place, place, indexing="xy"), -1).view(-1, 1, 2)
    ends = torch.tensor(STROKES, device=corners.device)
    start, end = corners[:, None, ends[:, 0]], corners[:, None, ends[:, 1]]  # (images, 1, strokes, 2)
    along = end - start
    share = ((pixels - start) * along).sum(-1) / along.square().sum(-1).clamp(min=1e-6)
    offset: Tensor = pixels - start - share.clamp(0, 1)[..., None] * along
    return offset.square().sum(-1).sqrt()
