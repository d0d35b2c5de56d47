"""What the tests of language models share: sizes that train in a second, and records that pretend."""

import numpy as np
from records import changed

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.language import _published

SMALL = {
    "corpus": "wikitext-2", "vocabulary": 40, "width": 8, "mlp": 8, "streams": 4, "valid_streams": 3, "length": 6,
    "sequence": 5, "valid_sequences": 8, "steps": 48, "every": 4, "dropout": 0.1,
}  # fmt: skip
SIZES = (40, 3001, 401)  # words and tokens of the text in `data_folder`, with the vocabulary of `SMALL`
POINTS = tuple(range(0, 49, 4))
FREQUENCIES = 4.0  # the loss of the words' frequencies in records that are made by hand


def untrained(run):
    def still(name, step, value):
        return run.at(name, 0) if name.endswith(("/loss", "/entropy")) or "rank/" in name else value

    return changed(run, still)


def as_the_paper(monkeypatch, config):
    wanted = {name: config[name] for name in _published.AS_THE_PAPER}
    monkeypatch.setattr(_published, "AS_THE_PAPER", wanted)
    monkeypatch.setattr(_published, "SIZES", SIZES)


def by_hand(path, study, config, variants, **once):
    """A finished run that nothing was trained for.

    variants: by name the rates, the lowest loss of each member, its entropy (members, points, layers), which members
    diverged, and what else was measured, (members, points) each.
    """
    run = Run.create(path, study=study.name, config=plain_config(config), version=study.version)
    for name, value in {"corpus/sizes": np.array(SIZES), **once}.items():
        run.keep(name, lambda value=value: value)
    for name, (rates, losses, entropy, diverged, more) in variants.items():
        seeds = np.arange(1, len(losses) // len(rates) + 1)
        for part, value in {"rates": np.array(rates), "seeds": seeds, "loss by frequency": FREQUENCIES}.items():
            run.keep(f"{name}/{part}", lambda value=value: value)
        for place, step in enumerate(POINTS):
            series = {
                "valid/loss": np.array(losses) + (3.0 if step == 0 else 0.0),
                "valid/entropy": entropy[:, place, :, None],
                "diverged_at": np.where(np.isin(np.arange(len(losses)), diverged), 4, -1),
                **{part: values[:, place] for part, values in more.items()},
            }
            run.record(step, {f"{name}/{part}": value for part, value in series.items()})
    return run


def down_and_up(drop, back, start=2.0):
    """Entropy (members, points, layers) that falls to the middle by `drop` and comes back by `back`, (members, layers)
    each, along straight lines."""
    drop, back = np.broadcast_arrays(np.asarray(drop, float), np.asarray(back, float))
    down = np.minimum(np.arange(13), 6) / 6
    up = np.maximum(np.arange(13) - 6, 0) / 6
    return start - down[None, :, None] * drop[:, None] + up[None, :, None] * back[:, None]
