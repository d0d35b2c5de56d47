"""What four processes compute with GaLore: `python processes.py FOLDER` writes what each of them found there.

Processes 0 and 1 are one pair, 2 and 3 the other. Each pair trains a network on data of its own, so that whoever takes
all processes for those of the pair, or process 0 for the first of the pair, ends elsewhere. Some cases are of all four.

It is a program, so that torch is loaded once and the processes are forked from it; a test does not fork.
"""

import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # which optimizers load when they are made: once here, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from training import IN_8_BITS

from joma.optim import APOLLO, Fira, GaLore, Muon, memory, reduce_compact, same_subspaces

WORLD, PAIR = 4, 2
STEPS, REFRESH, RANK = 5, 2, 2
INNER = {
    "adamw": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.05}),
}
CASES = {  # how, with which inner optimizer and options
    "ddp adafactor": ("ddp", "adafactor", {}),
    "compact adamw": ("compact", "adamw", {}),
    "compact sgd": ("compact", "sgd", {}),
    "compact of all": ("compact of all", "adamw", {}),
    "fsdp resumed": ("fsdp resumed", "adamw", {}),
    "fsdp rotate clip": ("fsdp", "adamw", {"on_move": "rotate", "clip": 0.5}),
    "fsdp of copies": ("fsdp of copies", "sgd", {}),
    "fsdp apollo": ("fsdp resumed", "adamw", {"member": "APOLLO"}),
    "fsdp apollo mini": ("fsdp", "adamw", {"member": "APOLLO", "scaling": "tensor", "growth": None, "rank": 1}),
    "fsdp fira": ("fsdp resumed", "adamw", {"member": "Fira"}),
    "fsdp fira of copies": ("fsdp of copies", "adamw", {"member": "Fira", "growth": None}),
    "fsdp muon": ("fsdp resumed", "adamw", {"member": "Muon"}),
    "fsdp muon of copies": ("fsdp of copies", "sgd", {"member": "Muon"}),
    # Drawn, not found: directions are the same to the last bit then, and so is how they are rounded.
    "ddp in 8 bits": ("ddp", "adamw", {"projected": IN_8_BITS, "projector": "random"}),
    "fsdp in 8 bits": ("fsdp resumed", "adamw", {"projected": IN_8_BITS, "projector": "random"}),
}


class Together(GaLore):
    """All matrices at one step: all cases have a refresh of each."""

    staggered = False


class TogetherAPOLLO(APOLLO):
    staggered = False


class TogetherFira(Fira):
    staggered = False


MEMBERS = {"GaLore": Together, "APOLLO": TogetherAPOLLO, "Fira": TogetherFira}


def network() -> nn.Module:
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


def batches(case: str, rank: int) -> torch.Tensor:
    together = WORLD if CASES[case][0].endswith(("all", "copies")) else PAIR
    luck = torch.Generator().manual_seed(1 + rank // together)
    return torch.randn(STEPS, together, 4, 13, generator=luck)


def gradients(rank: int) -> list[torch.Tensor]:
    luck = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(each.shape, generator=luck) for each in network().parameters() if each.ndim == 2]


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x[:, :3].sin()).square().mean()


def made(model: nn.Module, inner: str = "sgd", member: str = "GaLore", **options) -> GaLore:
    kind, chosen = INNER[inner]
    if member == "Muon":
        return Muon(model.named_parameters(), others=kind, **chosen)
    own = {"rank": RANK, "refresh": REFRESH}
    return MEMBERS[member](model.named_parameters(), kind, **(own | chosen | options))


def alone(case: str, rank: int) -> list[torch.Tensor]:
    _, inner, options = CASES[case]
    model = network()
    optimizer = made(model, inner, **options)
    for parts in batches(case, rank):
        optimizer.zero_grad()
        (sum(loss(model, part) for part in parts) / len(parts)).backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


class Process:
    """One of the four."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder
        self.all = init_device_mesh("cpu", (WORLD // PAIR, PAIR), mesh_dim_names=("copies", "pair"))
        self.pair: DeviceMesh = self.all["pair"]

    def train(self, case: str) -> list[torch.Tensor]:
        """All weights in the end."""
        how, inner, options = CASES[case]
        if not how.startswith("fsdp"):
            group = None if how == "compact of all" else self.pair.get_group()
            model = DistributedDataParallel(network(), process_group=group)
            optimizer = made(model.module, inner, **options)
            if how == "ddp":
                same_subspaces(optimizer, group)
                self.steps(case, model, optimizer)
            else:
                self.steps_of_compact(case, model, optimizer, group)
            return [each.detach() for each in model.parameters()]
        model = self.shard(self.all if how == "fsdp of copies" else self.pair)
        optimizer = made(model, inner, **options)
        if how == "fsdp resumed":  # in the midst of a subspace
            self.steps(case, model, optimizer, slice(0, 3))
            path = self.folder / f"state{self.rank}.pt"
            torch.save(optimizer.state_dict(), path)
            optimizer = made(model, inner, **options)
            optimizer.load_state_dict(torch.load(path, weights_only=True))
            self.steps(case, model, optimizer, slice(3, None))
        else:
            self.steps(case, model, optimizer)
        assert any(isinstance(one, DTensor) for state in optimizer.state.values() for one in state.values())
        return [each.detach().full_tensor() for each in model.parameters()]

    def steps(self, case: str, model: nn.Module, optimizer: GaLore, steps=slice(None)) -> None:
        for parts in batches(case, self.rank)[steps]:
            optimizer.zero_grad()
            loss(model, parts[self.rank % len(parts)]).backward()
            optimizer.step()

    def steps_of_compact(self, case: str, model: DistributedDataParallel, optimizer: GaLore, group) -> None:
        reduce_compact(model, optimizer, group)
        sent, send = [], dist.all_reduce
        dist.all_reduce = lambda tensor, *rest, **more: sent.append(tensor.numel()) or send(tensor, *rest, **more)
        self.steps(case, model, optimizer)
        dist.all_reduce = send
        whole = sum(each.numel() for each in model.parameters())
        saved = sum(m.shorter * m.longer - m.rank * m.longer for m in optimizer.matrices)
        assert sum(sent) == sum(whole if step % REFRESH == 0 else whole - saved for step in range(STEPS))

    def shard(self, mesh: DeviceMesh) -> nn.Module:
        model = network()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def subspaces(self) -> dict[str, list[torch.Tensor]]:
        """Bases, and the energies they hold, where every process would find others by itself."""
        found = {}
        for name, group in (("pair", self.pair.get_group()), ("all", None)):
            model = network()
            optimizer = made(model, projector="exact")
            same_subspaces(optimizer, group)
            for matrix, gradient in zip(optimizer.matrices, gradients(self.rank), strict=True):
                matrix.parameter.grad = gradient
            optimizer.step()
            found[name] = [each.clone() for matrix in optimizer.matrices for each in (matrix.basis, matrix.energies)]
        for name, mesh in (("fsdp pair", self.pair), ("fsdp all", self.all)):
            model = self.shard(mesh)
            optimizer = made(model, projector="random", seed=10 + self.rank)
            loss(model, batches("compact sgd", 0)[0, 0]).backward()
            optimizer.step()
            found[name] = [matrix.basis.clone() for matrix in optimizer.matrices]
        return found

    def skipped(self, mesh: DeviceMesh, bad: int) -> int:
        model = self.shard(mesh)
        optimizer = made(model, nonfinite="skip")
        for turn in range(2):  # a refresh, for which full gradients are looked at, and a step without
            optimizer.zero_grad()
            loss(model, batches("compact sgd", 0)[turn, 0]).backward()
            if self.rank == bad:
                model[2].weight.grad.to_local()[0, 0] = float("nan")
            optimizer.step()
        return optimizer.skipped

    def bytes(self) -> list[int]:
        model = self.shard(self.pair)
        optimizer = made(model)
        loss(model, batches("compact sgd", 0)[0, 0]).backward()
        optimizer.step()
        found = memory(model, optimizer).total.measured
        return [found.weights, found.gradients, found.states]

    def refused(self) -> list[str]:
        """Sentences for what cannot be done."""
        model = DistributedDataParallel(network(), process_group=self.pair.get_group())
        said = []
        for wrong in (
            lambda: reduce_compact(model, made(model.module, per_layer=True)),
            lambda: reduce_compact(model.module, made(model.module)),
            lambda: made(self.shard(self.pair), per_layer=True),
            lambda: reduce_compact(model, made(model.module, projected=IN_8_BITS)),
        ):
            try:
                wrong()
            except ValueError as error:
                said.append(str(error))
        return said


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    process = Process(rank, Path(folder))
    found = {"weights": {case: process.train(case) for case in CASES}, "subspaces": process.subspaces()}
    found["skipped"] = [process.skipped(mesh, bad) for mesh, bad in ((process.pair, 1), (process.all, 3))]
    found |= {"bytes": process.bytes(), "said": process.refused()}
    torch.save(found, f"{folder}/found{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    mp.start_processes(work, (sys.argv[1],), nprocs=WORLD, start_method="fork")
