"""What gets trained."""

from joma.models.block import JomaBlock
from joma.models.decoder import Decoder, DecoderConfig

__all__ = ["Decoder", "DecoderConfig", "JomaBlock"]
