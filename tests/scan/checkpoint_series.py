"""Small synthetic series of checkpoints, as transformers saves them, and `joma scan` over them."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WIDTH, LAYERS, WORDS = 32, 3, 64
LOWER = "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"


def save_model(model, folder, **options):
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, **options)
    return folder


def path_of_training(model, steps, seed=1):
    """Weights at every step: on the way from the model's own to others, with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    goal = {name: value + 0.02 * torch.randn(value.shape, generator=generator) for name, value in start.items()}
    last = max(steps)
    for step in steps:
        share = (step / last) ** 0.5
        noise = 0.0005 if step else 0.0
        yield (
            step,
            {
                name: start[name]
                + share * (goal[name] - start[name])
                + noise * torch.randn(start[name].shape, generator=generator)
                for name in start
            },
        )


def make_series(model, folder, steps, **options):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        for step, weights in path_of_training(model, steps):
            model.load_state_dict(weights)
            save_model(model, folder / f"step{step}", **options)
    finally:
        model.load_state_dict(before)
    return folder


def change(folder, edit):
    path = Path(folder) / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def scan(source, *arguments, out):
    """`joma scan` in this process, without its page: (exit status, curves or None)."""
    import argparse

    from joma.cli.main import scan as scan_command

    parser = argparse.ArgumentParser()
    scan_command.add_parser(parser.add_subparsers(required=True))
    target = Path(out) / "curves.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    words = ["scan", str(source), "--out", str(out), "--json", str(target), "--no-page", *map(str, arguments)]
    options = parser.parse_args(words)
    status = options.call(options)
    return status, json.loads(target.read_text()) if target.exists() else None
