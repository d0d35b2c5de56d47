"""What the page is made of: sections, one per study, and in them entries, one per claim, each with its anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from joma.claims.contract import Finding, Verdict
from joma.claims.rules import UNJUDGED
from joma.report.claims.kept import KeptFinding, kept_of
from joma.report.markup import Anchors

if TYPE_CHECKING:
    from joma.claims.execute import Result


@dataclass(frozen=True)
class Entry:
    """A claim on the page: what this run found, and what a kept run at paper scale found."""

    finding: Finding
    anchor: str
    kept: KeptFinding | None  # none where nothing is kept, or where this run is itself one at paper scale

    @property
    def verdict(self) -> Verdict:
        return self.finding.verdict

    @property
    def differs(self) -> bool:
        return self.kept is not None and self.kept.verdict not in (*UNJUDGED, self.verdict)


@dataclass(frozen=True)
class Section:
    """A study on the page."""

    result: Result
    anchor: str
    entries: tuple[Entry, ...]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        return [entry.finding.verdict for entry in self.entries]

    @cached_property
    def paper_verdicts(self) -> list[Verdict]:
        return [entry.kept.verdict for entry in self.entries if entry.kept]


def lay_out(results: Sequence[Result], anchors: Anchors) -> list[Section]:
    """The sections of a page."""
    sections = []
    for result in results:
        anchor = anchors.take("study", result.study.name)
        is_paper = " --scale paper" in result.command
        found = (
            Entry(one, anchors.take(anchor, one.claim.name), None if is_paper else kept_of(one.id, one.claim))
            for one in result.findings
        )
        sections.append(Section(result, anchor, tuple(found)))
    return sections


def entries(sections: Sequence[Section]) -> Iterator[Entry]:
    """All claims of the page, in its order."""
    return (entry for section in sections for entry in section.entries)
