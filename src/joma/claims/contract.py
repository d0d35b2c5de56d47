"""The contract of a study: it runs (writing to a Run), judges (Run -> findings) and draws (Run -> figures).

Judging and drawing read what the run recorded and compute nothing else, so a stored run can be judged and drawn again
at any time. What a claim is stands in `joma.claims.claim`, what a finding is in `joma.claims.finding`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joma.claims.claim import Claim
from joma.claims.finding import Finding
from joma.claims.rules import VERDICTS, Verdict
from joma.host.devices import must_be_a_device
from joma.host.progress import Progress, silent
from joma.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "SCALES",
    "VERDICTS",
    "Claim",
    "Drawing",
    "Finding",
    "NotRun",
    "Progress",
    "Study",
    "Verdict",
    "check_config",
    "each_claim",
    "silent",
    "tally",
]

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
    """Raised by a study's `run` when this machine lacks something; the command says how to run it elsewhere.

    >>> lacks = NotRun("torch sees no CUDA here", "joma verify fig6 --scale paper")
    >>> lacks.reason, lacks.command
    ('torch sees no CUDA here', 'joma verify fig6 --scale paper')
    """

    def __init__(self, reason: str, command: str) -> None:
        super().__init__(f"{reason}; run it with: {command}")
        self.reason, self.command = reason, command


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption; `name` becomes its file name."""

    name: str
    caption: str
    """What it shows and how to read it: the finding first."""
    figure: Figure
    alt: str = ""
    """What is seen, for those who cannot see it: which line goes where, with numbers read from the record."""


_FROM_ZERO = ("seed", "sequence")
"""Numbers that count from 0 and are no sizes."""
_SEED_LIMIT = 2**63 - 10**6  # what a record can hold, less what is added for further seeds


def check_config(config: Any) -> None:
    """Refuse sizes below one, negative seeds and rates, numbers that are not finite, devices that are unknown and a
    precision that the device does not have, by name.

    A config checks what only it knows in its own `__post_init__`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Config:
    ...     every: int = 10
    >>> check_config(Config(every=0))
    Traceback (most recent call last):
        ...
    ValueError: every must be at least 1, got 0
    """
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if value == ():
            raise ValueError(f"{entry.name} must not be empty")
        if entry.name == "device":
            must_be_a_device(value)
        for number in value if isinstance(value, tuple) else (value,):
            _check_number(entry.name, number)
    precision = getattr(config, "precision", "float32")
    if getattr(config, "device", "cpu") == "cpu" and precision != "float32":
        raise ValueError(f"precision {precision!r} is a choice for a GPU; on a CPU it is float32")


def _check_number(name: str, number: Any) -> None:
    least = 0 if name in _FROM_ZERO else 1
    if isinstance(number, int) and not isinstance(number, bool) and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if name == "seed" and number >= _SEED_LIMIT:
        raise ValueError(f"seed must be below 2^63 and leave room for those that follow, got {number}")
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if isinstance(number, float) and number < 0 and name.endswith(("rate", "rates", "weight_decay")):
        raise ValueError(f"{name} must not be negative, got {number}")


def each_claim(*judges: Callable[[Run], Finding]) -> Callable[[Run], list[Finding]]:
    """A study's `judge`, from one function per claim.

    >>> each_claim()(None)
    []
    """
    return lambda run: [judge(run) for judge in judges]


@dataclass(frozen=True)
class Study:
    """What tests claims. `quick` and `paper` are two instances of one frozen config dataclass.

    Raise `version` whenever `run` would record something else for the same config: stored runs are then run again.
    """

    name: str
    title: str
    version: int
    claims: tuple[Claim, ...]
    quick: Any
    paper: Any
    run: Callable[[Any, Run, Progress], None]
    judge: Callable[[Run], list[Finding]]
    draw: Callable[[Run], list[Drawing]]
    about: str = ""
    """One paragraph for the report: what is computed and how the verdict comes about."""
    check: Callable[[Any, Run], None] = lambda config, run: None
    """Raises a ValueError where a finished run of this config read what has changed since, a text say."""

    def __post_init__(self) -> None:
        if type(self.quick) is not type(self.paper) or not dataclasses.is_dataclass(self.quick):
            raise ValueError(f"study {self.name!r}: quick and paper must be instances of one dataclass")

    def preset(self, scale: str) -> Any:
        """The config of a scale, quick or paper."""
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        return self.quick if scale == "quick" else self.paper
