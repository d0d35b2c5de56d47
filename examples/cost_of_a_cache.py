"""Measure what a smaller key-value cache costs a model: python examples/cost_of_a_cache.py --model FOLDER --text FILE

Without them it trains a small model on its own source.
"""

import argparse
from pathlib import Path

from joma.cache import evaluate
from joma.training.series import SeriesConfig, train_series


def small_model(folder: Path) -> tuple[Path, Path]:
    """A model of two layers, and the text that it was trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py")))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    train_series(folder, text, SeriesConfig(layers=2, width=32, context=64, batch=8, steps=40), save_at=[40])
    return folder / "step40", folder / "text.txt"


def main() -> None:
    """Print the table of added losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder, or a model of the hub")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("caches"))
    options = parser.parse_args()
    model, text = (options.model, options.text) if options.model else small_model(options.out / "series")
    print(evaluate(model, text, policies=["window", "h2o", "random"], budgets=[0.1, 0.5], tokens=2048).table())


if __name__ == "__main__":
    main()
