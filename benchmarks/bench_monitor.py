"""What a monitor costs a training run: steps with and without it, one measuring of each kind, memory, bits.

    python benchmarks/bench_monitor.py [--record]

On a GPU: GPT-2 small, batch 8 x 1024, bf16 autocast, compiled, fast attention. On a CPU: a tiny model, to try it.
Steps with and without a monitor take turns, so that a machine that slows down does so for both. `bits` says whether
the weights after some steps are the same with and without; torch's own kernels are told to be deterministic for that.
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products

import statistics
import time

import torch
from _record import record
from transformers import GPT2Config, GPT2LMHeadModel

from joma.monitor import Monitor
from joma.monitor.measures import DEFAULT

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BATCH, LENGTH, VOCABULARY = (8, 1024, 50_257) if GPU else (2, 32, 100)
SIZES = {} if GPU else {"n_embd": 32, "n_layer": 2, "n_head": 2}
ATTENTION = ("entropy", "largest_logit", "sink_mass", "effective_keys")
CHUNK = 20
"""Steps that are timed together."""


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
    """One step of training per call."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=GPU)
    called = torch.compile(model) if compiled else model
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


def overhead(every, measures, rounds):
    """Seconds of a step, and how much more one takes with a monitor, as a share."""
    model, chunk = model_of(), max(CHUNK, every)
    with Monitor(model, probe={"input_ids": batch_of(99)}, every=every, measures=measures) as monitor:
        # One model, one optimizer: the loop is the same, and the monitor counts in every second round alone.
        step = stepper(model)
        seconds(step, CHUNK)

        def watched():
            step()
            monitor.step()

        seconds(watched, every)
        pairs = [(seconds(step, chunk), seconds(watched, chunk)) for _ in range(rounds)]
    plain = statistics.median(pair[0] for pair in pairs) / chunk
    return plain, statistics.median(b / a - 1 for a, b in pairs)


def one_measuring(measures):
    """Seconds until the host goes on, and until the numbers are there."""
    model = model_of()
    with Monitor(model, probe={"input_ids": batch_of(99)}, every=1, measures=measures) as monitor:
        for _ in range(3):
            monitor.step()
        return statistics.median(seconds(monitor.step) for _ in range(10))


def peak(monitored):
    """GiB at most while training, with or without a monitor."""
    model = model_of()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if monitored:
        with Monitor(model, probe={"input_ids": batch_of(99)}, every=2) as monitor:
            seconds(stepper(model, monitor), 6)
    else:
        seconds(stepper(model), 6)
    return torch.cuda.max_memory_allocated() / 2**30


def same_bits(steps=8):
    """Whether weights are the same with and without; None where they differ between two plain trainings already."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = []
    for watched in (False, False, True):
        model = model_of()
        torch.manual_seed(1)
        if watched:
            with Monitor(model, probe={"input_ids": batch_of(99)}, every=2) as monitor:
                seconds(stepper(model, monitor), steps)
        else:
            seconds(stepper(model), steps)
        found.append([each.detach().clone() for each in model.parameters()])
    torch.use_deterministic_algorithms(False)
    alike = [all(map(torch.equal, found[0], other)) for other in found[1:]]
    return alike[1] if alike[0] else None


def main():
    rows = []
    for name, measures in (("attention", ATTENTION), ("stable_rank", ("stable_rank",)), ("default", DEFAULT)):
        rows.append({"what": f"one measuring, {name}", "milliseconds": 1e3 * one_measuring(measures)})
    for every, rounds in ((100, 5), (10, 7)) if GPU else ((10, 3),):
        plain, more = overhead(every, DEFAULT, rounds)
        rows.append({"what": f"every = {every}", "step_milliseconds": 1e3 * plain, "overhead": more})
    if GPU:
        without, having = peak(False), peak(True)
        rows.append({"what": "memory", "gib": without, "with_monitor_gib": having, "overhead": having / without - 1})
    rows.append({"what": "bits", "same": same_bits()})
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    record("monitor", rows, on="" if GPU else "cpu")


if __name__ == "__main__":
    main()
