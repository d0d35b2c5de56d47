"""Measures of sparsity on a GPU, in units of `attention_stats` on the same q and k.

    python benchmarks/bench_sparsity.py [--record]

bf16, causal, 16 heads, 32,768 tokens in all. Logits of independent noise with standard deviation 1, and 4 ("sharp"):
how many rounds `top_mass` searches depends on them. Errors are against the float64 matrix.
"""

import torch
from _record import record
from triton.testing import do_bench

from joma.measure import sparsity
from joma.measure.attention import attention_stats

HEADS, TOKENS = 16, 32_768
SIZES = [(8192, 64, 1), (2048, 128, 1), (8192, 128, 1), (8192, 128, 4), (32768, 128, 1)]
MEASURES = {
    "sparsity_stats": lambda q, k: sparsity.sparsity_stats(q, k, first=4),
    "mass_above 1 % of the largest": lambda q, k: sparsity.mass_above(q, k, 0.01, relative=True),
    "keys_above 0.001": lambda q, k: sparsity.keys_above(q, k, 0.001),
    "sink_mass of 4 keys": lambda q, k: sparsity.sink_mass(q, k, 4),
    "top_mass of 64 keys": lambda q, k: sparsity.top_mass(q, k, 64),
    "top_mass of 10 %": lambda q, k: sparsity.top_mass(q, k, 0.1),
    "heavy_hitters of 10 %": lambda q, k: sparsity.heavy_hitters(q, k, 0.1),
    "heavy_hitters of 10 %, even": lambda q, k: sparsity.heavy_hitters(q, k, 0.1, even=True),
}


def draw(length, width, spread, batch=None, heads=HEADS, dtype=torch.bfloat16):
    shape = (batch or TOKENS // length, heads, length, width)
    q, k = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    return q * spread, k


def milliseconds(call):
    return do_bench(call, warmup=20, rep=60, return_mode="median")


def extra_memory(call):
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = call()
    torch.cuda.synchronize()
    del found
    return torch.cuda.max_memory_allocated() - before


def one_size(length, width, spread):
    q, k = draw(length, width, spread)
    unit = milliseconds(lambda: attention_stats(q, k))
    row = {"T": length, "width": width, "logits": spread, "attention_stats_ms": unit}
    for name, measure in MEASURES.items():
        took = milliseconds(lambda measure=measure: measure(q, k))
        row |= {f"{name}, ms": took, f"{name}, ratio": took / unit}
    row["top_mass, extra MiB"] = extra_memory(lambda: sparsity.top_mass(q, k, 0.1)) / 2**20
    print({name: round(value, 3) for name, value in row.items() if not name.endswith("ms")})
    return row


def matrix(q, k):
    s = (q.double() @ k.double().mT) / q.shape[-1] ** 0.5
    return s.masked_fill_(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf).softmax(-1)


def errors(dtype, spread, length=2048, width=128):
    q, k = draw(length, width, spread, batch=1, heads=4, dtype=dtype)
    p = matrix(q, k)
    sorted_p = p.sort(-1, descending=True).values
    seen = torch.arange(1, length + 1, device="cuda")
    kept = (seen.double() * 0.1 - 1e-9).ceil().long().clamp(min=1)
    share = sorted_p.cumsum(-1).gather(-1, (kept - 1)[None, None, :, None].expand(*p.shape[:3], 1))[..., 0]
    cut = 0.01 * p.amax(-1, keepdim=True)
    found = sparsity.sparsity_stats(q, k, first=4)
    heavy = sparsity.heavy_hitters(q, k, length)
    off = {
        "mass_above": found.mass_above - torch.where(p > cut, p, 0.0).sum(-1),
        "sink_mass": found.sink_mass - p[..., :4].sum(-1),
        "top_mass of 64 keys": sparsity.top_mass(q, k, 64) - sorted_p[..., :64].sum(-1),
        "top_mass of 10 %": sparsity.top_mass(q, k, 0.1) - share,
        "heavy_hitters": heavy.score - p.sum(-2).gather(-1, heavy.keys),
    }
    row = {"what": f"largest error, {str(dtype)[6:]}, logits x {spread}, T {length}, width {width}"}
    row |= {name: value.abs().max().item() for name, value in off.items()}
    row["queries whose keys_above differs by rounding"] = (found.keys_above != (p > cut).sum(-1)).sum().item()
    print(row)
    return row


def main():
    if not torch.cuda.is_available():
        print("bench_sparsity: skipped, it needs a CUDA GPU and torch finds none here")
        return
    torch.manual_seed(0)
    rows = [errors(dtype, spread) for dtype in (torch.bfloat16, torch.float32) for spread in (1, 4)]
    rows += [one_size(*size) for size in SIZES]
    record("sparsity", rows)


if __name__ == "__main__":
    main()
