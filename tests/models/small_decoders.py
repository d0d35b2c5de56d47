"""A small decoder, what it reads, and weights that would show a mistake."""

import torch

from joma.models import DecoderConfig

SMALL = DecoderConfig(vocabulary=13, width=8, heads=2, mlp=12, layers=2, context=6)
TOKENS = torch.randint(13, (3, 6), generator=torch.Generator().manual_seed(0))


def shaken(decoder):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return decoder.double()
