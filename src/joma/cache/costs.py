"""What every policy costs at every budget: the loss of one model on one text, recorded as it is measured."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from joma import __version__
from joma.cache._losses import losses
from joma.cache.models import must_be_tokens
from joma.cache.own import Policy
from joma.cache.rules import CacheError, Rule, must_be_distinct, name_of, rule
from joma.host.errors import BadInput
from joma.host.progress import Progress, silent
from joma.host.words import brief_repr
from joma.measure.intervals import compare
from joma.probes.lengths import beyond_training, unknown_training
from joma.runs import Run

SCHEMA, SCHEMA_VERSION = "joma-cache", 1
FULL = "full"
SHORTEST = 3  # tokens of a sequence: the second half of what they predict has at least one
LEVEL = 0.95  # of the intervals
WARNING, NOTE = "warning", "note"  # what a run keeps sentences under: `warning/...`
GAIN = 0.02  # nats per token by which a window must beat the whole cache before it is worth a warning


@brief_repr
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

    @property
    def cell(self) -> str:
        """What stands in a table: `added` and, where there is one, its interval."""
        return f"{self.added:+.3f}" + ("" if np.isnan(self.half_width) else f" ± {self.half_width:.3f}")


@brief_repr
@dataclass(frozen=True)
class Costs:
    """All that was measured of one model.

    - seq_len: tokens per sequence
    - sequences: how many
    - full: the loss with the full cache, over second halves
    - full_of_all: over all tokens
    - of: the costs of each policy, by its name
    - warnings: why the numbers may not describe the trained model
    - notes: what is worth knowing
    - left_out: policies that the model cannot have, each with the reason
    - run: the file that keeps the losses, where one was asked for
    - name: of the model

    >>> settled = rule("window", 8, 64)
    >>> costs = Costs(64, 2, 3.0, 3.1, {"window": [Cost(settled, 0.125, 3.2, 0.2, 0.1, 3.2)]})
    >>> print(costs.table())
    policy          12.5 %
    window  +0.200 ± 0.100
    """

    seq_len: int
    sequences: int
    full: float
    full_of_all: float
    of: Mapping[str, Sequence[Cost]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    run: Path | None = None
    name: str = ""

    def table(self) -> str:
        """What is added to the loss, with its interval: one line per policy and one column per share kept."""
        keeps = sorted({cost.keep for several in self.of.values() for cost in several})
        rows = [["policy", *(f"{100 * keep:.3g} %" for keep in keeps)]]
        for name, several in self.of.items():
            cells = {cost.keep: cost.cell for cost in several}
            rows.append([name, *(cells.get(keep, "") for keep in keeps)])
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        padded = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
        return "\n".join("  ".join(row).rstrip() for row in padded)

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
            "length": self.seq_len,
            "sequences": self.sequences,
            "interval": {"level": LEVEL, "n": self.sequences, "of": paired, "why_none": self.no_interval},
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "full": {"loss": self.full, "loss_of_all": self.full_of_all},
            "policies": {name: [cost.as_json() for cost in several] for name, several in self.of.items()},
        }


def measure(
    model: nn.Module, tokens: Tensor, policies: Sequence[str | Policy], budgets: Sequence[float],
    run: Run | None = None, *, sinks: int | None = None, recent: float = 0.5, seed: int = 0,
    progress: Progress = silent,
) -> Costs:  # fmt: skip
    """The cost of every policy at every budget, of a model that is loaded and a text that is token ids.

    All policies are compared on the second half of every sequence. The first half is the prompt of `snapkv`.
    Sequences may be longer than those of training, where the model can read them: then `warnings` say so, and the run
    keeps them. Where the config allows the length, only the numbers can show that training did not have it: a plain
    window then beats the full cache, and that is a warning too.

    - model: a causal language model of transformers, with its head
    - tokens: (sequences, seq_len)
    - policies: names among `joma.cache.POLICIES`, or functions of your own, each of another name
    - budgets: shares of a sequence, or numbers of keys where they are integers
    - run: where losses are kept, each as soon as it is known. What it holds is not measured again, so one that was
      stopped goes on, and one may ask for more later: of the same model, and with the same text and options
    - sinks, recent, seed: as in `joma.cache.losses`
    - progress: hears how far it is
    """
    tokens = must_be_tokens(model, tokens)
    seq_len = tokens.shape[1]
    if seq_len < SHORTEST:
        raise BadInput(f"tokens must have at least {SHORTEST} per sequence for a second half, got {seq_len}")
    must_be_distinct(policies)
    if run is not None and (own := [one for one in policies if not isinstance(one, str)]):
        what = f"a run keeps numbers by the name of a policy, and {name_of(own[0])} is a function, which can change"
        raise BadInput(f"{what}: leave the run away")
    if run is not None:  # Numbers are kept by policy and budget: those of another question would be taken for these.
        text = zlib.crc32(tokens.cpu().contiguous().numpy().tobytes())
        question = np.array([*tokens.shape, text, -1 if sinks is None else sinks, recent, seed], dtype=np.float64)
        if not np.array_equal(run.keep("asked", lambda: question), question):
            what = f"{run.path} holds numbers of another text, or of other sinks, recent or seed: use a new run"
            raise BadInput(what)
    options: dict[str, Any] = {"sinks": sinks, "recent": recent, "seed": seed}
    asked = [rule(one, each, seq_len, **options) for one in policies if one != FULL for each in budgets]
    asked = [rule(FULL, 1.0, seq_len), *dict.fromkeys(asked)]
    found: list[np.ndarray] = []
    for at, settled in enumerate(asked):
        words = f"{settled.policy}, {settled.budget} of {seq_len} keys"

        def part_done(share: float, _: str, at: int = at, words: str = words) -> None:
            progress((at + share) / len(asked), words)

        def mean_losses(settled: Rule = settled, part: Progress = part_done, words: str = words) -> np.ndarray:
            policy = settled.function or settled.policy
            each = losses(model, tokens, policy, settled.budget, progress=part, **options).double()
            if not each.isfinite().all():
                raise CacheError(f"the model's loss on the text is NaN or infinite ({words}): it cannot be compared")
            return np.stack([each.mean(1).numpy(), each[:, seq_len // 2 :].mean(1).numpy()], 1)

        name = f"{settled.policy}/{settled.budget}"
        found.append(mean_losses() if run is None else run.keep(name, mean_losses, dims=("sequence", "part")))
    by_policy: dict[str, list[Cost]] = {}
    for settled, each in zip(asked[1:], found[1:], strict=True):
        paired = compare(each[:, 1], found[0][:, 1], level=LEVEL)
        of_all, late = map(float, each.mean(0))
        cost = Cost(settled, settled.budget / seq_len, late, paired.difference, paired.half_width, of_all)
        by_policy.setdefault(settled.policy, []).append(cost)
    of_all, late = map(float, found[0].mean(0))
    beaten = _beaten(by_policy, seq_len, len(tokens))
    warnings = _keep_sentences(run, WARNING, beyond_training(model.config, seq_len), beaten)
    notes = _keep_sentences(run, NOTE, unknown_training(model.config, seq_len))
    return Costs(seq_len, len(tokens), late, of_all, by_policy, warnings, notes)


def kept_sentences(run: Run, kind: str = WARNING) -> tuple[str, ...]:
    """The warnings that a run keeps, or its notes (`NOTE`); none in a run of before they were kept."""
    names = [name for name in run.names() if name.startswith(f"{kind}/")]
    return tuple(run.value(name).astype(np.uint8).tobytes().decode() for name in names)


def _keep_sentences(run: Run | None, kind: str, *sentences: str | None) -> tuple[str, ...]:
    found = tuple(one for one in sentences if one)
    for one in found:
        coded = np.frombuffer(one.encode(), dtype=np.uint8)
        if run is not None:
            run.keep(f"{kind}/{zlib.crc32(coded.tobytes()):08x}", coded.copy)
    return found


def _beaten(by_policy: Mapping[str, Sequence[Cost]], seq_len: int, sequences: int) -> str | None:
    """A warning where a plain window has a lower loss than the full cache.

    It sees less of the text, on the same tokens. What it does not see are far keys: where those harm, the model has not
    learned to attend so far. top-k keeps some of them, so it does no better.
    """
    best = min(by_policy.get("window", ()), key=lambda cost: cost.added, default=None)
    if best is None or not (best.high < 0 and best.added <= -GAIN):  # NaN for one sequence
        return None
    return (
        f"a window of {best.rule.budget} keys has a loss {-best.added:.3f} nats lower than the whole cache (95 % "
        f"interval {-best.high:.3f} to {-best.low:.3f}, n = {sequences}): far keys harm this model, as they do beyond "
        f"the length of training, so try sequences of fewer than {seq_len} tokens"
    )
