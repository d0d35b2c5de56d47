"""A claim: one sentence of a source, and what would count as an effect, stated before anything is run."""

import hashlib
import re
from dataclasses import dataclass, field

_PLACE = r"(Thm|Lemma|Cor\.|Prop\.|Fig\.|Table|Sec\.|Def\.|App\.|Assumption|slide|p\.) [\w.]+|eq\. [\w-]+|footnote \d+"
_SOURCE = re.compile(rf"(?!{_PLACE})\S(?:(?!\b(?:{_PLACE})).)* ({_PLACE})")
"""Any work, and one place in it."""
_ID = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")


@dataclass(frozen=True)
class Claim:
    """One sentence of a source in our words, with its one place and, where it needs one, its correction.

    >>> Claim("winner", "the paper", "One token takes all attention.")
    Traceback (most recent call last):
        ...
    ValueError: claim 'winner': source must be a work and a place in it, like 'JoMA Thm 1', got 'the paper'
    """

    name: str
    source: str
    says: str
    corrected: str | None = None
    matters: float | None = None
    """The smallest difference from the control that would matter, in `unit`. A claim that has one is empirical."""
    unit: str = ""
    """Of the effect: nats, °, or % for shares, which are kept as 0 to 1."""
    ceiling: float | None = None
    """The largest value that the effect could have, 1 for a correlation; None if there is no such value."""
    uses: tuple[str, ...] = ()
    """What it rests on: the ids of other claims, such as 'thm1/invariant'."""
    expected: str = field(default="", compare=False)
    """What would be seen if it were true, unless the judge says it."""

    def __post_init__(self) -> None:
        if not _SOURCE.fullmatch(self.source):
            form = "source must be a work and a place in it, like 'JoMA Thm 1'"
            raise ValueError(f"claim {self.name!r}: {form}, got {self.source!r}")
        if self.matters is not None and not self.matters > 0:
            raise ValueError(f"claim {self.name!r}: what matters must be above 0, got {self.matters!r}")
        if wrong := [one for one in self.uses if not _ID.fullmatch(one)]:
            raise ValueError(f"claim {self.name!r}: uses must be ids like 'thm1/invariant', got {wrong[0]!r}")

    @property
    def empirical(self) -> bool:
        """Whether it is judged by an effect and its control. Mathematical claims have a tolerance instead."""
        return self.matters is not None

    @property
    def sha256(self) -> str:
        """Of the claim's text: two findings with the same hash are about the same sentence.

        >>> Claim("winner", "JoMA Thm 2", "One token takes all attention.").sha256[:8]
        'b5a3fb73'
        """
        text = "\n".join([self.source, self.says, self.corrected or ""])
        return hashlib.sha256(text.encode()).hexdigest()
