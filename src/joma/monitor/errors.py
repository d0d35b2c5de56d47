"""What a monitor refuses."""

from joma.host.errors import JomaError


class MonitorError(JomaError, ValueError):
    """A model or a probe batch that cannot be monitored; the sentence names it and says why."""
