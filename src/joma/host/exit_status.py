"""How a command of joma ends: its exit status, and one sentence for what went wrong."""

import errno
import os
import sys
import traceback
from collections.abc import Callable

from joma.host.children import safe_children
from joma.host.errors import JomaError
from joma.host.interrupts import Terminated, sigterm_raised
from joma.host.printing import say

OK, BROKEN, BAD_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
"""The last two, at Ctrl-C and at SIGTERM, are what shells expect: 128 and the number of the signal."""
TRACEBACK = "JOMA_TRACEBACK"  # set in the environment, it shows where an error comes from
_LONGEST_NAME = 120  # letters of a file's name in a sentence
_NO_MEMORY = ("failed to map segment", "can't allocate memory")
"""What a library says that could not be loaded, or could not make something, for lack of memory."""


def answer(call: Callable[[], int]) -> int:
    """The exit status of a command; what goes wrong in it is said in one sentence."""
    with sigterm_raised(), safe_children():
        return _answer(call)


def _answer(call: Callable[[], int]) -> int:
    try:
        return call()
    except KeyboardInterrupt as interrupt:
        say(f"joma: interrupted; {_goes_on(interrupt.__cause__)}", sys.stderr)
        return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
    except BrokenPipeError:  # the reader of our output left (`joma list | head`)
        sys.stderr.close()
        return OK
    except (JomaError, OSError) as error:
        _trace_if_wanted()
        say(f"joma: {_sentence(error)}", sys.stderr)
        return BROKEN if _of_the_disk(error) else BAD_INPUT
    except Exception as error:  # no input should get here: say plainly whose fault it is
        said = " ".join(f"{type(error).__name__}: {error}".split())
        sentence = f"a fault of joma, not of your input: {said}; {TRACEBACK}=1 shows where"
        if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
            sentence = "there is not enough memory; what was recorded is safe"
        if not _trace_if_wanted():
            say(f"joma: {sentence}", sys.stderr)
        return BROKEN


def _sentence(error: BaseException) -> str:
    """What an error says; of the system's own, the file, at most so much of its name as can be read, and the reason."""
    if isinstance(error, JomaError) or not isinstance(error, OSError) or not error.strerror or error.filename is None:
        return str(error)
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return f"{shown} cannot be used: {error.strerror}"


def _trace_if_wanted() -> bool:
    if not os.environ.get(TRACEBACK):
        return False
    traceback.print_exc()
    return True


def _goes_on(error: BaseException | None) -> str:
    """Where the same command goes on after an interrupt. error: what went wrong between it and the end, if anything."""
    if error is None:
        return "the same command continues where this one stopped"
    if isinstance(error, JomaError):  # no checkpoint could be written; it says where
        return str(error)
    return f"on the way out {type(error).__name__}: {error}; the same command continues from the last checkpoint"


def _of_the_disk(error: BaseException) -> bool:
    """Whether a disk that is full or broken is behind an error: no input would have been better."""
    import sqlite3

    for each in (error, error.__cause__):
        if isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return True
        code = getattr(each, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return True
    return False
