"""The losses of decoders against plain cross-entropies in float64."""

import torch
import torch.nn.functional as F

from joma.models import Decoder, DecoderConfig
from joma.training import answer_loss, class_loss, next_token_loss

CONFIG = DecoderConfig(vocabulary=11, width=8, heads=2, mlp=12, context=4, norm="pre-layer", tied=True)


def examples(members=()):
    luck = torch.Generator().manual_seed(0)
    tokens = torch.randint(11, (*members, 5, 4), generator=luck)
    targets = torch.randint(11, (*members, 5, 4), generator=luck)
    return tokens, torch.where(torch.rand(targets.shape, generator=luck) < 0.4, targets, -1)


def test_equals_a_plain_cross_entropy_over_the_asked_positions():
    for members in ((), (2,)):
        decoder = Decoder(CONFIG, seeds=[3, 4]).double()
        tokens, targets = examples(members)
        losses = answer_loss(decoder, (tokens, targets))
        logits, targets = decoder(tokens), targets.expand(2, 5, 4)
        plain = [F.cross_entropy(logits[m].flatten(0, 1), targets[m].flatten(), ignore_index=-1) for m in range(2)]
        torch.testing.assert_close(losses, torch.stack(plain), rtol=1e-12, atol=1e-12)
        ours, theirs = (
            torch.autograd.grad(loss.sum(), list(decoder.parameters()), retain_graph=True)
            for loss in (losses, torch.stack(plain))
        )
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_next_tokens_and_classes_are_plain_cross_entropies():
    for members in ((), (2,)):
        decoder = Decoder(CONFIG, seeds=[3, 4]).double()
        luck = torch.Generator().manual_seed(1)
        tokens, following = (torch.randint(11, (*members, 5, 4), generator=luck) for _ in range(2))
        logits = decoder(tokens)
        for found, read, wanted in (
            (next_token_loss(decoder, (tokens, following)), logits, following),
            (class_loss(decoder, (tokens, following[..., 2])), logits[:, :, -1], following[..., 2]),
        ):
            wanted = wanted.expand(read.shape[:-1])
            plain = [F.cross_entropy(read[m].reshape(-1, 11), wanted[m].flatten()) for m in range(2)]
            torch.testing.assert_close(found, torch.stack(plain), rtol=1e-12, atol=1e-12)


def test_what_is_not_asked_is_not_judged():
    decoder = Decoder(CONFIG, seeds=[3])
    tokens, targets = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[-1, 5, -1, -1]])
    changed = tokens.clone()
    changed[:, 2:] = 9  # a causal decoder has not seen it when it is asked
    assert torch.equal(answer_loss(decoder, (tokens, targets)), answer_loss(decoder, (changed, targets)))
    assert not torch.equal(answer_loss(decoder, (tokens, targets)), answer_loss(decoder, (tokens, targets + 1)))
