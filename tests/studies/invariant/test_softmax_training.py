"""The training behind Figures 2 and 3: explicit gradients are those of autograd, frozen attention is frozen."""

import torch

from joma.models.block import JomaBlock
from joma.studies.invariant.thm1_softmax import run as softmax
from joma.theory.attention import Attention


def test_training_by_explicit_gradients_is_training_by_autograd():
    start = softmax.draw_start("random", range(3), classes=5, tokens=6)
    steps, rate, temperature = 20, 0.3, 0.5
    path = softmax.train(start, steps=steps, rate=rate, temperature=temperature)
    embeddings = torch.eye(7, dtype=torch.float64)
    attention = Attention("softmax", temperature=temperature)
    block = JomaBlock(embeddings[:, :6], embeddings[:, 6:], nodes=5, attention=attention, members=(3,))
    with torch.no_grad():
        block.w.copy_(torch.cat([start.v, start.bias], 1))
        block.z.copy_(start.z)
    optimizer = block.sgd(rate_w=rate, rate_z=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        h = block(start.x, torch.zeros(5, dtype=torch.long))
        (-h.log_softmax(-1).diagonal(dim1=-2, dim2=-1).mean(-1).sum()).backward()
        optimizer.step()
    torch.testing.assert_close(path.v[:, -1], block.v.detach(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(path.z[:, -1], block.z.detach()[:, 0], rtol=1e-12, atol=1e-14)


def test_frozen_attention_is_training_without_a_rate_for_z():
    start = softmax.draw_start("smooth", range(2), classes=4, tokens=6)
    frozen = softmax.train_with_frozen_attention(start, torch.tensor([0, 1]), rate=0.3, temperature=0.5)
    moving = softmax.train(start, steps=1, rate=0.3, temperature=0.5).v  # z has not acted before the second step
    torch.testing.assert_close(frozen, moving, rtol=0, atol=1e-15)
    further = softmax.train_with_frozen_attention(start, torch.tensor([0, 9]), rate=0.3, temperature=0.5)
    b = softmax.look(start.x, start.v, start.bias, start.z, 0.5).b
    v, bias = start.v, start.bias
    for _ in range(9):
        g = torch.eye(4, dtype=torch.float64) - (b @ v + bias).softmax(-1)
        v, bias = v + 0.3 * (b.mT @ g) / 4, bias + 0.3 * g.mean(-2, keepdim=True)
    torch.testing.assert_close(further[:, 1], v, rtol=1e-13, atol=1e-14)
