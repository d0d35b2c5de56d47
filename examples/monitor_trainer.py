"""Train a GPT-2 on Python source with transformers' Trainer, and watch it with a monitor.

python examples/monitor_trainer.py
python examples/monitor_trainer.py --layers 12 --heads 12 --width 768 --length 1024 --batch 8 --steps 5000 --every 100

The first takes a minute on a laptop. The second has the size of GPT-2 small and wants a GPU. In another terminal:
`joma watch joma-trainer`. The text is the source of a library that joma stands on, byte by byte.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from joma.data.python_source import source_text
from joma.monitor import JsonLines
from joma.monitor.callbacks.transformers import MonitorCallback
from joma.runs import Run

MEASURES = ["entropy", "largest_logit", "sink_mass", "spread", "stable_rank", "norm"]


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
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--out", type=Path, default=Path("joma-trainer"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> Path:
    """Train, and return the path of the record."""
    chosen = options(arguments)
    torch.manual_seed(chosen.seed)
    shape = GPT2Config(
        vocab_size=256, n_positions=chosen.length, n_embd=chosen.width, n_layer=chosen.layers, n_head=chosen.heads,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    *rows, last = rows_of_source(chosen.batch * min(chosen.steps, 1000) + 1, chosen.length)
    record = chosen.out / "run.joma"
    watch = MonitorCallback(
        probe={"input_ids": torch.stack([*rows[:3], last])},  # always the same, so that curves can be compared
        every=chosen.every,
        measures=MEASURES,
        sinks=[JsonLines(chosen.out / "summary.jsonl")],
        out=record,
    )
    said = TrainingArguments(
        output_dir=str(chosen.out),
        max_steps=chosen.steps,
        per_device_train_batch_size=chosen.batch,
        learning_rate=chosen.rate,
        seed=chosen.seed,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    Trainer(GPT2LMHeadModel(shape), said, train_dataset=data, callbacks=[watch]).train()
    show(record)
    return record


def show(record: Path) -> None:
    """The mean entropy and the largest logit at every measuring."""
    with Run.open(record) as run:
        logits = run.array("largest_logit")
        for step, entropy, logit in zip(run.steps("entropy"), run.array("entropy"), logits, strict=True):
            print(f"step {step}: mean entropy {entropy.mean():.3f} nats, largest logit {logit.max():.2f}")
    print(f"all numbers: {record}; `joma watch {record.parent}` follows a run that is being written")


if __name__ == "__main__":
    main()
