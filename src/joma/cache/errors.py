"""The error of this room."""

from joma.host.errors import BadInput


class CacheError(BadInput):
    """A model whose cache cannot be cut, or a cache that is used as it must not be; the sentence says why."""
