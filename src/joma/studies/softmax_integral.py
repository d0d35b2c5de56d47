"""Theorem 1 under softmax attention, eq. 17, eq. 18, Figures 2 and 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.runs import Run
from joma.studies._softmax_figures import figure_2, figure_3, pearson, relative
from joma.studies._softmax_training import (
    KINDS,
    Condition,
    Kind,
    Path,
    Start,
    condition,
    draw_start,
    estimates,
    look,
    one_sample,
    published,
    train,
    train_with_frozen_attention,
)
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.verdicts import by_effect, by_residual, by_test, show

EXACT = 1e-12  # identities of SGD steps
FLOW = 1e-10  # identities along a solved flow
CLOSE = 0.2  # relative error of a prediction worth the name
HIGH, LOW = 0.9, 0.5  # Pearson correlations that count as high, and as none
MARGIN = 0.05  # by how much a correlation must exceed its control
CONCENTRATED = 0.1  # by how much a share of growth must exceed its control

METHODS = ("published", "first term", "second term", "current mean", "integrated", "self-consistent", "identity")
CHUNK = 10  # members trained at once: their whole path is held in memory
TOP = 0.2  # the fastest fifth of the components


@dataclass(frozen=True)
class Config:
    """The experiment of Figures 2 and 3: one frequency vector a class, full-batch SGD on the mean loss."""

    tokens: int = 20
    classes: int = 20
    temperature: float = 0.5
    rate: float = 0.1
    steps: int = 2000
    seeds: int = 10
    points: int = 100
    """Moments of training at which everything is recorded."""
    draws: int = 4
    """Independent flows with a single sample, where b and s cannot be correlated."""


PUBLISHED = Claim(
    "softmax-published",
    "JoMA Thm 1",
    "Though its assumptions fail, ½Σ(v² − ‖v‖² b̄) + c with constant b̄ predicts the softmax logits fairly well.",
    empirical=True,
)
CORRELATES = {
    kind: Claim(
        f"fig2-{kind}",
        "JoMA Fig. 2",
        f"The estimate from V correlates highly with the true logits ({kind} classes).",
        empirical=True,
    )
    for kind in KINDS
}
PARTS = Claim(
    "fig2-components",
    "JoMA Fig. 2",
    "Neither of the two terms, ½Σv² and −½Σ‖v‖² b̄, correlates with the logits by itself.",
    "The second does not; the first, ½Σv², does by the end of training.",
    empirical=True,
)
SUMS = Claim(
    "eq17-sum",
    "JoMA eq. 17",
    "If b is uncorrelated with g h′ b, then z′ = Σ v_k′∘v_k − b̄ v_k′·v_k, where only the first term shows its sum.",
    "The sum over nodes covers both terms.",
)
COVARIANCE = Claim(
    "eq17-covariance",
    "JoMA eq. 17",
    "In training, z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k).",
    "z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k) − Cov(s, b) with s = Σ g_k h_k′ b·v_k, times κ/T: exact for every step of SGD.",
)
CONSTANT = Claim(
    "eq18-constant-mean",
    "JoMA eq. 18",
    "With b̄ taken as constant, eq. 17 integrates to z = ½Σ(v² − ‖v‖² b̄) + c.",
    "b̄ moves whenever z does; z = z(0) + ∫[Σ v_k∘v_k′ − b̄(t) Σ v_k·v_k′] dt holds where Cov(s, b) = 0.",
)
CURRENT = Claim(
    "eq18-current-mean",
    "JoMA eq. 18",
    "The closed form can be evaluated with b̄ as the theorem defines it, the mean attention of the moment.",
    empirical=True,
)
REBUILT = Claim(
    "softmax-rebuilt",
    "JoMA eq. 18",
    "The logits follow in closed form from V(t), so attention need not be trained.",
    "They follow from the path of V and the x alone: integrate eq. 17 with b̄ rebuilt from the estimate itself.",
    empirical=True,
)
CONDITION = Claim(
    "softmax-condition",
    "JoMA Thm 1",
    "E[Σ g_k h_k′ b bᵀ] = b̄ E[Σ g_k h_k′ b]ᵀ suffices for the softmax case (with constant b̄).",
    "The condition must hold node by node, or carry v_k: Σ E[g_k h_k′ b bᵀ] v_k = b̄ Σ v_k′·v_k.",
)
MEAN = Claim("softmax-mean-logit", "JoMA eq. 17", "The right-hand side sums to zero, so the mean logit never moves.")
GROWTH = {
    kind: Claim(
        f"fig3-{kind}",
        "JoMA Fig. 3",
        f"Late in training only some components of v grow on, the rest saturates ({kind} classes).",
        empirical=True,
    )
    for kind in KINDS
}


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train with moving and with frozen attention; record logits, all estimates and the weights' growth."""
    run.keep("step", lambda: torch.from_numpy(_points(config)))
    for i, kind in enumerate(KINDS):
        if f"{kind}/z" not in run:
            chunks = []
            for first in range(0, config.seeds, CHUNK):
                progress((i + first / config.seeds) * 0.45, f"{kind} classes, seeds from {first}")
                chunks.append(_train_and_estimate(kind, range(first, min(first + CHUNK, config.seeds)), config))
            run.record(0, {f"{kind}/{name}": torch.cat([c[name] for c in chunks]) for name in chunks[0]})
    progress(0.9, "one sample")
    if "one/z" not in run:
        run.record(0, {f"one/{name}": value for name, value in one_sample(config.draws, seed=0).items()})


def judge(run: Run) -> list[Finding]:
    """Correlations and relative errors at a quarter, half and the end of training, identities at every moment."""
    error = {kind: {m: _error(run, kind, m) for m in METHODS} for kind in KINDS}
    nc = {kind: {m: _correlation(run, kind, m) for m in METHODS} for kind in KINDS}
    stranger = {kind: {m: _correlation(run, kind, m, roll=1) for m in METHODS} for kind in KINDS}
    start, end = ([run.value(f"{k}/mean attention")[:, i] for k in KINDS] for i in (0, -1))
    strayed = [float(np.abs(b - a).sum(-1).mean()) for a, b in zip(start, end, strict=True)]
    still = [float(relative(run.value(f"{k}/z")[:, :1], run.value(f"{k}/z"))[:, -1].mean()) for k in KINDS]
    return [
        by_test(
            PUBLISHED,
            measured=f"relative error {_by_kind(error, 'published', '.2g')}; correlation "
            f"{_by_kind(nc, 'published', '.3f')}; b̄ moved by {strayed[0]:.2f} and {strayed[1]:.2f} of at most 2",
            expected=f"relative error up to {CLOSE} (at a quarter, half and end of training)",
            as_printed=all((error[k]["published"] <= CLOSE).all() for k in KINDS),
            in_direction=all(nc[k]["published"][-1] >= HIGH for k in KINDS),
            tolerance=CLOSE,
            control=f"relative error {show(still[0])} (smooth), {show(still[1])} (random) "
            "at the end if z is predicted never to move",
        ),
        *(_figure_2(CORRELATES[kind], run, kind, nc[kind]["published"], stranger[kind]["published"]) for kind in KINDS),
        by_test(
            PARTS,
            measured=f"correlation of ½Σv² {_by_kind(nc, 'first term')}; of −½Σ‖v‖² b̄ {_by_kind(nc, 'second term')}",
            expected=f"below {LOW} throughout",
            as_printed=all((np.abs(nc[k][m]) < LOW).all() for k in KINDS for m in METHODS[1:3]),
            as_corrected=all(
                (np.abs(nc[k]["second term"]) < LOW).all() and nc[k]["first term"][-1] >= HIGH for k in KINDS
            ),
            tolerance=LOW,
            residuals=_parts_off(nc),
            control=f"½Σv² of another seed: {_by_kind(stranger, 'first term')}",
        ),
        by_residual(
            SUMS,
            printed=float(run.value("one/velocity, one node").max()),
            corrected=float(run.value("one/velocity, all nodes").max()),
            tolerance=EXACT,
            expected="equal to z′ where Cov(s, b) = 0 (printed: the best single node in the second term)",
        ),
        by_residual(
            COVARIANCE,
            printed=float(np.max([error[k]["integrated"][-1] for k in KINDS])),
            corrected=float(np.max([_relative_path(run, k, "identity") for k in KINDS])),
            tolerance=EXACT,
            expected="relative error 0 after all steps",
        ),
        by_residual(
            CONSTANT,
            printed=_one_sample_error(run, "z closed"),
            corrected=_one_sample_error(run, "z integrated"),
            tolerance=FLOW,
            expected="relative error 0 where Cov(s, b) = 0",
        ),
        by_test(
            CURRENT,
            measured=f"correlation {_by_kind(nc, 'current mean')}",
            expected=f"at least {HIGH} (at a quarter, half and end of training)",
            as_printed=all((nc[k]["current mean"] >= HIGH).all() for k in KINDS),
            tolerance=HIGH,
            control=f"b̄ of the start: {_by_kind(nc, 'published', '.3f')}",
        ),
        by_test(
            REBUILT,
            measured=f"relative error {_by_kind(error, 'published', '.2g')} in closed form, "
            f"{_by_kind(error, 'self-consistent', '.2g')} rebuilt; correlation "
            f"{_by_kind(nc, 'self-consistent', '.3f')}",
            expected=f"relative error up to {CLOSE} throughout, correlation 0.99 at the end",
            as_printed=all((error[k]["published"] <= CLOSE).all() for k in KINDS),
            as_corrected=all(
                (error[k]["self-consistent"] <= CLOSE).all() and nc[k]["self-consistent"][-1] >= 0.99 for k in KINDS
            ),
            tolerance=CLOSE,
            control=f"true b̄(t), not rebuilt: {_by_kind(error, 'integrated', '.2g')}",
        ),
        _condition(run, error),
        by_residual(
            MEAN,
            printed=float(np.max([np.ptp(run.value(f"{k}/z").mean(-1), axis=-1) for k in KINDS])),
            tolerance=EXACT,
            expected="mean logit constant through training",
        ),
        *(_figure_3(GROWTH[kind], run, kind) for kind in KINDS),
    ]


def draw(run: Run) -> list[Drawing]:
    """Figures 2 and 3 with their controls, and the relative errors that a correlation hides."""
    return [figure_2(run, tolerance=CLOSE), figure_3(run)]


def _train_and_estimate(kind: Kind, seeds: range, config: Config) -> dict[str, Tensor]:
    """Everything recorded about one kind of data, members first."""
    start = draw_start(kind, seeds, classes=config.classes, tokens=config.tokens)
    at, late = (torch.from_numpy(steps) for steps in (_points(config), _late(config)))
    path = train(start, steps=config.steps, rate=config.rate, temperature=config.temperature)
    frozen = train_with_frozen_attention(start, at, rate=config.rate, temperature=config.temperature)
    ways = estimates(path, start, rate=config.rate, temperature=config.temperature)
    conditions = [_condition_at(step, path, start, config) for step in _three(config.steps)]
    return {
        "z": path.z[:, at],
        "v": path.v[:, late],
        "frozen/v": frozen[:, torch.isin(at, late)],
        "v of node 0": path.v[:, at, :, 0],
        "frozen/v of node 0": frozen[..., 0],
        "frozen/published": published(frozen, start, config.temperature),
        "mean attention": path.mean_attention[:, at],
        **{name: way[:, at] for name, way in ways.items()},
        **{f"condition/{side}": torch.stack([getattr(c, side) for c in conditions], 1) for side in Condition._fields},
    }


def _condition_at(step: int, path: Path, start: Start, config: Config) -> Condition:
    v, bias, z = path.v[:, step], path.bias[:, step, None], path.z[:, step, None]
    return condition(look(start.x, v, bias, z, config.temperature))


def _points(config: Config) -> Any:
    """Recorded steps; a quarter, half and the end of training are always among them."""
    even = np.linspace(0, config.steps, config.points + 1).round().astype(int)
    return np.union1d(even, _three(config.steps))


def _late(config: Config) -> Any:
    return np.array([0, config.steps // 2, config.steps])


def _three(steps: int) -> list[int]:
    return [steps // 4, steps // 2, steps]


def _three_of(run: Run, path: Any) -> Any:
    """The mean over seeds of (seeds, points) at a quarter, half and the end of training."""
    step = run.value("step")
    return path.mean(0)[np.searchsorted(step, _three(int(step[-1])))]


def _relative_path(run: Run, kind: Kind, method: str) -> Any:
    return relative(run.value(f"{kind}/{method}"), run.value(f"{kind}/z"))


def _error(run: Run, kind: Kind, method: str) -> Any:
    return _three_of(run, _relative_path(run, kind, method))


def _correlation(run: Run, kind: Kind, method: str, *, roll: int = 0) -> Any:
    """With z of the same seed or, for `roll` = 1, of the next one."""
    return _three_of(run, pearson(np.roll(run.value(f"{kind}/{method}"), roll, 0), run.value(f"{kind}/z")))


def _by_kind(table: dict[Kind, dict[str, Any]], method: str, form: str = ".2f") -> str:
    """The three numbers of each kind of data: correlations, or relative errors with `form` = '.2g'."""
    return ", ".join("/".join(f"{value:{form}}" for value in table[kind][method]) + f" ({kind})" for kind in KINDS)


def _one_sample_error(run: Run, name: str) -> float:
    return float(relative(run.value(f"one/{name}"), run.value("one/z")).max())


def _figure_2(claim: Claim, run: Run, kind: Kind, own: Any, stranger: Any) -> Finding:
    """The end of training, against two controls: V of another seed, and V trained beside frozen attention."""
    frozen = float(pearson(run.value(f"{kind}/frozen/published"), run.value(f"{kind}/z"))[:, -1].mean())
    spread = float(pearson(run.value(f"{kind}/published"), run.value(f"{kind}/z"))[:, -1].std())
    return by_effect(
        claim,
        measured=float(own[-1]),
        control=max(float(stranger[-1]), frozen),
        margin=MARGIN,
        expected=f"at least {HIGH} at the end of training",
        quantitative=bool(own[-1] >= HIGH),
        shown=f"correlation {own[-1]:.3f} ± {spread:.3f} (over seeds)",
        control_shown=f"V of another seed: {stranger[-1]:.3f}; V trained with frozen attention: {frozen:.3f}",
    )


def _parts_off(nc: dict[Kind, dict[str, Any]]) -> dict[str, float]:
    """How far the correlations are from 0 for both terms (printed), or from 1 for the first at the end (corrected)."""
    first, second = (np.stack([nc[kind][term] for kind in KINDS]) for term in ("first term", "second term"))
    other = float(np.abs(second).max())
    return {"printed": max(float(np.abs(first).max()), other), "corrected": max(float((1 - first[:, -1]).max()), other)}


def _condition(run: Run, error: dict[Kind, dict[str, Any]]) -> Finding:
    """The printed condition is met and its conclusion, eq. 17 with the true mean, fails all the same."""
    printed = float(np.max([run.value(f"{k}/condition/{side}") for k in KINDS for side in ("left", "right")]))
    each = [float(run.value(f"{k}/condition/each").mean()) for k in KINDS]
    missed = [float(error[k]["integrated"][-1]) for k in KINDS]
    exact = float(run.value("one/velocity, all nodes").max())
    return by_test(
        CONDITION,
        measured=f"both sides vanish (at most {show(printed)}), yet eq. 17 with the true b̄ ends off by "
        f"{missed[0]:.2g} (smooth), {missed[1]:.2g} (random); node by node the two sides differ by "
        f"{each[0]:.0%} and {each[1]:.0%}",
        expected="where the condition is met, eq. 17 is exact",
        as_printed=printed <= EXACT and all(value <= EXACT for value in missed),
        as_corrected=all(value > CLOSE for value in each) and exact <= EXACT,
        tolerance=EXACT,
        control=f"on one sample, where they agree node by node, eq. 17 is off by {show(exact)}",
        residuals={"printed": max(missed), "corrected": exact},  # of eq. 17 where either condition is met
    )


def _figure_3(claim: Claim, run: Run, kind: Kind) -> Finding:
    (share, still), (frozen_share, frozen_still) = (_late_growth(run.value(f"{kind}/{w}v")) for w in ("", "frozen/"))
    return by_effect(
        claim,
        measured=share,
        control=frozen_share,
        margin=CONCENTRATED,
        expected="growth after half of training concentrated in a few components, most of the others saturated",
        quantitative=still >= 0.5,
        shown=f"the fastest fifth has {share:.0%} of the late growth; {still:.0%} of the components stand still",
        control_shown=f"attention frozen: {frozen_share:.0%}; {frozen_still:.0%}",
    )


def _late_growth(v: Any) -> tuple[float, float]:
    """v (seeds, [start, half, end], tokens, nodes) -> the share of the late movement that the fastest fifth of the
    tokens holds, and the share of tokens that move less than a tenth of what their node's largest has moved in all.
    """
    late = np.sort(np.abs(v[:, 2] - v[:, 1]), axis=1)
    fastest = max(round(TOP * late.shape[1]), 1)
    largest = np.abs(v[:, 2] - v[:, 0]).max(1, keepdims=True)
    return float((late[:, -fastest:].sum(1) / late.sum(1)).mean()), float((late < 0.1 * largest).mean())


STUDY = Study(
    name="thm1-softmax",
    title="Theorem 1 under softmax attention: Figures 2 and 3",
    version=1,
    claims=(
        PUBLISHED,
        *CORRELATES.values(),
        PARTS,
        SUMS,
        COVARIANCE,
        CONSTANT,
        CURRENT,
        REBUILT,
        CONDITION,
        MEAN,
        *GROWTH.values(),
    ),
    quick=Config(),
    paper=Config(seeds=100),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "The networks of Figures 2 and 3 (20 tokens, 20 classes, linear nodes, softmax attention at T = 0.5) are "
        "trained by full-batch SGD on the mean cross-entropy from several seeds, and once more with frozen attention. "
        "The logits are compared with every estimate from V: the published one, its two terms, and the path integrals "
        "that replace it. Three numbers in a row belong to a quarter, half and the end of training."
    ),
)
