"""What entropy costs on a CPU: a whole model with the probe on, against the same model without.

    python benchmarks/bench_entropy_cpu.py [--record]

The model has the shape of SmolLM2-135M (9 heads on 3 key heads, width 64) with 6 layers in place of 30, float32, one
text of T tokens. Four ways, interleaved in one process, the least of several repeats: plain (sdpa), the probe (sdpa and
a second pass for the statistics; logits bit for bit), the probe in a single pass (what `attention_entropy` does), and,
where memory allows, eager attention whose weights a hook turns into entropy. The floor of the probe is the time of the
plain model plus, per entry of the causal matrix, one product of width 64 at the matrix rate measured here and one exp2
at the rate measured here.
"""

import time

import torch
from _record import record
from transformers import LlamaConfig, LlamaModel, logging

from joma.probes import collect

LAYERS, HEADS, WIDTH = 6, 9, 64
LENGTHS = {1024: 7, 4096: 3}  # tokens: repeats


def model_of(layers):
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=HEADS * WIDTH,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=3,
        max_position_embeddings=8192,
    )
    return LlamaModel(config).eval()


def plain(model, ids):
    model.set_attn_implementation("sdpa")
    model(ids, use_cache=False)


def probed(model, ids, single_pass=False):
    with collect(model, keep=False, single_pass=single_pass) as probe:
        model(ids, use_cache=False)
    return probe.mean_entropy()


def single(model, ids):
    return probed(model, ids, single_pass=True)


def eager(model, ids):
    """As people do it: eager attention, and a hook on every layer that reduces its weights at once."""
    model.set_attn_implementation("eager")
    found = []

    def hook(module, inputs, output):
        found.append(torch.special.entr(output[1]).sum(-1).mean((0, 2)))

    hooks = [layer.self_attn.register_forward_hook(hook) for layer in model.layers]
    model(ids, use_cache=False)
    for each in hooks:
        each.remove()
    return torch.stack(found).double()


def seconds(ways, model, ids, repeats):
    least = dict.fromkeys(ways, float("inf"))
    for way in ways.values():
        way(model, ids)
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way(model, ids)
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def rate(call, repeats=30):
    call()
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least


def per_entry():
    """Seconds of one product of width 64 and of one exp2, per entry of a matrix that fits the cache."""
    q, k, s = torch.randn(512, WIDTH), torch.randn(WIDTH, 2048), torch.randn(512, 2048)
    out = torch.empty_like(s)
    return rate(lambda: torch.mm(q, k, out=out)) / s.numel(), rate(lambda: torch.exp2(s, out=out)) / s.numel()


def one_length(length, repeats, product, power):
    model, ids = model_of(LAYERS), torch.randint(1000, (1, length))
    ways = {"plain": plain, "probe": probed, "single_pass": single}
    if length <= 1024:
        ways["eager"] = eager
    least = seconds(ways, model, ids, repeats)
    want = eager(model, ids) if length <= 1024 else probed(model, ids)
    entries = LAYERS * HEADS * length * (length + 1) / 2
    row = {"T": length, **{f"{name}_s": value for name, value in least.items()}}
    row |= {f"{name}/plain": value / least["plain"] for name, value in least.items() if name != "plain"}
    row["floor/plain"] = 1 + entries * (product + power) / least["plain"]
    row["largest difference, nats"] = (single(model, ids) - want).abs().max().item()
    return row


def main():
    logging.set_verbosity_error()
    torch.manual_seed(0)
    product, power = per_entry()
    print(f"{torch.get_num_threads()} threads; {1e9 * product:.2f} ns per product, {1e9 * power:.2f} ns per exp2")
    rows = [{"what": "per entry", "threads": torch.get_num_threads(), "product_s": product, "exp2_s": power}]
    with torch.no_grad():
        for length, repeats in LENGTHS.items():
            rows.append(one_length(length, repeats, product, power))
            print("  ".join(f"{k} {v:.3g}" for k, v in rows[-1].items()))
    record("entropy_cpu", rows)


if __name__ == "__main__":
    main()
