"""The small Transformer of the paper's experiments, many of them at once.

Every parameter's first dimension is the member: E networks of one shape are one batched program, and a single
network is an ensemble of one. The default is the recipe of Figures 6 and 8, with PyTorch's own initial values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.host.arguments import Number, as_tensor
from joma.host.words import brief, counted
from joma.models._attention import Attention as Attention  # part of a decoder's config, so it is asked for here
from joma.models._attention import See, attend
from joma.models.change import Change
from joma.models.dropout import dropout, onwards
from joma.models.parts import compiled_part
from joma.models.products import linear, scaled

Norm = Literal["post-layer", "pre-layer", "post-rms", "pre-rms", "none"]
Activation = Literal["relu", "gelu", "silu", "identity"]
Embeddings = Literal["learned", "frozen", "orthonormal"]
Positions = Literal["none", "sinusoidal", "learned"]

Look = Callable[[int, str, Tensor], None]
"""Called with the layer, the name and the value of what passes by.

In turn: input, query, key, logits, attention, mixed, hidden, stream. `input` is what queries, keys and values are made
of, after a norm that stands before them. `attention` is what goes to keys: without softmax it need not sum to one.
`logits` are the keys' own. `mixed` are the values that each head mixed, before the output matrix.
"""

Alter = tuple[Change, Tensor] | None
"""What is changed in one block, and the tokens that it reads."""


def _same(x: Tensor) -> Tensor:
    return x


_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "identity": _same}


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
    - positions: how tokens know their place
    - tied: whether the output matrix is the embedding matrix, as in GPT-2; frozen embeddings then freeze both
    - qk_norm: whether queries and keys of each head are divided by their root mean square, and multiplied by scales
      that are learned (`query_scale`, `key_scale`, 1 at first)

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
        for name, kind in (*choices, ("embeddings", Embeddings), ("positions", Positions)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")
        if self.mlp == 0 and self.activation != "identity":
            wanted = "without an MLP there is nothing to activate: activation must be identity"
            raise ValueError(f"{wanted}, got {self.activation!r}")
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"sinusoidal positions need an even width, got {self.width}")
        if self.embeddings == "orthonormal" and self.vocabulary > self.width:
            raise ValueError(f"{self.vocabulary} words cannot have orthonormal embeddings of width {self.width}")
        if self.tied and self.outputs not in (None, self.vocabulary):
            raise ValueError(f"tied embeddings give {self.vocabulary} outputs, one per word, got {self.outputs}")

    def with_(self, **changes: object) -> DecoderConfig:
        """A copy with some options changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


class Decoder(nn.Module):
    """Members of one shape, each initialised from its own seed, computed together.

    `tokens` is (batch, length), read by all members, or (members, batch, length). `forward` gives the logits at every
    position, (members, batch, length, outputs); `features` what the output matrix reads. Dropout is on only when
    `noise`, from `joma.models.dropout.keys`, is given. `look` sees what passes by in every layer.

    >>> decoder = Decoder(DecoderConfig(vocabulary=50, width=8, mlp=16), seeds=[0, 1, 2])
    >>> decoder(torch.zeros(4, 10, dtype=torch.long)).shape
    torch.Size([3, 4, 10, 50])
    """

    embedding: Tensor  # (members, vocabulary, width)
    position: Tensor
    sinusoids: Tensor
    last_scale: Tensor
    last_shift: Tensor
    out: Tensor  # (members, outputs, width)
    out_bias: Tensor
    seeds: Tensor

    def __init__(self, config: DecoderConfig, seeds: Sequence[int]) -> None:
        """Networks of the shape that `config` gives, one per entry of `seeds`, each initialised from its own seed."""
        super().__init__()
        seeds = [int(seed) for seed in seeds]
        if not seeds:
            raise ValueError("a decoder needs at least one member: seeds is empty")
        self.config = config
        self.members = len(seeds)
        starts = [_start(config, torch.Generator().manual_seed(seed)) for seed in seeds]
        for name in starts[0]:
            values = torch.stack([start[name] for start in starts])
            if name == "embedding" and config.embeddings != "learned":
                self.register_buffer(name, values)
            else:
                self.register_parameter(name, nn.Parameter(values))
        if config.tied and config.embeddings == "learned":  # one tensor under two names, with one gradient
            self.out = self.embedding
        elif config.tied:
            self.register_buffer("out", self.embedding)
        self.register_buffer("seeds", torch.tensor([seed & 0x7FFFFFFF for seed in seeds], dtype=torch.int32))
        # sin and cos of position / 10000^(2i/width), interleaved, (context, width)
        speed = torch.exp(torch.arange(0, config.width, 2) * (-math.log(10_000) / config.width))
        angle = torch.arange(config.context)[:, None] * speed
        sinusoids = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, : config.width]
        self.register_buffer("sinusoids", sinusoids, persistent=False)

    def __repr__(self) -> str:
        config = self.config
        sizes = f"{config.layers} layers, width {config.width}, {config.heads} heads, mlp {config.mlp}"
        parameters = sum(parameter.numel() for parameter in self.parameters()) // self.members
        return f"Decoder({counted(self.members, 'member')} of {parameters:,} parameters: {sizes})"

    def forward(
        self, tokens: Number, *, noise: Tensor | None = None, look: Look | None = None, change: Sequence[Change] = ()
    ) -> Tensor:
        """Logits at every position, (members, batch, length, outputs); arguments as in `features`."""
        features = self.features(tokens, noise=noise, look=look, change=change)
        return self.read(features.flatten(1, -2)).view(*features.shape[:-1], -1)

    def read(self, features: Number) -> Tensor:
        """Logits of features (members, positions, width)."""
        return linear(features, self.out.mT, self.out_bias)

    def features(
        self, tokens: Number, *, noise: Tensor | None = None, look: Look | None = None, change: Sequence[Change] = ()
    ) -> Tensor:
        """What the output matrix reads, (members, batch, length, width).

        tokens: (batch, length) or (members, batch, length). noise: what `joma.models.dropout.keys` gives; without it
        nothing is dropped. look: called with what passes by in every layer. change: one for every layer, or () for
        none; `look` sees what is left by them.
        """
        config = self.config
        tokens = tokens if isinstance(tokens, Tensor) else as_tensor(tokens, "tokens")
        self._check(tokens)
        if len(change) not in (0, config.layers):
            raise ValueError(f"change must be one for each of {config.layers} layers, or (), got {len(change)}")
        places = {"none": None, "learned": getattr(self, "position", None), "sinusoidal": self.sinusoids}
        x = _embed(tokens, self.embedding, places[config.positions], config, noise)
        shape = x.shape
        x = x.flatten(1, 2)  # (members, positions, width)
        # taken apart once: taken out layer by layer, each would send back a gradient as large as all of them
        blocks = {name: getattr(self, name).unbind(1) for name in block_parameters(config)}
        drops = 4 if config.mlp else 2  # places of dropout in a block; the embedding has one more
        for layer in range(config.layers):
            see = None if look is None else partial(look, layer)
            w = {name: layers[layer] for name, layers in blocks.items()}
            alter = (change[layer], tokens.view(-1, *tokens.shape[-2:])) if change else None
            x = _block(x, w, config, shape, None if noise is None else onwards(noise, 1 + drops * layer), see, alter)
        if config.norm.startswith("pre"):
            x = _last_norm(x, self.last_scale, self.last_shift if config.norm == "pre-layer" else None)
        return x.view(shape)

    def _check(self, tokens: Tensor) -> None:
        config = self.config
        if tokens.ndim not in (2, 3) or (tokens.ndim == 3 and len(tokens) not in (1, self.members)):
            wanted = f"(batch, length) or ({self.members} members, batch, length)"
            raise ValueError(f"tokens must have shape {wanted}, got {tuple(tokens.shape)}")
        if tokens.device.type == "cpu" and not ((tokens >= 0) & (tokens < config.vocabulary)).all():
            # unseen, such a token would read the embedding of another member; to ask a GPU would make it wait
            got = f"{tokens.min()} to {tokens.max()}"
            raise ValueError(f"tokens must lie between 0 and {config.vocabulary - 1}, got {got}")
        if tokens.shape[-1] > config.context:
            raise ValueError(f"a sequence of {tokens.shape[-1]} tokens is longer than the context of {config.context}")


class _Dropper:
    def __init__(self, probability: float, noise: Tensor | None) -> None:
        self.probability, self.noise, self.place = probability, noise, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.place += 1
        return x if self.noise is None else dropout(x, self.probability, self.noise, self.place)


@compiled_part
def _embed(
    tokens: Tensor, embedding: Tensor, position: Tensor | None, config: DecoderConfig, noise: Tensor | None
) -> Tensor:
    members, vocabulary, width = embedding.shape
    length = tokens.shape[-1]
    tokens = tokens.expand(members, *tokens.shape[-2:])
    first = vocabulary * torch.arange(members, device=tokens.device)
    x = F.embedding(tokens + first[:, None, None], embedding.flatten(0, 1)) * math.sqrt(width)
    if position is not None:
        x = x + (position[:length] if position.ndim == 2 else position[:, None, :length])
    return _Dropper(config.dropout, noise)(x)


@compiled_part
def _block(
    x: Tensor, w: dict[str, Tensor], config: DecoderConfig, shape: torch.Size, noise: Tensor | None, see: See,
    alter: Alter = None,
) -> Tensor:  # fmt: skip
    """x (members, positions, width) through attention and MLP."""
    drop = _Dropper(config.dropout, noise)
    before, after = _norms(config.norm, w, "attention")
    y = _attend(before(x), w, config, shape, drop, see, alter)
    x = after(x + y if config.residual else y)
    if config.mlp:
        before, after = _norms(config.norm, w, "mlp")
        hidden = _ACTIVATIONS[config.activation](linear(before(x), w["up"], w["up_bias"]))
        if see is not None:
            see("hidden", hidden.view(*shape[:-1], -1))
        y = drop(linear(drop(hidden), w["down"], w["down_bias"]))
        x = after(x + y if config.residual else y)
    if see is not None:
        see("stream", x.view(shape))
    return x


def _attend(
    x: Tensor, w: dict[str, Tensor], config: DecoderConfig, shape: torch.Size, drop: _Dropper, see: See, alter: Alter
) -> Tensor:
    members, batch, length, width = shape
    if alter is not None:
        x = alter[0].read(x.view(shape)).flatten(1, 2)
    if see is not None:
        see("input", x.view(shape))
    qkv = linear(x, w["qkv"], w["qkv_bias"])
    query, key, value = (
        part.view(members, batch, length, config.heads, -1).transpose(2, 3) for part in qkv.split(width, dim=-1)
    )  # (members, batch, heads, length, head width)
    if config.qk_norm:
        query, key = _head_normed(query, w["query_scale"]), _head_normed(key, w["key_scale"])
    score = None
    if alter is not None:
        query = alter[0].ask(query)
        score = partial(alter[0].score, query=query, key=key, tokens=alter[1]) if alter[0].scores else None
    drops = drop.noise is not None and drop.probability > 0
    if see is None and score is None and not drops and x.device.type == "cpu" and config.attention == "softmax":
        # nobody looks at the weights: torch's fused kernel takes half the time of many small products
        flat = [part.flatten(0, 1) for part in (query, key, value)]
        y = F.scaled_dot_product_attention(flat[0], flat[1], flat[2], is_causal=config.causal).view(query.shape)
    else:
        kind, sink = config.attention, w.get("sink")
        y = attend(query, key, value, kind=kind, causal=config.causal, sink=sink, drop=drop, see=see, score=score)
    y = y.transpose(2, 3).reshape(members, batch * length, width)
    if config.projection:
        y = linear(y, w["projection"], w["projection_bias"])
    return drop(y)


def _norms(norm: Norm, w: dict[str, Tensor], branch: str) -> tuple[Callable[[Tensor], Tensor], ...]:
    """What to do before a branch, and after it and its residual."""
    if norm == "none":
        return _same, _same
    normed = partial(_normed, scale=w[f"{branch}_scale"], shift=w.get(f"{branch}_shift"))
    return (normed, _same) if norm.startswith("pre") else (_same, normed)


def _normed(x: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    """Normalised over the width, (members, positions, width), with each member's own scale and shift."""
    if shift is None:
        return F.rms_norm(x, x.shape[-1:]) * scale[:, None]
    return scaled(F.layer_norm(x, x.shape[-1:]), scale, shift)


_last_norm = compiled_part(_normed)


def _head_normed(x: Tensor, scale: Tensor) -> Tensor:
    """Queries or keys (members, batch, heads, length, head width), each divided by its root mean square.

    scale: (members, width), of all heads one after the other.
    """
    members, _, heads, _, width = x.shape
    return F.rms_norm(x, (width,)) * scale.view(members, 1, heads, 1, width)


def block_parameters(config: DecoderConfig) -> tuple[str, ...]:
    """The names of one block's parameters.

    >>> block_parameters(DecoderConfig(vocabulary=9, norm="none", mlp=0, activation="identity", projection=False))
    ('qkv', 'qkv_bias')
    """
    mlp, scaled, shifted = config.mlp > 0, config.norm != "none", config.norm.endswith("layer")
    parts = [
        (True, ("qkv", "qkv_bias")),
        (config.attention == "learned-sink", ("sink",)),
        (config.qk_norm, ("query_scale", "key_scale")),
        (config.projection, ("projection", "projection_bias")),
        (mlp, ("up", "up_bias", "down", "down_bias")),
        (scaled, ("attention_scale",)),
        (shifted, ("attention_shift",)),
        (scaled and mlp, ("mlp_scale",)),
        (shifted and mlp, ("mlp_shift",)),
    ]
    return tuple(name for there, names in parts if there for name in names)


def _start(config: DecoderConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """One member's initial values, drawn as torch's own modules draw them after torch.manual_seed(seed).

    In turn: TransformerEncoderLayer, Embedding, Linear, and then embedding and output anew, uniform within +-0.1. The
    runs of Figures 6 and 8 were begun like this, so that a seed of theirs begins with the very same weights here.
    """
    outputs = config.outputs or config.vocabulary

    def uniform(bound: float, *shape: int) -> Tensor:
        return torch.empty(*shape).uniform_(-bound, bound, generator=generator)

    values = {}
    blocks = [_block_start(config, uniform) for _ in range(1 if config.copies else config.layers)]
    for name in block_parameters(config):
        values[name] = torch.stack([block[name] for block in blocks]).expand(config.layers, *blocks[0][name].shape)
    if config.norm.startswith("pre"):
        values["last_scale"] = torch.ones(config.width)
        if config.norm.endswith("layer"):
            values["last_shift"] = torch.zeros(config.width)
    if config.outputs is None:  # what Embedding and Linear draw for themselves, and is not used; a classifier has no
        # twin to match, and its weights should not hang on how many classes stand beside its own
        torch.empty(config.vocabulary, config.width).normal_(generator=generator)
        uniform(1 / math.sqrt(config.width), outputs, config.width + 1)
    values["embedding"] = uniform(0.1, config.vocabulary, config.width)
    out = uniform(0.1, outputs, config.width)
    if not config.tied:
        values["out"] = out
    values["out_bias"] = torch.zeros(outputs)
    if config.embeddings == "orthonormal":
        square = torch.randn(config.width, config.width, generator=generator)
        values["embedding"] = torch.linalg.qr(square).Q[: config.vocabulary].contiguous()
    if config.positions == "learned":
        values["position"] = uniform(0.1, config.context, config.width)
    return values


def _block_start(config: DecoderConfig, uniform: Callable[..., Tensor]) -> dict[str, Tensor]:
    width, mlp = config.width, config.mlp
    values = {"sink": torch.zeros(config.heads), "query_scale": torch.ones(width), "key_scale": torch.ones(width)}
    for branch in ("attention", "mlp"):
        values |= {f"{branch}_scale": torch.ones(width), f"{branch}_shift": torch.zeros(width)}
    if config.projection:
        values["projection"] = uniform(1 / math.sqrt(width), width, width).T
        uniform(1 / math.sqrt(width), width)  # torch draws this bias too, and then sets it to zero
        values["projection_bias"] = torch.zeros(width)
    values["qkv"] = uniform(math.sqrt(6 / (4 * width)), 3 * width, width).T
    values["qkv_bias"] = torch.zeros(3 * width)
    hidden = mlp or width  # without an MLP its numbers are drawn all the same: what follows is then as in its twin
    values["up"] = uniform(1 / math.sqrt(width), hidden, width).T
    values["up_bias"] = uniform(1 / math.sqrt(width), hidden)
    values["down"] = uniform(1 / math.sqrt(hidden), width, hidden).T
    values["down_bias"] = uniform(1 / math.sqrt(hidden), width)
    return values
