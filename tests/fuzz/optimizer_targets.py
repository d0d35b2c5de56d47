"""What is fuzzed of optimizers: their saved states, spoiled as structures; files of torch.save are another kind.

A state is refused by `StateError` with the optimizer unchanged, or taken, and then the next step works and is finite.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from mutations import VALUES
from target import Target
from torch import Tensor, nn

from joma.optim import APOLLO, Fira, GaLore, Muon, StateError

Make = Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
ADAM = {"rank": 2, "refresh": 2, "lr": 0.01}
MADE: dict[str, Make] = {
    "AdamW": partial(GaLore, **ADAM, weight_decay=0.1),
    "rotated": partial(GaLore, **ADAM, amsgrad=True, on_move="rotate"),
    "SGD": partial(GaLore, inner=torch.optim.SGD, rank=2, lr=0.1, momentum=0.9),
    "Adafactor": partial(GaLore, inner=torch.optim.Adafactor, rank=2, lr=0.1),
    "Adagrad": partial(GaLore, inner=torch.optim.Adagrad, rank=3, lr=0.1),
    "RMSprop": partial(GaLore, inner=torch.optim.RMSprop, rank=2, lr=0.01, centered=True, momentum=0.5),
    "APOLLO": partial(APOLLO, **ADAM),
    "Fira": partial(Fira, **ADAM),
    "Muon": lambda named: Muon([each for _, each in named if each.ndim == 2], lr=0.01),
}


def named_parameters() -> list[tuple[str, nn.Parameter]]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"a": (6, 9), "b": (6, 9), "c": (8, 5), "d": (2, 7), "bias": (9,), "head": (5, 6)}
    return [(name, nn.Parameter(torch.randn(shape, generator=draw))) for name, shape in shapes.items()]


def made(kind: str) -> tuple[list[tuple[str, nn.Parameter]], torch.optim.Optimizer]:
    named = named_parameters()
    optimizer = MADE[kind](named)
    for number in range(3):
        step(named, optimizer, number)
    return named, optimizer


def step(named: list[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _, each in named:
        each.grad = torch.randn(each.shape, generator=draw)
    optimizer.step()


def _to_bytes(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _from_bytes(content: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)  # torch 2.11, of its own checks
        return torch.load(io.BytesIO(content), weights_only=True)


def _seeds(_: Path) -> list[bytes]:
    states = {kind: made(kind)[1].state_dict() for kind in MADE}
    for kind, state in states.items():  # honest ones are taken
        made(kind)[1].load_state_dict(state)
    return [_to_bytes({"kind": kind, "state": state}) for kind, state in states.items()]


def _spoiled(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """One to three places of the structure: replaced, removed, moved, or the numbers of a tensor changed."""
    value = _from_bytes(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(_places(value["state"]))
        if not places:
            break
        owner, key = random.choice(places)
        how = random.randrange(6)
        if how == 0:
            del owner[key]
        elif how == 1:
            other, there = random.choice(places)
            owner[key] = copy.deepcopy(other[there])
        elif how == 2 or not isinstance(owner[key], Tensor):
            owner[key] = copy.deepcopy(random.choice(PLAIN))
        else:
            whole = owner[key].to_dense().clone(memory_format=torch.contiguous_format)  # it may be damaged already
            owner[key] = random.choice(DAMAGE)(whole, random)
    return _to_bytes(value)


def _places(value: Any) -> Any:
    queue = [value]
    while queue:
        one = queue.pop()
        for key in list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ():
            yield one, key
            queue.append(one[key])


def _turn_a_bit(tensor: Tensor, random: Random) -> Tensor:
    if tensor.numel():
        data = tensor.contiguous().view(-1).view(torch.uint8)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return tensor


def _put(number: float) -> Callable[[Tensor, Random], Tensor]:
    def change(tensor: Tensor, random: Random) -> Tensor:
        if tensor.numel() and tensor.is_floating_point():
            tensor.view(-1)[random.randrange(tensor.numel())] = number
        return tensor

    return change


DAMAGE: tuple[Callable[[Tensor, Random], Tensor], ...] = (
    *(_turn_a_bit,) * 4,
    *map(_put, (float("nan"), float("inf"), -1.0, 0.0, 1e30, -1e38)),
    lambda tensor, _: -tensor if tensor.dtype != torch.bool else tensor,
    lambda tensor, _: tensor.new_zeros(tensor.shape),
    lambda tensor, _: tensor.mT if tensor.ndim > 1 else tensor[None],
    lambda tensor, _: tensor[:-1] if tensor.ndim else tensor,
    lambda tensor, _: tensor.reshape(-1),
    lambda tensor, random: tensor.to(random.choice((torch.float64, torch.bfloat16, torch.int32, torch.bool))),
    lambda tensor, _: tensor.to_sparse() if tensor.ndim else tensor,
    lambda tensor, _: tensor.to(torch.complex64),
    lambda tensor, _: torch.cat([tensor, tensor]) if tensor.ndim else tensor,
)
PLAIN = [value for value in VALUES if not (isinstance(value, list) and len(value) > 1000)] + [
    torch.ones(()),
    (1, 2),
    b"x",
]


def _read(content: bytes, _: Path) -> None:
    value = _from_bytes(content)
    named, optimizer = made(value["kind"])
    before = _plain(optimizer.state_dict())
    try:
        optimizer.load_state_dict(value["state"])
    except StateError:
        assert repr(_plain(optimizer.state_dict())) == repr(before), "a state was refused and the optimizer changed"
        raise
    step(named, optimizer, 7)
    assert all(bool(each.isfinite().all()) for _, each in named), "a state was taken and the next step is not finite"
    _to_bytes(optimizer.state_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return (value.dtype, value.tolist()) if isinstance(value, Tensor) else value


OPTIMIZERS: dict[str, Target] = {"optimizer": Target(_seeds, _spoiled, _read, (StateError,))}
