"""Follow the stable rank of every layer over a training run: python examples/scan_checkpoints.py --source FOLDER

Without a folder it first trains a small language model on its own source, and keeps five checkpoints.
"""

import argparse
from pathlib import Path

from joma.scan import scan
from joma.training.series import SeriesConfig, train_series


def checkpoints(folder: Path) -> Path:
    """Train a small model and keep its checkpoints."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py")))
    config = SeriesConfig(layers=2, width=32, context=32, batch=4, steps=40)
    train_series(folder, text, config, save_at=[0, 10, 20, 30, 40])
    return folder


def main() -> None:
    """Print one line per checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="a folder of checkpoints")
    parser.add_argument("--out", type=Path, default=Path("scans"))
    options = parser.parse_args()
    found = scan(options.source or checkpoints(options.out / "series"), measures=["stable_rank"], out=options.out)
    for step, ranks in zip(found.steps, found.curves["stable_rank/mlp"].values, strict=True):
        print(f"step {step}: stable rank by layer {ranks.round(1)}")


if __name__ == "__main__":
    main()
