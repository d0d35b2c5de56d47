"""A finding is data: a claim, the numbers that speak for and against it, and where they come from.

The verdict is worked out from the numbers and cannot be given. So are the words. `as_json` writes all of it,
`Finding.from_json` reads it back: a verdict can be recomputed from the file alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite, isnan
from typing import Any, Self

from joma.claims import sentences
from joma.claims.claim import Claim
from joma.claims.evidence import MEASURED, Effect, Evidence, Test, number, plain
from joma.claims.rules import Verdict, is_fragile, judged, of_effect

MOST_FALSE = 0.05
"""A verdict whose q is above this says so: more than one in twenty of those like it may be chance."""


@dataclass(frozen=True)
class Provenance:
    """Where a finding's numbers come from; empty where that is not known.

    >>> Provenance(record="runs/thm2-1f2e3d4c5b.sqlite").as_json()["record"]
    'runs/thm2-1f2e3d4c5b.sqlite'
    """

    study_version: int = 0
    config_sha256: str = ""
    commit: str = ""
    """Of joma, when the run was made."""
    machine: str = ""
    created: str = ""
    record: str = ""
    """The run's file."""
    text_sha256: str = ""
    """Of the files that a text was read from, where it comes with a package: see `joma.claims.text_source`."""

    def as_json(self) -> dict[str, Any]:
        """Plain data; the hash of a text only where there is one."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return given if self.text_sha256 else {name: given[name] for name in given if name != "text_sha256"}


@dataclass(frozen=True)
class Finding:
    """What a study found about a claim. Built by the functions of `joma.claims.verdicts`, from recorded numbers.

    >>> from joma.claims.evidence import at_most
    >>> claim = Claim("winner", "JoMA Thm 2", "One token takes all attention.")
    >>> found = Finding(claim, "one token", Evidence(tests=(at_most("others' share", 0.0, 1e-9),)))
    >>> found.verdict, found.measured
    ('holds', 0.0)
    >>> Finding.from_json(found.as_json()) == found
    True
    """

    claim: Claim
    expected: str
    """What would confirm the claim, in words; written before the run, like the bounds."""
    printed: Evidence | None
    """None if it was not run."""
    corrected: Evidence | None = None
    details: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Further numbers by case, for the reader; they decide nothing."""
    reason: str = ""
    """Why there is no evidence."""
    command: str = ""
    """What would run it, or what repeats it."""
    study: str = ""
    provenance: Provenance = Provenance()
    q: float | None = None
    """Of an empirical claim that was judged with others: see `joma.claims.multiplicity`."""
    shares: tuple[str, ...] = ()
    """Ids of claims that were judged beside the very same control: if it is off by chance, so are all of them."""
    about_paper_scale: bool = False
    """Whether there is no evidence because the claim is about paper scale: no smaller run can decide it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Options with which the study would have to be repeated, until `joma.claims.execute` makes a command of them."""

    def __post_init__(self) -> None:
        name = self.claim.name
        if (self.printed is None) != bool(self.reason):
            raise ValueError(f"{name}: a finding has evidence, or a reason for having none")
        if self.about_paper_scale and self.printed is not None:
            raise ValueError(f"{name}: what was measured is judged, at whatever scale")
        for evidence in (self.printed, self.corrected):
            if evidence is not None and bool(evidence.effects) != self.claim.empirical:
                kind = "an empirical claim needs an effect beside its control" if self.claim.empirical else (
                    "a mathematical claim has tests, and no effects"
                )  # fmt: skip
                raise ValueError(f"{name}: {kind}")
        if self.printed is not None and (self.corrected is None) != (self.claim.corrected is None):
            raise ValueError(f"{name}: a corrected form and what speaks for it come together")

    @property
    def id(self) -> str:
        """Study and claim: stays the same from run to run."""
        return f"{self.study}/{self.claim.name}"

    @cached_property
    def verdict(self) -> Verdict:
        """By the rules of `joma.claims.rules`."""
        if self.printed is None:
            return "at paper scale" if self.about_paper_scale else "not run"
        return judged(self.printed, self.corrected)

    @cached_property
    def fragile(self) -> bool:
        """Whether the verdict changes when effects move by a quarter of half their intervals."""
        return self.printed is not None and is_fragile(self.printed, self.corrected)

    @property
    def remarks(self) -> list[str]:
        """What the verdict alone does not tell: "size shown", "reversed in part", "slightly reversed", "fragile", q."""
        effects = self._deciding
        said = []
        if self.verdict in ("holds", "holds as corrected") and effects and all(one.size_shown for one in effects):
            said.append("size shown")
        if self.verdict in ("only qualitative", "not above its control"):
            reversed_in = {"fails" if of_effect(one) == "fails" else "slightly" for one in effects if one.high < 0}
            said += ["reversed in part"] if "fails" in reversed_in else ["slightly reversed"] if reversed_in else []
        said += ["fragile"] if self.fragile else []
        claimed = self.verdict not in ("undecided", "not above its control")
        return [*said, f"q {self.q:.2g}"] if claimed and self.q is not None and self.q > MOST_FALSE else said

    @property
    def full_verdict(self) -> str:
        """The verdict with its remarks.

        >>> from joma.claims.evidence import at_most
        >>> claim = Claim("winner", "JoMA Thm 2", "One token takes all attention.")
        >>> Finding(claim, "one token", Evidence(tests=(at_most("others' share", 0.0, 1e-9),))).full_verdict
        'holds'
        """
        return f"{self.verdict} ({', '.join(self.remarks)})" if self.remarks else self.verdict

    @property
    def _deciding(self) -> list[Effect]:
        """The effects of the form that decides."""
        if self.printed is None:
            return []
        as_corrected = self.verdict == "holds as corrected" and self.corrected is not None
        return list((self.corrected if as_corrected and self.corrected else self.printed).effects.values())

    @property
    def p(self) -> float | None:
        """Of an empirical claim: how often chance alone gives at least as much, either way.

        Where the verdict rests on all cases, that of the weakest. Where it rests on some (only qualitative), that of
        the strongest times their number; where it rests on some of either sign (mixed), the weaker of the two.
        """
        effects = self._deciding
        if not effects:
            return None
        if self.verdict not in ("only qualitative", "mixed"):
            return max(effect.p for effect in effects)
        sides = [[effect.p for effect in effects if sign * effect.difference > 0] for sign in (1, -1)]
        some = [min(1.0, len(effects) * min(side)) for side in sides if side]
        return max(some, default=1.0) if self.verdict == "mixed" else (some[0] if sides[0] else 1.0)

    @property
    def seeds_to_decide(self) -> int | None:
        """Of an undecided claim: with so many seeds all that chance leaves open would probably be decided."""
        if self.printed is None or self.verdict != "undecided":
            return None
        forms = [form for form in (self.printed, self.corrected) if form is not None]
        needed = [one.seeds_to_decide for f in forms for one in f.effects.values() if of_effect(one) == "undecided"]
        needed += [one.seeds_to_decide for form in forms for one in (*form.tests, *form.controls) if isnan(one.value)]
        return max(known) if (known := [one for one in needed if one]) and len(known) == len(needed) else None

    @property
    def measured(self) -> float | str:
        """In words, or the number where there is one alone."""
        if self.printed is None:
            return f"{self.reason}; run it with: {self.command}" if self.command else self.reason
        found = sentences.measured(self.printed, self.corrected, self.details)
        if self.verdict != "undecided" or isinstance(found, float):
            return found
        return "; ".join(filter(None, (found, sentences.missing(self.printed, self.corrected))))

    @property
    def brief(self) -> str:
        """The numbers that decide, in one short line; of what was not run, the reason."""
        return self.reason if self.printed is None else sentences.brief(self.printed, self.corrected, self.main)

    @property
    def control(self) -> str | None:
        """In words."""
        return None if self.printed is None else sentences.control(self.printed, self.corrected)

    @property
    def main(self) -> Effect | None:
        """Of an empirical claim the effect that decides: of several cases the least favourable."""
        effects = self._deciding
        return min(effects, key=lambda one: one.low / one.matters if isfinite(one.low) else -inf) if effects else None

    @property
    def tolerance(self) -> float | None:
        """Of a mathematical claim: what its residuals must not exceed."""
        bound = self._common_bound()
        if self.claim.empirical or self.printed is None:
            return None
        return 0.0 if bound is None else bound

    @property
    def residuals(self) -> dict[str, float]:
        """Of a mathematical claim: how far each form is from the truth.

        Where tests have bounds of their own, by how much the worst of them misses its bound.
        """
        if self.claim.empirical or self.printed is None:
            return {}
        forms = {"printed": self.printed.tests} | ({"corrected": self.corrected.tests} if self.corrected else {})
        off = Test.shortfall.fget if self._common_bound() is None else _value  # type: ignore[attr-defined]
        return {form: max(map(off, tests)) for form, tests in forms.items()}

    def _common_bound(self) -> float | None:
        """The bound of all tests, if all are 'at most' this one."""
        tests = [test for evidence in (self.printed, self.corrected) if evidence for test in evidence.tests]
        bounds = {(test.must, test.bound) for test in tests}
        must, bound = next(iter(bounds)) if len(bounds) == 1 else ("", 0.0)
        return bound if must == "<=" else None

    def as_json(self) -> dict[str, Any]:
        """Plain data, as `findings.json` holds it; docs/reference/file-formats.md says what each key means."""
        main = self.main
        effect = {} if main is None else main.as_json()
        with sentences.as_computed():
            measured, control = self.measured, self.control
        shown = {
            "id": self.id,
            "claim": self.claim.name,
            "source": self.claim.source,
            "says": self.claim.says,
            "corrected": self.claim.corrected,
            "empirical": self.claim.empirical,
            "uses": list(self.claim.uses),
            "expected": self.expected,
            "verdict": self.verdict,
            "remarks": self.remarks,
            "fragile": self.fragile,
            "p": self.p,
            "q": self.q,
            "measured": plain(measured) if isinstance(measured, float) else measured,
            "control": control,
            "shares_control": list(self.shares),
            **{name: effect.get(name) for name in MEASURED},
            "matters": self.claim.matters if main is None else main.matters,
            "ceiling": self.claim.ceiling if main is None else main.ceiling,
            "unit": self.claim.unit,
            "seeds": effect.get("seeds"),
            "level": effect.get("level"),
            "seeds_to_decide": self.seeds_to_decide,
            "residuals": {form: plain(value) for form, value in self.residuals.items()},
            "tolerance": None if self.tolerance is None else plain(self.tolerance),
            "cases": self._cases(),
            "evidence": {
                "printed": None if self.printed is None else self.printed.as_json(),
                "corrected": None if self.corrected is None else self.corrected.as_json(),
            },
            "reason": self.reason,
            "command": self.command,
        }
        return shown | {"provenance": {"claim_sha256": self.claim.sha256, **self.provenance.as_json()}}

    def _cases(self) -> dict[str, Any]:
        """The numbers of every case: its effect where it has one, and what stands beside it."""
        cases: dict[str, Any] = {case: {} for case in self.details}  # in their order, which words keep
        for form, evidence in (("", self.printed), ("as corrected: ", self.corrected)):
            effects = {} if evidence is None else evidence.effects
            if len(effects) > 1 or form:
                for case, effect in effects.items():
                    cases[form + case] = effect.as_json() | {"verdict": of_effect(effect)}
        for case, numbers in self.details.items():
            cases[case] = cases.get(case, {}) | {name: plain(value) for name, value in numbers.items()}
        return cases

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The finding that `as_json` wrote, its verdict worked out anew from its numbers."""
        claim = Claim(
            data["claim"], data["source"], data["says"], data["corrected"], data["matters"], data["unit"],
            data["ceiling"], tuple(data["uses"]),
        )  # fmt: skip
        forms = (data["evidence"][form] for form in ("printed", "corrected"))
        printed, corrected = (None if form is None else Evidence.from_json(form) for form in forms)
        given = {"text_sha256": "", **data["provenance"]}  # most findings have no text
        provenance = {name: given[name] for name in Provenance.__dataclass_fields__}
        return cls(
            claim, data["expected"], printed, corrected, _details(data["cases"]), data["reason"], data["command"],
            data["id"].rpartition("/")[0], Provenance(**provenance), data.get("q"),
            tuple(data.get("shares_control", ())), data["verdict"] == "at paper scale",
        )  # fmt: skip


_OF_EFFECTS = frozenset(Effect.__dataclass_fields__) | {"difference", "verdict"}


def _details(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of the cases, the numbers that belong to no effect."""
    left = {case: {name: number(numbers[name]) for name in numbers if name not in _OF_EFFECTS}
            for case, numbers in cases.items()}  # fmt: skip
    return {case: numbers for case, numbers in left.items() if numbers}


def _value(test: Test) -> float:
    return test.value if test.value == test.value else inf
