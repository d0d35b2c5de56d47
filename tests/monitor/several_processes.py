"""What processes that train together find with a monitor: `python several_processes.py FOLDER` writes it there.

It is a program, so that torch is loaded once and the processes are forked from it; a test does not fork.
"""

import contextlib
import importlib.util
import io
import logging
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # which optimizers load when they are made: once here, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from split_networks import PROBE, TEXT, TOKENS, loss, network
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from joma.host.errors import JomaError
from joma.monitor import Alert, Monitor, TrainingStopped
from joma.monitor.sharded import gram_part
from joma.runs import Run

ALL = ["entropy", "largest_logit", "sink_mass", "effective_keys", "spread", "stable_rank", "norm", "update_ratio"]
STEPS, EVERY = 4, 2
SPLIT = {"q": ColwiseParallel, "k": ColwiseParallel, "v": ColwiseParallel, "o": RowwiseParallel}


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


LOG = Lines()


def plain(model, mesh=None):
    return model


def ddp(model, mesh=None):
    return DistributedDataParallel(model, process_group=None if mesh is None else mesh.get_group())


def all_processes():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def fsdp(model, mesh=None):
    mesh = mesh or all_processes()
    for block in model.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model, mesh=None):
    mesh = mesh or all_processes()
    for block in model.h:
        parallelize_module(block.attn, mesh, {name: style() for name, style in SPLIT.items()})
    return model


def whole_attention(model):
    mesh = all_processes()
    for block in model.h:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def whole(each):
    return (each.full_tensor() if isinstance(each, DTensor) else each).detach().clone()


def state(model):
    return {name.removeprefix("module."): whole(each) for name, each in model.state_dict().items()}


def tables(monitor):
    return {name: (list(each.rows.names), torch.from_numpy(each.values)) for name, each in monitor.latest.items()}


def trained(wrap, mesh=None, monitored=True, share=None, **options):
    """What one process has in the end; weights also as they were at every measuring. share: its part of the text."""
    model = wrap(network(), mesh)
    rank = dist.get_rank() if share is None else share
    torch.manual_seed(3 + rank)  # of dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    options = {"probe": PROBE, "every": EVERY, "measures": ALL, "alarms": []} | options
    monitor = Monitor(model, **options) if monitored else None
    at_measuring, split, sent = [], [], []
    with counting(sent), monitor or contextlib.nullcontext():
        at_measuring.append(state(model))
        for step in range(STEPS):
            loss(model, TEXT[step, rank : rank + 2]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor is not None:
                monitor.step()
                split.append(all(isinstance(each, DTensor) for each in model.parameters()))
            if (step + 1) % EVERY == 0:
                at_measuring.append(state(model))
    found = {"weights": state(model), "random": torch.rand(3), "states": at_measuring, "split": split}
    if monitor is not None:
        found |= {"tables": tables(monitor), "sent": sent, "rows": len(monitor._batch.args[0])}
    return found


@contextlib.contextmanager
def counting(sent):
    """Sizes of all that is added up over processes by `all_reduce`; gradients go other ways."""
    add = dist.all_reduce

    def counted(tensor, *rest, **more):
        if not sent or tensor.dtype == torch.float64:
            sent.append(tensor.numel())
        return add(tensor, *rest, **more)

    dist.all_reduce = counted
    try:
        yield
    finally:
        dist.all_reduce = add


class At:
    """An alarm that finds something at one step, on one process."""

    measure = None

    def __init__(self, step, rank):
        self.step, self.rank = step, rank

    def look(self, step, tables):
        if step == self.step and dist.get_rank() == self.rank:
            yield Alert(step, "entropy", "h.0.attn", 1, 0.5, 1.0, "below its limit")


def stopped(step, rank):
    """At which step of how many a training ends, and with what words."""
    model, taken = ddp(network()), 0
    try:
        with Monitor(
            model, probe=PROBE, every=2, measures=["norm"], alarms=[At(step, rank)], on_alarm="stop"
        ) as monitor:
            for taken in range(1, 7):  # noqa: B007
                monitor.step()
    except TrainingStopped as error:
        return taken, str(error), error.alerts
    return taken, "", []


def said(do):
    try:
        do()
    except JomaError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def entered(model, **options):
    with Monitor(model, **{"probe": PROBE, "measures": ["entropy", "norm"]} | options) as monitor:
        return tables(monitor)


def lines_of(do):
    LOG.lines.clear()
    do()
    return list(LOG.lines)


def different_steps(rank):
    seen = []
    with Monitor(
        network(), probe=PROBE, every=10, measures=["norm"], sinks=lambda step, _: seen.append(step)
    ) as monitor:
        for step in (10, 20, 30):
            monitor.step(step + rank * (step > 10))
    assert seen == ([0, 10] if rank == 0 else [])


def broken_later(rank, which):
    model = network()
    with Monitor(model, probe=PROBE, every=1, measures=ALL) as monitor:
        model.broken = rank == which
        monitor.step()
        model.broken = False
        monitor.step()


def broken_on_first_alone(rank):
    seen = []
    with Monitor(network(), probe=PROBE, every=1, measures=["norm"], sinks=lambda *_: seen.append(1)) as monitor:
        take = monitor._send
        monitor._send = lambda taken: take(taken) if rank else next(iter(()))
        for _ in range(4):
            monitor.step()
    assert len(seen) == (rank == 0)


def waits_in_vain(rank):
    group = dist.new_group()
    with Monitor(network(), probe=PROBE, every=1, measures=["norm"], group=group) as monitor:
        dist.barrier()  # until here they come together, however slow the machine is
        _set_pg_timeout(timedelta(seconds=0.5), group)
        if rank == 0:
            monitor.step()
            monitor.step()
    dist.barrier()


def sees_nothing(rank):
    model = network()
    with Monitor(model, inside=True, every=1, measures=["entropy"]) as monitor:
        for step in range(3):
            if rank == 0 or step != 1:
                loss(model, TEXT[step]).backward()
            monitor.step()


def resumed(folder, rank):
    found = []
    for _ in range(2):
        options = {"probe": PROBE, "every": 2, "measures": ["norm"], "out": folder / f"resumed{rank}.joma"}
        with Monitor(ddp(network()), **options) as monitor:
            found.append((monitor.step_number, monitor.recorded))
            for _ in range(3):
                monitor.step()
    return found


def in_training(rank, **options):
    """Tables and weights of three steps, each process on rows of its own, without dropout."""
    model = network()
    for block in model.h:
        block.drop.p = 0.0
    model = ddp(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    options = {"every": 1, "measures": ["entropy", "largest_logit", "spread"], "alarms": []} | options
    states, found = [state(model)], []
    with Monitor(model, **options) as monitor:
        for step in range(3):
            loss(model, TEXT[step, 2 * rank : 2 * rank + 2]).backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step()
            states.append(state(model))
            found.append(tables(monitor))
    return {"tables": found, "states": states}


def gradients(wrap, rank):
    """Losses, and numbers of gradients that are there, and of some that were cleared; the gradients, put together."""
    model, found = wrap(network()), []
    measures = ["gradient_stable_rank", "gradient_norm", "norm"] + ["embedding_coherence"] * (wrap is ddp)
    with Monitor(model, probe=PROBE, every=1, measures=measures, alarms=[]) as monitor:
        for step, cleared in enumerate((True, False)):
            loss(model, TEXT[step, rank : rank + 2]).backward()
            there = {name.removeprefix("module."): whole(each.grad) for name, each in model.named_parameters()}
            if cleared:
                monitor.gradients()
                model.zero_grad()
            monitor.step(loss=3.0 * rank + step)
            model.zero_grad()
            found.append((tables(monitor), there))
    return found


def llama(split):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    shape = LlamaConfig(
        vocab_size=TOKENS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, initializer_range=0.7, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    if split:
        mesh = all_processes()
        for layer in model.model.layers:
            parallelize_module(layer.self_attn, mesh, {f"{name}_proj": style() for name, style in SPLIT.items()})
    return model


def padded():
    mask = torch.arange(PROBE.shape[1]) < torch.tensor([6, 6, 5, 3, 2])[:, None]
    return {"input_ids": PROBE, "attention_mask": mask.long()}


def llama_fsdp():
    model = llama(False)
    mesh = all_processes()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def refusals(rank):
    """Sentences for what cannot be done, on this process."""
    tokens_first = torch.nn.TransformerEncoderLayer(8, 2, 16)
    broken = network()
    broken.broken = rank == 1
    pair = dist.new_group([0])
    unknown = PROBE + TOKENS * (torch.arange(5) == 4)[:, None]  # in the share of the last process alone
    return {
        "few rows": said(lambda: entered(ddp(network()), probe=PROBE[:1])),
        "other probe": said(lambda: entered(network(), probe=PROBE + (PROBE < 3) * rank)),
        "other measures": said(lambda: entered(network(), measures=["norm"] + ["entropy"] * rank)),
        "other start": said(lambda: entered(network(), start=rank)),
        "stop on one": said(lambda: entered(network(), on_alarm="stop" if rank else "log")),
        "other layers": said(lambda: entered(network_of(rank))),
        "tokens first": said(lambda: entered(tokens_first, probe=torch.randn(7, 3, 8))),
        "first pass of one": said(lambda: entered(broken)),
        "other attention": said(lambda: entered(network_of(rank), include="h.0.*")),
        "coherence in parts": said(lambda: entered(fsdp(network()), measures=["embedding_coherence"])),
        "no attention left": said(lambda: entered(network(), include="nothing", measures=["entropy"])),
        "record of the first": said(lambda: entered(network(), out=Path(__file__) / f"{rank}.joma")),
        "not a member": said(lambda: entered(network(), group=pair)) if rank else "",
        "older FSDP": said(lambda: entered(FullyShardedDataParallel(network(), device_id=torch.device("cpu")))),
        "no group": said(lambda: entered(network(), group="all")),
        "token ids": said(lambda: entered(network_with_vocabulary(), probe=unknown)),
    }


def network_of(rank):
    model = network()
    if rank:
        del model.h[1]
    return model


def network_with_vocabulary():
    model = network()
    model.get_input_embeddings = lambda: model.embed
    return model


def sharded_ranks():
    """Gram matrices of DTensors in all shapes and types, with how many numbers a process ever received at once."""
    mesh, found = all_processes(), {}
    from torch.distributed.tensor import Shard, distribute_tensor

    for shape in ((7, 30), (30, 7), (5, 5), (1, 9), (9, 1), (300, 400)):
        for axis in (0, 1):
            w = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
            part = distribute_tensor(w, mesh, [Shard(axis)])
            received, exchange = [], dist.all_to_all_single

            def watched(into, *rest, received=received, exchange=exchange, **more):
                received.append(into.numel())
                return exchange(into, *rest, **more)

            dist.all_to_all_single = watched
            gram = gram_part(part)
            dist.all_to_all_single = exchange
            found[shape, axis] = gram, received
    return found


def of_two(rank, folder):
    found = {
        "ddp": trained(ddp, out=folder / f"ddp{rank}.joma"),
        "ddp without": trained(ddp, monitored=False),
        "fsdp": trained(fsdp, out=folder / f"fsdp{rank}.joma"),
        "fsdp without": trained(fsdp, monitored=False),
        "tp": trained(tensor_parallel, share=0),
        "tp without": trained(tensor_parallel, share=0, monitored=False),
        "whole attention": entered(whole_attention(network()), measures=["entropy", "largest_logit", "norm"]),
        "llama tp": entered(llama(True), probe=padded(), measures=["entropy", "largest_logit"]),
        "llama fsdp": entered(llama_fsdp(), probe=padded(), measures=["entropy", "largest_logit", "stable_rank"]),
        "inside": in_training(rank, inside=True),
        "inside one": in_training(rank, inside=True, exclude="h.0.*"),
        "step": in_training(rank, probe="step", rows=1, measures={"entropy": 1, "spread": 2}),
        "ddp gradients": gradients(ddp, rank),
        "fsdp gradients": gradients(fsdp, rank),
        "stopped by first": stopped(4, 0),
        "stopped by other": stopped(4, 1),
        "stopped at once": stopped(0, 0),
        "refused": refusals(rank),
        "grams": sharded_ranks(),
        "resumed": resumed(folder, rank),
    }
    lines = {
        "different steps": lines_of(lambda: different_steps(rank)),
        "broken on 1": lines_of(lambda: broken_later(rank, 1)),
        "broken on 0": lines_of(lambda: broken_later(rank, 0)),
        "broken on first alone": lines_of(lambda: broken_on_first_alone(rank)),
        "sees nothing": lines_of(lambda: sees_nothing(rank)),
        "waits in vain": lines_of(lambda: waits_in_vain(rank)),
    }
    return found | {"lines": lines}


def of_four(rank, folder):
    """Two dimensions of processes: copies and parts, parts and heads; pairs that train for themselves."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("one", "other"))

    def both(model, mesh):
        return fsdp(tensor_parallel(model, mesh["other"]), mesh["one"])

    return {
        "fsdp and tp": trained(both, mesh, share=rank // 2),
        "fsdp of copies": trained(fsdp, mesh),
        "pairs": trained(ddp, mesh["other"], probe=(PROBE + rank // 2) % TOKENS, measures=["norm", "entropy"]),
    }


def work(rank, folder, size, what):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of a view that nobody changes in place
    logging.getLogger("joma.monitor").addHandler(LOG)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting{size}", rank=rank, world_size=size)
    torch.save(what(rank, Path(folder)), f"{folder}/found{size}-{rank}.pt")
    dist.destroy_process_group()


SMALL = ["--steps", "4", "--every", "2", "--width", "16", "--length", "16"]


def example(name):
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_what_it_printed(record, printed):
    with Run.open(record) as run:
        assert run.steps("entropy").tolist() == [0, 2, 4]
        assert run.array("entropy").shape == (3, 2, 4)
        entropy = run.array("entropy").mean((1, 2))
    lines = printed.strip().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 2", "step 4"]
    assert all(f"mean entropy {each:.3f} nats" in line for each, line in zip(entropy, lines, strict=True))


def example_of_fsdp2(rank, folder):
    """As torchrun would start it, but for where processes meet. What it says is kept."""
    torch.set_num_threads(1)
    begin, here = dist.init_process_group, {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": 2}
    dist.init_process_group = lambda backend: begin(backend, **here)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        example("monitor_fsdp2").main([*SMALL, "--out", f"{folder}/example/run.joma"])
    Path(folder, f"said{rank}").write_text(said.getvalue())


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama  # noqa: F401  # as above

    starts = [(work, (sys.argv[1], 2, of_two), 2), (work, (sys.argv[1], 4, of_four), 4)]
    starts.append((example_of_fsdp2, (sys.argv[1],), 2))
    # All at once: they wait for each other more than they compute.
    groups = [mp.start_processes(*start, join=False, start_method="fork") for start in starts]
    for group in groups:
        while not group.join():
            pass
