"""What the decoders are trained on: the next token at every position, or a class at the last one."""

from __future__ import annotations

from torch import Tensor

from joma.models.decoder import Decoder
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
