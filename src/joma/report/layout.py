"""What the page is made of: sections, one per study, and in them entries, one per claim, each with its anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from joma.claims.contract import Finding, Verdict
from joma.report.kept import Kept, kept_of
from joma.report.markup import Anchors
from joma.report.numbers import Measured

if TYPE_CHECKING:
    from joma.claims.execute import Result


@dataclass(frozen=True)
class Entry:
    """A claim on the page: what this run found, and what a kept run at paper scale found."""

    finding: Finding
    anchor: str
    kept: Kept | None
    """None where nothing is kept, or where this run is itself one at paper scale."""

    @property
    def at_paper_scale(self) -> bool:
        """Whether the kept run is the stronger evidence."""
        return self.kept is not None and self.kept.verdict != "not run"

    @property
    def verdict(self) -> Verdict:
        """By the stronger evidence: a kept run at paper scale, else this run."""
        return self.kept.verdict if self.kept and self.at_paper_scale else self.finding.verdict

    @property
    def brief(self) -> str:
        """The numbers that decide it, by the same evidence."""
        return self.kept.brief if self.kept and self.at_paper_scale else self.finding.brief

    @property
    def measured(self) -> Measured | None:
        """The effect that decides, by the same evidence; None of a mathematical claim and of one that was not run."""
        if self.kept and self.at_paper_scale:
            return Measured.of_kept(self.kept)
        return Measured.of_effect(self.finding.main) if self.finding.main else None

    @property
    def compared(self) -> bool:
        """Whether both this run and the kept one judged it."""
        return self.at_paper_scale and self.finding.verdict != "not run"

    @property
    def differs(self) -> bool:
        """Whether they judged it differently."""
        return self.compared and self.finding.verdict != self.verdict


@dataclass(frozen=True)
class Section:
    """A study on the page."""

    result: Result
    anchor: str
    entries: tuple[Entry, ...]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Of this run."""
        return [entry.finding.verdict for entry in self.entries]

    @cached_property
    def paper_verdicts(self) -> list[Verdict]:
        """Of the kept run at paper scale."""
        return [entry.kept.verdict for entry in self.entries if entry.kept]


def lay_out(results: Sequence[Result], anchors: Anchors) -> list[Section]:
    """The sections of a page.

    >>> lay_out([], Anchors())
    []
    """
    return [_section(result, anchors) for result in results]


def entries(sections: Sequence[Section]) -> Iterator[Entry]:
    """All claims of the page, in its order."""
    return (entry for section in sections for entry in section.entries)


def _section(result: Result, anchors: Anchors) -> Section:
    anchor = anchors.take("study", result.study.name)
    is_paper = result.command.endswith("--scale paper")
    found = (
        Entry(one, anchors.take(anchor, one.claim.name), None if is_paper else kept_of(one.id, one.claim))
        for one in result.findings
    )
    return Section(result, anchor, tuple(found))
