"""Which text a run was trained on, where that text comes with a package and so may be of another release.

The verdicts that joma publishes at quick scale are of one release (`joma.data.python_source.REFERENCE`). A run of
another one is as good, but its numbers are of another text, and whoever reads them is told.
"""

import numpy as np

from joma.data.python_source import PACKAGE, REFERENCE, source_release
from joma.runs import Run

NAME = "text source sha256"


def remember_source(run: Run, sha256: str | None = None) -> None:
    """Keep the hash of the files that the text was read from; the first one stays when a run is taken up again."""
    run.keep(NAME, lambda: np.frombuffer(bytes.fromhex(sha256 or source_release().sha256), np.uint8))


def source_of(run: Run) -> str:
    """The hash that a run kept; empty where it read no such text."""
    return bytes(run.value(NAME)).hex() if NAME in run else ""


def other_text(sha256: str) -> str:
    """The sentence for a finding whose text is not the reference; empty where there is nothing to say.

    >>> other_text(REFERENCE.sha256), other_text("")
    ('', '')
    >>> other_text("00" * 32)
    'Made from another text than the published verdicts: not the source of sympy 1.14.0.'
    """
    if sha256 in ("", REFERENCE.sha256):
        return ""
    return f"Made from another text than the published verdicts: not the source of {PACKAGE} {REFERENCE.version}."
