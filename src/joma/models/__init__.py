"""The networks that are trained."""

from joma.models.bilinear import Bilinear
from joma.models.block import JomaBlock
from joma.models.decoder import Decoder, DecoderConfig
from joma.models.llama import Llama, LlamaConfig

__all__ = ["Bilinear", "Decoder", "DecoderConfig", "JomaBlock", "Llama", "LlamaConfig"]
