"""What is printed reaches every terminal and file, and does nothing there.

What an encoding lacks is written in letters that it has; control characters are written out.
"""

import codecs
import os
import re
import sys
import unicodedata
from typing import Any

_PLAIN = {
    "−": "-", "–": "-", "—": "-", "×": "x", "·": ".", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "→": "->", "√": "sqrt",
    "∞": "inf", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "…": "...", "°": " degrees", "±": "+-", "∈": "in",
    "✓": "+", "✗": "x", "†": "+", "∂": "d", "∫": "integral", "⟨": "<", "⟩": ">", "‖": "|", "∝": "~", "⊥": "perp",
}  # fmt: skip
# Control characters of both sets, and those that turn the direction of writing round.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LETTER = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (FINAL )?(\w+)")
_RAISED = re.compile(r"(SUPERSCRIPT|SUBSCRIPT|MODIFIER LETTER SMALL|LATIN SUBSCRIPT SMALL LETTER) (.+)")


def plain(character: str) -> str:
    """A character in ASCII, as a reader would type it."""
    if character in _PLAIN:
        return _PLAIN[character]
    name = unicodedata.name(character, "")
    if found := _LETTER.match(name):
        return found[3].capitalize() if found[1] == "CAPITAL" else found[3].lower()
    base = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    if found := _RAISED.match(name):
        return ("_" if "SUBSCRIPT" in found[1] else "^") + (base or found[2].lower())
    return base or "?"


def clean(text: object, *, keep: str = "") -> str:
    r"""Words without what moves a cursor, colours a terminal, or turns the order of letters; `keep` is left alone.

    Names come from files and servers, and may hold anything. It stands there as JSON would write it, so that cleaned
    JSON still says the same.
    """
    return _UNSEEN.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", str(text))


def say(text: object, to: Any = None, *, keep: str = "", end: str = "\n") -> None:
    """Print words that may be a stranger's, at once, to standard output or where told."""
    print(clean(text, keep=keep), file=to, end=end, flush=True)


def reopen_closed() -> None:
    """Standard streams that were closed (`joma verify >&-`) lead nowhere from now on.

    Else Python has None in their place, and the next file that is opened gets the number of standard output: whatever
    a library prints would go into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the smallest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def encoding_safe(*streams: Any) -> None:
    """From now on nothing that is printed to these streams, by default standard output and error, can fail to encode.

    >>> encoding_safe()
    """

    def in_plain_letters(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(map(plain, error.object[error.start : error.end])), error.end

    codecs.register_error("joma-plain", in_plain_letters)
    for stream in streams or (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="joma-plain")
