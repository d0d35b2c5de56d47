"""Weights for tests of stores, and small steps that several of them take."""

import torch

SIDE, LAYERS = 512, 6
UP, DOWN = "h.{}.mlp.c_fc.weight", "h.{}.mlp.c_proj.weight"
BOTH = ("--groups", "mlp,down", "--pattern", r"down=h\.\d+\.mlp\.c_proj\.weight")


def weights(seed, layers=LAYERS, side=SIDE):
    drawn = torch.Generator().manual_seed(seed)
    state = {}
    for layer in range(layers):
        state[f"h.{layer}.attn.c_attn.weight"] = torch.randn(side, side, generator=drawn)
        state[UP.format(layer)] = torch.randn(side, side, generator=drawn)
        state[f"h.{layer}.mlp.c_gate.bias"] = torch.randn(64, generator=drawn)
        state[DOWN.format(layer)] = torch.randn(side, side, generator=drawn)
    return state


def uploaded(store, folder, prefix):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"s3://bucket/{prefix}"


def header_of(content):
    return 8 + int.from_bytes(content[:8], "little")


def bytes_from(source, start, stop):
    buffer = bytearray(stop - start)
    source.read_into(start, memoryview(buffer))
    return bytes(buffer)
