"""Train a GPT-2 on Python source with Lightning, watched by a monitor, and resume it in the same record.

python examples/monitor_lightning.py
python examples/monitor_lightning.py --steps 120 --resume joma-lightning/last.ckpt

It takes a minute on a laptop; --layers, --heads, --width and --length make it as large as you like. In another
terminal: `joma watch joma-lightning`. The text is the source of a library that joma stands on, byte by byte.
"""

import argparse
from pathlib import Path

import lightning.pytorch as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from joma.data.python_source import source_text
from joma.monitor.callbacks.lightning import MonitorCallback
from joma.runs import Run


class Language(lightning.LightningModule):
    """A GPT-2 over bytes, trained by AdamW."""

    def __init__(self, *, layers: int, heads: int, width: int, length: int, rate: float) -> None:
        """The sizes of the network, and the rate of its optimizer."""
        super().__init__()
        sizes = {"n_positions": length, "n_embd": width, "n_layer": layers, "n_head": heads}
        self.net = GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **sizes))
        self.rate = rate

    def training_step(self, batch: Tensor, at: int) -> Tensor:
        """The loss of the next byte."""
        return self.net(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


def rows_of_source(count: int, length: int) -> Tensor:
    """(count, length) bytes of Python source."""
    text = source_text(count * length).encode("utf-8", "replace")
    return torch.tensor(list(text[: count * length])).view(count, length)


def options(arguments: list[str] | None) -> argparse.Namespace:
    """What the command line says; by default a network that a laptop trains in a minute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"layers": 2, "heads": 4, "width": 64, "length": 64, "batch": 8, "steps": 60, "every": 10, "seed": 0}
    for name, usual in (sizes | {"accumulate": 2}).items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--out", type=Path, default=Path("joma-lightning"))
    parser.add_argument("--resume", type=Path, help="a checkpoint that training goes on from")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> Path:
    """Train, and return the path of the record."""
    chosen = options(arguments)
    torch.manual_seed(chosen.seed)
    rows = rows_of_source(chosen.batch * 200, chosen.length)
    record = chosen.out / "run.joma"
    # Without `part` the LightningModule's own `forward` would read the probe batch.
    watch = MonitorCallback(part="net", probe={"input_ids": rows[:4]}, every=chosen.every, out=record)
    trainer = lightning.Trainer(
        max_steps=chosen.steps,
        max_epochs=-1,
        accumulate_grad_batches=chosen.accumulate,  # the monitor counts steps of the optimizer
        callbacks=[watch],
        default_root_dir=chosen.out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    sizes = {name: getattr(chosen, name) for name in ("layers", "heads", "width", "length", "rate")}
    batches = DataLoader(rows, batch_size=chosen.batch)
    trainer.fit(Language(**sizes), batches, ckpt_path=chosen.resume)
    trainer.save_checkpoint(chosen.out / "last.ckpt")
    with Run.open(record) as run:
        for step, entropy in zip(run.steps("entropy"), run.array("entropy"), strict=True):
            print(f"step {step}: mean entropy {entropy.mean():.3f} nats")
    return record


if __name__ == "__main__":
    main()
