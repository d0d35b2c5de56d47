"""Small ensembles: of decoders in float64 on a CPU, compared to the bit; of a single layer; of larger ones on a GPU."""

from __future__ import annotations

import torch
from torch import nn

from joma.models import Decoder, DecoderConfig
from joma.models.dropout import dropout
from joma.runs import Run
from joma.training import Ensemble, Optimizer, next_token_loss

CONFIG = DecoderConfig(vocabulary=11, width=8, mlp=12, layers=2, context=5, dropout=0.2)
SEEDS = (3, 1, 4, 1, 5)
RATES = (1e-3, 1e-2, 3e-3, 1e-3, 2e-2)


def batch(step, members):
    text = torch.stack(
        [torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(100 * step + member)) for member in members]
    )
    return text[..., :-1], text[..., 1:]


def networks(members):
    """In float64, and no bias at zero: the keys' has no gradient, and Adam would make steps of its rounding errors."""
    made = Decoder(CONFIG, [SEEDS[member] for member in members]).double()
    with torch.no_grad():
        made.qkv_bias += 0.1
    return made


def weights(decoder, members):
    return torch.cat([p.flatten(1) for p in decoder.parameters()], 1)


def ensemble(**changes):
    whole = {
        "members": 5, "networks": networks, "batch": batch, "loss": next_token_loss,
        "optimizer": Optimizer("adam", rate=RATES, clip=0.5), "steps": 12, "measures": {"weights": weights},
        "measure_at": (0, 5),
    }  # fmt: skip
    return Ensemble(**(whole | changes))


class Layer(nn.Module):
    """One layer that guesses the next tokens from the last ones, with dropout: for tests that ask for no decoder."""

    def __init__(self, seeds):
        super().__init__()
        drawn = [torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        matrix, bias = torch.stack(drawn).double().split([5, 1], dim=-1)
        self.matrix, self.bias = nn.Parameter(matrix.contiguous()), nn.Parameter(bias.mT.contiguous())
        self.register_buffer("seeds", torch.tensor(seeds, dtype=torch.int32))


def layer_loss(layer, batch, noise):
    tokens, following = (each.double() / 11 for each in batch)
    return (dropout(tokens @ layer.matrix, 0.2, noise, 1) + layer.bias - following).square().flatten(1).mean(1)


def layers(**changes):
    made = {"networks": lambda members: Layer([SEEDS[member] for member in members]), "loss": layer_loss}
    return ensemble(**(made | changes))


def language_models(layers=2, **changes):
    config = DecoderConfig(vocabulary=2000, width=128, mlp=512, layers=layers, context=16, dropout=0.1)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(2000, (40, 1), generator=generator) + torch.arange(17) * 7 % 50  # each start tells the rest
    text = (text % 2000).cuda()
    return Ensemble(
        members=2,
        networks=lambda members: Decoder(config, list(members)),
        batch=lambda step, members: (text[:, :-1], text[:, 1:]),
        loss=next_token_loss,
        optimizer=Optimizer("adam", rate=1e-3, clip=0.5),
        steps=300,
        measure_at=(50, 100, 200),
        device="cuda",
        **changes,
    )


def fresh(path):
    return Run.create(path, study="test", config={})


class Killed(Exception):
    pass


def dies_at(step):
    def deadly(now, members):
        if now == step:
            raise Killed
        return batch(now, members)

    return deadly


def full(*args, **kwargs):
    raise OSError(28, "No space left on device")
