"""Attention statistics on a GPU against the attention that everybody runs anyway.

    python benchmarks/bench_attention.py [--record]

bf16, causal, 16 heads, 32,768 tokens in all. Peers in the same run: cuDNN's and FlashAttention's forward (through
torch's scaled_dot_product_attention), and the eager way to entropy, which forms the matrix. The floor of the statistics
is the larger of two times: the products q.k on the tensor cores at the matrix rate measured here, and one exponential
an entry at the special-function rate (16 a cycle and multiprocessor).
"""

import torch
import torch.nn.functional as F
from _record import record
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

from joma.measure.attention import attention_stats, attention_stats_reference, attention_with_stats

HEADS, TOKENS = 16, 32_768
CLOCK = 1.785e9  # assumed for an H200 under load (its limit is 1980 MHz); only the floor of short rows depends on it
SIZES = [(2048, 64), (8192, 64), (32768, 64), (2048, 128), (8192, 128), (32768, 128)]


def milliseconds(call):
    return do_bench(call, warmup=50, rep=200, return_mode="median")


def with_backend(backend, q, k, v):
    with sdpa_kernel(backend):
        return milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def eager(q, k):
    scores = (q @ k.mT).float() / q.shape[-1] ** 0.5
    scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    return torch.special.entr(scores.softmax(-1)).sum(-1)


def eager_ms(q, k):
    """The matrix of all heads of one sequence at a time, as a user would who runs out of memory otherwise."""
    if q.shape[2] > 8192:
        return None
    return milliseconds(lambda: [eager(q[i : i + 1], k[i : i + 1]) for i in range(q.shape[0])])


def matrix_rate():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / milliseconds(lambda: a @ b) * 1e3


def floor_ms(entries, width, rate, special):
    return 1e3 * max(entries * 2 * width / rate, entries / special)


def extra_memory(q, k):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attention_stats(q, k)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def errors():
    rows = []
    for dtype, spread in [(torch.bfloat16, 1), (torch.bfloat16, 16), (torch.float32, 1), (torch.float32, 16)]:
        for width in (64, 128):
            q, k = (torch.randn(1, 4, 2048, width, device="cuda", dtype=dtype) for _ in range(2))
            q = q * spread
            got, exact = attention_stats(q, k), attention_stats_reference(q, k)
            off = (got.entropy.double() - exact.entropy).abs().max().item()
            rows.append(
                {"what": f"entropy error, {str(dtype)[6:]}, width {width}, logits x {spread}", "nats": off,
                 "least entropy": got.entropy.min().item()}
            )  # fmt: skip
            print(f"{rows[-1]['what']:<55} {off:.1e} nats, least entropy {rows[-1]['least entropy']:.1e}")
    return rows


def one_size(length, width, rate, special):
    shape = (TOKENS // length, HEADS, length, width)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    stats = milliseconds(lambda: attention_stats(q, k))
    both = milliseconds(lambda: attention_with_stats(q, k, v))
    cudnn = with_backend(SDPBackend.CUDNN_ATTENTION, q, k, v)
    flash = with_backend(SDPBackend.FLASH_ATTENTION, q, k, v)
    slow = eager_ms(q, k)
    entries = TOKENS * HEADS * (length + 1) / 2
    floor = floor_ms(entries, width, rate, special)
    return {
        "T": length,
        "width": width,
        "stats_ms": stats,
        "with_stats_ms": both,
        "cudnn_ms": cudnn,
        "flash_ms": flash,
        "eager_ms": slow,
        "stats/cudnn": stats / cudnn,
        "with_stats/flash": both / flash,
        "eager/stats": slow and slow / stats,
        "floor_ms": floor,
        "stats/floor": stats / floor,
        "extra_mib": extra_memory(q, k) / 2**20,
    }


def packed(tokens, length, width, rate, special):
    """Documents of one length in one row, against the same documents as a batch."""
    shape = (tokens // length, HEADS, length, width)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    row = [x.transpose(0, 1).reshape(1, HEADS, tokens, width).contiguous() for x in (q, k, v)]
    ends = torch.arange(0, tokens + 1, length, device="cuda")
    found = {"what": f"packed, {tokens // length} documents of {length} in a row, width {width}"}
    found["batched_ms"] = milliseconds(lambda: attention_stats(q, k))
    found["packed_ms"] = milliseconds(lambda: attention_stats(*row[:2], cu_seqlens=ends))
    found["packed/batched"] = found["packed_ms"] / found["batched_ms"]
    found["floor_ms"] = floor_ms(tokens * HEADS * (length + 1) / 2, width, rate, special)
    found["batched_output_ms"] = milliseconds(lambda: attention_with_stats(q, k, v))
    found["packed_output_ms"] = milliseconds(lambda: attention_with_stats(*row, cu_seqlens=ends))
    found["packed/batched, output"] = found["packed_output_ms"] / found["batched_output_ms"]
    same = attention_stats(*row[:2], cu_seqlens=ends).entropy[0].unflatten(1, (-1, length)).transpose(0, 1)
    found["largest difference, nats"] = (same - attention_stats(q, k).entropy).abs().max().item()
    print(found)
    return found


def uneven(width, rate, special):
    """Documents that end anywhere, and a window, in rows of 8,192."""
    cuts = torch.randperm(8191, generator=torch.Generator().manual_seed(0))[:7].sort().values + 1
    ends = torch.tensor([0, *cuts.tolist(), 8192], device="cuda")
    seen = {"8 documents of any length": (ends.diff() * (ends.diff() + 1)).sum().item() / 2,
            "window of 1,024": 8192 * 1024 - 1024 * 1023 / 2}  # fmt: skip
    q, k = (torch.randn(TOKENS // 8192, HEADS, 8192, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rows = []
    for (what, entries), mask in zip(seen.items(), ({"cu_seqlens": ends}, {"window": 1024}), strict=True):
        row = {"what": f"{what}, T = 8192, width {width}"}
        row["stats_ms"] = milliseconds(lambda mask=mask: attention_stats(q, k, **mask))
        row["floor_ms"] = floor_ms(len(q) * HEADS * entries, width, rate, special)
        row["stats/floor"] = row["stats_ms"] / row["floor_ms"]
        print(row)
        rows.append(row)
    return rows


def main():
    if not torch.cuda.is_available():
        print("bench_attention: skipped, it needs a CUDA GPU and torch finds none here")
        return
    torch.manual_seed(0)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rate = matrix_rate()
    special = multiprocessors * 16 * CLOCK
    print(f"{torch.cuda.get_device_name()}, bf16 matrix rate {rate / 1e12:.0f} TFLOP/s, {special / 1e12:.1f} T exp/s")
    rows = errors()
    for number, (length, width) in enumerate(SIZES):
        row = one_size(length, width, rate, special)
        if number == 0:
            print(" ".join(f"{name:>16}" for name in row))
        print(" ".join(f"{'-' if value is None else round(value, 3)!s:>16}" for value in row.values()))
        rows.append(row)
    for width in (64, 128):
        rows += [packed(tokens, 2048, width, rate, special) for tokens in (8192, 16384, 32768)]
        rows += uneven(width, rate, special)
    record("attention", [{"what": "bf16 matrix rate", "tflops": rate / 1e12}, *rows])


if __name__ == "__main__":
    main()
