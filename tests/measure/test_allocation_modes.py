"""Change allocation of states of any kind, under any setting of gradients and of precision."""

import pytest
import torch

from joma.measure import _allocation_slopes
from joma.measure._allocation_slopes import read_groups
from joma.measure.allocation import allocate


def plain_network(p):
    hidden = torch.tanh(torch.linspace(-1, 1, 6, dtype=p["w"].dtype)[:, None] @ p["w"] + p["b"])
    return (hidden @ p["v"]).exp().mean(0)


def plain_states(measures=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (1, 4), "b": (4,), "v": (4, measures)}
    return [{n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()} for _ in range(3)]


PLAIN = {"in": ["w", "b"], "out": ["v"]}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_grad_mode_does_not_matter(context):
    wanted = allocate(plain_network, plain_states(1), PLAIN)
    with context():
        assert torch.equal(allocate(plain_network, plain_states(1), PLAIN).parts, wanted.parts)


def test_states_may_be_lists_arrays_tensors_or_read_one_by_one():
    states = plain_states(1)
    wanted = allocate(plain_network, states, PLAIN)
    arrays = [{name: p.numpy() for name, p in state.items()} for state in states]
    lists = ({name: p.tolist() for name, p in state.items()} for state in states)
    for found in (allocate(plain_network, arrays, PLAIN), allocate(plain_network, lists, PLAIN)):
        assert torch.equal(found.parts, wanted.parts)
    kept = [{**state, "seed": torch.tensor(3)} for state in states]
    assert allocate(plain_network, kept, PLAIN).groups == ("in", "out")


def test_states_are_left_as_they_were():
    states = [{name: p.clone().requires_grad_() for name, p in state.items()} for state in plain_states()]
    allocate(plain_network, states, PLAIN)
    assert all(
        torch.equal(p, q)
        for a, b in zip(states, plain_states(), strict=True)
        for p, q in zip(a.values(), b.values(), strict=True)
    )
    assert all(p.grad is None for state in states for p in state.values())


def halves(members, rows=6):
    draw = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(members, rows, 8, generator=draw)} for _ in range(2)]
    return lambda p: p["w"].square().sum((1, 2)), states, {"a": [("w", (slice(None), slice(2)))]}


def test_products_inside_autocast_are_as_outside():
    """Sums over groups are products as well, and autocast rounds their factors to eight bits."""
    x = torch.randn(48, generator=torch.Generator().manual_seed(1))
    _, (start, end), _ = halves(1, rows=48)
    asked = (
        lambda p: (p["w"][0].mT @ x).square().mean(),
        [start, end],
        {"a": [("w", (0, slice(9)))], "b": [("w", (0, slice(9, 30)))]},
    )
    outside = allocate(*asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = allocate(*asked)
    assert torch.equal(inside.parts, outside.parts)
    assert torch.equal(inside.change, outside.change)


def test_a_program_that_uses_the_newer_setting_of_precision_keeps_it():
    function, states, groups = halves(2)
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    seen = []
    try:
        with pytest.raises(RuntimeError):  # else this test tells nothing
            torch.get_float32_matmul_precision()
        allocate(lambda p: seen.append(matmul.fp32_precision) or function(p), states, groups, members=True)
        assert set(seen) == {"ieee"}
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("large", [1, 1 << 20])
@pytest.mark.parametrize("alike", [True, False])
def test_sums_with_and_without_a_matrix_agree(monkeypatch, large, alike):
    """Few groups of a large parameter are summed one by one; members may differ in what a group holds."""
    monkeypatch.setattr(_allocation_slopes, "LARGE", large)
    function, states, groups = halves(3)
    if not alike:
        groups = {"a": [("w", torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(2)) > 0.5)]}
    found = allocate(function, states, groups, members=True)
    mask = torch.zeros(3, 6, 8, dtype=torch.bool)
    mask[groups["a"][0][1]] = True
    change = states[1]["w"].double().square() - states[0]["w"].double().square()
    expected = torch.stack([(change * mask).sum((1, 2)), (change * ~mask).sum((1, 2))])
    torch.testing.assert_close(found.parts[0], expected, rtol=0, atol=1e-4)
    sums = _allocation_slopes.GroupSums(read_groups(groups, states[0]))
    sums.add(torch.zeros(2, 3), "w", states[0]["w"])
    assert bool(sums.matrices) == (large > 1)
