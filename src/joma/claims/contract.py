"""The contract of a study: it runs (writing to a Run), judges (Run -> findings) and draws (Run -> figures).

Judging and drawing read what the run recorded and compute nothing else, so a stored run can be judged and drawn again
at any time. What a claim is stands in `joma.claims.claim`, what a finding is in `joma.claims.finding`.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joma.claims.claim import Claim
from joma.claims.config import Above as Above
from joma.claims.config import Least as Least
from joma.claims.config import OneOf as OneOf
from joma.claims.config import StudyConfig, check_config
from joma.claims.config import Values as Values
from joma.claims.config import Within as Within
from joma.claims.finding import Finding
from joma.claims.rules import VERDICTS, Verdict
from joma.figures.describe import describe
from joma.figures.labels import name_lines
from joma.figures.types import Figure
from joma.host.progress import Progress, silent
from joma.runs import Run

__all__ = ["SCALES", "VERDICTS", "Claim", "Drawing", "Finding", "NotRun", "Progress", "Study", "StudyConfig", "Verdict",
           "check_config", "silent", "tally"]  # fmt: skip

SCALES = ("quick", "paper")
_PLURAL: dict[Verdict, str] = {
    "holds": "hold",
    "holds as corrected": "hold as corrected",
    "not above its control": "not above their controls",
    "fails": "fail",
}


def tally(findings: Sequence[Finding]) -> list[tuple[Verdict, str]]:
    """How many findings came out how, in words; verdicts that nothing got are left out.

    >>> from joma.claims.verdicts import not_run
    >>> claim = Claim("twice", "JoMA Thm 1", "Twice one is two.")
    >>> tally([not_run(claim, "2", "no machine", "joma verify")])
    [('not run', '1 not run')]
    """
    counts = Counter(finding.verdict for finding in findings)
    return [(v, f"{n} {_PLURAL.get(v, v) if n > 1 else v}") for v in VERDICTS if (n := counts[v])]


class NotRun(Exception):
    """Raised by a study's `run` when this machine lacks something; the command says how to run it elsewhere. A declared
    judge raises it when the record cannot tell; the command would make one that can.

    changes: options of the study, by name, where the same command with these would run.

    >>> lacks = NotRun("torch sees no CUDA here", "joma verify fig6 --scale paper")
    >>> lacks.reason, lacks.command
    ('torch sees no CUDA here', 'joma verify fig6 --scale paper')
    """

    def __init__(self, reason: str, command: str = "", **changes: Any) -> None:
        needed = command or ", ".join(f"{name}={value}" for name, value in changes.items())
        super().__init__(f"{reason}; run it with: {needed}")
        self.reason, self.command, self.changes = reason, command, changes


class OnlyAtPaperScale(NotRun):
    """Raised by a declared judge of a claim about the paper's sizes, which no run of the quick scale can tell."""


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption; `name` becomes its file name."""

    name: str
    caption: str
    """What it shows and how to read it: the finding first."""
    figure: Figure
    alt: str = ""
    """What is seen, only for figures that are made of text: of all others it is read from the figure."""
    labels: bool = True
    """Whether lines are named at their ends where the figure names none; the description names them in any case."""

    def __post_init__(self) -> None:
        if self.labels:
            name_lines(self.figure)

    @property
    def description(self) -> str:
        """What is seen, for those who cannot see it: which line goes where, with numbers."""
        return self.alt or describe(self.figure)


Judge = Callable[[Run], Finding]


@dataclass(frozen=True)
class Study:
    """What tests claims. `quick` and `paper` are two instances of one frozen config dataclass.

    Raise `version` whenever `run` would record something else for the same config: stored runs are then run again.
    """

    name: str
    title: str
    version: int
    claims: Mapping[Claim, Judge]
    """Every claim, with what judges it by the record."""
    quick: Any
    paper: Any
    run: Callable[[Any, Run, Progress], None]
    draw: Callable[[Run], list[Drawing]]
    about: str = ""
    """One paragraph for the report: what is computed and how the verdict comes about."""
    check: Callable[[Any, Run], None] = lambda config, run: None
    """Raises a ValueError where a finished run of this config read what has changed since, a text say."""
    file: str = ""
    """Where it stands, if it is not joma's own: commands name this file."""

    def __post_init__(self) -> None:
        if type(self.quick) is not type(self.paper) or not dataclasses.is_dataclass(self.quick):
            raise ValueError(f"study {self.name!r}: quick and paper must be instances of one dataclass")

    def judge(self, run: Run) -> list[Finding]:
        """The finding of every claim, from what the run recorded."""
        return [judge(run) for judge in self.claims.values()]

    def preset(self, scale: str) -> Any:
        """The config of a scale, quick or paper."""
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        return self.quick if scale == "quick" else self.paper
