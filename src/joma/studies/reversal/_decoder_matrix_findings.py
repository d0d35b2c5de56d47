"""What `reversal-decoder` found in the logits between entities, of networks of one layer."""

from __future__ import annotations

from typing import Any

from joma.claims.contract import Finding
from joma.claims.verdicts import not_run
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.reversal._decoder_claims import ATTENTION, LOGITS, NAME, NATS, SHARE, SPREAD, SYMMETRY
from joma.studies.reversal._decoder_judging import at_paper_scale, no_more, of_learned
from joma.studies.reversal._decoder_scores import Scores, asymmetry, blocks, excess


def next_token_logits(run: Run) -> Finding:
    """The logit of the partner minus the mean of the other partners in its row, trained direction and reverse."""
    scores = Scores(run)
    expected = (
        f"a partner's logit at least {NATS:g} nat further above its rivals in the trained direction than in the "
        f"reverse, and in the reverse less than {NATS:g} nat above them"
    )
    if not scores.pictured:
        return not_run(LOGITS, expected, "no network of one layer was trained", at_paper_scale(NAME))
    trained, reverse = (excess(block) for block in blocks(scores.matrix("logits", -1)))
    size = [no_more("the partner's logit minus its rivals' in the reverse", compare(reverse), NATS, "nats")]
    return of_learned(
        LOGITS,
        compare(trained, reverse),
        study=NAME,
        left_out=scores.lost(scores.base(1)),
        what="logit of the partner minus that of its rivals, trained direction (control: reverse)",
        expected=expected,
        size=size,
    )


def attention_symmetry(run: Run) -> Finding:
    scores = Scores(run)
    expected = (
        f"attention logits between entities at least {SHARE:g} less symmetric than in the untrained network "
        "(0: symmetric, 0.5: independent entries)"
    )
    if not scores.pictured:
        return not_run(SYMMETRY, expected, "no network of one layer was trained", at_paper_scale(NAME))
    return of_learned(
        SYMMETRY,
        compare(*(asymmetry(scores.matrix("attention", point)) for point in (-1, 0))),
        study=NAME,
        left_out=scores.lost(scores.base(1)),
        what="asymmetry of attention logits between entities (control: untrained)",
        expected=expected,
    )


def attention_by_fact(run: Run) -> Finding:
    scores = Scores(run)
    expected = (
        f"attention from subject to answer further above its rivals than from answer to subject, by at least "
        f"{SPREAD:g} standard deviations more than in the untrained network"
    )
    if not scores.pictured:
        return not_run(ATTENTION, expected, "no network of one layer was trained", at_paper_scale(NAME))
    return of_learned(
        ATTENTION,
        compare(*(_direction(scores.matrix("attention", point)) for point in (-1, 0))),
        study=NAME,
        left_out=scores.lost(scores.base(1)),
        what="attention logit of subject on answer minus that of answer on subject, above rivals (control: untrained)",
        expected=expected,
    )


def _direction(matrix: Any) -> Any:
    """(seeds,): in standard deviations of all attention logits between entities."""
    ahead, back = (excess(block) for block in blocks(matrix))
    return (ahead - back) / matrix.std((-2, -1))
