"""What the decoders are trained on: the next token at every position, a class at the last one, or chosen positions."""

import torch
from torch import Tensor

from joma.models.decoder import Decoder
from joma.models.parts import compiled_part
from joma.training.cross_entropy import cross_entropy


def next_token_loss(decoder: Decoder, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of every member, (members,). batch: tokens as `Decoder` takes them, and those that follow.

    >>> from joma.models import DecoderConfig
    >>> import torch
    >>> decoder = Decoder(DecoderConfig(vocabulary=50, width=8, mlp=16), seeds=[0, 1])
    >>> text = torch.randint(50, (4, 11))
    >>> next_token_loss(decoder, (text[:, :-1], text[:, 1:])).shape
    torch.Size([2])
    """
    tokens, following = batch
    features = decoder.features(tokens, noise=noise).flatten(1, 2)
    targets = following.flatten(-2).expand(decoder.members, -1)
    return cross_entropy(features, decoder.out, decoder.out_bias, targets)


def class_loss(decoder: Decoder, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the class read at the last position, (members,). batch: tokens, labels (..., batch).

    >>> from joma.models import DecoderConfig
    >>> import torch
    >>> decoder = Decoder(DecoderConfig(vocabulary=50, outputs=3, width=8, mlp=16), seeds=[0, 1])
    >>> class_loss(decoder, (torch.randint(50, (4, 10)), torch.tensor([0, 2, 1, 1]))).shape
    torch.Size([2])
    """
    tokens, labels = batch
    features = decoder.features(tokens, noise=noise)[:, :, -1]
    return cross_entropy(features, decoder.out, decoder.out_bias, labels.expand(decoder.members, -1))


def answer_loss(decoder: Decoder, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Mean cross-entropy at the positions that have a target, (members,). All other positions are read and not judged.

    batch: tokens as `Decoder` takes them, and targets of the same shape: the token to say at a position, or -1. At
    least one position per member needs a target.

    >>> from joma.models import DecoderConfig
    >>> import torch
    >>> decoder = Decoder(DecoderConfig(vocabulary=50, width=8, mlp=16), seeds=[0, 1])
    >>> tokens, targets = torch.tensor([[3, 48], [5, 48]]), torch.tensor([[-1, 4], [-1, 6]])
    >>> answer_loss(decoder, (tokens, targets)).shape
    torch.Size([2])
    """
    tokens, targets = batch
    features = decoder.features(tokens, noise=noise).flatten(1, 2)
    return _at_targets(features, decoder.out, decoder.out_bias, targets.flatten(-2).expand(decoder.members, -1))


@compiled_part
def _at_targets(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    logits = torch.baddbmm(bias[:, None], features, weight.mT)
    right = logits.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
    asked = targets >= 0
    return ((logits.logsumexp(-1) - right) * asked).sum(-1) / asked.sum(-1)
