"""The shape of a decoder: every option that it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from joma.host.words import brief
from joma.models._attention import Attention as Attention  # one of the options

Norm = Literal["post-layer", "pre-layer", "post-rms", "pre-rms", "none"]
Activation = Literal["relu", "gelu", "silu", "identity"]
Embeddings = Literal["learned", "frozen", "orthonormal"]
Positions = Literal["none", "sinusoidal", "learned", "rotary", "alibi"]
Gate = Literal["none", "attention", "mlp"]


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder. Every option is honoured or refused.

    - vocabulary: number of words
    - outputs: classes to predict; the vocabulary unless given
    - layers: number of blocks
    - width: of the residual stream
    - heads: attention heads per block
    - mlp: hidden width of the MLP; 0 leaves the MLP out (and then there is no activation: say "identity")
    - context: the longest sequence
    - dropout: on the embeddings, the attention weights, the MLP's hidden layer and both branches, as in torch
    - causal: whether a token sees only the tokens up to itself
    - attention: how logits become weights. "off-by-one" adds a key of logit 0 and value 0 to the softmax, so that a
      query may attend to nothing; "learned-sink" gives that key a logit that each head learns (`sink`, 0 at first);
      "sigmoid" and "relu" weigh each key for itself
    - norm: which norm, and whether it stands before or after attention and MLP
    - activation: of the MLP
    - residual: whether a block adds to its input
    - projection: whether attention has an output matrix
    - copies: whether all blocks start with the same weights
    - embeddings: frozen ones stay where they start; orthonormal ones are frozen too, and need vocabulary <= width
    - positions: how tokens know their place. sinusoidal and learned ones are added to the words, rotary ones turn
      queries and keys, alibi lowers a logit by how far back its key is
    - tied: whether the output matrix is the embedding matrix, as in GPT-2; frozen embeddings then freeze both
    - qk_norm: whether queries and keys of each head are divided by their root mean square, and multiplied by scales
      that are learned (`query_scale`, `key_scale`, 1 at first)
    - vo_norm: the same of values, and of what each head mixed of them (`value_scale`, `mixed_scale`)
    - gate: a sigmoid, linear in what the branch reads, by which every number is multiplied: what the heads mixed,
      before the output matrix (arXiv 2505.06708), or the output of the MLP. It starts at 1/2

    >>> DecoderConfig(vocabulary=50, width=16).with_(heads=3)
    Traceback (most recent call last):
    ValueError: width 16 cannot be shared by 3 heads
    """

    vocabulary: int
    outputs: int | None = None
    layers: int = 1
    width: int = 200
    heads: int = 1
    mlp: int = 200
    context: int = 35
    dropout: float = 0.0
    causal: bool = True
    attention: Attention = "softmax"
    norm: Norm = "post-layer"
    activation: Activation = "relu"
    residual: bool = True
    projection: bool = True
    copies: bool = False
    embeddings: Embeddings = "learned"
    positions: Positions = "sinusoidal"
    tied: bool = False
    qk_norm: bool = False
    vo_norm: bool = False
    gate: Gate = "none"

    def __repr__(self) -> str:
        return brief(self)

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "heads", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.vocabulary < 2:
            raise ValueError("a vocabulary of one word leaves nothing to learn")
        if self.outputs is not None and self.outputs < 1:
            raise ValueError(f"outputs must be at least 1, got {self.outputs}")
        if self.mlp < 0:
            raise ValueError(f"mlp must be a width, or 0 for none, got {self.mlp}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared by {self.heads} heads")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        choices = ("attention", Attention), ("norm", Norm), ("activation", Activation)
        for name, kind in (*choices, ("embeddings", Embeddings), ("positions", Positions), ("gate", Gate)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")
        if self.mlp == 0 and self.activation != "identity":
            wanted = "without an MLP there is nothing to activate: activation must be identity"
            raise ValueError(f"{wanted}, got {self.activation!r}")
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"sinusoidal positions need an even width, got {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(f"rotary positions need heads of even width, got {self.width // self.heads}")
        if self.gate == "mlp" and not self.mlp:
            raise ValueError("gate must be none or attention where there is no MLP, got 'mlp'")
        if self.embeddings == "orthonormal" and self.vocabulary > self.width:
            raise ValueError(f"{self.vocabulary} words cannot have orthonormal embeddings of width {self.width}")
        if self.tied and self.outputs not in (None, self.vocabulary):
            raise ValueError(f"tied embeddings give {self.vocabulary} outputs, one per word, got {self.outputs}")

    def with_(self, **changes: object) -> DecoderConfig:
        """A copy with some options changed."""
        return replace(self, **changes)  # type: ignore[arg-type]
