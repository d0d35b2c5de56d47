"""Train four small language models as one program, one learning rate each: python examples/train_an_ensemble.py"""

import argparse
from pathlib import Path

import torch

from joma.models import Decoder, DecoderConfig
from joma.runs import Run
from joma.training import Ensemble, Optimizer, next_token_loss, train

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
CONFIG = DecoderConfig(vocabulary=50, layers=2, width=16, mlp=32, context=12)


def main() -> None:
    """Print one line per rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("ensemble.sqlite"))
    options = parser.parse_args()
    text = torch.randint(50, (8, 13), generator=torch.Generator().manual_seed(0))
    ensemble = Ensemble(
        members=len(RATES),
        networks=lambda members: Decoder(CONFIG, seeds=list(members)),
        batch=lambda step, members: (text[:, :-1], text[:, 1:]),
        loss=next_token_loss,
        optimizer=Optimizer("adam", rate=RATES),
        steps=options.steps,
    )
    Run.delete(options.out)
    with Run.create(options.out, study="ensemble", config={"rates": RATES}) as run:
        train(ensemble, run)
        for rate, loss in zip(RATES, run.array("train_loss")[-1], strict=True):
            print(f"rate {rate:g}: loss {loss:.2f}")


if __name__ == "__main__":
    main()
