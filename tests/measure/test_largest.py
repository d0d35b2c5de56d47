"""The largest product of every head against the whole matrix in float64, on every kind of mask."""

import os

import pytest
import quick_interpreter
import torch

from joma.measure._attention_problem import Problem
from joma.measure._largest import largest_products

pytest.importorskip("triton", reason="Triton is not installed here")

from joma.measure._largest_triton import again, covers, launch

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
BLOCKS = (16, 16, 4, 2) if DEVICE == "cpu" else None
quick_interpreter.install()
ROWS, KEYS, PADDED = torch.arange(37)[:, None], torch.arange(37), torch.tensor([[True] * 30 + [False] * 7, [True] * 37])
DOCUMENT = torch.bucketize(KEYS, torch.tensor([5, 6, 34]), right=True)
CAUSAL = (KEYS <= ROWS).expand(2, 1, 37, 37)
DRAWN = torch.rand(2, 4, 37, 37, generator=torch.Generator().manual_seed(5)) > 0.5
CASES = {  # what is given, and which keys each query then sees
    "causal": ({}, CAUSAL),
    "all keys": ({"causal": False}, torch.ones_like(CAUSAL)),
    "window": ({"window": 7}, CAUSAL & (KEYS > ROWS - 7)),
    "mask": ({"causal": False, "bias": DRAWN}, DRAWN),
    "added mask": ({"causal": False, "bias": torch.where(DRAWN, 5.0, -torch.inf)}, DRAWN),
    "padded keys": ({"key_padding": PADDED}, CAUSAL & PADDED[:, None, None]),
    "padded queries": ({"real": PADDED}, CAUSAL & PADDED[:, None, :, None]),
    "documents": ({"cu_seqlens": torch.tensor([0, 5, 6, 34, 37])}, CAUSAL & (DOCUMENT[:, None] == DOCUMENT)),
    "own scale": ({"scale": 0.3}, CAUSAL),
}


@pytest.mark.parametrize("case", CASES)
def test_the_largest_of_the_matrix(case):
    given, seen = CASES[case]
    generator = torch.Generator().manual_seed(1)
    width = 24 if case == "all keys" else 16
    q = torch.randn(2, 4, 37, width, generator=generator)
    k = torch.randn(2, 2, 37, width, generator=generator)
    k[:, :, -1] *= 9  # what only the last query sees, and nobody beyond the end
    logits = q.double() @ k.double().repeat_interleave(2, 1).mT * given.get("scale", width**-0.5)
    expected = logits.masked_fill(~seen, -torch.inf).amax((0, 2, 3))
    given = {name: each.to(DEVICE) if isinstance(each, torch.Tensor) else each for name, each in given.items()}
    torch.testing.assert_close(
        largest_products(q.to(DEVICE), k.to(DEVICE), **given).double().cpu(), expected, rtol=1e-6, atol=1e-6
    )
    real, bias = given.pop("real", None), given.pop("bias", None)
    if bias is not None and bias.dtype != torch.bool:
        bias = bias > -torch.inf
    problem = Problem.of(q.to(DEVICE), k.to(DEVICE), None, bias=bias, mask_stays=True, **given)
    assert covers(problem)
    torch.testing.assert_close(launch(problem, real, None, BLOCKS).double().cpu(), expected, rtol=1e-5, atol=1e-5)
    before = torch.tensor([-9.0, 99.0, -99.0, 0.0], device=DEVICE)
    raised = torch.maximum(before.cpu().double(), expected)
    torch.testing.assert_close(launch(problem, real, before, BLOCKS).double().cpu(), raised, rtol=1e-5, atol=1e-5)
    if given.keys() <= {"causal", "scale"} and real is None:  # the same call on others of the same shapes
        call = again(problem, real, BLOCKS)
        call(2 * problem.q, problem.k, bias, before)
        torch.testing.assert_close(before.cpu().double(), torch.maximum(raised, 2 * expected), rtol=1e-5, atol=1e-5)


def test_again_reads_which_queries_are_padded_from_the_mask_itself():
    q = torch.randn(2, 4, 37, 16, generator=torch.Generator().manual_seed(1), device="cpu").to(DEVICE)
    masks = [(CAUSAL & each[:, None, :, None] & each[:, None, None]).to(DEVICE) for each in (PADDED, PADDED.flip(0))]
    real = [mask[:, 0].diagonal(dim1=1, dim2=2) for mask in masks]
    problem = Problem.of(q, q, None, causal=False, bias=masks[0], mask_stays=True)
    out = torch.full((4,), -torch.inf, device=DEVICE)
    again(problem, real[0], BLOCKS)(3 * q, q, masks[1], out)
    torch.testing.assert_close(out, largest_products(3 * q, q, causal=False, bias=masks[1], real=real[1]))


def test_all_products_may_be_negative_and_a_head_may_see_nothing():
    q, k = torch.ones(1, 2, 5, 16, device=DEVICE), -torch.ones(1, 2, 5, 16, device=DEVICE)
    bias = torch.ones(1, 2, 5, 5, dtype=torch.bool, device=DEVICE)
    bias[:, 1] = False
    problem = Problem.of(q, k, None, bias=bias, mask_stays=True)
    for found in (launch(problem, None, None, BLOCKS), largest_products(q, k, bias=bias)):
        assert found.tolist() == [-4.0, -torch.inf]
