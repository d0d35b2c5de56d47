"""What can be wrong with text that somebody brings."""

from joma.host.errors import JomaError


class CorpusError(JomaError, ValueError):
    """A corpus cannot be read, downloaded or cut; the message is one sentence that says what would be right."""
