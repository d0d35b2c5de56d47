"""Lines that fit a terminal. A pipe or a file gets whole lines: a number must not be broken in two there."""

import re
import sys
import textwrap
from shutil import get_terminal_size
from typing import Any

_NARROWEST = 40  # columns; less is not believed
_LEAST_ROOM = 20  # columns beside an indent
_GLUE = "\N{NO-BREAK SPACE}"
_INSEPARABLE = re.compile(r"\[[^\[\]]{1,40}\]|\d %")  # an interval, and a number with its sign


def columns(stream: Any = None) -> int | None:
    """How wide lines may be: as wide as the terminal, or as COLUMNS says; None in a pipe or a file, which has no width.

    A program that starts joma may have set COLUMNS without knowing (readline does): in a pipe it is not asked.

    stream: where they go, by default standard output.
    """
    if not (sys.stdout if stream is None else stream).isatty():
        return None
    return max(get_terminal_size().columns, _NARROWEST)


def hanging(head: str, body: str, width: int | None) -> str:
    """A head and words beside it, in lines of at most `width` columns that begin below the first word.

    Lines break between words only, so a path that is longer than a line stays whole, and so does an interval.
    """
    if width is None:
        return f"{head}{body}".rstrip()
    room = max(width - len(head), _LEAST_ROOM)
    glued = _INSEPARABLE.sub(lambda found: found[0].replace(" ", _GLUE), body)
    lines = textwrap.wrap(glued, room, break_long_words=False, break_on_hyphens=False)
    below = " " * len(head)
    return "\n".join(f"{below if at else head}{line}" for at, line in enumerate(lines)).replace(_GLUE, " ").rstrip()
