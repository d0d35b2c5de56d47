"""What tests of trainers' checkpoints share: a small Llama to write, cut into shards, and the series of a folder."""

from format_files import random

from joma.scan import open_series


def found_in(path, **options):
    return open_series(path, downloads=path, **options)


def llama(seed=0, layers=2, width=8):
    """A Llama in the names of transformers."""
    shapes = {
        "self_attn.q_proj": (width, width), "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (12, width), "mlp.up_proj": (12, width), "mlp.down_proj": (width, 12),
    }  # fmt: skip
    weights = {
        f"model.layers.{layer}.{name}.weight": random(*shape, seed=seed + 10 * layer + at)
        for layer in range(layers)
        for at, (name, shape) in enumerate(shapes.items())
    }
    return weights | {"model.embed_tokens.weight": random(16, width, seed=seed + 99)}


def shards(weights, count):
    names = list(weights)
    return [{name: weights[name] for name in names[at::count]} for at in range(count)]
