"""How the study `shallow-first` judges: every number beside the same number in a permuted tree, over members."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, above, at_most
from joma.claims.guards import at_paper_scale, clears
from joma.claims.sentences import show
from joma.claims.verdicts import Compared, by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.hierarchy.shallow_first import claims as c


def _of_learned(run: Run, claim: Claim, found: Compared, names: Sequence[str], **evidence: Any) -> Finding:
    some = c.fates(run, *names)
    if not all(c.fates(run, name).kept.any() for name in names):
        return not_run(claim, evidence["expected"], some.reason, at_paper_scale(c.STUDY))
    return some.judged(claim, found, study=c.STUDY, **evidence)


def _pull(run: Run, target: str) -> tuple[Any, Any, Comparison, dict[str, Any]]:
    """The pull on l given m by height, (members, L), in the true and permuted tree; its fall, and what judges it.

    The fall is from siblings to H = L - 1. Its control is 0: with permuted leaves all heights are alike in the mean.
    """
    names = (f"{target} pull", f"{target} pull permuted", "co-occurrence")
    true, permuted, chance = (run.value(f"data/{name}") for name in names)
    fall, control = (compare(1 - pull[:, c.FAR] / pull[:, 0]) for pull in (true, permuted))
    pull, often = (values.mean(0) / values.mean(0)[0] for values in (true, chance))  # (L,), the siblings' as 1
    below = slice(c.FAR + 1)
    heights = [*(f"H = {height}" for height in range(2, c.DEPTH)), "through the root"]
    shares = {"pull, siblings' as 1": pull, "co-occurrence, siblings' as 1": often}
    evidence = {
        "what": "fall of the pull, as a share of the pull of siblings",
        "size": [
            above("smallest fall from one height to the next", -np.diff(pull[below]).max(), 0.0, "%"),
            at_most("largest distance from co-occurrence", np.abs(pull[below] / often[below] - 1).max(), c.RATIO, "%"),
        ],
        "controls": [at_most("lower end of the fall in the permuted tree", control.low, 0.0, "%")],
        "details": {case: dict(zip(heights, values[1:].tolist(), strict=True)) for case, values in shares.items()},
    }
    return true, permuted, fall, evidence


def token_pull(run: Run) -> Finding:
    """The pull falls as co-occurrence does."""
    _, _, fall, evidence = _pull(run, "token")
    return by_effect(
        c.TOKEN_PULL,
        fall,
        expected=f"the pull falls by at least {show(c.RATIO, '%')} from siblings to H = {c.DEPTH - 1}, in proportion "
        "to co-occurrence; it does not fall in the permuted tree",
        **evidence,
    )


def class_pull(run: Run) -> Finding:
    """As corrected, the pull falls through the root, which no permuted tree shows, and is level below it."""
    true, permuted, fall, evidence = _pull(run, "class")
    through_root = compare(*(1 - values[:, -1] / values[:, 0] for values in (true, permuted)))
    level = [compare(true[:, height] / true[:, 0], 1.0) for height in range(1, c.FAR + 1)]
    unlike = max(max(abs(one.low - 1), abs(one.high - 1)) for one in level)
    distance = "largest distance of the pull at H = 2 or 3 from the siblings', by its interval"
    return by_effect(
        c.CLASS_PULL,
        {f"from siblings to H = {c.DEPTH - 1}": fall},
        expected="as printed, the pull is smaller the higher the ancestor; as corrected, it is the same at H = 1, 2, 3 "
        "and smaller through the root; the permuted tree shows neither",
        corrected={"from siblings to pairs through the root": through_root},
        corrected_size=[at_most(distance, unlike, c.RATIO, "%")],
        **evidence,
    )


class _Start(NamedTuple):
    """What has moved when a tenth of the movement has happened, in the true beside the permuted tree."""

    lead: Comparison
    """By how much siblings (H = 1) have gained on the farthest below one latent (H = L - 1), in units of movement."""
    order: Comparison  # rank correlation of the change with lowness


def _start(run: Run, name: str, what: str) -> _Start:
    values = c.series(run, name, what)
    when = c.early(values)
    member = np.arange(len(when))
    moved = values[when, member, 0, c.MOVED]
    moved = np.where(moved > 0, moved, 1.0)  # where nothing moves nothing is ahead
    leads = []
    for heights in c.by_height(values):
        ahead = heights[..., 0] - heights[..., c.FAR]
        leads.append((ahead[when, member] - ahead[0]) / moved)
    return _Start(compare(*leads), compare(*(ranks[when, member] for ranks in c.column(values, c.ORDER))))


_AT_START = (
    f"when a tenth of the movement has happened, siblings are ahead by at least {c.LEAD} of it, beyond the permuted "
    "tree, and the rank correlation agrees (a few pairs can decide the mean, many small changes the ranks)"
)


def _ranks_agree(start: _Start, case: str = "") -> Test:
    return clears("the rank correlation with lowness beyond the permuted tree" + (case and f", {case}"), start.order)


def first_in_blocks(claim: Claim, what: str, run: Run) -> Finding:
    """Of blocks with one query each, whatever they predict."""
    seen = {case: _start(run, f"residual {target}", what) for target, case in c.TARGETS.items()}
    agree = {case: _ranks_agree(start, case) for case, start in seen.items()}
    bare = {case: _start(run, f"bare {target}", what) for target, case in c.TARGETS.items()}
    return _of_blocks(
        run,
        claim,
        {case: start.lead for case, start in seen.items()},
        what=f"lead of siblings in {what}",
        expected=_AT_START,
        size=list(agree.values()),
        corrected_size=[agree[c.TARGETS["token"]]],
        bare={case: {"lead": one.lead.value, "rank correlation": one.order.value} for case, one in bare.items()},
    )


def _of_blocks(
    run: Run, claim: Claim, found: Mapping[str, Comparison], *, bare: Mapping[str, Mapping[str, float]],
    corrected_size: Sequence[Test] = (), **evidence: Any,
) -> Finding:  # fmt: skip
    """Blocks of eq. 1 have to show it, whatever they predict; as corrected, where that is a token.

    Blocks without the residual, which eq. 1 has, are in the details.
    """
    token = c.TARGETS["token"]
    if claim.corrected is not None:
        evidence |= {"corrected": {token: found[token]}, "corrected_size": corrected_size}
    evidence["details"] = {f"without the residual, {case}": numbers for case, numbers in bare.items()}
    return _of_learned(run, claim, found, c.NETWORKS[1:4:2], **evidence)


def first_in(claim: Claim, name: str, what: str, run: Run) -> Finding:
    """Of one kind of network."""
    seen = _start(run, name, what)
    size, what = [_ranks_agree(seen)], f"lead of siblings in {what}"
    return _of_learned(run, claim, seen.lead, [name], what=what, expected=_AT_START, size=size)


def in_the_end(claim: Claim, what: str, pick: Callable[[Any], Sequence[Any]], run: Run) -> Finding:
    """pick: of a series, what is compared at the last point, in the true and the permuted tree."""

    def found(kind: str) -> dict[str, Comparison]:
        return {
            case: compare(*(values[-1] for values in pick(c.series(run, f"{kind} {target}"))))
            for target, case in c.TARGETS.items()
        }

    return _of_blocks(
        run,
        claim,
        found("residual"),
        what=what,
        expected=f"at least {c.SHARE} of an even share above the permuted tree, whatever is predicted",
        bare={case: {"attention": one.value, "permuted tree": one.control} for case, one in found("bare").items()},
    )


def _peaks(run: Run, name: str) -> list[tuple[Any, Any]]:
    """When attention at each height is greatest, log2(1 + step), and how far beyond an even share; in both trees."""
    steps, trees = run.steps(f"{name}/attention"), c.by_height(c.series(run, name))
    return [(np.log2(1 + steps[attention.argmax(0)]), attention.max(0) - 1) for attention in trees]


def reaches_out(run: Run) -> Finding:
    """When attention at each height is greatest."""
    delays, in_turn, risen, bare = {}, [], [], {}
    for target, case in c.TARGETS.items():
        (when, peak), (when_permuted, permuted) = _peaks(run, f"residual {target}")
        delays[case] = compare(*(steps[:, c.FAR] - steps[:, 0] for steps in (when, when_permuted)))
        shortest = np.diff(when.mean(0)[: c.FAR + 1]).min()
        in_turn.append(above(f"shortest delay from one height to the next, {case}", shortest, 0.0, c.REACH.unit))
        for h in (0, c.FAR):
            rise = compare(peak[:, h], permuted[:, h])
            risen.append(clears(f"the peak at H = {h + 1} beyond the permuted tree, {case}", rise, matters=c.SHARE))
        steps = 2 ** _peaks(run, f"bare {target}")[0][0].mean(0) - 1
        bare[case] = {f"step of the peak at H = {h + 1}": float(steps[h]) for h in range(c.FAR + 1)}
    return _of_blocks(
        run,
        c.REACH,
        delays,
        what=f"delay of the peak at H = {c.DEPTH - 1} after that of siblings",
        expected="the higher the ancestor, the later the peak, and not so in the permuted tree; the peaks of siblings "
        "and of the farthest tokens are both above the permuted tree",
        size=in_turn,
        controls=risen,
        bare=bare,
    )


_LEVELS = ("H = 1 from 2", "H = 2 from 3", "H = 3 from the root")


def bottom_up(run: Run) -> Finding:
    """When the decoder tells each level from the next."""
    seen, other = c.contrasts(run)
    gained, permuted = seen[-1] - seen[0], other[-1] - other[0]
    half = (seen - seen[0] >= gained / 2).argmax(0)  # the first point with half of the final value
    when = np.log2(1 + run.steps(f"{c.DECODER}/says")[half])  # (members, L - 1)
    expected = (
        "the higher the level, the later half of its final contrast is reached; the lowest and highest are learned"
    )
    controls = [
        clears(f"the contrast of {_LEVELS[h]} beyond the permuted tree", compare(gained[:, h], permuted[:, h]), "nats")
        for h in (0, c.FAR)
    ]
    if c.fates(run, c.DECODER).kept.any() and any(test.value <= 0 for test in controls):
        reason = "the decoder did not learn to tell the lowest or the highest level from the next level"
        return not_run(c.BOTTOM_UP, expected, reason, at_paper_scale(c.STUDY))
    return _of_learned(
        run,
        c.BOTTOM_UP,
        compare(when[:, -1] - when[:, 0]),
        [c.DECODER],
        what="delay of the highest level after the lowest",
        expected=expected,
        size=[above("shortest delay from one level to the next", np.diff(when.mean(0)).min(), 0.0, c.BOTTOM_UP.unit)],
        controls=controls,
        details={
            "step with half of the contrast": dict(zip(_LEVELS, (2 ** when.mean(0) - 1).tolist(), strict=True)),
            "contrast in the end, in nats": dict(zip(_LEVELS, gained.mean(0).tolist(), strict=True)),
            "contrast in the permuted tree, in nats": dict(zip(_LEVELS, permuted.mean(0).tolist(), strict=True)),
        },
    )
