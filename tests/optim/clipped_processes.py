"""What QKClip makes of a network on four processes: `python clipped_processes.py FOLDER` writes their weights there.

It is a program, so that torch is loaded once and the processes are forked from it; a test does not fork.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from several_processes import ddp, fsdp, tensor_parallel, whole
from split_networks import TEXT, loss, network
from torch.distributed.device_mesh import init_device_mesh

from joma.optim import QKClip

WORLD, THRESHOLD = 4, 4.5


def both(model):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    return fsdp(tensor_parallel(model, mesh["tensor"]), mesh["data"])


CASES = {  # how it lies on the processes, and which rows of the text each of them reads
    "ddp": (ddp, (0, 1, 2, 3)),
    "fsdp": (fsdp, (0, 1, 2, 3)),
    "tensor parallel": (tensor_parallel, (0, 0, 0, 0)),
    "both": (both, (0, 0, 1, 1)),
}


def steady():
    """The network without dropout."""
    model = network()
    for block in model.h:
        block.drop.p = 0.0
    return model


def clipped(case, rank, **options):
    wrap, rows = CASES[case]
    model = wrap(steady())
    clip = QKClip(model, THRESHOLD, **options)
    if not options:
        loss(model, TEXT[rows[rank]]).backward()
    clip.step()
    weights = {name.removeprefix("module."): whole(each) for name, each in model.named_parameters()}
    return {"weights": weights, "largest": {name: each.clone() for name, each in clip.largest.items()}}


def run(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    found = {case: clipped(case, rank) for case in CASES}
    found["fsdp, probe"] = clipped("fsdp", rank, probe=TEXT[0])
    torch.save(found, Path(folder) / f"found{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(run, (sys.argv[1],), WORLD, start_method="fork")
