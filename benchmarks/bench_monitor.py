"""What a monitor costs a training run: steps with and without it, one measuring of each kind, memory, bits, and peers.

    python benchmarks/bench_monitor.py [--parts alone,inside] [--record]

On a GPU: GPT-2 small, batch 8 x 1024, bf16 autocast, fast attention, compiled but where a row says eager. On a CPU: a
tiny model, to try it. Steps with and without a monitor take turns, so that a machine that slows down does so for both.
`bits` says whether the weights after some steps are the same with and without; torch's own kernels are told to be
deterministic for that. Peers: FlexAttention's max_scores, a pass that writes attention out, wandb.watch. One that is
not there, or not for this machine, has a row that says why.
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products

import argparse
import gc
import statistics
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from _record import record_in_pieces
from transformers import GPT2Config, GPT2LMHeadModel

from joma.monitor import Monitor
from joma.monitor.delivery import Record
from joma.monitor.measures import DEFAULT
from joma.monitor.tables import Rows, Table
from joma.probes import collect
from joma.probes._compiled import CompiledAttention

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BATCH, LENGTH, VOCABULARY = (8, 1024, 50_257) if GPU else (2, 32, 100)
SIZES = {} if GPU else {"n_embd": 32, "n_layer": 2, "n_head": 2}
ATTENTION = ("entropy", "largest_logit", "sink_mass", "effective_keys")
HALF = torch.bfloat16 if GPU else None
CHUNK = 20
"""Steps that are timed together."""
ROUNDS = 40 if GPU else 3
"""How often steps with and without a monitor take turns."""


def model_of(seed=0):
    torch.manual_seed(seed)
    shape = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa", **SIZES
    )
    return GPT2LMHeadModel(shape).to(DEVICE)


def batch_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator).to(DEVICE)


def stepper(model, monitor=None, *, compiled=GPU):
    """One step of training per call; compiled: whether to compile the model, or what torch.compile made of it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=GPU)
    called = compiled if isinstance(compiled, torch.nn.Module) else torch.compile(model) if compiled else model
    batches = [batch_of(seed) for seed in range(4)]
    count = 0

    def step():
        nonlocal count
        ids, count = batches[count % len(batches)], count + 1
        with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
            loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if monitor is not None:
            monitor.step()

    return step


def seconds(call, times=1):
    if GPU:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def turns(one, other, chunk, rounds):
    """Seconds of a step of `one`, and how much more one of `other` takes, as shares: first quarter, median, last.

    They take turns, and each pair is compared: on a machine that others use too, both are slow together. `least`
    compares the fastest of each.
    """
    seconds(one, 3), seconds(other, chunk)
    pairs = [(seconds(one, chunk), seconds(other, chunk)) for _ in range(rounds)]
    return shares(pairs, chunk)


def shares(pairs, chunk):
    plain = statistics.median(one for one, _ in pairs)
    low, middle, high = statistics.quantiles([(other - one) / plain for one, other in pairs], n=4)
    least = min(other for _, other in pairs) / min(one for one, _ in pairs) - 1
    return {"step_milliseconds": 1e3 * plain / chunk, "overhead": middle, "quarters": [low, high], "least": least}


def overhead(model, step, rounds, **options):
    """One model, one optimizer: the loop is the same, and the monitor counts in every second round alone."""
    autocast = None if options.get("inside") else HALF  # what is measured inside has it already
    with Monitor(model, autocast=autocast, **options) as monitor:

        def watched():
            step()
            monitor.step()

        found = turns(step, watched, options["every"] if options["every"] > 1 else CHUNK, rounds)
        return found | {"certified": monitor._matrices._ranks.certified}


def rows_of_intervals(kind, model, step, rounds=ROUNDS, **options):
    """What one measuring in ten steps adds, and what that makes of a hundred."""
    found = overhead(model, step, rounds, every=10, measures=DEFAULT, **options)
    adds = 10 * found["step_milliseconds"] * found["overhead"]
    yield {"what": f"every = 10{kind}"} | found | {"a_measuring_adds_milliseconds": adds}
    yield {"what": f"every = 100{kind}", "overhead": found["overhead"] / 10, "how": "a tenth of every = 10"}


def overhead_in_code(code, step, rounds, **options):
    """The same of code that is another one while the monitor is there: both stay compiled."""
    pairs = []
    for _ in range(rounds + 1):
        plain = seconds(step, CHUNK)
        with Monitor(code, **options) as monitor:

            def watched(tell=monitor.step):
                step()
                tell()

            seconds(watched, 3)
            pairs.append((plain, seconds(watched, CHUNK)))
    return shares(pairs[1:], CHUNK)


def host_inside(code, step, steps=48, **options):
    """Milliseconds per step that the host is in code of ours: on a machine that others use, the steadier number."""
    spent = []

    def timed(call):
        def inner(*args, **more):
            start = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                spent.append(time.perf_counter() - start)

        return inner

    with Monitor(code, **options) as monitor, patch.object(CompiledAttention, "see", timed(CompiledAttention.see)):
        tell = timed(monitor.step)
        for turn in range(12 + steps):
            if turn == 12:
                spent.clear()
            step()
            tell()
        seconds(lambda: None)
    return 1e3 * sum(spent) / steps


def one_measuring(model, measures, **options):
    """Seconds of one measuring, with its numbers on their way."""
    probe = {"input_ids": batch_of(99)}
    with Monitor(model, autocast=HALF, probe=probe, every=1, measures=measures, **options) as monitor:
        for _ in range(3):
            monitor.step()
        return statistics.median(seconds(monitor.step) for _ in range(10))


@torch.no_grad()
def passes(model):
    """Milliseconds of a plain pass, a probed one, and one that writes attention out and takes its entropy."""
    ids, found = batch_of(99), {}
    run = partial(model, input_ids=ids, use_cache=False)

    def probed():
        with collect(model, keep=False, single_pass=True) as probe:
            run()
        for measure in ATTENTION:
            probe.by_layer(measure)

    def written_out():
        maps = run(output_attentions=True).attentions
        return [torch.special.entr(each.float()).sum(-1).mean((0, 2)) for each in maps]

    def best(call, times=15):
        seconds(call, 3)
        return 1e3 * statistics.median(seconds(call) for _ in range(times))

    with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
        turns = [(best(run), best(probed)) for _ in range(3)]
        found["plain"], found["probed"] = (statistics.median(each) for each in zip(*turns, strict=True))
        found["host"] = 1e3 * statistics.median(_host(probed) for _ in range(15))
        model.set_attn_implementation("eager")
        found["written_out"] = best(written_out, 5)
        model.set_attn_implementation("sdpa")
    return found


def _host(call):
    """Seconds until the host goes on."""
    seconds(lambda: None)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def max_scores():
    """Milliseconds of all layers' attention in FlexAttention, without and with the largest logit of every query."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    if not GPU:
        raise RuntimeError("FlexAttention is compiled for a GPU")
    layers, heads, width = 12, 12, 64
    q, k, v = torch.randn(3, BATCH, heads, LENGTH, width, device=DEVICE, dtype=torch.bfloat16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH, device=DEVICE)
    fast = torch.compile(flex_attention)
    plain, shown = (partial(fast, q, k, v, block_mask=mask, return_aux=a) for a in (None, AuxRequest(max_scores=True)))
    for call in (plain, shown):
        seconds(call, 5)
    turns = [(seconds(plain, 20) / 20, seconds(shown, 20) / 20) for _ in range(9)]
    found = [1e3 * layers * min(each) for each in zip(*turns, strict=True)]
    return {"without_milliseconds": found[0], "milliseconds": found[1], "overhead": found[1] / found[0] - 1}


def wandb_watch(model, step):
    """How much more a step takes under wandb.watch of gradients and weights, every tenth step; plain ones around it."""
    import wandb

    def timed(call):
        return [seconds(call, CHUNK) / CHUNK for _ in range(4)]

    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True, console="off"))

        def watched():
            step()
            run.log({"loss": 0.0})

        plain = timed(step)
        wandb.watch(model, log="all", log_freq=10)
        seconds(watched, 10)
        found = statistics.median(timed(watched))
        wandb.unwatch(model)
        plain = statistics.median(plain + timed(step))
        run.finish()
    return {"version": wandb.__version__, "step_milliseconds": 1e3 * plain, "overhead": found / plain - 1}


def recording(layers=24, heads=16, measures=8):
    """Milliseconds to record one table of each measure."""
    rows = Rows(tuple(f"h.{at}.attn" for at in range(layers)), (heads,) * layers, (LENGTH,) * layers)
    numbers = np.random.default_rng(0).random((measures, layers, heads))
    tables = {f"measure {at}": Table(each, rows) for at, each in enumerate(numbers)}
    with tempfile.TemporaryDirectory() as folder:
        kept = Record.at(Path(folder) / "run.joma", {"model": "", "probe": ""})
        times = []
        for step in range(60):
            start = time.perf_counter()
            kept.write(step, tables)
            times.append(time.perf_counter() - start)
        kept.run.close()
    return {"milliseconds": 1e3 * statistics.median(times), "largest_milliseconds": 1e3 * max(times[1:])}


def peak(model, step, monitored, rows=BATCH, **options):
    """GiB at most while training, with or without a monitor, and GiB that recordings keep from it all the time."""
    gc.collect()
    torch.cuda.empty_cache()
    if not monitored:
        torch.cuda.reset_peak_memory_stats()
        seconds(step, 6)
        return torch.cuda.max_memory_allocated() / 2**30, 0.0
    with Monitor(model, autocast=HALF, probe={"input_ids": batch_of(99)[:rows]}, every=2, **options) as monitor:
        for turn in range(12):
            if turn == 6:  # all is recorded by now
                torch.cuda.reset_peak_memory_stats()
            seconds(step)
            monitor.step()
        held, in_use = of_recordings()
        return (torch.cuda.max_memory_allocated() + held - in_use) / 2**30, held / 2**30


def of_recordings():
    """Bytes that CUDA graphs keep for themselves, and how much of that counts as given out."""
    pools = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) != (0, 0)]
    return sum(each["total_size"] for each in pools), sum(each["allocated_size"] for each in pools)


def same_bits(steps=8, *, compiled=False, **options):
    """Whether weights are the same with and without; None where they differ between two plain trainings already."""
    torch.use_deterministic_algorithms(True)  # with a warning alone, attention's own kernels would not be
    try:
        found = []
        for watched in (False, False, True):
            model = model_of()
            torch.manual_seed(1)
            code = torch.compile(model) if compiled else model
            if watched:
                with Monitor(code, **options) as monitor:
                    seconds(stepper(model, monitor, compiled=code if compiled else False), steps)
            else:
                seconds(stepper(model, compiled=compiled), steps)
            found.append([each.detach().clone() for each in model.parameters()])
    finally:
        torch.use_deterministic_algorithms(False)
    alike = [all(map(torch.equal, found[0], other)) for other in found[1:]]
    return {"same": alike[1] if alike[0] else None}


def or_why_not(what, measure):
    """A row, or one that says why there are no numbers."""
    try:
        return {"what": what} | measure()
    except Exception as error:
        return {"what": what, "absent": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}


def shown(row):
    parts = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
    print("  ".join(parts), flush=True)


PROBE = {"input_ids": batch_of(99)}
INSIDE = {"inside": True, "every": 1, "measures": ATTENTION}


def rows_alone(model):
    """What passes and measurings take where nothing is trained."""
    yield {"what": "recording 24 x 16 x 8"} | recording()
    each = passes(model)
    yield {
        "what": "probed pass",
        "plain_milliseconds": each["plain"],
        "milliseconds": each["probed"],
        "ratio": each["probed"] / each["plain"],
        "host_milliseconds": each["host"],
    }
    yield {
        "what": "peer: maps written out",
        "milliseconds": each["written_out"],
        "ratio": each["written_out"] / each["plain"],
    }
    yield or_why_not("peer: FlexAttention max_scores, 12 layers", max_scores)
    for name, measures in (("attention", ATTENTION), ("stable_rank", ("stable_rank",)), ("default", DEFAULT)):
        yield {"what": f"one measuring, {name}", "milliseconds": 1e3 * one_measuring(model, measures)}
    if GPU:
        found = 1e3 * one_measuring(model, DEFAULT, replay=True)
        yield {"what": "one measuring, default, replayed", "milliseconds": found}


def rows_eager(model):
    step = stepper(model, compiled=False)
    yield {"what": "inside = True, every = 1, eager"} | overhead(model, step, 8, **INSIDE)
    yield from rows_of_intervals(", eager", model, step, rounds=10, probe=PROBE)
    yield or_why_not("peer: wandb.watch, every = 10, eager", partial(wandb_watch, model, step))


@cache
def compiled(model):
    """Its code and its steps, made once: to compile takes longer than to measure."""
    code = torch.compile(model) if GPU else model
    return code, stepper(model, compiled=code)


def rows_compiled(model):
    yield from rows_of_intervals("", model, compiled(model)[1], probe=PROBE)


def rows_replayed(model):
    if GPU:
        _, step = compiled(model)
        for rows in (BATCH, 2):
            few = {"input_ids": PROBE["input_ids"][:rows]}
            yield from rows_of_intervals(f", replayed, {rows} texts", model, step, probe=few, replay=True)


def rows_inside(model):
    if GPU:
        found = overhead_in_code(*compiled(model), 30, **INSIDE)
        host = host_inside(*compiled(model), **INSIDE)
        share = host / found["step_milliseconds"]
        yield {"what": "inside = True, every = 1"} | found | {"host_milliseconds": host, "host_share": share}


def rows_of_memory(model):
    if GPU:
        _, step = compiled(model)
        without, _ = peak(model, step, False)
        for what, options in (
            ("memory", {}),
            ("memory, replayed, 8 texts", {"replay": True}),
            ("memory, replayed, 2 texts", {"replay": True, "rows": 2}),
        ):
            having, held = peak(model, step, True, **options)
            row = {"what": what, "gib": without, "with_monitor_gib": having, "overhead": having / without - 1}
            yield row | ({"held_by_recordings_gib": held} if held else {})


def rows_of_bits(_):
    ways = {", inside, eager": INSIDE, ", eager": {"probe": PROBE, "every": 2}}
    if GPU:
        ways[", replayed, eager"] = {"probe": PROBE, "every": 2, "autocast": HALF, "replay": True}
        ways[", inside"] = INSIDE | {"compiled": True}
        ways[""] = {"probe": PROBE, "every": 2, "autocast": HALF, "compiled": True}
    for name, options in ways.items():
        yield or_why_not(f"bits{name}", partial(same_bits, **options))


PARTS = {
    "alone": rows_alone,
    "eager": rows_eager,
    "compiled": rows_compiled,
    "replayed": rows_replayed,
    "inside": rows_inside,
    "memory": rows_of_memory,
    "bits": rows_of_bits,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="of: %(default)s")
    parser.add_argument("--record", action="store_true")
    parts = parser.parse_args().parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    begun, model = time.perf_counter(), model_of()
    for part in parts:
        for row in PARTS[part](model):
            shown(row)
            record_in_pieces("monitor", row, ("what",), on="" if GPU else "cpu")
    print(f"{time.perf_counter() - begun:.0f} seconds")


if __name__ == "__main__":
    main()
