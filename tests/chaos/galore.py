"""States of GaLore that are damaged: refused whole, so that the optimizer is as before; never taken in silence."""

from __future__ import annotations

import copy
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

from chaos.score import Score, Setting

STATES = 20
"""Of one round."""
WRONG = 0.05
"""A basis of which a column is longer or shorter than 1 by more than this must be refused. Less can be rounding."""
LATE = "a word as number of steps"
"""Which the inner optimizer notices, when the rest of the state is in place."""
KINDS = ("NaN", "infinity", "the highest bit of an exponent", "any bit of an exponent", LATE)
SENTENCES = ("ValueError: the saved ", "ValueError: the state was refused and nothing was changed")


def disturb(setting: Setting) -> Score:
    score = Score("galore")
    told = setting.place("told") / "told.json"
    setting.warm.done("chaos.galore:damaged", told, setting.dice.randrange(2**31), setting.rounds * STATES)
    for kind, length, said, changed in json.loads(told.read_text()):
        score.disturbances += 1
        score.count(f"{kind}: {'refused' if said else 'taken, lengths within 5 %'}")
        if changed:
            score.err(f"{kind}: refused ({said}), and the optimizer is another one")
        if not said and (kind == LATE or not length < WRONG):
            score.err(f"{kind}: taken, and a direction differs from length 1 by {length}")
        if said and not said.startswith(SENTENCES):
            score.wonder(f"{kind}: {said}")
    return score


def damaged(told: str, seed: int, count: int) -> None:
    """Load so many states with one number of a subspace spoilt; what became of each, as JSON."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "optim"))
    from training import network, train

    from joma.optim import GaLore

    dice, model = random.Random(seed), network()
    optimizer = GaLore(model, rank=4, refresh=3, lr=0.01)
    train(model, optimizer, 4)
    honest, outcomes = copy.deepcopy(optimizer.state_dict()), []
    matrices = [number for number, state in honest["state"].items() if "basis" in state]
    for _ in range(count):
        state, kind = copy.deepcopy(honest), dice.choice(KINDS)
        chosen = state["state"][dice.choice(matrices)]
        basis = chosen["basis"]
        row, column = dice.randrange(basis.shape[0]), dice.randrange(basis.shape[1])
        if kind == LATE:
            chosen["step"] = "x"
            state["param_groups"][0]["lr"] = 0.5
        else:
            basis[row, column] = spoilt(float(basis[row, column]), kind, dice)
        length = abs(sum(float(entry) ** 2 for entry in basis[:, column]) ** 0.5 - 1)
        try:
            optimizer.load_state_dict(state)
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        changed = bool(said) and plain(optimizer.state_dict()) != plain(honest)
        outcomes.append((kind, length, said, changed))
        if changed or not said:
            optimizer.load_state_dict(honest)
    Path(told).write_text(json.dumps(outcomes))


def spoilt(number: float, kind: str, dice: random.Random) -> float:
    if kind in ("NaN", "infinity"):
        return float("nan") if kind == "NaN" else dice.choice((1, -1)) * float("inf")
    bit = 30 if kind == "the highest bit of an exponent" else dice.randrange(23, 31)
    (word,) = struct.unpack("<I", struct.pack("<f", number))
    return float(struct.unpack("<f", struct.pack("<I", word ^ (1 << bit)))[0])


def plain(value: Any) -> Any:
    """Tensors as bytes, which can be compared where they stand."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.numpy().tobytes() if hasattr(value, "numpy") else value
