"""The spread of logits beside `attention_stats` on the same q and k, and the naive way, which forms the matrix.

    python benchmarks/bench_spread.py [--record] [--shapes]

On a GPU: bf16, causal, 16 heads, 32,768 tokens in all; the kernel and the running sums, each alone, and what `spread`
chooses. On a CPU: float32, 4 heads. --shapes tries shapes of the kernel's blocks. Errors are against the float64
matrix, relative to the sum of shared and specific, also for keys far from zero, as key biases make them.

Floors of the running sums: T d (d + B) multiplications and adds per head and sequence, and reading q and k once.
"""

import sys
import time

import torch
from _record import record

from joma.measure._attention_problem import Problem
from joma.measure.attention import attention_stats
from joma.measure.spread import spread, spread_sums

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
HEADS, TOKENS = (16, 32_768) if GPU else (4, 0)
SIZES = [(2048, 64), (8192, 64), (32768, 64), (2048, 128), (8192, 128), (32768, 128)]
CPU_SIZES = [(512, 64), (2048, 64), (4096, 64), (4096, 128)]
BLOCKS = [(rows, columns, warps, stages) for rows in (64, 128) for columns in (64, 128) for warps in (4, 8)
          for stages in (2, 3)]  # fmt: skip


def milliseconds(call):
    if GPU:
        from triton.testing import do_bench

        return do_bench(call, warmup=50, rep=200, return_mode="median")
    call()
    least = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return 1e3 * least


def draw(length, width, *, heads=HEADS, kv_heads=None, batch=None, shift=0.0):
    batch = batch or max(1, TOKENS // length)
    q = torch.randn(batch, heads, length, width, device=DEVICE) + torch.randn(heads, 1, width, device=DEVICE)
    k = torch.randn(batch, kv_heads or heads, length, width, device=DEVICE) + shift
    return q.to(DTYPE), k.to(DTYPE)


def naive(q, k, dtype=torch.float32):
    """shared, specific, cross (heads,) from the whole matrix, one sequence at a time; keys of all heads."""
    q, k = q.to(dtype), k.to(dtype)
    mean = q.mean((0, 2))
    total = torch.zeros(3, q.shape[1], dtype=dtype, device=q.device)
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    count = seen.sum(-1)
    for one, keys in zip(q, k, strict=True):
        rest, shared = ((x @ keys.mT) * q.shape[3] ** -0.5 for x in (one - mean[:, None], mean[:, None]))
        shared = shared.expand_as(rest)
        centred = [(s - ((s * seen).sum(-1) / count)[..., None]) * seen for s in (shared, rest)]
        for i, (a, b) in enumerate([(0, 0), (1, 1), (0, 1)]):
            total[i] += ((centred[a] * centred[b]).sum(-1) / count).sum(-1) * (1 + (i == 2))
    return total / (q.shape[0] * q.shape[2])


def extra_memory(call):
    if not GPU:
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def errors():
    """Of `spread` and of the running sums, against the float64 matrix."""
    rows = []
    for width in (64, 128):
        for shift in (0.0, 10.0, 300.0):
            q, k = draw(2048 if GPU else 512, width, heads=4, batch=2, shift=shift)
            want = naive(q, k, torch.float64)
            row = {"what": f"largest relative error, width {width}, keys shifted by {shift:g}"}
            for name, found in (("spread", spread(q, k)), ("running sums", spread_sums(q, k).spread)):
                got = torch.stack([found.shared, found.specific, found.cross]).double()
                row[name] = ((got - want) / want[:2].sum(0)).abs().max().item()
                row["parts add up to"] = (got.sum(0) - found.variance.double()).abs().max().item()
            print(row)
            rows.append(row)
    return rows


def one_size(length, width):
    q, k = draw(length, width)
    ways = {"spread": lambda: spread(q, k), "sums": lambda: spread_sums(q, k)}
    if GPU:
        from joma.measure._spread_triton import launch

        ways["kernel"] = lambda: launch(Problem.of(q, k, None), None)
    if length <= (8192 if GPU else 2048):
        ways["naive"] = lambda: naive(q, k)
    row = {"T": length, "width": width, "heads": HEADS, "stats_ms": milliseconds(lambda: attention_stats(q, k))}
    for name, way in ways.items():
        row[f"{name}_ms"] = milliseconds(way)
        row[f"{name}/stats"] = row[f"{name}_ms"] / row["stats_ms"]
        row[f"{name}_extra_mib"] = extra_memory(way)
    print(row)
    return row


def other_masks(length, width):
    """A window, packed documents, grouped heads, ALiBi: each beside `attention_stats` with the same."""
    rows = []
    ends = torch.tensor([*range(0, length, 1000), length], device=DEVICE)
    bias = torch.linspace(-1, 0, length, device=DEVICE).expand(1, HEADS, 1, length)
    for what, given, kv_heads in [
        ("window of 1,024", {"window": 1024}, None),
        ("documents of 1,000", {"cu_seqlens": ends}, None),
        ("4 heads to a key head", {}, HEADS // 4),
        ("ALiBi", {"bias": bias}, None),
    ]:
        q, k = draw(length, width, kv_heads=kv_heads)
        row = {"what": what, "T": length, "width": width}
        row["stats_ms"] = milliseconds(lambda q=q, k=k, given=given: attention_stats(q, k, **given))
        row["spread_ms"] = milliseconds(lambda q=q, k=k, given=given: spread(q, k, **given))
        row["spread/stats"] = row["spread_ms"] / row["stats_ms"]
        print(row)
        rows.append(row)
    return rows


def one_row(length, width):
    """Documents of one length in one row of all tokens, beside `attention_stats` of that row and of the batch."""
    q, k = draw(length, width)
    row = [x.transpose(0, 1).reshape(1, HEADS, TOKENS, width).contiguous() for x in (q, k)]
    ends = torch.arange(0, TOKENS + 1, length, device=DEVICE)
    found = {"what": f"documents of {length} in one row", "T": TOKENS, "width": width}
    found["batched_stats_ms"] = milliseconds(lambda: attention_stats(q, k))
    found["stats_ms"] = milliseconds(lambda: attention_stats(*row, cu_seqlens=ends))
    found["spread_ms"] = milliseconds(lambda: spread(*row, cu_seqlens=ends))
    found["spread/stats"] = found["spread_ms"] / found["stats_ms"]
    found["extra_mib"] = extra_memory(lambda: spread(*row, cu_seqlens=ends))
    print(found)
    return found


def shapes():
    """Milliseconds of the kernel alone for several shapes of blocks, best first."""
    from joma.measure._spread_triton import launch

    for width in (64, 128):
        q, k = draw(8192, width)
        problem, found = Problem.of(q, k, None), []
        for blocks in BLOCKS:
            try:
                found.append((milliseconds(lambda p=problem, b=blocks: launch(p, None, b)), blocks))
            except Exception as error:  # too much shared memory for this card
                print(width, blocks, type(error).__name__)
        print(width, sorted(found)[:6])


def main():
    torch.manual_seed(0)
    print(torch.cuda.get_device_name() if GPU else f"{torch.get_num_threads()} threads")
    if "--shapes" in sys.argv[1:] and GPU:
        shapes()
    rows = errors()
    rows += [one_size(*size) for size in (SIZES if GPU else CPU_SIZES)]
    rows += [*other_masks(8192, 64), *other_masks(8192, 128)] if GPU else other_masks(2048, 64)
    rows += [one_row(2048, 64), one_row(2048, 128)] if GPU else []
    record("spread", rows, on="" if GPU else "cpu")


if __name__ == "__main__":
    main()
