"""Claims that stand at the head of their judges."""

from types import SimpleNamespace

import pytest

from joma.claims.contract import NotRun, OnlyAtPaperScale
from joma.claims.declare import Claims
from joma.claims.verdicts import at_most, by_effect, by_tests, not_run
from joma.measure.intervals import compare

RUN = SimpleNamespace(config={"rate": 0.5})
LEAST = 0.1
rate = "of the module: the option of that name is meant"


def small(run, claim):
    """The rest is
    small.

    Corrected: It is at most
        one tenth.
    Expected: below {LEAST:g} at rate {rate}
    of the run.

    What only readers of the code see.
    Expected: not this.
    """
    return by_tests(claim, printed=[at_most("rest", 0.2, LEAST)], corrected=[at_most("rest", 0.05, LEAST)])


def test_the_docstring_is_the_claim():
    claims = Claims()
    assert claims.declare("small", "JoMA Thm 2", uses=("thm2/closed-form",))(small) is small
    ((claim, judge),) = claims.items()
    assert (claim.name, claim.source, claim.says) == ("small", "JoMA Thm 2", "The rest is small.")
    assert (claim.corrected, claim.uses) == ("It is at most one tenth.", ("thm2/closed-form",))
    finding = judge(RUN)
    assert (finding.claim, finding.verdict) == (claim, "holds as corrected")
    assert finding.expected == "below 0.1 at rate 0.5 of the run."


def test_what_is_expected_is_no_part_of_the_claim():
    claims = Claims(source="JoMA Thm 2")
    for text in ("One.\n\nExpected: this", "One.\n\nExpected: that"):
        claims.declare("one", text=text)(small)
    assert len(claims) == 1
    assert {claim.sha256 for claim in claims} == {next(iter(claims)).sha256}


def test_claims_share_what_none_of_them_says():
    claims = Claims(source="JoMA Fig. 6", unit="nats", matters=0.05, ceiling=1.0)

    def found(run, claim):
        return by_effect(claim, compare([0.31, 0.29, 0.30, 0.30, 0.31], 0.0))

    claims.declare("first", text="It rises.")(found)
    claims.declare("second", "JoMA Fig. 7", "It rises.", unit="%", matters=0.5, ceiling=2.0)(found)
    shown = [(one.source, one.unit, one.matters, one.ceiling) for one in claims]
    assert shown == [("JoMA Fig. 6", "nats", 0.05, 1.0), ("JoMA Fig. 7", "%", 0.5, 2.0)]
    assert [judge(RUN).verdict for judge in claims.values()] == ["holds", "only qualitative"]


@pytest.mark.parametrize(("kind", "verdict"), [(NotRun, "not run"), (OnlyAtPaperScale, "at paper scale")])
def test_a_judge_that_cannot_tell_raises_why(kind, verdict):
    claims = Claims(source="JoMA Thm 2")

    @claims.declare("short", text="One.\n\nExpected: below {LEAST:g}")
    def short(run, claim):
        raise kind("too short", "joma verify thm2", steps=8)

    (finding,) = (judge(RUN) for judge in claims.values())
    assert (finding.verdict, finding.expected, finding.reason) == (verdict, "below 0.1", "too short")
    assert (finding.command, finding.changes) == ("joma verify thm2", {"steps": 8})


def test_a_guard_comes_before_the_judges_that_it_guards():
    claims = Claims(source="JoMA Thm 2", guard=lambda run: ("it diverged", "joma verify thm2"))
    claims.declare("guarded", text="One.\n\nExpected: more")(small)
    claims.declare("bare", text="Two.", guarded=False)(
        lambda run, claim: not_run(claim, "more", "no GPU", "joma verify")
    )
    guarded, bare = (judge(RUN) for judge in claims.values())
    assert (guarded.verdict, guarded.expected, guarded.reason) == ("not run", "more", "it diverged")
    assert guarded.command == "joma verify thm2"
    assert bare.reason == "no GPU"


def test_a_judge_without_a_sentence_is_refused():
    with pytest.raises(ValueError, match="claim 'silent' has no sentence"):
        Claims().declare("silent", "JoMA Thm 2")(lambda run, claim: None)
