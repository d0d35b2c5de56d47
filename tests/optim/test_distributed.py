"""Processes that train together train as one does: DDP, compact gradients, FSDP2; pairs out of four, and all four."""

import subprocess
import sys

import processes
import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE
from processes import CASES, PAIR, RANK, WORLD, alone, gradients, made, network
from torch.nn.parallel import DistributedDataParallel

from joma.optim import reduce_compact, same_subspaces


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each process computed; all cases in one start, because a start takes seconds."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, processes.__file__, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    return [torch.load(folder / f"found{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("case", CASES)
def test_several_processes_train_as_one(found, case):
    ends = []
    for first in (0, PAIR):
        wanted = alone(case, first)
        start = network().parameters()
        assert max(float((end - old).detach().abs().max()) for end, old in zip(wanted, start, strict=True)) > 0.01
        for rank in range(first, first + PAIR):
            for mine, theirs in zip(found[rank]["weights"][case], wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)
        ends.append(wanted)
    apart = max(float((one - other).abs().max()) for one, other in zip(*ends, strict=True))
    assert apart == 0 if case.endswith(("all", "copies")) else apart > 0.01  # pairs have data of their own


def test_processes_end_with_the_same_weights(found):
    for case in CASES:
        for first in (0, PAIR):
            pair = (found[rank]["weights"][case] for rank in range(first, first + PAIR))
            for one, other in zip(*pair, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("among", ["pair", "all"])
def test_all_use_the_subspaces_that_the_first_of_them_finds(found, among):
    """Each has gradients of its own, so that each would find others; the first of a pair need not be process 0."""
    for rank in range(WORLD):
        got = found[rank]["subspaces"][among]
        theirs = gradients(0 if among == "all" else rank // PAIR * PAIR)
        assert len(got) == 2 * len(theirs)
        for basis, energies, gradient in zip(got[::2], got[1::2], theirs, strict=True):
            wide = gradient.double() if gradient.shape[0] < gradient.shape[1] else gradient.double().T
            left, values, _ = torch.linalg.svd(wide, full_matrices=False)
            overlap = (left[:, :RANK].T @ basis.double()).abs()
            torch.testing.assert_close(overlap, torch.eye(RANK).double(), rtol=0, atol=1e-4)
            shares = (values[:RANK].square() / values.square().sum()).float()
            torch.testing.assert_close(energies, shares, rtol=1e-4, atol=0)


@pytest.mark.parametrize("among", ["fsdp pair", "fsdp all"])
def test_shards_of_a_matrix_have_one_subspace(found, among):
    """Each process draws with a seed of its own; what the first of them drew is what all have."""
    for rank in range(WORLD):
        first = 0 if among == "fsdp all" else rank // PAIR * PAIR
        model = network()
        single = made(model, projector="random", seed=10 + first)
        for matrix in single.matrices:
            matrix.parameter.grad = torch.ones_like(matrix.parameter)
        single.step()
        for matrix, basis in zip(single.matrices, found[rank]["subspaces"][among], strict=True):
            torch.testing.assert_close(basis, matrix.basis)


def test_a_step_that_one_process_cannot_make_none_of_its_group_makes(found):
    """The NaN lies in rows that only process 1, or 3, has; the pair of 2 and 3 has nothing to do with the first."""
    assert [each["skipped"] for each in found] == [[2, 2], [2, 2], [0, 2], [0, 2]]


def test_memory_is_what_lies_on_a_process(found):
    """The pair has everything once: float32 weights, as many gradients, and compact momenta with those of the rest."""
    entries = sum(each.numel() for each in network().parameters())
    compact = sum(
        RANK * max(each.shape) for each in network().parameters() if each.ndim == 2 and min(each.shape) > RANK
    )
    rest = sum(each.numel() for each in network().parameters() if each.ndim == 1)
    for first in (0, PAIR):
        one, other = (found[rank]["bytes"] for rank in range(first, first + PAIR))
        assert [a + b for a, b in zip(one, other, strict=True)] == [4 * entries, 4 * entries, 4 * (compact + rest)]
        assert max(one[0], other[0]) < 4 * entries * 0.7


def test_what_cannot_be_done_is_said(found):
    for first, second, third, fourth in (each["said"] for each in found):
        assert first.startswith("per_layer takes gradients before DistributedDataParallel averages")
        assert second == "model must be wrapped in DistributedDataParallel, got Sequential"
        assert third.endswith("leave per_layer out")
        assert fourth.startswith("reduce_compact projects twice")


def test_without_processes_it_is_said():
    with pytest.raises(ValueError, match="call init_process_group first"):
        same_subspaces(made(network()))


def test_compact_gradients_beside_a_matrix_that_was_frozen_before_it_had_a_subspace():
    """It is still in a bucket, with zeros."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(network(), find_unused_parameters=True)
        optimizer = made(model.module)
        reduce_compact(model, optimizer)
        frozen, trained = (optimizer.matrices[place].parameter for place in (1, 0))
        frozen.requires_grad_(False)
        before = [each.detach().clone() for each in (frozen, trained)]
        for parts in processes.batches("compact adamw", 0):
            optimizer.zero_grad()
            processes.loss(model, parts[0]).backward()
            optimizer.step()
        assert torch.equal(frozen, before[0])
        assert not torch.equal(trained, before[1])
    finally:
        dist.destroy_process_group()
