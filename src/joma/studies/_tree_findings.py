"""What the study `shallow-first` claims and how it judges: every number beside the same number in a permuted tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from joma.measure.intervals import mean_interval
from joma.runs import Run
from joma.studies.contract import Claim, Finding
from joma.studies.verdicts import by_effect, by_test

EARLY = 0.1  # "first" is when a tenth of the whole movement has happened
LEAD = 0.25  # siblings must be ahead by so much of the typical movement of a pair, beyond control and interval
SHARE = 0.05  # attention must exceed its control by so much of an even share, and by its interval
RATIO = 0.05  # a pull counts as proportional to co-occurrence up to this much
DEPTH = 4
FAR = DEPTH - 2  # where the highest ancestor below the root, H = L - 1, stands in an array by height

SHARED, DECODER = "shared", "decoder"
TARGETS = ("token", "class")
NETWORKS = ("bare token", "residual token", "bare class", "residual class", SHARED, DECODER)
"""A block a query without and with the residual, asked for a token left out or the class; the others for a token."""


def _claim(name: str, source: str, says: str, corrected: str | None = None) -> Claim:
    return Claim(name, source, says, corrected, empirical=True)


TOKEN_PULL = _claim(
    "pull-towards-a-token",
    "JoMA Sec. 5",
    "The higher the common ancestor of l and query m, the smaller P(l|m), and with it the target weight of l given m; "
    "here where a left-out token is predicted.",
)
CLASS_PULL = _claim(
    "pull-towards-the-class",
    "JoMA Sec. 5",
    "The higher the common ancestor of l and query m, the smaller the target weight of l given m; here where the class "
    "at the root is predicted.",
    "The pull towards the node of m's class is the same at every height below its latent: the part of P(l, m) that "
    "depends on the height is the same in every class.",
)
FIRST = _claim(
    "attention-first",
    "JoMA Sec. 5",
    "A query first attends to the tokens of its own lowest hierarchy.",
    "It does where a left-out token is predicted; where the class is, siblings of the query come last.",
)
WEIGHTS = _claim(
    "weights-first",
    "JoMA Sec. 5",
    "The MLP weights that tie a query to the tokens of its own lowest hierarchy grow first.",
    "They do where a left-out token is predicted.",
)
REACH = _claim(
    "reaches-out",
    "JoMA Sec. 5",
    "Attention then reaches out: the higher the common ancestor, the later the attention on such tokens peaks.",
)
EVENTUALLY = _claim(
    "weak-pairs-in-the-end",
    "JoMA Fig. 5",
    "In the end a query also attends to tokens that it co-occurs with only weakly.",
)
PICKED = _claim(
    "not-picked-up",
    "JoMA Sec. 5",
    "Of far tokens a query reaches out to those that no other token has picked up.",
)
TOGETHER = _claim(
    "attention-first-shared",
    "JoMA Sec. 5",
    "A query first attends to its own lowest hierarchy also where all queries share one MLP, as in eq. 1.",
)
TRANSFORMER = _claim(
    "attention-first-decoder",
    "JoMA Sec. 5",
    "A query first attends to its own lowest hierarchy also in a Transformer that learns its embeddings.",
)
NODES = _claim(
    "weights-first-decoder",
    "JoMA Sec. 5",
    "In a Transformer the nodes of the MLP first join a query to the tokens of its own lowest hierarchy.",
)
BOTTOM_UP = _claim(
    "bottom-up",
    "JoMA Fig. 5",
    "The lowest level of the hierarchy is learned first, and the levels above it on top of that.",
)
AT_START = f"{LEAD} of the movement beyond the permuted tree when a tenth of it has happened, and ranks that agree"
CLAIMS = (
    TOKEN_PULL, CLASS_PULL, FIRST, WEIGHTS, REACH, EVENTUALLY, PICKED, TOGETHER, TRANSFORMER, NODES, BOTTOM_UP
)  # fmt: skip


class Effect(NamedTuple):
    """A number over members beside its control."""

    value: float
    control: float
    difference: float
    half: float
    """Half of the 95 % interval of the difference."""

    def above(self, margin: float) -> bool:
        return bool(np.isfinite(self.difference) and self.difference > max(margin, self.half))

    def seen(self) -> bool:
        """Whether there is a difference at all."""
        return self.above(0.0)

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.half:.2f}"


def effect(trained: Any, control: Any) -> Effect:
    """trained, control: (members,), paired. Members with a number that is not finite are left out.

    With fewer than two left nothing is known: NaN, which is above nothing.
    """
    pair = np.stack([np.asarray(trained, dtype=np.float64), np.asarray(control, dtype=np.float64)])
    pair = pair[:, np.isfinite(pair).all(0)]
    if pair.shape[1] < 2:
        return Effect(np.nan, np.nan, np.nan, np.nan)
    gap = mean_interval(torch.from_numpy(pair[0] - pair[1]))
    return Effect(float(pair[0].mean()), float(pair[1].mean()), float(gap.mean), float(gap.half_width))


def say_who_diverged(run: Run, networks: Iterable[str], found: list[Finding]) -> list[Finding]:
    """The findings, each with the number of networks that were left out, if there are any."""
    lost = sum(int((run.array(f"{name}/diverged_at")[-1] >= 0).sum()) for name in networks)
    if not lost:
        return found
    return [replace(one, measured=f"{one.measured}; {lost} networks diverged and are left out") for one in found]


# What a network's series holds, (points, members, true or permuted tree, L + 3):
ALONE, ORDER, MOVED = DEPTH, DEPTH + 1, DEPTH + 2


def _series(run: Run, name: str, what: str) -> Any:
    """Without the members that diverged; with fewer than two others all are kept, and their NaN passes no test."""
    values = run.array(f"{name}/{what}")
    sound = np.isfinite(values).all((0, 2, 3))
    return values[:, sound] if sound.sum() >= 2 else values


def by_height(run: Run, name: str, what: str = "attention") -> tuple[Any, Any]:
    """Means over pairs at each height, in the true and the permuted tree: (points, members, L) each."""
    values = _series(run, name, what)
    return values[:, :, 0, :DEPTH], values[:, :, 1, :DEPTH]


def alone(run: Run, name: str, what: str = "attention") -> tuple[Any, Any]:
    """By how much tokens without a sibling exceed others as far from the query: (points, members) each."""
    values = _series(run, name, what)
    return values[:, :, 0, ALONE], values[:, :, 1, ALONE]


def order(run: Run, name: str, what: str = "attention") -> tuple[Any, Any]:
    """Rank correlation of the change since the start with lowness: (points, members) each."""
    values = _series(run, name, what)
    return values[:, :, 0, ORDER], values[:, :, 1, ORDER]


def early(run: Run, name: str, what: str = "attention") -> Any:
    """Of each member the first measuring point at which a tenth of the whole movement of `what` has happened."""
    moved = _series(run, name, what)[:, :, 0, MOVED]
    begun = moved >= EARLY * moved.max(0)
    begun[0] = False
    begun[-1] = True  # where nothing moves
    return begun.argmax(0)


def judge(run: Run) -> list[Finding]:
    """One finding a claim, from means over members and their intervals."""
    found = [
        _judge_pull(run, TOKEN_PULL, "token"),
        _judge_pull(run, CLASS_PULL, "class"),
        _judge_blocks(
            FIRST, lambda name: _start(run, name, "attention"), LEAD, "lead of siblings in attention", AT_START
        ),
        _judge_blocks(
            WEIGHTS, lambda name: _start(run, name, "weights"), LEAD, "lead of siblings in weights", AT_START
        ),
        _judge_reach(run),
        _judge_blocks(
            EVENTUALLY,
            lambda name: effect(*(values[-1][:, FAR] for values in by_height(run, name))),
            SHARE,
            f"attention at H = {DEPTH - 1} in the end, in even shares,",
            f"above the permuted tree by {SHARE}",
        ),
        _judge_blocks(
            PICKED,
            lambda name: effect(*(values[-1] for values in alone(run, name))),
            SHARE,
            "attention on far tokens without a sibling beyond that on equally far ones with one, in even shares,",
            f"above the permuted tree by {SHARE} in the end",
        ),
        _judge_start(run, TOGETHER, SHARED, "attention"),
        _judge_start(run, TRANSFORMER, DECODER, "attention"),
        _judge_start(run, NODES, DECODER, "weights"),
        _judge_bottom_up(run),
    ]
    return say_who_diverged(run, NETWORKS, found)


def _judge_pull(run: Run, claim: Claim, target: str) -> Finding:
    pull, chance = (run.value(f"data/{name}") for name in (f"{target} pull", "co-occurrence"))
    permuted = run.value(f"data/{target} pull permuted").mean(0)
    relative, expected = (values.mean(0)[:-1] / values.mean(0)[0] for values in (pull, chance))
    off = float(np.abs(relative / expected - 1).max())
    level = float(np.abs(relative - 1).max())
    falls = bool((np.diff(relative) < 0).all()) and effect(pull[:, 0], pull[:, FAR]).above(0.0)
    root = pull.mean(0)[-1] / pull.mean(0)[0]
    return by_test(
        claim,
        measured=f"relative to siblings, the pull is {listed(relative[1:])} at H = 2, 3, {root:.2f} through the root; "
        f"co-occurrence is {listed(expected[1:])}",
        expected="in proportion to co-occurrence" if claim.corrected is None else "the same at H = 1, 2, 3",
        as_printed=falls and off <= RATIO,
        as_corrected=None if claim.corrected is None else level <= RATIO,
        in_direction=falls and claim.corrected is None,
        tolerance=RATIO,
        control=f"permuted tree: {listed(permuted[1:] / permuted[0])}",
        residuals={"printed": off} if claim.corrected is None else {"printed": off, "corrected": level},
    )


class _Start(NamedTuple):
    """What comes first."""

    lead: Effect
    """By how much siblings (H = 1) have gained on the farthest below one latent (H = L - 1), in units of movement."""
    order: Effect
    """Rank correlation of the change with lowness."""

    def above(self, margin: float) -> bool:
        """Both have to pass: a few pairs can carry the mean, and many small changes the ranks."""
        return self.lead.above(margin) and self.order.above(0.0)

    def seen(self) -> bool:
        return self.lead.above(0.0)

    @property
    def control(self) -> float:
        return self.lead.control

    def __str__(self) -> str:
        return f"{self.lead} (rank correlation {self.order.value:.2f})"


def _start(run: Run, name: str, what: str) -> _Start:
    when = early(run, name, what)
    member = np.arange(len(when))
    moved = _series(run, name, what)[when, member, 0, MOVED]
    moved = np.where(moved > 0, moved, 1.0)  # where nothing moves nothing is ahead
    leads = []
    for values in by_height(run, name, what):
        ahead = values[..., 0] - values[..., FAR]
        leads.append((ahead[when, member] - ahead[0]) / moved)
    return _Start(effect(*leads), effect(*(values[when, member] for values in order(run, name, what))))


def _judge_blocks(
    claim: Claim, of: Callable[[str], Effect | _Start], margin: float, what: str, expected: str
) -> Finding:
    """Blocks of eq. 1 with their residual have to pass, whatever they predict; as corrected, where that is a token.

    The direction is seen where either target shows it both with and without the residual.
    """
    seen = {name: of(name) for name in NETWORKS[:4]}
    passed = {target: seen[f"residual {target}"].above(margin) for target in TARGETS}
    direction = [all(seen[f"{kind} {target}"].seen() for kind, _ in _KINDS) for target in TARGETS]
    told, controls = (
        ", ".join(f"{show(seen[f'{kind} token'])} / {show(seen[f'{kind} class'])} {words}" for kind, words in _KINDS)
        for show in (str, _control)
    )
    return by_test(
        claim,
        measured=f"{what} {told} (asked for a token / the class)",
        expected=expected,
        as_printed=all(passed.values()),
        as_corrected=None if claim.corrected is None else passed["token"],
        in_direction=any(direction),
        tolerance=margin,
        control=f"permuted tree: {controls}",
    )


def _control(one: Effect | _Start) -> str:
    return f"{one.control:.2f}"


_KINDS = (("residual", "with the residual"), ("bare", "without"))


def _judge_start(run: Run, claim: Claim, name: str, what: str) -> Finding:
    seen = _start(run, name, what)
    return by_effect(
        claim,
        measured=seen.lead.difference,
        control=0.0,
        margin=max(LEAD, seen.lead.half),
        expected=AT_START,
        quantitative=seen.order.above(0.0),
        shown=f"lead of siblings in {what} {seen}",
        control_shown=f"permuted tree: {seen.control:.2f}",
    )


class _Peaks(NamedTuple):
    """Where attention at each height is greatest, (members, L)."""

    when: Any
    """log2 of one more than the step."""
    height: Any
    """Beyond an even share."""


def _peaks(attention: Any, steps: Any) -> _Peaks:
    return _Peaks(np.log2(1 + steps[attention.argmax(0)]), attention.max(0) - 1)


def _judge_reach(run: Run) -> Finding:
    passed, told, controls = {}, [], []
    for kind, words in _KINDS:
        for target in TARGETS:
            steps = run.steps(f"{kind} {target}/attention")
            seen, permuted = (_peaks(values, steps) for values in by_height(run, f"{kind} {target}"))
            in_turn = bool((np.diff(seen.when.mean(0)[: FAR + 1]) > 0).all())
            later = effect(seen.when[:, FAR], seen.when[:, 0]).above(0.0)
            risen = [effect(seen.height[:, h], permuted.height[:, h]).above(0.0) for h in (0, FAR)]
            passed[kind, target] = in_turn and later and all(risen)
            at = "/".join(f"{2**when - 1:.0f}" for when in seen.when.mean(0)[: FAR + 1])
            rise = "/".join(f"{rise:+.0%}" for rise in seen.height.mean(0)[: FAR + 1])
            told.append(f"{words} at steps {at} ({rise}) when asked for {'a' if target == 'token' else 'the'} {target}")
            controls.append(f"{permuted.height.mean(0)[0]:+.0%}")
    return by_test(
        REACH,
        measured=f"attention at H = 1/2/3 peaks {', '.join(told)}",
        expected="later the higher the ancestor; siblings and the farthest both once above the permuted tree",
        as_printed=all(passed["residual", target] for target in TARGETS),
        in_direction=any(passed.values()),
        control=f"siblings of the permuted tree at most {', '.join(controls)} of an even share",
    )


def contrasts(run: Run) -> tuple[Any, Any]:
    """ln p by which the decoder prefers a token at height h to one at h + 1, given m: (points, members, L - 1) each."""
    true, permuted = by_height(run, DECODER, "says")
    return -np.diff(true, axis=-1), -np.diff(permuted, axis=-1)


def _judge_bottom_up(run: Run) -> Finding:
    seen, other = contrasts(run)
    gained, permuted = seen[-1] - seen[0], other[-1] - other[0]
    learned = all(effect(gained[:, h], permuted[:, h]).above(0.0) for h in (0, FAR))
    steps = run.steps(f"{DECODER}/says")
    half = (seen - seen[0] >= gained / 2).argmax(0)  # the first point with half of the final value
    when = np.log2(1 + steps[half])
    later = effect(when[:, -1], when[:, 0])
    return by_test(
        BOTTOM_UP,
        measured="half of what tells H = 1 from 2, 2 from 3, 3 from the root is there at steps "
        f"{', '.join(f'{2**t - 1:.0f}' for t in when.mean(0))}; "
        f"the top comes {later.difference:.1f} ± {later.half:.1f} doublings of time after the bottom",
        expected="the later, the higher",
        as_printed=learned and bool((np.diff(when.mean(0)) > 0).all()) and later.above(0.0),
        control=f"told apart in the end by {listed(gained.mean(0))} nats; permuted tree: {listed(permuted.mean(0))}",
    )


def listed(values: Any) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
