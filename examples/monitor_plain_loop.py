"""Train a GPT-2 on Python source in a loop of your own, and watch it with a monitor.

python examples/monitor_plain_loop.py

It takes a minute on a laptop; --layers, --heads, --width and --length make it as large as you like. In another
terminal: `joma watch joma-plain`. The text is the source of a library that joma stands on, byte by byte.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from joma.data.python_source import source_text
from joma.monitor import Monitor
from joma.runs import Run


def rows_of_source(count: int, length: int) -> torch.Tensor:
    """(count, length) bytes of Python source."""
    text = source_text(count * length).encode("utf-8", "replace")
    return torch.tensor(list(text[: count * length])).view(count, length)


def options(arguments: list[str] | None) -> argparse.Namespace:
    """What the command line says; by default a network that a laptop trains in a minute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"layers": 2, "heads": 4, "width": 64, "length": 64, "batch": 8, "steps": 60, "every": 10, "seed": 0}
    for name, usual in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("joma-plain/run.joma"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> Path:
    """Train, and return the path of the record."""
    chosen = options(arguments)
    torch.manual_seed(chosen.seed)
    shape = {"n_positions": chosen.length, "n_embd": chosen.width, "n_layer": chosen.layers, "n_head": chosen.heads}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.rate)
    probe, *rows = rows_of_source(chosen.batch * (chosen.steps + 1), chosen.length).split(chosen.batch)

    with Monitor(model, probe={"input_ids": probe}, every=chosen.every, out=chosen.out) as monitor:
        for batch in rows:
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            monitor.step()
            optimizer.zero_grad()

    show(chosen.out)
    return chosen.out


def show(record: Path) -> None:
    """The mean entropy and the largest logit at every measuring."""
    with Run.open(record) as run:
        numbers = zip(run.steps("entropy"), run.array("entropy"), run.array("largest_logit"), strict=True)
        for step, entropy, logit in numbers:
            print(f"step {step}: mean entropy {entropy.mean():.3f} nats, largest logit {logit.max():.2f}")


if __name__ == "__main__":
    main()
