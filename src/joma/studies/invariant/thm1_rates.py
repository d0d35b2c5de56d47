"""Theorem 1 with different learning rates for attention and MLP, and with a temperature."""

from dataclasses import dataclass, replace
from functools import partial
from math import cos, exp
from typing import Annotated, Any

import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_most, by_residual, by_tests
from joma.figures.bands import bound
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import CORRECTED, INK, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.invariant import _blocks as blocks
from joma.studies.invariant._blocks import FLOW, KINDS, drift, kept, largest, moments, pack, smallest, unpack
from joma.theory.attention import Attention
from joma.theory.flow import Block, State, integrate_together

Case = tuple[str, float, float, float]  # attention, rate of W, rate of z, temperature


@dataclass(frozen=True)
class Thm1RatesConfig(StudyConfig):
    """Pairs of rates (MLP, attention), the first of them equal, all followed for the same time of the faster one."""

    rates: tuple[tuple[float, float], ...] = ((1.0, 1.0), (1.0, 0.1), (0.2, 1.0), (1.0, 3.0))
    cold: float = 0.5
    """A temperature, tried with the first two pairs."""
    tokens: int = 6
    nodes: int = 4
    samples: int = 16
    horizon: float = 0.5
    steps: Annotated[int, Least(2, "the start and a later moment")] = 21
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.rates) < 2 or self.rates[0][0] != self.rates[0][1]:
            raise ValueError(f"rates must be an equal pair followed by at least one unequal pair, got {self.rates}")


CLAIMS = Claims()


def run(config: Thm1RatesConfig, run: Run, progress: Progress) -> None:
    """Follow every pair of rates and every temperature by a solver that knows nothing of the invariant."""
    run.keep("share", lambda: moments(1.0, config.steps))
    cases: list[Case] = [(kind, *pair, 1.0) for kind in KINDS for pair in config.rates]
    cases += [("exp", *pair, config.cold) for pair in config.rates[:2]]  # linear attention does not feel a temperature
    for i, case in enumerate(cases):
        progress(i / (len(cases) + 1), _name(*case))
        run.keep(_name(*case), partial(_follow, config, *case))
    progress(len(cases) / (len(cases) + 1), "schedules")
    run.keep("schedule", partial(_scheduled, config))


def _name(kind: str, rate_w: float, rate_z: float, temperature: float) -> str:
    return f"{kind}/rates {rate_w:g}, {rate_z:g}/temperature {temperature:g}"


def _block(config: Thm1RatesConfig, kind: str, temperature: float) -> tuple[Block, State]:
    attention = Attention(kind, temperature=temperature, norm=1 / config.tokens)  # type: ignore[arg-type]
    block, start = blocks.draw_block(config, attention)
    return block, State(start.w, temperature * start.z)


def _follow(config: Thm1RatesConfig, kind: str, rate_w: float, rate_z: float, temperature: float) -> Tensor:
    block, start = _block(config, kind, temperature)
    block = replace(block, rate_w=rate_w, rate_z=rate_z)
    w, z = block.solve(*start, moments(config.horizon * temperature / max(rate_w, rate_z), config.steps))
    return pack(z, block.project(w))


def _scheduled(config: Thm1RatesConfig) -> Tensor:
    """The MLP's rate decays, the attention's warms up; the last column integrates κ Σ v v′."""
    block, start = _block(config, "exp", 1.0)

    def field(time: float, w: Tensor, z: Tensor, path: Tensor) -> tuple[Tensor, ...]:
        rate_w, rate_z = (1 + cos(time)) / 2, 1 - exp(-3 * time)
        dw, dz = block.velocity(w, z, time)
        return rate_w * dw, rate_z * dz, rate_z / rate_w * (block.project(w) * block.project(rate_w * dw)).sum(-1)

    nothing = torch.zeros_like(start.z[..., 0, :])
    w, z, path = integrate_together(field, (*start, nothing), moments(config.horizon, config.steps))
    return torch.cat([pack(z, block.project(w)), path[..., None]], -1)


def _constant(run: Run, case: Case, *, corrected: bool) -> Tensor:
    kind, rate_w, rate_z, temperature = case
    form: dict[str, Any] = {"kappa": rate_z / rate_w, "temperature": temperature} if corrected else {}
    return kept(*unpack(run.value(_name(*case))), kind=kind, **form)


def _drift(run: Run, case: Case, *, corrected: bool = False) -> float:
    return drift(_constant(run, case, corrected=corrected))


def _motion(run: Run, case: Case) -> float:
    """How far the logits get from their start: what would be left to explain if V explained nothing."""
    return drift(unpack(run.value(_name(*case)))[0])


def _pairs(run: Run, *kinds: str) -> tuple[list[Case], list[Case]]:
    equal, *unequal = run.config["rates"]
    return [(kind, *equal, 1.0) for kind in kinds], [(kind, *pair, 1.0) for kind in kinds for pair in unequal]


def _any_rates(run: Run, claim: Claim, kind: str) -> Finding:
    (equal,), unequal = _pairs(run, kind)
    return _needs("κ", run, claim, unequal, unequal, {"equal rates": equal})


def _needs(
    factor: str, run: Run, claim: Claim, cases: list[Case], alone: list[Case], without: dict[str, Case]
) -> Finding:
    """Cases that need a factor, of these those that need it alone; where it is 1 the printed form must pass."""
    return by_tests(
        claim,
        printed=[at_most("drift", largest(_drift(run, case) for case in alone), FLOW)],
        corrected=[at_most(f"drift with {factor}", largest(_drift(run, case, corrected=True) for case in cases), FLOW)],
        controls=[
            *(at_most(f"drift of the printed form at {at}", _drift(run, one), FLOW) for at, one in without.items()),
            above("logits that stay at their start, drift", smallest(_motion(run, case) for case in cases), FLOW),
        ],
    )


CLAIMS.declare(
    "any-rates-exp",
    "JoMA talk Thm 1",
    "z = ½Σv² + c holds under exp attention for any learning rates of attention and MLP."
    "\n\nCorrected: z = (κ/2)Σv² + c holds, where κ is the rate of attention divided by the rate of the MLP."
    "\nExpected: The invariant does not drift for any pair of rates.",
    uses=("thm1/exp-invariant",),
)(partial(_any_rates, kind="exp"))
CLAIMS.declare(
    "any-rates-linear",
    "JoMA talk Thm 1",
    "z² = Σv² + c holds under linear attention for any learning rates of attention and MLP."
    "\n\nCorrected: z² = κΣv² + c holds, where κ is the rate of attention divided by the rate of the MLP."
    "\nExpected: The invariant does not drift for any pair of rates.",
    uses=("thm1/linear-invariant",),
)(partial(_any_rates, kind="linear"))


@CLAIMS.declare("equal-rates", "JoMA Thm 1", uses=("thm1/exp-invariant", "thm1/linear-invariant"))
def _equal(run: Run, claim: Claim) -> Finding:
    """With one learning rate for attention and MLP, the invariants do not depend on the rate.

    Expected: The invariants do not drift at equal rates.
    """
    equal, unequal = _pairs(run, *KINDS)
    return by_residual(
        claim,
        printed=largest(_drift(run, case) for case in equal),
        tolerance=FLOW,
        what="drift",
        control={"unequal rates": smallest(_drift(run, case) for case in unequal)},
    )


@CLAIMS.declare("temperature", "JoMA Thm 1", uses=("thm1/exp-invariant",))
def _temperature(run: Run, claim: Claim) -> Finding:
    """z = ½Σv² + c, without a temperature, describes attention with σ = exp(z/T).

    Corrected: z = Σv²/(2T) + c does. At a lower temperature T the logits move further.
    Expected: The invariant does not drift when attention has a low temperature.
    """
    cold: list[Case] = [("exp", *pair, run.config["cold"]) for pair in run.config["rates"][:2]]
    (warm,), _ = _pairs(run, "exp")
    return _needs("T", run, claim, cold, cold[:1], {"T = 1": warm})


@CLAIMS.declare("rate-schedules", "JoMA talk Thm 1", uses=("thm1-rates/any-rates-exp",))
def _schedule(run: Run, claim: Claim) -> Finding:
    """The relation between z and v also holds when the two rates follow different schedules.

    Corrected: It holds only while κ stays constant. Otherwise z − z(0) is the integral of κ Σ v v′ over time.
    Expected: The formula gives the motion of z while both rates change.
    """
    z, v = unpack(run.value("schedule")[..., :-1])
    return by_residual(
        claim,
        printed=drift(kept(z, v)),
        corrected=float((z - z[0] - torch.as_tensor(run.value("schedule")[..., -1])).abs().max()),
        tolerance=FLOW,
        what="largest difference",
        control={"logits that stay at their start": drift(z)},
    )


def draw(run: Run) -> list[Drawing]:
    """Drift of the invariants with and without κ, and where the logits go for every pair of rates."""
    figure, (left, right) = panels(2, width=4.4)
    _, unequal = _pairs(run, *KINDS)
    for case in unequal:
        for with_kappa, colour, label in ((False, PRINTED, "printed"), (True, CORRECTED, "with κ")):
            drifts = blocks.drift_over_time(_constant(run, case, corrected=with_kappa))
            style, name = ("-", label) if case[0] == "exp" else ("--", None)
            left.plot(run.value("share")[1:], drifts, style, color=colour, lw=1, label=name)
    bound(left, FLOW)
    end_label(left, "solid: exp")
    end_label(left, "dashed: linear", ls="--")
    left.set(yscale="log", ylim=(1e-15, 1e1), xlabel="share of the training time", ylabel="largest drift")
    left.set_title("With κ nothing drifts")
    pairs = sorted(run.config["rates"], key=lambda pair: pair[1] / pair[0])
    for (rate_w, rate_z), colour in zip(pairs, depth_colours(len(pairs)), strict=True):
        z, v = unpack(run.value(_name("exp", rate_w, rate_z, 1.0)))
        across, up = ((part - part[0]).flatten() for part in (v.square().sum(-1) / 2, z))
        right.plot(across, up, "o", ms=2.5, mew=0, color=colour, label=f"κ = {rate_z / rate_w:g}", zorder=2)
        right.axline((0, 0), slope=rate_z / rate_w, color=INK, lw=0.6, zorder=1)
    right.locator_params(axis="x", nbins=5)
    right.set(xlabel="change of ½Σv² of a token", ylabel="change of its logit z", title="Exp logits move with slope κ")
    printed, corrected = (number(largest(_drift(run, c, corrected=form) for c in unequal)) for form in (False, True))
    caption = (
        "With unequal learning rates the invariant needs the factor κ, the rate of attention divided by the rate of "
        f"the MLP. The largest drift is {printed} as printed and {corrected} with κ. Left: the largest drift of the "
        "invariants as printed and with κ, one line per pair of rates. Right: the logit of every token changes by κ "
        "times the change of ½Σv²; the thin lines have slope κ."
    )
    return [Drawing("learning-rates", caption, figure)]


STUDY = Study(
    name="thm1-rates",
    title="Theorem 1 with two learning rates and a temperature",
    version=1,
    claims=CLAIMS,
    quick=Thm1RatesConfig(),
    paper=Thm1RatesConfig(
        rates=((1.0, 1.0), (1.0, 0.01), (1.0, 0.1), (0.1, 1.0), (0.2, 1.0), (1.0, 3.0)), tokens=20, nodes=20,
        samples=64, steps=41,
    ),
    run=run,
    draw=draw,
    about=(
        "A solver follows the gradient flow of one block for several pairs of learning rates and temperatures, and "
        "once with rates that change during training. The printed invariant and the one with κ and T are then computed "
        "from the recorded z and V."
    ),
)  # fmt: skip
