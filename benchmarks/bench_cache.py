"""What it takes to tell the cost of a smaller cache: milliseconds per policy and share kept.

    python benchmarks/bench_cache.py [--record]

On a GPU the 36M model of Figure 7's series, 16 sequences of 512 tokens; on a CPU a GPT-NeoX of 4 layers and width 64,
4 sequences of 256 tokens, one thread. The last column is how far the real cache, token by token, is from the masks on
one sequence (largest difference of a loss, in nats): rounding may turn a choice between two keys of equal score.
"""

from time import perf_counter

import torch
import torch.nn.functional as F
from _record import record
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from joma.cache import POLICIES, evicting, losses

CUDA = torch.cuda.is_available()
SHAPE = (6, 512, 8, 16_384, 512, 16) if CUDA else (4, 64, 4, 512, 256, 4)
KEEPS = (0.05, 0.1, 0.2, 0.5)


def built(layers, width, heads, vocabulary, length):
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    sizes |= {"intermediate_size": 4 * width, "vocab_size": vocabulary, "max_position_embeddings": length}
    config = GPTNeoXConfig(**sizes, bos_token_id=0, eos_token_id=0, initializer_range=0.1)
    return GPTNeoXForCausalLM(config).eval().to("cuda" if CUDA else "cpu")


def milliseconds(model, tokens, policy, keep, times=3):
    losses(model, tokens, policy, keep)
    began = perf_counter()
    for _ in range(times):
        losses(model, tokens, policy, keep)  # its answer is on the CPU: nothing is still under way
    return 1000 * (perf_counter() - began) / times


def gap(model, tokens, policy, keys):
    """Between the real cache and the masks."""
    whole = losses(model, tokens, policy, keys, prompt=tokens.shape[1] // 2)
    ids = tokens.to(model.device)
    with torch.inference_mode(), evicting(model, policy, keys, prompt=tokens.shape[1] // 2) as cache:
        logits = torch.cat([model(input_ids=one, past_key_values=cache).logits for one in ids.split(1, 1)], 1)
    streamed = F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none").cpu()
    return (whole[0] - streamed).abs().max().item()


def main():
    torch.set_num_threads(1)
    *sizes, sequences = SHAPE
    model, length = built(*sizes), sizes[-1]
    tokens = torch.randint(sizes[3], (sequences, length))
    rows = []
    for policy in POLICIES:
        row = {"policy": policy} | {f"ms at {keep}": milliseconds(model, tokens, policy, keep) for keep in KEEPS}
        if policy != "h2o-oracle":
            row["gap"] = gap(model, tokens[:1, :96], policy, 24)
        print({name: value if isinstance(value, str) else float(f"{value:.3g}") for name, value in row.items()})
        rows.append(row)
    record("cache", rows)


if __name__ == "__main__":
    main()
