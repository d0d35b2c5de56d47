"""What every policy costs at every budget: the loss of one model on one text, recorded as it is measured."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from joma import __version__
from joma.cache.errors import CacheError
from joma.cache.evaluation import losses
from joma.cache.models import must_be_tokens
from joma.cache.rules import Rule, rule
from joma.host.errors import BadInput
from joma.host.progress import Progress, silent
from joma.host.words import brief
from joma.measure.intervals import compare
from joma.probes.lengths import beyond_training, unknown_training
from joma.runs import Run

SCHEMA, SCHEMA_VERSION = "joma-cache", 1
FULL = "full"
SHORTEST = 3
"""Tokens of a sequence: the second half of what they predict has at least one."""
LEVEL = 0.95
"""Of the intervals."""
WARNING, NOTE = "warning", "note"
"""What a run keeps sentences under: `warning/...`."""
GAIN = 0.02
"""Nats per token by which a window must beat the whole cache before it is worth a warning."""


@dataclass(frozen=True)
class Cost:
    """One policy at one budget, in nats per token over the second half of every sequence.

    - rule: the policy and its numbers
    - keep: the share of a sequence that the budget is
    - loss: the mean
    - added: its difference from full attention, sequence by sequence
    - half_width: of the 95 % interval of `added` over sequences, each paired with itself under full attention; NaN for
      a single sequence
    - loss_of_all: the mean over all tokens, also the early ones, of which nothing is evicted yet
    """

    rule: Rule
    keep: float
    loss: float
    added: float
    half_width: float
    loss_of_all: float

    def __repr__(self) -> str:
        return brief(self)

    def as_json(self) -> dict[str, Any]:
        """Without the interval where there is none."""
        kept = {"keep": self.keep, "budget": self.rule.budget, "sinks": self.rule.sinks, "recent": self.rule.recent}
        names = ("half_width", "low", "high")
        ends = dict.fromkeys(names) if np.isnan(self.half_width) else {name: getattr(self, name) for name in names}
        return {**kept, "loss": self.loss, "added": self.added, **ends, "loss_of_all": self.loss_of_all}

    @property
    def low(self) -> float:
        """The lower end of the interval of `added`."""
        return self.added - self.half_width

    @property
    def high(self) -> float:
        """Its upper end."""
        return self.added + self.half_width


@dataclass(frozen=True)
class Costs:
    """All that was measured of one model. full: its loss with the whole cache, over second halves; of: by policy.

    warnings: why the numbers may not describe the trained model. notes: what is worth knowing.

    >>> settled = rule("window", 8, 64)
    >>> costs = Costs(64, 2, 3.0, 3.1, {"window": [Cost(settled, 0.125, 3.2, 0.2, 0.1, 3.2)]})
    >>> print(costs.table())
    policy          12.5 %
    window  +0.200 ± 0.100
    """

    length: int
    sequences: int
    full: float
    full_of_all: float
    of: Mapping[str, Sequence[Cost]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(self)

    def table(self) -> str:
        """What is added to the loss, with its interval: one line per policy and one column per share kept."""
        keeps = sorted({cost.keep for several in self.of.values() for cost in several})
        head = ["policy", *(f"{100 * keep:.3g} %" for keep in keeps)]
        rows = [[name, *(_cell(several, keep) for keep in keeps)] for name, several in self.of.items()]
        widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
        return "\n".join(_line(row, widths) for row in [head, *rows])

    @property
    def no_interval(self) -> str | None:
        """Why there are no intervals, in one sentence; None where there are."""
        return "there is one sequence, and an interval needs at least two" if self.sequences < 2 else None

    def as_json(self) -> dict[str, Any]:
        """With its schema, in nats per token."""
        paired = "added: sequence by sequence, the loss minus that of the whole cache on the same tokens"
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "joma": __version__,
            "unit": "nats per token",
            "counted": "second half of every sequence",
            "length": self.length,
            "sequences": self.sequences,
            "interval": {"level": LEVEL, "n": self.sequences, "of": paired, "why_none": self.no_interval},
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "full": {"loss": self.full, "loss_of_all": self.full_of_all},
            "policies": {name: [cost.as_json() for cost in several] for name, several in self.of.items()},
        }


def measure(
    model: nn.Module,
    tokens: Tensor,
    policies: Sequence[str],
    keeps: Sequence[float],
    run: Run,
    *,
    sinks: int | None = None,
    recent: float = 0.5,
    seed: int = 0,
    progress: Progress = silent,
) -> Costs:
    """The cost of every policy at every budget; tokens (sequences, length), the rest as in `joma.cache.losses`.

    What the run already holds is not measured again, so one that was stopped goes on, and one may ask for more later:
    of the same model, and with the same text and options. The first half of a sequence is the prompt of `snapkv`. All
    policies are compared on the second half.

    Sequences may be longer than those of training, where the model can read them. Then the answer says so in
    `warnings`, and the run keeps it. Where the config allows the length, only the numbers can show that training did
    not have it: a plain window then beats the whole cache, and that is a warning too.
    """
    tokens = must_be_tokens(model, tokens)
    length = tokens.shape[1]
    if length < SHORTEST:
        raise BadInput(f"tokens must have at least {SHORTEST} per sequence for a second half, got {length}")
    _must_be_the_same(run, tokens, sinks, recent, seed)
    options: dict[str, Any] = {"sinks": sinks, "recent": recent, "seed": seed}
    wanted = [(name, rule(name, keep, length, **options)) for name in policies if name != FULL for keep in keeps]
    wanted = [(FULL, rule(FULL, 1.0, length)), *dict.fromkeys(wanted)]
    found: dict[tuple[str, int], np.ndarray] = {}
    for at, (name, settled) in enumerate(wanted):
        words = f"{name}, {settled.budget} of {length} keys"

        def told(share: float, _: str, at: int = at, words: str = words) -> None:
            progress((at + share) / len(wanted), words)

        def halves(
            name: str = name, keep: int = settled.budget, told: Progress = told, words: str = words
        ) -> np.ndarray:
            found = losses(model, tokens, name, keep, progress=told, **options).double()
            if not found.isfinite().all():
                raise CacheError(f"the model's loss on the text is NaN or infinite ({words}): it cannot be compared")
            return np.stack([found.mean(1).numpy(), found[:, length // 2 :].mean(1).numpy()], 1)

        found[name, settled.budget] = run.keep(f"{name}/{settled.budget}", halves, dims=("sequence", "part"))
    base = found[FULL, length]
    by_policy: dict[str, list[Cost]] = {}
    for name, settled in wanted[1:]:
        by_policy.setdefault(name, []).append(_cost(settled, found[name, settled.budget], base, length))
    whole = base.mean(0)
    warnings = _remembered(run, WARNING, beyond_training(model.config, length), _beaten(by_policy, length, len(tokens)))
    notes = _remembered(run, NOTE, unknown_training(model.config, length))
    return Costs(length, len(tokens), float(whole[1]), float(whole[0]), by_policy, warnings, notes)


def said_in(run: Run, kind: str = WARNING) -> tuple[str, ...]:
    """The warnings that a run keeps, or its notes (`NOTE`); none in a run of before they were kept."""
    names = [name for name in run.names() if name.startswith(f"{kind}/")]
    return tuple(run.value(name).astype(np.uint8).tobytes().decode() for name in names)


def _remembered(run: Run, kind: str, *sentences: str | None) -> tuple[str, ...]:
    """The sentences that there are, each kept in the run as a series of its own, in bytes."""
    found = tuple(one for one in sentences if one)
    for one in found:
        told = np.frombuffer(one.encode(), dtype=np.uint8)
        run.keep(f"{kind}/{zlib.crc32(told.tobytes()):08x}", told.copy)
    return found


def _beaten(by_policy: Mapping[str, Sequence[Cost]], length: int, sequences: int) -> str | None:
    """A warning where a plain window has a lower loss than the whole cache.

    It sees less of the text, on the same tokens. What it does not see are far keys: where those harm, the model has not
    learned to attend so far. top-k keeps some of them, so it does no better.
    """
    best = min(by_policy.get("window", ()), key=lambda cost: cost.added, default=None)
    if best is None or not (best.high < 0 and best.added <= -GAIN):  # NaN for one sequence
        return None
    return (
        f"a window of {best.rule.budget} keys has a loss {-best.added:.3f} nats lower than the whole cache (95 % "
        f"interval {-best.high:.3f} to {-best.low:.3f}, n = {sequences}): far keys harm this model, as they do beyond "
        f"the length of training, so try sequences of fewer than {length} tokens"
    )


def _must_be_the_same(run: Run, tokens: Tensor, sinks: int | None, recent: float, seed: int) -> None:
    """Numbers are kept by policy and budget: those of another text or of other options would be taken for these."""
    text = zlib.crc32(tokens.cpu().contiguous().numpy().tobytes())
    asked = np.array([*tokens.shape, text, -1 if sinks is None else sinks, recent, seed], dtype=np.float64)
    if not np.array_equal(run.keep("asked", lambda: asked), asked):
        raise BadInput(f"{run.path} holds numbers of another text, or of other sinks, recent or seed: use a new run")


def _cost(settled: Rule, found: np.ndarray, base: np.ndarray, length: int) -> Cost:
    one = compare(found[:, 1], base[:, 1], level=LEVEL)
    means = found.mean(0)
    return Cost(settled, settled.budget / length, float(means[1]), one.difference, one.half_width, float(means[0]))


def _cell(several: Sequence[Cost], keep: float) -> str:
    cost = next((one for one in several if one.keep == keep), None)
    if cost is None:
        return ""
    return f"{cost.added:+.3f}" + ("" if np.isnan(cost.half_width) else f" ± {cost.half_width:.3f}")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]).rstrip()
