"""Train a GPT-2 on Python source with FSDP2 (`fully_shard`), and watch it with a monitor.

torchrun --standalone --nproc-per-node 2 examples/monitor_fsdp2.py --steps 20

Every process holds a part of the weights. It measures its part, and its share of the probe batch. The first one writes
the record. In another terminal: `joma watch joma-fsdp2`. The text is the source of a library that joma stands on, byte
by byte.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

from joma.data.python_source import source_text
from joma.monitor import Monitor
from joma.runs import Run


def rows_of_source(count: int, length: int) -> torch.Tensor:
    """(count, length) bytes of Python source."""
    text = source_text(count * length).encode("utf-8", "replace")
    return torch.tensor(list(text[: count * length])).view(count, length)


def options(arguments: list[str] | None) -> argparse.Namespace:
    """What the command line says; by default a small network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"layers": 2, "heads": 4, "width": 64, "length": 64, "batch": 8, "steps": 60, "every": 10, "seed": 0}
    for name, usual in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("joma-fsdp2/run.joma"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> Path:
    """Train, and return the path of the record."""
    chosen, gpus = options(arguments), torch.cuda.is_available()
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)

    torch.manual_seed(chosen.seed)
    shape = {"n_positions": chosen.length, "n_embd": chosen.width, "n_layer": chosen.layers, "n_head": chosen.heads}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **shape)).to(device)
    mesh = init_device_mesh(device.type, (count,))  # else a CUDA build of torch takes GPUs, also where there are none
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.rate)
    probe, *rows = rows_of_source(chosen.batch * (chosen.steps * count + 1), chosen.length).split(chosen.batch)

    # The same probe batch and the same options on all processes.
    with Monitor(model, probe={"input_ids": probe}, every=chosen.every, out=chosen.out) as monitor:
        for batch in rows[rank::count]:
            batch = batch.to(device)
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            monitor.step()  # on all processes, as often
            optimizer.zero_grad()

    if rank == 0:
        show(chosen.out)
    dist.destroy_process_group()
    return chosen.out


def show(record: Path) -> None:
    """The mean entropy and the largest logit at every measuring."""
    with Run.open(record) as run:
        numbers = zip(run.steps("entropy"), run.array("entropy"), run.array("largest_logit"), strict=True)
        for step, entropy, logit in numbers:
            print(f"step {step}: mean entropy {entropy.mean():.3f} nats, largest logit {logit.max():.2f}")


if __name__ == "__main__":
    main()
