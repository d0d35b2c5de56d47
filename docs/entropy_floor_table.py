"""The table of docs/explanation/theory/attention.md: how far real entropies lie above their floors.

JOMA_DATA=... python docs/entropy_floor_table.py

stories260K, a small Llama that others trained, reads stories that it wrote itself, in float64. Every query with two or
more keys counts. Each floor gets what it asks for: the range of the row, the length of the row without its mean, or the
sigma of Zhai et al. (2023), |W_Q| |W_K| |X|^2 / sqrt(width) in spectral norms over the tokens that the query sees.
"""

import math
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from joma.host.errors import BadInput
from joma.studies.sparsity.kv_cache.stories import find_stories, load_stories, written
from joma.theory.attention import entropy, entropy_floor, entropy_floor_of_range

STORIES, LENGTH = 4, 128


def main() -> None:
    """Print one row per layer, and one for all."""
    path = find_stories()
    if path is None:
        raise BadInput("JOMA_DATA must name a folder with stories260K/stories260K.bin")
    model = load_stories(path)
    tokens = written(model, STORIES, LENGTH, seed=0)
    found = torch.stack([table(*each) for each in read(model.double(), tokens)])
    print(f"{len(tokens)} stories of {tokens.shape[1]} tokens")
    print("| Layer | ln n | entropy | floor by range | floor by length | floor by sigma | sigma |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, row in [*enumerate(found.tolist()), ("all", found.mean(0).tolist())]:
        *small, sigma = row
        print(f"| {name} | {' | '.join(f'{each:.3f}' for each in small)} | {float(f'{sigma:.3g}'):,.0f} |")


@torch.no_grad()
def read(model, tokens: Tensor) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """Of every layer: its attention, its input (stories, tokens, dim), its logits (stories, heads, queries, keys)."""
    inputs, logits = [], []
    plain = modeling_llama.eager_attention_forward

    def seen(module, query, key, value, mask, scaling, **options):
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        logits.append(scaling * query @ keys.mT)
        return plain(module, query, key, value, mask, scaling, **options)

    norms = [layer.input_layernorm for layer in model.model.layers]
    hooks = [norm.register_forward_hook(lambda module, given, out: inputs.append(out)) for norm in norms]
    with patch.object(modeling_llama, "eager_attention_forward", seen):
        model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return list(zip([layer.self_attn for layer in model.model.layers], inputs, logits, strict=True))


@torch.no_grad()
def table(attention: nn.Module, x: Tensor, logits: Tensor) -> Tensor:
    """Means over stories, heads and queries: ln n, entropy, three floors, and sigma."""
    _, heads, queries, _ = logits.shape
    sums, norms = torch.zeros(6, dtype=torch.float64), weight_norms(attention, heads)
    for query in range(1, queries):
        n = query + 1
        row = logits[:, :, query, :n]
        length = (row - row.mean(-1, keepdim=True)).norm(dim=-1)
        sigma = norms * torch.linalg.matrix_norm(x[:, :n], 2)[:, None].square()
        assert (length <= sigma).all()
        floors = (
            entropy_floor_of_range(row.amax(-1) - row.amin(-1), n),
            entropy_floor(length, n),
            entropy_floor(sigma, n),
        )
        means = [each.mean() for each in (entropy(row.softmax(-1)), *floors, sigma)]
        sums += torch.stack([torch.tensor(math.log(n)).double(), *means])
    return sums / (queries - 1)


def weight_norms(attention: nn.Module, heads: int) -> Tensor:
    """(heads,): |W_Q| |W_K| / sqrt(width). Rotary positions turn queries and keys, which changes no norm."""
    q, k = (getattr(attention, name).weight for name in ("q_proj", "k_proj"))
    width = len(q) // heads
    of_q, of_k = (torch.linalg.matrix_norm(each.unflatten(0, (-1, width)), 2) for each in (q, k))
    return of_q * of_k.repeat_interleave(len(of_q) // len(of_k)) / math.sqrt(width)


if __name__ == "__main__":
    main()
