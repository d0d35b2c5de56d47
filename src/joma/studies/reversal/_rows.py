"""The row models of Theorems 3 and 4: SGD with one sequence per step on a matrix Y of logits, from zero.

Of a sequence (x1, x2, x3) model A reads the row Y[x1], model B reads (Y[x1] + Y[x2]) / sqrt 2. Only rows that are read
change. Many runs, each with its own sequences, take their steps together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import log, nan, sqrt
from typing import Any, NamedTuple, TypeVar

import numpy as np

from joma.claims.contract import Progress
from joma.data.facts import Chains, Reversals
from joma.data.statements import Statements
from joma.runs import Run
from joma.theory.reversal import bound_power, train_bound

MODELS = ("A", "B")  # A reads the first token, B the first and the relation
SCALE = {"A": 1.0, "B": 1 / sqrt(2)}
ROUNDING = 1e-12  # relative, of a softmax in float64

F = TypeVar("F", Reversals, Chains)


class Moment(NamedTuple):
    """Where training stands: the step, Y (runs, tokens, tokens), and how often each sequence was seen, one per run."""

    step: int
    weights: Any
    visits: list[Any]


def train(
    sequences: Sequence[Statements], *, model: str, tokens: int, rate: float, moments: Sequence[int], seed: int
) -> Iterator[Moment]:
    """Y at the given steps. One run per set of sequences; run number r draws its own order from seed + r."""
    runs, scale = np.arange(len(sequences)), SCALE[model]
    order = [each.draw(moments[-1], seed=seed + run).numpy() for run, each in enumerate(sequences)]
    steps = np.stack([each.tokens.numpy()[way] for each, way in zip(sequences, order, strict=True)], 1)
    first, second, third = (np.ascontiguousarray(steps[..., place]) for place in range(3))  # (steps, runs)
    weights, done = np.zeros((len(runs), tokens, tokens)), 0
    for moment in moments:
        for x1, x2, x3 in zip(*(part[done:moment] for part in (first, second, third)), strict=True):
            logits = weights[runs, x1]
            if model == "B":
                logits = (logits + weights[runs, x2]) * scale
            push = np.exp(logits)  # gaps stay far from where this would overflow
            push *= -rate * scale / push.sum(-1, keepdims=True)
            push[runs, x3] += rate * scale
            weights[runs, x1] += push
            if model == "B":
                weights[runs, x2] += push
        done = moment
        counts = [np.bincount(way[:moment], minlength=len(each)) for each, way in zip(sequences, order, strict=True)]
        yield Moment(moment, weights, counts)


def logits_of(weights: Any, sequences: Statements, model: str) -> Any:
    """(n, tokens): what one run says after the prompts of the sequences."""
    first, second = sequences.tokens[:, 0].numpy(), sequences.tokens[:, 1].numpy()
    return weights[first] if model == "A" else (weights[first] + weights[second]) * SCALE["B"]


def losses_of(weights: Any, sequences: Statements, model: str) -> Any:
    """(n,): -ln p of the answers."""
    logits = logits_of(weights, sequences, model)
    top = logits.max(-1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    return total - logits[np.arange(len(logits)), sequences.target[:, 0].numpy()]


def moments_of(sequences: int, tokens: int, rate: float, *, horizon: float, count: int) -> list[int]:
    """Steps t at which rate t / N runs from ln M / 10 to `horizon` ln M, evenly in its logarithm and through ln M."""
    early = max(2, round(count * log(10) / log(10 * horizon)))
    late = np.logspace(0, np.log10(horizon), max(2, count - early + 1))
    times = np.concatenate([np.logspace(-1, 0, early)[:-1], late]) * log(tokens)
    return sorted({max(1, int(np.ceil(time * sequences / rate))) for time in times})


@cache
def power_of(tokens: int) -> float:
    """The constant c of the corrected bound: the largest that the row law allows where the theorem begins, at ln M."""
    return float(bound_power(log(tokens), tokens=tokens, rate=1.0))


def bounds(loss: Any, visits: Any, shared: float, tokens: int, rate: float) -> dict[str, float]:
    """What bounds say of sequences with ln M / rate visits or more: NaN without any of them."""

    def allowed(visits: Any, power: float) -> Any:
        return 1 - train_bound(visits, tokens=tokens, rate=rate, power=power).numpy()

    def most(values: Any) -> float:
        return float(values.max()) if len(values) else nan

    late = rate * visits >= log(tokens)
    missing, seen = -np.expm1(-loss[late]), visits[late]
    untrained = (1 - 1 / tokens) / allowed(log(tokens) / rate, power_of(tokens))
    found = {"missing untrained": float(untrained)}  # a bound that allowed this would say nothing
    for name, counted, power in (
        ("c = 1", seen, 1.0),
        ("c of the law", seen, power_of(tokens)),
        ("c = 1, by steps", np.full(len(seen), shared), 1.0),
    ):
        found[f"missing, {name}"] = most(missing / allowed(counted, power))
    found["largest c"] = -most(-np.log((tokens - 1) / (2 * missing)) / np.log(tokens * rate * seen))
    return found


def record_cases(
    config: Any, run: Run, sizes: Sequence[Sequence[F]],
    seen: Callable[[Moment, int, F, str, float], Mapping[str, float]], progress: Progress, *,
    twin: Callable[[F], Statements] | None = None,
) -> None:  # fmt: skip
    """Train both models on facts of every size at every rate; record numbers per moment and seed."""
    cases = list(product(sizes, config.rates, MODELS))
    for i, (facts, rate, model) in enumerate(cases):
        tokens, count = facts[0].vocabulary, len(facts[0].train)
        name = f"{tokens}/{rate:g}/{model}"
        progress(i / len(cases), f"model {model}, {tokens} tokens, rate {rate:g}")
        if f"{name}/moments" in run:
            continue
        moments = moments_of(count, tokens, rate, horizon=config.horizon, count=config.moments)
        sequences = [each.train for each in facts] + [twin(each) for each in facts if twin]
        path = train(sequences, model=model, tokens=tokens, rate=rate, moments=moments, seed=config.seed + 1000)
        rows = [[seen(moment, r, each, model, rate) for r, each in enumerate(facts)] for moment in path]
        found = {"moments": np.array(moments), "times": rate * np.array(moments) / count / log(tokens)}
        found |= {key: np.array([[one[key] for one in row] for row in rows]) for key in rows[0][0]}
        run.record(0, {f"{name}/{key}": value for key, value in found.items()})
    numbers = [facts[0].vocabulary for facts in sizes]
    run.keep("powers", lambda: np.array([numbers, [power_of(tokens) for tokens in numbers]]))


def check_rates(rates: tuple[float, ...], tokens: int) -> None:
    """The theorems ask for 1/M^0.99 <= rate <= 1, and for M >= 100."""
    least = tokens**-0.99
    if not all(least <= rate <= 1 for rate in rates):
        raise ValueError(f"rates must lie from {least:.3g}, 1/M^0.99, to 1, got {rates}")


def cases(run: Run, models: str = "AB") -> list[str]:
    """The recorded cases, 'tokens/rate/model'."""
    found = [name.removesuffix("/moments") for name in run.names() if name.endswith("/moments")]
    return [case for case in found if case[-1] in models]


def largest(run: Run, name: str, models: str = "AB") -> float:
    """Over all cases, moments and seeds. A bound is not judged, and is NaN, at moments before it begins."""

    def top(values: Any) -> Any:
        late = name.startswith("missing") and not np.isnan(values[-1]).any()
        return np.nanmax(values) if late else np.max(values)

    return float(np.max([top(run.value(f"{case}/{name}")) for case in cases(run, models)]))


def at_end(run: Run, name: str, models: str = "AB", pick: Callable[[Any], Any] = np.mean) -> float:
    """Over all cases and seeds at the last moment: the mean, or what else `pick` takes."""
    return float(pick([pick(run.value(f"{case}/{name}")[-1]) for case in cases(run, models)]))


def least_untrained(run: Run) -> float:
    """Of 1 - p over what the bound allows, without training: at or below 1 the bound would say nothing."""
    return float(np.min([run.value(f"{case}/missing untrained").min() for case in cases(run)]))


def powers_found(run: Run) -> dict[str, dict[str, float]]:
    """The constant of the row law per size, and the largest that held for all sequences of each model."""
    powers = {f"model {m}": [run.value(f"{case}/largest c") for case in cases(run, m)] for m in MODELS}
    return {
        "c of the row law": {f"M = {tokens:g}": power for tokens, power in run.value("powers").T.tolist()},
        "largest c that holds": {m: float(np.min([np.nanmin(c) for c in some])) for m, some in powers.items()},
        "largest c that holds at the end": {m: float(np.min([c[-1].min() for c in x])) for m, x in powers.items()},
    }
