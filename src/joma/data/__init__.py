"""What models read."""

from joma.data.token_classes import token_classes

__all__ = ["token_classes"]
