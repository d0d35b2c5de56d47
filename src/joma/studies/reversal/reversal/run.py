"""The bilinear model of Theorem 1, trained by gradient descent from zero on the facts A -> B.

With facts A_i -> B_i all of theta lies in the span of A_i w^T, theta = sum_i A_i c_i^T U. So it is enough to follow the
coefficients c (facts, tokens); embeddings enter by their inner products alone, and the width costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least, Several, StudyConfig
from joma.claims.contract import Progress
from joma.data.facts import Reversals, reversals
from joma.data.statements import Statements
from joma.runs import Run
from joma.studies.reversal import _rows as rows
from joma.theory.reversal import row_gap, sgd_gap, smallest_power

TRAINED = ("forward", "symmetric", "both")
"""What is trained: theta on A -> B; and as controls a symmetric theta on A -> B, theta on A -> B and B -> A."""


def gaussian(tokens: int, width: int, draws: int, generator: torch.Generator) -> Tensor:
    """(draws, tokens, tokens): inner products of Gaussian embeddings of length about 1."""
    table: Tensor = torch.randn(draws, tokens, width, generator=generator, dtype=torch.float64) / width**0.5
    return table @ table.mT


def descend(inner: Tensor, facts: int, steps: int, trained: str) -> Tensor:
    """Forward and reverse loss, (2, draws, steps + 1). Tokens 2i and 2i + 1 are A and B of the fact i.

    The rate is 1 per fact, so that one step is one visit of each row.
    """
    first, second = torch.arange(2 * facts).reshape(facts, 2).unbind(-1)
    c = inner.new_zeros(len(inner), facts, inner.shape[-1])
    back = torch.zeros_like(c)

    def said(start: Tensor) -> Tensor:
        """(draws, facts, tokens): ln p after the tokens u that facts start with, from logits u^T theta w."""
        logits = inner[:, start][..., first] @ c @ inner
        if trained == "both":
            logits = logits + inner[:, start][..., second] @ back @ inner
        if trained == "symmetric":
            logits = (logits + inner[:, start] @ c.mT @ inner[:, first]) / 2
        return torch.log_softmax(logits, -1)

    def loss(log_p: Tensor, answer: Tensor) -> Tensor:
        return -log_p[:, torch.arange(facts), answer].mean(-1)

    def push(log_p: Tensor, answer: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(answer, log_p.shape[-1]) - log_p.exp()

    path = []
    for _ in range(steps + 1):
        ahead, reverse = said(first), said(second)
        path.append(torch.stack([loss(ahead, second), loss(reverse, first)]))
        c = c + push(ahead, second)
        if trained == "both":
            back = back + push(reverse, first)
    return torch.stack(path, -1)


def powers(inner: Tensor, facts: int, steps: int, kinds: Sequence[str]) -> Tensor:
    """(kinds, draws): the smallest eps of Theorem 1, for each kind of training."""
    paths = [descend(inner, facts, steps, trained) for trained in kinds]
    return torch.stack([smallest_power(forward, reverse) for forward, reverse in paths])


@dataclass(frozen=True)
class ReversalConfig(StudyConfig):
    """Facts of several sizes, row models at several rates, bilinear models of several widths."""

    pairs: Annotated[tuple[int, ...], Least(25, "for the 100 tokens of the theorem")] = (25, 32)
    """Facts; the vocabulary has 4 words per pair and two relations."""
    both: float = 0.7
    """Share of pairs that train in both directions."""
    rates: tuple[float, ...] = (0.2, 0.5, 1.0)
    horizon: Annotated[float, Least(2, "well after the theorem begins at 1")] = 6.0
    """How long to train: rate times visits, in units of ln M."""
    moments: int = 7
    seeds: int = 3
    facts: int = 10
    """Facts of the bilinear model."""
    tokens: int = 40
    """Tokens of the bilinear model."""
    widths: Annotated[tuple[int, ...], Several(2, "for a slope")] = (32, 128, 512)
    draws: int = 20
    """Sets of random embeddings per width."""
    steps: int = 100
    """Of gradient descent on the bilinear model."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        rows.check_rates(self.rates, 4 * min(self.pairs) + 2)
        if 2 * self.facts > self.tokens:
            raise ValueError(f"tokens must be at least {2 * self.facts}, two per fact, got {self.tokens}")
        if not 0 <= self.both < 1:
            raise ValueError(f"both must lie from 0 to below 1, some reverse must be left to test, got {self.both}")


def run(config: ReversalConfig, run: Run, progress: Progress) -> None:
    """Train the row models at every size and rate, then the bilinear models."""
    seeds = range(config.seed, config.seed + config.seeds)
    sizes = [[reversals(pairs, both=config.both, seed=seed) for seed in seeds] for pairs in config.pairs]
    # a twin of each run also trains the reverses, as a control
    twin = lambda facts: facts.with_reverses(1).train
    rows.record_cases(config, run, sizes, seen, lambda share, doing: progress(0.7 * share, doing), twin=twin)
    progress(0.7, "pictures of rows")
    _record_pictures(config, run)
    progress(0.8, "bilinear models")
    _record_bilinear(config, run)


def seen(moment: rows.Moment, run: int, facts: Reversals, model: str, rate: float) -> dict[str, Any]:
    """Numbers of one run, and of its twin that also trains the reverses."""
    weights, tokens = moment.weights[run], facts.vocabulary
    visits, loss = moment.visits[run], rows.losses_of(weights, facts.train, model)
    reverse = np.exp(-rows.losses_of(weights, facts.test, model))
    twin_loss = rows.losses_of(moment.weights[len(moment.weights) // 2 + run], facts.test, model)
    one_way = facts.one_way.tokens
    return {
        **rows.bounds(loss, visits, moment.step / len(facts.train), tokens, rate),
        "train p": np.exp(-loss).mean(),
        "least train p": np.exp(-loss).min(),
        "reverse p": reverse.mean(),
        "largest reverse M p": tokens * reverse.max(),
        "least reverse M p": tokens * reverse.min(),
        "unseen M p": tokens * np.exp(-rows.losses_of(weights, facts.unseen, model)).mean(),
        "shuffled M p": tokens * np.exp(-rows.losses_of(weights, facts.shuffled(), model)).mean(),
        "cured p": np.exp(-twin_loss).mean(),
        "least cured M p": tokens * np.exp(-twin_loss).min(),
        "rows of B": np.abs(weights[one_way[:, 2].numpy()]).max(),
        "rows of A": np.abs(weights[one_way[:, 0].numpy()]).max(-1).min(),
        **(_laws(moment, run, facts, rate) if model == "A" else {}),
    }


def _laws(moment: rows.Moment, run: int, facts: Reversals, rate: float) -> dict[str, float]:

    def off(gaps: Any, law: Any) -> float:
        return float(np.abs(gaps - law).max())

    tokens, other = facts.vocabulary, len(moment.weights) // 2 + run
    cured = facts.with_reverses(1).train
    gap, visits = gaps_of(moment.weights[run], facts.train), moment.visits[run]
    same = (facts.test.tokens[:, None] == cured.tokens).all(-1).int().argmax(-1).numpy()
    law = sgd_gap(np.concatenate([visits, moment.visits[other]]), tokens=tokens, rate=rate).numpy()
    own, others = law[: len(visits)], law[len(visits) :]
    return {
        "off the flow": off(gap, row_gap(visits, tokens=tokens, rate=rate).numpy()),
        "off the law": off(gap, own),
        "off a straight line": off(gap, rate * visits),
        "cured off the law": off(gaps_of(moment.weights[other], cured), others),
        "not cured off the law": off(gaps_of(moment.weights[run], facts.test), others[same]),
    }


def gaps_of(weights: Any, sequences: Statements) -> Any:
    """(n,) of model A: the logit of the answer minus the mean of the others."""
    logits = rows.logits_of(weights, sequences, "A")
    answer = logits[np.arange(len(logits)), sequences.target[:, 0].numpy()]
    return answer - (logits.sum(-1) - answer) / (logits.shape[-1] - 1)


def _record_pictures(config: ReversalConfig, run: Run) -> None:
    """Of the smallest facts: gaps over visits at each rate, beside the laws; and Y at the end."""
    facts = reversals(min(config.pairs), both=config.both, seed=config.seed)
    tokens, count, seed = facts.vocabulary, len(facts.train), config.seed + 2000
    run.keep("law/rates", lambda: np.array(config.rates))
    for rate in config.rates:
        if f"law/{rate:g}/gap" not in run:
            moments = rows.moments_of(count, tokens, rate, horizon=config.horizon, count=config.moments)
            path = rows.train([facts.train], model="A", tokens=tokens, rate=rate, moments=moments, seed=seed)
            dots = [(moment.visits[0], gaps_of(moment.weights[0], facts.train)) for moment in path]
            grid = np.logspace(0, np.log10(config.horizon * log(tokens) / rate * 1.3), 60)
            found = {
                "visits": np.stack([visits for visits, _ in dots]),  # (moments, sequences)
                "gap": np.stack([gap for _, gap in dots]),
                "grid": grid,
                "flow": row_gap(grid, tokens=tokens, rate=rate),
                "law": sgd_gap(grid, tokens=tokens, rate=rate),
            }
            run.record(0, {f"law/{rate:g}/{key}": value for key, value in found.items()})
    rate = config.rates[len(config.rates) // 2]
    for model in rows.MODELS:
        run.keep(f"picture/{model}", partial(_picture, facts, model, rate, config.horizon, seed))
    run.keep("picture/both", lambda: facts.both.sum())


def _picture(facts: Reversals, model: str, rate: float, horizon: float, seed: int) -> Any:
    """Y at the end, with tokens sorted: A and B of the pairs with both directions, then start and end of the others."""
    steps = rows.moments_of(len(facts.train), facts.vocabulary, rate, horizon=horizon, count=4)[-1:]
    (end,) = rows.train([facts.train], model=model, tokens=facts.vocabulary, rate=rate, moments=steps, seed=seed)
    one_way = facts.one_way.tokens
    twice = [side[facts.both].flatten() for side in (facts.first, facts.second)]
    order = np.concatenate([*twice, one_way[:, 0], one_way[:, 2]])
    return end.weights[0][np.ix_(order, order)].astype(np.float32)


def _record_bilinear(config: ReversalConfig, run: Run) -> None:
    """The smallest eps per width and draw; controls at the largest width; one path of losses."""
    generator = torch.Generator().manual_seed(config.seed + 3000)
    inner = {width: gaussian(config.tokens, width, config.draws, generator) for width in config.widths}
    widest = inner[max(config.widths)]
    orthonormal = torch.eye(config.tokens, dtype=torch.float64)[None]
    run.keep("bilinear/widths", lambda: np.array(config.widths))
    found = partial(powers, facts=config.facts, steps=config.steps)
    run.keep("bilinear/power", lambda: torch.stack([found(one, kinds=("forward",))[0] for one in inner.values()]))
    run.keep("bilinear/control power", lambda: found(widest[:8], kinds=TRAINED))
    run.keep("bilinear/orthonormal", lambda: found(orthonormal, kinds=TRAINED))
    for kind in TRAINED:  # (2, 1, steps + 1)
        run.keep(f"bilinear/path/{kind}", partial(descend, widest[:1], config.facts, config.steps, kind))
