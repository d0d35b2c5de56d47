"""A claim: one sentence of a source, and what would count as an effect, stated before anything is run."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_SOURCE = re.compile(
    r"(JoMA|JoMA talk|Scan&Snap|Reversal|GaLore|CDAG|Saunshi et al\.|Zhang et al\.|MobileLLM|"
    r"H2O|StreamingLLM|Deja Vu) "
    r"((Thm|Lemma|Cor\.|Fig\.|Table|Sec\.|Def\.|App\.|Assumption|slide) [\w.]+|eq\. [\w-]+|footnote \d+)"
)
_ID = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")


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
    """Empirical claims, as opposed to mathematical ones, are judged by an effect beside its control."""
    matters: float | None = None
    """Of an empirical claim: the smallest difference from the control that would matter, in `unit`."""
    unit: str = ""
    """Of the effect: nats, °, or % for shares, which are kept as 0 to 1."""
    ceiling: float | None = None
    """The largest value that the effect could have, 1 for a correlation; None if there is no such value."""
    uses: tuple[str, ...] = ()
    """What it rests on: the ids of other claims, such as 'thm1/invariant'."""

    def __post_init__(self) -> None:
        if not _SOURCE.fullmatch(self.source):
            raise ValueError(f"claim {self.name!r}: source must be one place like 'JoMA Thm 1', got {self.source!r}")
        if self.empirical and not (self.matters or 0.0) > 0:
            raise ValueError(f"claim {self.name!r}: an empirical claim says which effect matters, got {self.matters!r}")
        if not self.empirical and self.matters is not None:
            raise ValueError(f"claim {self.name!r}: what matters is for empirical claims, others have a tolerance")
        if wrong := [one for one in self.uses if not _ID.fullmatch(one)]:
            raise ValueError(f"claim {self.name!r}: uses must be ids like 'thm1/invariant', got {wrong[0]!r}")

    @property
    def sha256(self) -> str:
        """Of the claim's text: two findings with the same hash are about the same sentence.

        >>> Claim("winner", "JoMA Thm 2", "One token takes all attention.").sha256[:8]
        'b5a3fb73'
        """
        text = "\n".join([self.source, self.says, self.corrected or ""])
        return hashlib.sha256(text.encode()).hexdigest()
