"""The words every study uses: Claim, Finding, Study.

A study runs (writing to a Run), judges (Run -> findings) and draws (Run -> figures). Judging and drawing read
what the run recorded and compute nothing else, so a stored run can be judged and drawn again at any time.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from joma.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["holds", "holds as corrected", "only qualitative", "not above its control", "fails", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
SCALES = ("quick", "paper")

Progress = Callable[[float, str], None]
"""Called by a running study with the share done (0 to 1) and a few words on what comes next."""

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_SOURCE = re.compile(
    r"(JoMA|JoMA talk|Scan&Snap|Reversal|GaLore|CDAG) "
    r"((Thm|Lemma|Fig\.|Table|Sec\.|Def\.|App\.|Assumption|slide) [\w.]+|eq\. [\w-]+|footnote \d+)"
)


def tally(findings: Sequence[Finding]) -> list[tuple[Verdict, str]]:
    """How many findings came out how, in words; verdicts that nothing got are left out.

    >>> claim = Claim("twice", "JoMA Thm 1", "Twice one is two.")
    >>> tally([Finding(claim, "2", 2.0, None, "holds"), Finding(claim, "2", 2.0, None, "holds")])
    [('holds', '2 hold')]
    """
    counts = Counter(finding.verdict for finding in findings)
    plural = {"holds": "hold", "holds as corrected": "hold as corrected", "fails": "fail"}
    return [(v, f"{n} {plural.get(v, v) if n > 1 else v}") for v in VERDICTS if (n := counts[v])]


def silent(share: float, doing: str) -> None:
    """A `Progress` that nobody watches."""


class NotRun(Exception):
    """Raised by a study's `run` when this machine lacks something; the command says how to run it elsewhere.

    >>> print(NotRun("torch sees no CUDA here", "joma verify fig6 --scale paper"))
    torch sees no CUDA here; run it with: joma verify fig6 --scale paper
    """

    def __init__(self, reason: str, command: str) -> None:
        super().__init__(f"{reason}; run it with: {command}")


@dataclass(frozen=True)
class Claim:
    """One sentence of a source in our words, with its one place and, where it needs one, its correction.

    >>> Claim("winner", "the paper", "One token takes all attention.")
    Traceback (most recent call last):
        ...
    ValueError: claim 'winner': source must be one place like 'JoMA Thm 1', got 'the paper'
    """

    name: str
    source: str
    says: str
    corrected: str | None = None
    empirical: bool = False
    """Empirical claims, as opposed to mathematical ones, cannot be found without a control."""

    def __post_init__(self) -> None:
        if not _SOURCE.fullmatch(self.source):
            raise ValueError(f"claim {self.name!r}: source must be one place like 'JoMA Thm 1', got {self.source!r}")


@dataclass(frozen=True)
class Finding:
    """What a study found about a claim. Built by the rules in `joma.studies.verdicts`, from recorded numbers.

    >>> claim = Claim("winner", "JoMA Thm 2", "One token takes all attention.")
    >>> Finding(claim, expected="one token", measured=1.0, tolerance=None, verdict="holds").as_json()["measured"]
    1.0
    """

    claim: Claim
    expected: str
    measured: float | str
    tolerance: float | None
    verdict: Verdict
    control: float | str | None = None
    residuals: Mapping[str, float] = field(default_factory=dict)
    """Where a printed and a corrected form compete: how far each is from the truth."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.claim.name}: verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}")
        if self.measured == "":
            raise ValueError(f"{self.claim.name}: a finding needs what was measured")
        if self.claim.empirical and self.control is None and self.verdict != "not run":
            raise ValueError(f"{self.claim.name}: an empirical claim needs its control")

    def as_json(self) -> dict[str, Any]:
        return {
            "claim": self.claim.name,
            "source": self.claim.source,
            "says": self.claim.says,
            "corrected": self.claim.corrected,
            "expected": self.expected,
            "measured": _for_json(self.measured),
            "control": _for_json(self.control),
            "tolerance": self.tolerance,
            "verdict": self.verdict,
            "residuals": {form: _for_json(value) for form, value in self.residuals.items()},
        }


def _for_json(value: float | str | None) -> float | str | None:
    """JSON has no NaN and no infinity: a number that went wrong is written as a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption; `name` becomes its file name."""

    name: str
    caption: str
    figure: Figure


_FROM_ZERO = ("seed", "sequence")
"""Numbers that count from 0 and are no sizes."""
_SEED_LIMIT = 2**63 - 10**6  # what a record can hold, less what is added for further seeds


def check_config(config: Any) -> None:
    """Refuse sizes below one, negative seeds and rates, numbers that are not finite, devices that are unknown and a
    precision that the device does not have, by name.

    A config checks what only it knows in its own `__post_init__`.

    >>> from joma.studies import load
    >>> check_config(dataclasses.replace(load("fig7").quick, every=0))
    Traceback (most recent call last):
        ...
    ValueError: every must be at least 1, got 0
    """
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if value == ():
            raise ValueError(f"{entry.name} must not be empty")
        if entry.name == "device" and not _DEVICE.fullmatch(value):
            raise ValueError(f"device must be cpu, cuda or cuda:NUMBER, got {value!r}")
        for number in value if isinstance(value, tuple) else (value,):
            least = 0 if entry.name in _FROM_ZERO else 1
            if isinstance(number, int) and not isinstance(number, bool) and number < least:
                raise ValueError(f"{entry.name} must be at least {least}, got {number}")
            if entry.name == "seed" and number >= _SEED_LIMIT:
                raise ValueError(f"seed must be below 2^63 and leave room for those that follow, got {number}")
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{entry.name} must be finite, got {number}")
            if isinstance(number, float) and number < 0 and entry.name.endswith(("rate", "rates", "weight_decay")):
                raise ValueError(f"{entry.name} must not be negative, got {number}")
    precision = getattr(config, "precision", "float32")
    if getattr(config, "device", "cpu") == "cpu" and precision != "float32":
        raise ValueError(f"precision {precision!r} is a choice for a GPU; on a CPU it is float32")


@dataclass(frozen=True)
class Study:
    """What tests claims. `quick` and `paper` are two instances of one frozen config dataclass.

    Raise `version` whenever `run` would record something else for the same config: stored runs are then run again.

    >>> from joma.studies import load
    >>> study = load("fig7")
    >>> study.preset("quick").steps < study.preset("paper").steps
    True
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
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        return self.quick if scale == "quick" else self.paper
