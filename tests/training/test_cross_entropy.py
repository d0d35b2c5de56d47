"""Cross-entropy through the output matrix: against torch's own in float64; its kernels under Triton's interpreter."""

from __future__ import annotations

import os
import sys

import pytest
import quick_interpreter
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from joma.training import cross_entropy
from joma.training.cross_entropy import _loss_alone, _with_gradients, half_logits

triton = pytest.importorskip("triton", reason="kernels need triton")
DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
quick_interpreter.install()


def problem(members, positions, width, vocabulary, spread=1.0):
    generator = torch.Generator().manual_seed(vocabulary)
    x = torch.randn(members, positions, width, generator=generator)
    w = spread * torch.randn(members, vocabulary, width, generator=generator) / width**0.5
    b = torch.randn(members, vocabulary, generator=generator)
    targets = torch.randint(vocabulary, (members, positions), generator=generator)
    return x, w, b, targets


def oracle(x, w, b, targets):
    x, w, b = (t.double().cpu().requires_grad_() for t in (x, w, b))
    losses = torch.stack([F.cross_entropy(x[m] @ w[m].T + b[m], targets[m].cpu()) for m in range(len(x))])
    return losses.detach(), *torch.autograd.grad(losses.sum(), (x, w, b))


def test_plain_path_equals_torch():
    x, w, b, targets = problem(3, 7, 5, 11)
    leaves = [t.double().requires_grad_() for t in (x, w, b)]
    loss = cross_entropy(*leaves, targets)
    found = (loss, *torch.autograd.grad(loss.sum(), leaves))
    for ours, theirs in zip(found, oracle(x, w, b, targets), strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-14)


def test_plain_path_has_the_gradients_of_each_member_alone():
    """With a weight of its own for each member, and where a part does not learn; and of a loss that rounds to zero."""
    x, w, b, targets = problem(3, 7, 5, 11)
    each = torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)
    for learns in ((True, True, True), (True, False, False), (False, True, False), (False, False, True)):
        leaves = [t.double().requires_grad_(on) for t, on in zip((x, w, b), learns, strict=True)]
        loss = (cross_entropy(*leaves, targets) * each).sum()
        found = torch.autograd.grad(loss, [leaf for leaf in leaves if leaf.requires_grad])
        wanted = [g for g, on in zip(oracle(x, w, b, targets)[1:], learns, strict=True) if on]
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs * each.view(3, *[1] * (theirs.ndim - 1)), rtol=1e-11, atol=1e-13)
    for high in (0.0, 1e4):  # as sure as float32 can be, of the right word and of another
        bias = torch.zeros(1, 3).index_fill_(1, torch.tensor([1]), high).requires_grad_()
        loss = cross_entropy(torch.zeros(1, 2, 4), torch.zeros(1, 3, 4), bias, torch.tensor([[1, 0]]))
        torch.testing.assert_close(loss, F.cross_entropy(bias.expand(2, 3), torch.tensor([1, 0]))[None])
        (gradient,) = torch.autograd.grad(loss.sum(), bias)
        torch.testing.assert_close(gradient, bias.detach().softmax(-1) - torch.tensor([[0.5, 0.5, 0.0]]))


@pytest.mark.parametrize(("positions", "width", "vocabulary"), [(5, 6, 70), (9, 8, 128), (3, 3, 2100)])
def test_kernels(positions, width, vocabulary):
    from joma.training._cross_entropy_triton import SCALE, extended, gradient_in_place

    x, w, b, targets = (t.to(DEVICE) for t in problem(2, positions, width, vocabulary))
    rows, columns = -(-positions // 8) * 8, -(-vocabulary // 64) * 64
    wide = extended(w, b, columns)
    assert wide.shape == (2, columns, -(-(width + 1) // 8) * 8)
    torch.testing.assert_close(wide[:, :vocabulary, :width], w.half(), rtol=0, atol=0)
    torch.testing.assert_close(wide[:, :vocabulary, width], b.half(), rtol=0, atol=0)
    assert (wide[:, vocabulary:] == 0).all()
    assert (wide[..., width + 1 :] == 0).all()
    ones = extended(x, None, rows)
    assert (ones[:, :positions, width] == 1).all()
    assert (ones[:, positions:] == 0).all()

    logits = (ones.float() @ wide.float().mT).half().contiguous()
    exact = logits[:, :positions, :vocabulary].double()
    losses = torch.empty(2, positions, device=DEVICE)
    gradient_in_place(logits, targets, losses, vocabulary, write=True)
    expected = F.cross_entropy(exact.flatten(0, 1), targets.flatten(), reduction="none").view(2, positions)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    gradient = exact.softmax(-1) - F.one_hot(targets, vocabulary)
    torch.testing.assert_close(logits[:, :positions, :vocabulary].double() / SCALE, gradient, rtol=1e-3, atol=1e-9)
    assert (logits[:, positions:] == 0).all()
    assert (logits[:, :, vocabulary:] == 0).all()


def bmm(a, b, *, out_dtype=None, out=None):
    """torch.bmm, as a GPU has it: sums in float32, of half factors too."""
    found = (a.float() @ b.float()).to(out_dtype or a.dtype)
    return found if out is None else out.copy_(found)


@pytest.mark.skipif(DEVICE != "cpu", reason="products stand in for those of a GPU, beside interpreted kernels")
def test_in_pieces_it_is_the_same_loss_with_the_same_gradients(monkeypatch):
    """What a GPU does around its products: three members, two at a time, each with a weight of its own."""
    pieces = []

    def watched(a, b, **options):
        pieces.append(len(a))
        return bmm(a, b, **options)

    monkeypatch.setattr(torch, "bmm", watched)
    monkeypatch.setattr(sys.modules["joma.training.cross_entropy"], "AT_ONCE", 2 * 2 * 8 * 128)
    x, w, b, targets = problem(3, 5, 8, 70)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    loss, *kept = _with_gradients(*leaves, targets)
    assert pieces == [2, 2, 2, 1, 1, 1]  # logits and both gradients of two members, then of the third
    each = torch.tensor([1.0, -2.0, 0.5])
    found = torch.autograd.grad((loss * each).sum(), leaves)
    expected = oracle(x, w, b, targets)
    torch.testing.assert_close(loss.detach().double(), expected[0], rtol=0, atol=1e-3)
    for ours, theirs in zip(found, expected[1:], strict=True):
        wanted = theirs * each.double().view(3, *[1] * (theirs.ndim - 1))
        for mine, other in zip(ours.double(), wanted, strict=True):
            assert (mine - other).norm() < 0.005 * other.norm()
    with torch.no_grad():
        torch.testing.assert_close(_loss_alone(*leaves, targets), loss.detach())
    fakes = FakeTensorMode()
    of = [fakes.from_tensor(t.detach()) for t in (x, w, b, targets)]
    with fakes:
        assert [t.shape for t in _with_gradients(*of)] == [t.shape for t in (loss, *kept)]
        assert _loss_alone(*of).shape == (3,)


@pytest.mark.skipif(DEVICE == "cpu", reason="float16 products with float32 sums need a GPU")
@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_half_logits_on_a_gpu(spread):
    """Half precision is a choice that must be seen to be harmless: losses to 1e-3, gradients to 1 % of their norm."""
    x, w, b, targets = (t.to(DEVICE) for t in problem(5, 700, 200, 5003, spread))
    leaves = [t.requires_grad_() for t in (x, w, b)]
    with half_logits():
        loss = cross_entropy(*leaves, targets)
        found = torch.autograd.grad(loss.sum(), leaves)
        with torch.no_grad():
            alone = cross_entropy(*leaves, targets)
    expected = oracle(x, w, b, targets)
    torch.testing.assert_close(loss.detach().double().cpu(), expected[0], rtol=0, atol=1e-3)
    torch.testing.assert_close(alone, loss.detach())
    for ours, theirs in zip(found, expected[1:], strict=True):
        assert (ours.double().cpu() - theirs).norm() < 0.01 * theirs.norm()


def test_improbable_words_keep_their_gradient():
    """Adam moves a word's row by the rate whether its probability is 1e-3 or 1e-9: it must not become zero."""
    from joma.training._cross_entropy_triton import SCALE, gradient_in_place

    vocabulary = 64
    logits = torch.zeros(1, 8, vocabulary, dtype=torch.half, device=DEVICE)
    logits[..., 7] = -20.0
    losses = torch.empty(1, 8, device=DEVICE)
    gradient_in_place(logits, torch.zeros(1, 8, dtype=torch.long, device=DEVICE), losses, vocabulary, write=True)
    probability = torch.tensor(-20.0).exp() / (vocabulary - 1)  # 3e-11
    torch.testing.assert_close(logits[0, :, 7].float().cpu() / SCALE, probability.expand(8), rtol=0.05, atol=0)


@pytest.mark.skipif(DEVICE == "cpu", reason="float16 products with float32 sums need a GPU")
def test_rare_words_learn_on_a_gpu():
    """The row of every single word, also of those of probability 1e-9, has its gradient to 2 % of its own norm."""
    x, w, b, targets = (t.to(DEVICE) for t in problem(2, 700, 200, 5003))
    b[:, ::2] -= 12
    targets = (targets | 1).clamp(max=5001)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    with half_logits():
        found = torch.autograd.grad(cross_entropy(*leaves, targets).sum(), leaves)[1]
    expected = oracle(x, w, b, targets)[2]
    off = (found.double().cpu() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert off.max() < 0.02
