"""Classes of sequences, and what is recorded: flows under the expected gradient, SGD with one sequence per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Least, Progress, StudyConfig, Values
from joma.models.bilinear import Bilinear, step_by_step
from joma.runs import Run
from joma.theory import scan_snap
from joma.theory.flow import integrate_together
from joma.theory.scan_snap import ScanSnap

PHASE_TIME = 1000.0  # at which B is read in the phase plot


class Recorded(NamedTuple):
    """A batch of flows: what class 1 does in each system."""

    t: Any  # (steps,)
    z: Any  # (steps, systems, tokens)
    growth: Any  # (steps, systems, distinct): B as each distinct token of the class has it, rarest first
    alpha: Any  # (steps, systems): probability of the right output
    margin: Any  # (steps, systems): logit of the right output minus that of one that never follows


def recorded(run: Run, name: str) -> Recorded:
    """The flows recorded under a name."""
    path, tokens, distinct = run.value(f"{name}/path"), run.value("p").shape[-1], int(run.config["distinct"])
    z, growth = path[..., :tokens], path[..., tokens : tokens + distinct]
    return Recorded(run.value(f"{name}/t"), z, growth, path[..., -2], path[..., -1])


def dominant_growth(run: Run, name: str) -> Any:
    """B of class 1's most frequent token, (steps, systems)."""
    return recorded(run, name).growth[..., -1]


def passes(t: Any, alpha: Any, level: float = 0.5) -> Any:
    """When each system's alpha (steps, systems) first passes the level, (systems,); NaN if never or at the start."""
    found = []
    for row in np.asarray(alpha).T:
        above = np.flatnonzero(row > level)
        if not len(above) or above[0] == 0:
            found.append(np.nan)
            continue
        i = above[0]
        found.append(t[i - 1] + (level - row[i - 1]) / (row[i] - row[i - 1]) * (t[i] - t[i - 1]))
    return np.array(found)


def phases(run: Run) -> dict[str, Any]:
    """B at `PHASE_TIME` and the transition time for every pair of rates, (eta_Y, eta_Z): one flow serves a diagonal."""
    rates, clock, path = run.value("phase/rates"), run.value("phase/clock"), run.value("phase/path")
    count = len(rates)
    passed = passes(clock, path[..., 1])  # (ratios,), in units of 1/eta_Y
    growth, transition = (np.empty((count, count)) for _ in range(2))
    for i, fast in enumerate(rates):
        at = int(np.abs(np.log(clock / (fast * PHASE_TIME))).argmin())
        for j in range(count):
            growth[i, j] = path[at, j - i + count - 1, 0]
            transition[i, j] = passed[j - i + count - 1] / fast
    return {"growth": growth, "transition": transition}


def gains(run: Run, name: str) -> Any:
    """r(t)/r(0) of class 1's most frequent token against every other distinct one, (steps, systems, others)."""
    distinct = int(run.config["distinct"])
    p, z = run.value("p")[0, :distinct], recorded(run, name).z[..., :distinct]
    start = (p[-1] / p[:-1]) ** 2 - 1
    return ((p[-1] / p[:-1]) ** 2 * np.exp(2 * (z[..., -1:] - z[..., :-1])) - 1) / start


def attention(run: Run, z: Any) -> Any:
    """Attention of class 1 as shares that sum to 1, (..., tokens)."""
    p = run.value("p")[0]
    c = p * np.exp(z)
    return c / c.sum(-1, keepdims=True)


def entropy(share: Any) -> Any:
    """In nats, over the last axis."""
    return -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)


def straight_line(x: Any, y: Any) -> tuple[float, float, float]:
    """Constant, slope and rms residual, as a share of y's range, of a straight line; NaN for fewer than 3 points."""
    if len(x) < 3:
        return float("nan"), float("nan"), float("nan")
    design = np.stack([np.ones_like(x), x], 1)
    (constant, slope), *_ = np.linalg.lstsq(design, y, rcond=None)
    off = y - constant - slope * x
    return float(constant), float(slope), float(np.sqrt((off**2).mean()) / np.ptp(y))


FINE = {"rtol": 1e-10, "atol": 1e-12}
COMMON_SHARE = 0.5  # of a sequence: so much of it are common tokens, the rest are distinct ones
COARSE = {"rtol": 1e-8, "atol": 1e-10}  # for what is drawn or compared with bounds far wider than that


@dataclass(frozen=True)
class ScanSnapConfig(StudyConfig):
    """Classes of sequences, the rates of decoder and attention, and how long to follow."""

    classes: Annotated[int, Least(2, "or no token is common")] = 2
    distinct: Annotated[int, Least(3, "a winner and two to compare it with")] = 10
    """Tokens that one class alone has."""
    common: int = 10
    """Tokens that all classes have."""
    vocabulary: int = 1000
    """M, the outputs that compete; the slide's curves are drawn with `slide_vocabulary`."""
    slide_vocabulary: int = 10_000
    draws: int = 6
    """Sets of classes with random probabilities, for the signs and the order of logits."""
    skew: float = 1.0
    """How unlike a common token's frequencies are in different classes: deviation of their logarithm."""
    ratios: Annotated[tuple[float, ...], Above(0), Values(3, rising=True)] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    """eta_Z / eta_Y, with eta_Y = 1."""
    late: Annotated[float, Least(1e4, "long after the transition")] = 1e6
    """The last time of the sweep over ratios."""
    transition_classes: tuple[int, ...] = (2, 3, 5)
    """K of the flows whose transition is timed, each with every M of `transition_vocabularies`."""
    transition_vocabularies: tuple[int, ...] = (10, 1000, 100_000)
    equal_rates: Annotated[tuple[float, ...], Above(0), Values(2, rising=True)] = (0.5, 1.0, 2.0, 4.0, 8.0)
    fixed_rate: float = 0.25
    """eta_Z while eta_Y is one of `decoder_rates`."""
    decoder_rates: Annotated[tuple[float, ...], Above(0), Values(2, rising=True)] = (1.0, 4.0, 16.0)
    grid: Annotated[int, Least(2, "rates per axis")] = 5
    """Rates per axis of the phase plot, from 0.5 to 8."""
    sgd_rates: tuple[tuple[float, float], ...] = ((0.5, 0.05), (0.5, 0.5), (1.0, 4.0))
    """(eta_Y, eta_Z) under SGD."""
    sgd_steps: int = 1000
    length: int = 64
    """Tokens of a sequence that SGD reads."""
    seeds: Annotated[int, Least(3, "to know what chance does")] = 6
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary < self.classes:
            raise ValueError(f"vocabulary must be at least classes, {self.classes}, got {self.vocabulary}")


def graded_classes(classes: int, distinct: int, common: int) -> Tensor:
    """P(l|n), (classes, tokens): distinct tokens in proportion to 0.1 up to 1, common ones alike in all classes."""
    weights = torch.linspace(0.1, 1.0, distinct, dtype=torch.float64).expand(1, classes, distinct)
    return _joined(weights, torch.ones(1, classes, common, dtype=torch.float64))[0]


def drawn_classes(
    draws: int, classes: int, distinct: int, common: int, *, skew: float, generator: torch.Generator
) -> Tensor:
    """As `graded_classes`, (draws, classes, tokens), the weights of distinct tokens uniform from 0.1 to 1."""
    weights = 0.1 + 0.9 * torch.rand(draws, classes, distinct, generator=generator, dtype=torch.float64)
    noise = torch.randn(draws, classes, common, generator=generator, dtype=torch.float64)
    return _joined(weights, torch.exp(skew * noise))


def without_common(p: Tensor, distinct: int) -> Tensor:
    """The same classes with their distinct tokens alone, (..., classes, classes * distinct)."""
    own: Tensor = p[..., : p.shape[-2] * distinct]
    return own.div(own.sum(-1, keepdim=True))


def _joined(weights: Tensor, shared: Tensor) -> Tensor:
    draws, classes, distinct = weights.shape
    p = weights.new_zeros(draws, classes, classes * distinct)
    for n in range(classes):
        p[:, n, n * distinct : (n + 1) * distinct] = weights[:, n]
    p = p.mul(1 - COMMON_SHARE).div(p.sum(-1, keepdim=True))
    return torch.cat([p, COMMON_SHARE * shared / shared.sum(-1, keepdim=True)], -1)


def frequencies(
    p: Tensor, steps: int, members: int, length: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sequences of one token after the other: how often each occurs (steps, members, tokens), and their classes."""
    count = steps * members
    which = torch.randint(len(p), (count,), generator=generator)
    drawn = torch.multinomial(p[which], length, replacement=True, generator=generator)
    x = torch.zeros(count, p.shape[-1], dtype=torch.float64)
    x.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    return (x / length).view(steps, members, -1), which.view(steps, members)


def run(config: ScanSnapConfig, run: Run, progress: Progress) -> None:
    """Follow the flows and SGD, by parts that are kept one by one."""
    p = graded_classes(config.classes, config.distinct, config.common)
    run.keep("p", lambda: p)
    progress(0.02, "signs and order of the logits")
    _record_signs(config, run)
    progress(0.2, "the premise of Theorem 3")
    _record_premise(config, run)
    progress(0.3, "ratios of the rates")
    _record_ratios(config, run, p)
    progress(0.45, "times of the transition")
    _record_transitions(config, run)
    progress(0.55, "the slide's curves and the phase plot")
    _record_rates(config, run, p)
    progress(0.7, "SGD with one sequence per step")
    _record_sgd(config, run, p)


def _record_signs(config: ScanSnapConfig, run: Run) -> None:
    t = torch.logspace(-1, 4, 41, dtype=torch.float64)
    run.keep("signs/t", lambda: t)
    shape = (config.draws, config.classes, config.distinct, config.common)
    alike, skewed = (
        drawn_classes(*shape, skew=skew, generator=torch.Generator().manual_seed(config.seed))
        for skew in (0.0, config.skew)
    )
    for name, p in (("alike", alike), ("skewed", skewed), ("alone", without_common(alike, config.distinct))):
        run.keep(f"{name}/p", lambda p=p: p)  # type: ignore[misc]
        model = ScanSnap(p, vocabulary=config.vocabulary, rate_z=0.3)
        run.keep(f"{name}/z", lambda model=model: model.solve(t, **COARSE).z[:, :, 0])  # type: ignore[misc]


def _record_premise(config: ScanSnapConfig, run: Run) -> None:
    """Theorem 3 where its premise is true by construction: z' = xi f^2 on distinct tokens, common ones fall."""
    generator = torch.Generator().manual_seed(config.seed + 1)
    p = drawn_classes(config.draws, config.classes, config.distinct, config.common, skew=0.0, generator=generator)[:, 0]
    own = torch.arange(p.shape[-1]) < config.distinct
    t = torch.linspace(0, 6, 3001, dtype=torch.float64)
    speed, fall = (0.5 + torch.rand(config.draws, 1, generator=generator, dtype=torch.float64) for _ in range(2))

    def field(time: float, z: Tensor, growth: Tensor) -> tuple[Tensor, Tensor]:
        xi = speed * (1 + torch.sin(torch.tensor(3 * time)) / 2)
        f = scan_snap.attended(p, z)
        return torch.where(own, xi * f.square(), -fall * (p > 0)), xi

    def found() -> Tensor:
        z, growth = integrate_together(field, (torch.zeros_like(p), torch.zeros(len(p), 1)), t, **FINE)
        return _gains(p, z, growth, config.distinct)

    run.keep("premise/gain", found)


def _gains(p: Tensor, z: Tensor, growth: Tensor, distinct: int) -> Tensor:
    """At the end: r(t)/r(0) of the dominant token against every other, then chi from f^2 and, wrongly, from f."""
    z, growth = z.transpose(0, 1), growth[..., 0].T  # (draws, steps, ...)
    f = scan_snap.attended(p[:, None], z)
    own = p[:, :distinct]
    first = own.argmax(-1)
    found = []
    for i, l in enumerate(first.tolist()):
        now, start = (scan_snap.relative_gain(c)[l] for c in (own[i] * z[i, -1, :distinct].exp(), own[i]))
        others = torch.arange(distinct) != l
        chi = scan_snap.gain_factor(f[i, :, l : l + 1], growth[i])[-1]
        wrong = scan_snap.gain_factor(f[i, :, l : l + 1].sqrt(), growth[i])[-1]
        found.append(torch.cat([(now / start)[others], chi, wrong]))
    return torch.stack(found)


def _record_ratios(config: ScanSnapConfig, run: Run, p: Tensor) -> None:
    t = torch.logspace(-1, torch.tensor(config.late).log10().item(), 141, dtype=torch.float64)
    run.keep("ratio/t", lambda: t)
    run.keep("ratio/ratios", lambda: torch.tensor(config.ratios, dtype=torch.float64))
    model = ScanSnap(p, vocabulary=config.vocabulary, rate_z=torch.tensor(config.ratios, dtype=torch.float64))
    run.keep("ratio/path", lambda: _summary(model, t, config))


def _summary(model: ScanSnap, t: Tensor, config: ScanSnapConfig, accuracy: dict[str, float] = FINE) -> Tensor:
    path = model.solve(t, **accuracy)
    f = model.attended(path.z)
    logits = torch.einsum("stnl,stlc->stnc", f, path.y)[:, :, 0]
    alpha = model.predicted(path.y, path.z)[:, :, 0, :1]
    margin = logits[..., :1] - logits[..., -1:]
    growth = path.growth[:, :, 0, : config.distinct]  # class 1 comes first
    return torch.cat([path.z[:, :, 0], growth, alpha, margin], -1)


def _record_transitions(config: ScanSnapConfig, run: Run) -> None:
    """When the right output passes one half, for several K and M; eta_Y = K/4 and eta_Z a hundredth of that."""
    cases = [(k, m, k / 4) for k in config.transition_classes for m in config.transition_vocabularies]
    run.keep("transition/cases", lambda: torch.tensor(cases, dtype=torch.float64))
    run.keep("transition/time", lambda: torch.stack([_transition(config, *case) for case in cases]))


def _transition(config: ScanSnapConfig, classes: int, vocabulary: int, rate: float) -> Tensor:
    p = graded_classes(classes, config.distinct, config.common)
    model = ScanSnap(p, vocabulary=vocabulary, rate_y=rate, rate_z=rate / 100)
    t = scan_snap.transition_time(classes, vocabulary, rate) * torch.linspace(0.2, 3, 141, dtype=torch.float64)
    path = model.solve(t, **COARSE)
    return torch.from_numpy(passes(t.numpy(), model.predicted(path.y, path.z)[:, 0, :1].numpy()))[0]


def _record_rates(config: ScanSnapConfig, run: Run, p: Tensor) -> None:
    equal = torch.tensor(config.equal_rates, dtype=torch.float64)
    t = torch.linspace(0, 50, 101, dtype=torch.float64)
    run.keep("equal/t", lambda: t)
    slide = ScanSnap(p, vocabulary=config.slide_vocabulary, rate_y=equal, rate_z=equal)
    run.keep("equal/path", lambda: _summary(slide, t, config))
    decoder = torch.tensor(config.decoder_rates, dtype=torch.float64)
    late = torch.logspace(0, 4, 41, dtype=torch.float64) * 2
    run.keep("fixed/t", lambda: late)
    model = ScanSnap(p, vocabulary=config.vocabulary, rate_y=decoder, rate_z=config.fixed_rate)
    run.keep("fixed/path", lambda: _summary(model, late, config))
    _record_phases(config, run, p)


def _record_phases(config: ScanSnapConfig, run: Run, p: Tensor) -> None:
    """B and alpha for a grid of rates, from one flow per ratio."""
    steps = config.grid - 1
    rates, ratios, clock = (
        scale * 16 ** torch.linspace(low, 1, count, dtype=torch.float64)
        for scale, low, count in ((0.5, 0, steps + 1), (1, -1, 2 * steps + 1), (0.5 * PHASE_TIME, -2, 24 * steps + 1))
    )  # the clock shows PHASE_TIME times every rate too
    for name, value in (("rates", rates), ("ratios", ratios), ("clock", clock)):
        run.keep(f"phase/{name}", lambda value=value: value)  # type: ignore[misc]
    model = ScanSnap(p, vocabulary=config.vocabulary, rate_z=ratios)
    run.keep("phase/path", lambda: _summary(model, clock, config, COARSE)[..., -3:-1])  # B and alpha


def _record_sgd(config: ScanSnapConfig, run: Run, p: Tensor) -> None:
    points = torch.linspace(0, config.sgd_steps, 11).round().long()
    run.keep("sgd/steps", lambda: points)
    for name, shuffle in (("sgd", False), ("sgd shuffled", True)):
        run.keep(f"{name}/z", lambda shuffle=shuffle: _sgd(config, p, points.tolist(), shuffle=shuffle))  # type: ignore[misc]


def _sgd(config: ScanSnapConfig, p: Tensor, points: Sequence[int], *, shuffle: bool) -> Tensor:
    """z of every rate pair and seed, (points, pairs, seeds, tokens); with `shuffle` labels say nothing of sequences."""
    pairs, seeds = len(config.sgd_rates), config.seeds
    fast, slow = torch.tensor(config.sgd_rates, dtype=torch.float64).repeat_interleave(seeds, 0).T
    tokens = p.shape[-1]
    names = [config.seed + seed for _ in range(pairs) for seed in range(seeds)]
    model = Bilinear(tokens, tokens, names, ratio=slow / fast, dtype=torch.float64)
    generator = torch.Generator().manual_seed(config.seed + 2)
    found = [model.z.detach()[:, 0]]
    for steps in torch.tensor(points).diff().tolist():
        x, label = frequencies(p, steps, seeds, config.length, generator=generator)
        if shuffle:
            label = label[torch.randperm(steps, generator=generator)]
        step_by_step(model, x.repeat(1, pairs, 1), label.repeat(1, pairs), rate=fast)
        found.append(model.z.detach()[:, 0])
    return torch.stack(found).view(len(points), pairs, seeds, tokens)
