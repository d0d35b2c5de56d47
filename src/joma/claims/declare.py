"""Claims declared where they are judged: the head of a judge says the claim, its body what speaks for it."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from joma.claims.claim import Claim
from joma.claims.contract import Judge, NotRun, OnlyAtPaperScale
from joma.claims.finding import Finding
from joma.claims.verdicts import not_run
from joma.runs import Run

Judging = Callable[[Run, Claim], Finding]
Guard = Callable[[Run], tuple[str, str | Mapping[str, Any]] | None]
"""Why a record tells nothing, and the command, or the options, of one that would; None where it tells."""
J = TypeVar("J", bound=Judging)

_LABELLED = re.compile(r"^(Corrected|Expected): ", re.MULTILINE)


class Claims(dict[Claim, Judge]):
    """The claims of a study with their judges, in the order in which they are declared: `Study(claims=CLAIMS, ...)`.

    - source, unit, matters, ceiling: of all claims that give none of their own
    - guard: asked before each judge; where it gives a reason, the claim is not run; so it is where a judge raises
      `NotRun`

    >>> from joma.claims.verdicts import by_tests
    >>> from joma.claims.evidence import above
    >>> CLAIMS = Claims(source="JoMA Thm 2")
    >>> @CLAIMS.declare("winner")
    ... def winner(run, claim):
    ...     '''One token takes all attention.
    ...
    ...     Expected: it has a share above one half.
    ...     '''
    ...     return by_tests(claim, printed=[above("its share", run.value("share"), 0.5, "%")])
    >>> [(claim.name, claim.source, claim.says, claim.expected) for claim in CLAIMS]
    [('winner', 'JoMA Thm 2', 'One token takes all attention.', 'it has a share above one half.')]
    """

    def __init__(
        self, *, source: str = "", unit: str = "", matters: float | None = None, ceiling: float | None = None,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._shared: dict[str, Any] = {"source": source, "unit": unit, "matters": matters, "ceiling": ceiling}
        self._guard = guard

    def declare(
        self, name: str, source: str = "", text: str = "", *, matters: float | None = None, unit: str = "",
        ceiling: float | None = None, uses: tuple[str, ...] = (), guarded: bool = True,
    ) -> Callable[[J], J]:  # fmt: skip
        """A decorator of the function `(run, claim) -> Finding` that judges the claim.

        - name, source, matters, unit, ceiling, uses: as for `Claim`
        - text: the claim's sentence; then, each on a line of its own, "Corrected: ..." and "Expected: ...", where there
          is a correction and where `claim.expected` shall say what would be seen if the claim were true. Without a text
          it is the docstring of the function, where a blank line may follow, and what the reader of the code should
          know. What is expected may name options of the config and constants of the judge's module in braces
          ("at least {HIGH:g}"), so that a bound is written once
        - guarded: whether the guard is asked
        """
        shared: dict[str, Any] = {
            "source": source or self._shared["source"], "unit": unit or self._shared["unit"],
            "matters": matters or self._shared["matters"],
            "ceiling": self._shared["ceiling"] if ceiling is None else ceiling,  # 0 is one too
        }  # fmt: skip

        def register(judging: J) -> J:
            parts = _parts(name, text or judging.__doc__ or "")
            claim = Claim(name, says=parts["says"], corrected=parts.get("Corrected"), uses=uses,
                          expected=parts.get("Expected", ""), **shared)  # fmt: skip
            guard = self._guard if guarded else None
            constants = getattr(getattr(judging, "func", judging), "__globals__", {})

            def judge(run: Run) -> Finding:
                asked = replace(claim, expected=claim.expected.format(**constants | run.config))
                if guard and (silent := guard(run)):
                    reason, remedy = silent
                    changes = {"command": remedy} if isinstance(remedy, str) else remedy
                    return not_run(asked, asked.expected, reason, **changes)
                try:
                    return judging(run, asked)
                except NotRun as why:
                    unknown = not_run(asked, asked.expected, why.reason, **{"command": why.command, **why.changes})
                    return replace(unknown, about_paper_scale=isinstance(why, OnlyAtPaperScale))

            self[claim] = judge
            return judging

        return register


def _parts(name: str, text: str) -> dict[str, str]:
    if not text:
        raise ValueError(f"claim {name!r} has no sentence: give a text, or its judge a docstring (python -OO has none)")
    first, *rest = inspect.cleandoc(text).split("\n\n")
    labelled = next((one for one in rest if _LABELLED.match(one)), "")
    _, *pairs = _LABELLED.split(labelled)
    said = {"says": first} | dict(zip(pairs[::2], pairs[1::2], strict=True))
    return {label: " ".join(part.split()) for label, part in said.items()}
