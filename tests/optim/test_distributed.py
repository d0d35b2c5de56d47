"""Two processes train as one does: DDP, compact gradients, FSDP2."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from joma.optim import GaLore
from joma.optim.distributed import reduce_compact, same_subspaces

STEPS, REFRESH, RANK = 7, 3, 2
INNER = {
    "adamw": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.05}),
}


def network() -> nn.Module:
    """Wide, tall and square matrices, none of whose sides two processes can share equally, and a single number."""
    torch.manual_seed(0)
    first = (nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 17), nn.Tanh())
    return nn.Sequential(*first, nn.Linear(17, 17), nn.Linear(17, 3), Gain())


class Gain(nn.Module):
    """One number: of two processes one has nothing of it."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.gain


def batches() -> torch.Tensor:
    return torch.randn(STEPS, 2, 4, 13, generator=torch.Generator().manual_seed(1))


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x[:, :3].sin()).square().mean()


def made(model: nn.Module, inner: str, **options) -> GaLore:
    kind, chosen = INNER[inner]
    return GaLore(model.named_parameters(), kind, rank=RANK, refresh=REFRESH, **chosen, **options)


def alone(inner: str, **options) -> list[torch.Tensor]:
    """One process that sees both halves of every batch."""
    model = network()
    optimizer = made(model, inner, **options)
    for pair in batches():
        optimizer.zero_grad()
        (sum(loss(model, half) for half in pair) / 2).backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


def gathered(model: nn.Module) -> list[torch.Tensor]:
    found = [each.detach() for each in model.parameters()]
    return [each.full_tensor() if isinstance(each, DTensor) else each for each in found]


def trained(model: nn.Module, optimizer: GaLore, rank: int, steps=slice(None)) -> None:
    for pair in batches()[steps]:
        optimizer.zero_grad()
        loss(model, pair[rank]).backward()
        optimizer.step()


def as_ddp(rank: int, inner: str) -> list[torch.Tensor]:
    model = DistributedDataParallel(network())
    optimizer = made(model.module, inner)
    same_subspaces(optimizer)
    trained(model, optimizer, rank)
    return gathered(model.module)


def as_compact(rank: int, inner: str) -> list[torch.Tensor]:
    model = DistributedDataParallel(network())
    optimizer = made(model.module, inner)
    reduce_compact(model, optimizer)
    sent = []
    reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, *rest, **more: sent.append(tensor.numel()) or reduce(tensor, *rest, **more)
    trained(model, optimizer, rank)
    dist.all_reduce = reduce
    whole = sum(each.numel() for each in model.parameters())
    saved = sum(m.shorter * m.longer - m.rank * m.longer for m in optimizer.matrices)
    assert sum(sent) == sum(whole if step % REFRESH == 0 else whole - saved for step in range(STEPS))
    return gathered(model.module)


def as_fsdp(rank: int, inner: str, **options) -> list[torch.Tensor]:
    model = sharded()
    optimizer = made(model, inner, **options)
    trained(model, optimizer, rank)
    assert any(isinstance(one, DTensor) for state in optimizer.inner.state.values() for one in state.values())
    return gathered(model)


def sharded() -> nn.Module:
    model, mesh = network(), init_device_mesh("cpu", (2,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def as_resumed(rank: int) -> list[torch.Tensor]:
    """Half of the training, saved and read back by each process, and the other half."""
    model = sharded()
    optimizer = made(model, "adamw")
    trained(model, optimizer, rank, slice(0, 4))
    path = f"{os.environ['JOMA_TEST_FOLDER']}/state{rank}.pt"
    torch.save(optimizer.state_dict(), path)
    again = made(model, "adamw")
    again.load_state_dict(torch.load(path, weights_only=True))
    trained(model, again, rank, slice(4, None))
    return gathered(model)


def refused(rank: int) -> list[str]:
    """Sentences for what cannot be done."""
    said = []
    model = DistributedDataParallel(network())
    for wrong in (
        lambda: reduce_compact(model, made(model.module, "sgd", per_layer=True)),
        lambda: reduce_compact(model.module, made(model.module, "sgd")),
        lambda: made(sharded(), "sgd", per_layer=True),
    ):
        with pytest.raises(ValueError) as caught:
            wrong()
        said.append(str(caught.value))
    lost = sharded()
    optimizer = made(lost, "sgd", nonfinite="skip")
    loss(lost, batches()[0][0] * (float("nan") if rank else 1.0)).backward()
    optimizer.step()
    return [*said, f"skipped {optimizer.skipped}"]


def worker(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "JOMA_TEST_FOLDER": folder}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {f"ddp {inner}": as_ddp(rank, inner) for inner in ("adamw", "adafactor")}
    found |= {f"compact {inner}": as_compact(rank, inner) for inner in ("adamw", "sgd")}
    found |= {f"fsdp {inner}": as_fsdp(rank, inner) for inner in ("adamw", "sgd")}
    found["fsdp rotate clip"] = as_fsdp(rank, "adamw", on_move="rotate", clip=0.5)
    found["fsdp coupled"] = as_fsdp(rank, "adamw", decay="coupled")
    found["fsdp resumed"] = as_resumed(rank)
    torch.save({"weights": found, "said": refused(rank)}, f"{folder}/found{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What two processes computed; all cases in one start, because a start takes seconds."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"found{rank}.pt", weights_only=True) for rank in range(2)]


CASES = {
    "ddp adamw": ("adamw", {}),
    "ddp adafactor": ("adafactor", {}),
    "compact adamw": ("adamw", {}),
    "compact sgd": ("sgd", {}),
    "fsdp adamw": ("adamw", {}),
    "fsdp sgd": ("sgd", {}),
    "fsdp rotate clip": ("adamw", {"on_move": "rotate", "clip": 0.5}),
    "fsdp coupled": ("adamw", {"decay": "coupled"}),
    "fsdp resumed": ("adamw", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(found, case):
    inner, options = CASES[case]
    wanted = alone(inner, **options)
    moved = [
        float((end - start).detach().abs().max()) for end, start in zip(wanted, network().parameters(), strict=True)
    ]
    assert max(moved) > 0.01  # it did train
    for rank in range(2):
        for mine, theirs in zip(found[rank]["weights"][case], wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)


def test_processes_end_with_the_same_weights(found):
    for case in CASES:
        for one, other in zip(found[0]["weights"][case], found[1]["weights"][case], strict=True):
            assert torch.equal(one, other)


def test_what_cannot_be_done_is_said(found):
    for said in (each["said"] for each in found):
        assert said[0].startswith("per_layer projects before DistributedDataParallel averages")
        assert said[1] == "model must be wrapped in DistributedDataParallel, got Sequential"
        assert said[2].endswith("leave per_layer out")
        assert said[3] == "skipped 1"  # on both processes, though one alone saw a NaN


def test_without_processes_it_is_said():
    with pytest.raises(ValueError, match="call init_process_group first"):
        same_subspaces(made(network(), "sgd"))
