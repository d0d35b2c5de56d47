"""What gets trained."""

from joma.models.block import JomaBlock

__all__ = ["JomaBlock"]
