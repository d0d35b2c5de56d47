"""The one kind of error that a user can mend. Its message is one sentence that says what would be right.

Every layer has its own: `RunError`, `CheckpointError`, `CorpusError`, and `BadInput` for what was typed. All are a
`JomaError`, and the command line prints the sentence. Whatever else reaches the command line is a fault of joma.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class JomaError(Exception):
    """Something that the user can mend; the message is one sentence that says how.

    argument: the argument of a library function that would mend it: the command line adds the option that sets it.
    """

    argument: str = ""


class BadInput(JomaError, ValueError):
    """An argument that cannot be used: the message names it, its value and what would be right.

    argument: its name, where a library function raises this: the command line adds the option that sets it.
    """

    def __init__(self, message: str = "", *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class FileError(JomaError, ValueError):
    """A file that cannot be written; the message names it and says why."""


@contextmanager
def as_bad_input() -> Iterator[None]:
    """Around the reading of what a user gave: a ValueError raised inside is bad input, and no fault of joma."""
    try:
        yield
    except JomaError:
        raise
    except ValueError as error:
        raise BadInput(str(error)) from error
