"""What becomes of the inner optimizer's state when a subspace moves: of every optimizer of torch, by formula."""

import numpy as np
import pytest
import torch
from torch import nn

from joma.optim import GaLore
from joma.optim._update import move_state

LINEAR, SQUARES = "linear", "squares"
MOMENTS = {"exp_avg": LINEAR, "exp_avg_sq": SQUARES}
KEPT = {  # of the compact shape, or with one side of 1: how each turns
    "Adam": ({"amsgrad": True}, MOMENTS | {"max_exp_avg_sq": SQUARES}),
    "AdamW": ({}, MOMENTS),
    "NAdam": ({}, MOMENTS),
    "RAdam": ({}, MOMENTS),
    "Adamax": ({}, {"exp_avg": LINEAR, "exp_inf": SQUARES}),
    "Adagrad": ({}, {"sum": SQUARES}),
    "Adadelta": ({}, {"square_avg": SQUARES, "acc_delta": SQUARES}),
    "RMSprop": (
        {"momentum": 0.5, "centered": True},
        {"square_avg": SQUARES, "momentum_buffer": LINEAR, "grad_avg": LINEAR},
    ),
    "Rprop": ({}, {"prev": LINEAR, "step_size": SQUARES}),
    "SGD": ({"momentum": 0.9}, {"momentum_buffer": LINEAR}),
    "Muon": ({}, {"momentum_buffer": LINEAR}),
    "Adafactor": ({}, {"row_var": SQUARES, "col_var": SQUARES}),
}
RANK = 3


def moved(value: np.ndarray, turn: np.ndarray, how: str) -> np.ndarray:
    found = np.zeros_like(value)
    for i in range(len(turn)):
        for j in range(len(turn)):
            found[i] += (turn[i, j] if how == LINEAR else turn[i, j] ** 2) * value[j]
        if how == SQUARES:
            found[i] += (1 - (turn[i] ** 2).sum()) * value.mean(0)
    return found


@pytest.mark.parametrize("name", KEPT)
def test_a_state_turns_with_its_subspace(name):
    options, kinds = KEPT[name]
    for shape in ((5, 9), (9, 5)):
        luck = torch.Generator().manual_seed(0)
        draw = lambda *size, luck=luck: torch.randn(*size, generator=luck, dtype=torch.float64)
        weight = nn.Parameter(draw(*shape))
        optimizer = GaLore([weight], getattr(torch.optim, name), rank=RANK, refresh=9, lr=0.1, **options)
        for _ in range(2):
            weight.grad = draw(*shape)
            optimizer.step()
        (matrix,) = optimizer.matrices
        state = optimizer.inner.state[matrix.pack.compact]
        before = {key: value.numpy().copy() for key, value in state.items() if torch.is_tensor(value) and value.ndim}
        assert set(before) == set(kinds)
        old = matrix.basis.clone()
        matrix.basis.copy_(torch.linalg.qr(draw(5, RANK))[0])
        turn = (matrix.basis.T @ old).numpy()
        assert np.abs(turn - np.eye(RANK)).max() > 0.1
        move_state(optimizer.inner, matrix, old, "rotate")
        axis = 0 if shape == (5, 9) else 1
        for key, value in before.items():
            turns = value.shape[axis] == RANK  # of Adafactor's factors one lies along the other side
            expected = np.moveaxis(moved(np.moveaxis(value, axis, 0), turn, kinds[key]), 0, axis) if turns else value
            np.testing.assert_allclose(state[key].numpy(), expected, rtol=1e-9, atol=1e-12, err_msg=f"{key} {shape}")
            assert kinds[key] == LINEAR or (state[key] >= 0).all()


def test_keep_leaves_the_state_and_reset_forgets_it():
    for on_move, there in (("keep", True), ("reset", False)):
        weight = nn.Parameter(torch.zeros(5, 9))
        optimizer = GaLore([weight], rank=RANK)
        weight.grad = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
        optimizer.step()
        (matrix,) = optimizer.matrices
        before = {key: value.clone() for key, value in optimizer.inner.state[matrix.pack.compact].items()}
        old = matrix.basis.clone()
        matrix.basis.copy_(old.flip(1))
        move_state(optimizer.inner, matrix, old, on_move)
        after = optimizer.inner.state.get(matrix.pack.compact, {})
        assert bool(after) == there
        assert all(torch.equal(value, before[key]) for key, value in after.items())
