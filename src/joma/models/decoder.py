"""The small Transformer of the paper's experiments, many of them at once.

Every parameter's first dimension is the member: E networks of one shape are one batched program, and a single
network is an ensemble of one. The default is the recipe of Figures 6 and 8, with PyTorch's own initial values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.host.arguments import Number, as_tensor
from joma.host.words import counted
from joma.models._attention import See, attend, attend_on_processor
from joma.models._kinds import check_kinds, inner_positions, of_members, own
from joma.models._positions import penalised, turned
from joma.models._start import block_parameters as block_parameters  # a decoder's, so it is asked for here
from joma.models._start import initial_values
from joma.models.change import Change
from joma.models.decoder_config import DecoderConfig as DecoderConfig  # what a decoder is made from
from joma.models.decoder_config import Norm
from joma.models.dropout import dropout, onwards
from joma.models.parts import compiled_part
from joma.models.products import linear, scaled

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

    def __init__(
        self,
        config: DecoderConfig,
        seeds: Sequence[int],
        *,
        kinds: Sequence[DecoderConfig] = (),
        of: Sequence[int] = (),
    ) -> None:
        """Networks of the shape that `config` gives, one per entry of `seeds`, each initialised from its own seed.

        kinds: configs that differ from it in attention, positions, qk_norm, vo_norm and gate alone; of: which of them
        each member has. It is then what it would be in a decoder of that kind, and begins as its twin of another one.
        """
        super().__init__()
        seeds = [int(seed) for seed in seeds]
        if not seeds:
            raise ValueError("a decoder needs at least one member: seeds is empty")
        self.config = config
        self.members = len(seeds)
        check_kinds(config, kinds, of or [0] * len(seeds), len(seeds))
        self.kinds = tuple(kinds) or (config,)
        self._names = block_parameters(*self.kinds)
        starts = [initial_values(self.kinds, torch.Generator().manual_seed(seed)) for seed in seeds]
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
        each = of_members(self.kinds, of, sinusoids) if kinds else {}
        inner = {name: x for name, x in inner_positions(self.kinds[0]).items() if "places" not in each}
        for name, value in (each | inner).items():
            self.register_buffer(name, value, persistent=name in each)
        self._each, self._inner = tuple(each), tuple(inner)

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
        x = _embed(tokens, self.embedding, self._places(), config, noise)
        shape = x.shape
        x = x.flatten(1, 2)  # (members, positions, width)
        # taken apart once: taken out layer by layer, each would send back a gradient as large as all of them
        blocks = {name: getattr(self, name).unbind(1) for name in self._names}
        shared = {name: getattr(self, name) for name in (*self._each, *self._inner)}
        drops = 4 if config.mlp else 2  # places of dropout in a block; the embedding has one more
        for layer in range(config.layers):
            see = None if look is None else partial(look, layer)
            w = {name: layers[layer] for name, layers in blocks.items()} | shared
            alter = (change[layer], tokens.view(-1, *tokens.shape[-2:])) if change else None
            x = _block(x, w, config, shape, None if noise is None else onwards(noise, 1 + drops * layer), see, alter)
        if config.norm.startswith("pre"):
            x = _last_norm(x, self.last_scale, self.last_shift if config.norm == "pre-layer" else None)
        return x.view(shape)

    def _places(self) -> tuple[Tensor, ...]:
        """What is added to the words: nothing, (context, width) or (members, context, width); or of several kinds
        what is fixed, what is learned, and which members have the latter.
        """
        if "places" in self._each:
            learned = (self.position, self.get_buffer("learns_place")) if "position" in self._parameters else ()
            return (self.get_buffer("places"), *learned)
        added = {"learned": "position", "sinusoidal": "sinusoids"}.get(self.kinds[0].positions)
        return () if added is None else (getattr(self, added),)

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
    tokens: Tensor, embedding: Tensor, places: tuple[Tensor, ...], config: DecoderConfig, noise: Tensor | None
) -> Tensor:
    members, vocabulary, width = embedding.shape
    length = tokens.shape[-1]
    tokens = tokens.expand(members, *tokens.shape[-2:])
    first = vocabulary * torch.arange(members, device=tokens.device)
    x = F.embedding(tokens + first[:, None, None], embedding.flatten(0, 1)) * math.sqrt(width)
    if places:
        position = places[0] if len(places) == 1 else torch.where(places[2][:, None, None], places[1], places[0])
        x = x + (position[:length] if position.ndim == 2 else position[:, None, :length])
    return _Dropper(config.dropout, noise)(x)


@compiled_part
def _block(
    x: Tensor, w: dict[str, Tensor], config: DecoderConfig, shape: torch.Size, noise: Tensor | None, see: See,
    alter: Alter = None,
) -> Tensor:  # fmt: skip
    drop = _Dropper(config.dropout, noise)
    before, after = _norms(config.norm, w, "attention")
    y = _attend(before(x), w, config, shape, drop, see, alter)
    x = after(x + y if config.residual else y)
    if config.mlp:
        before, after = _norms(config.norm, w, "mlp")
        hidden = _ACTIVATIONS[config.activation](linear(before(x), w["up"], w["up_bias"]))
        if see is not None:
            see("hidden", hidden.view(*shape[:-1], -1))
        y = linear(drop(hidden), w["down"], w["down_bias"])
        if "mlp_gate" in w:
            y = _gated(y, before(x), w, "mlp_gate")
        y = drop(y)
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
    if "query_scale" in w:
        query = own(w, "qk_norm", _head_normed(query, w["query_scale"]), query)
        key = own(w, "qk_norm", _head_normed(key, w["key_scale"]), key)
    if "value_scale" in w:
        value = own(w, "vo_norm", _head_normed(value, w["value_scale"]), value)
    if "turns" in w:
        turns = w["turns"][:, :, None, None, :length]
        query, key = turned(query, turns), turned(key, turns)
    score: Callable[[Tensor], Tensor] | None = None
    if alter is not None:
        query = alter[0].ask(query)
        score = partial(alter[0].score, query=query, key=key, tokens=alter[1]) if alter[0].scores else None
    kind, sink = (config.attention, w.get("sink")) if "idle" not in w else ("learned-sink", _sink(w, config.heads))
    if "slopes" in w:
        score = _after(partial(penalised, slope=w["slopes"]), score)
    drops = drop.noise is not None and drop.probability > 0
    if see is None and score is None and not drops and x.device.type == "cpu" and kind == "softmax":
        y = attend_on_processor(query, key, value, causal=config.causal)
    else:
        y = attend(query, key, value, kind=kind, causal=config.causal, sink=sink, drop=drop, see=see, score=score)
    if "mixed_scale" in w:
        y = own(w, "vo_norm", _head_normed(y, w["mixed_scale"]), y)
    y = y.transpose(2, 3).reshape(members, batch * length, width)
    if "gate" in w:
        y = _gated(y, x, w, "gate")
    if config.projection:
        y = linear(y, w["projection"], w["projection_bias"])
    return drop(y)


def _gated(y: Tensor, x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    """y times a sigmoid that is linear in x, both (members, positions, width), for the members that have this gate."""
    return own(w, name, y * linear(x, w[name], w[f"{name}_bias"]).sigmoid(), y)


def _sink(w: dict[str, Tensor], heads: int) -> Tensor:
    """The logit of the key of value 0, (members, heads), where members differ in their attention."""
    idle = w["idle"][:, None].expand(-1, heads)
    return torch.where(w["learns_sink"][:, None], w["sink"], idle) if "sink" in w else idle


def _after(first: Callable[[Tensor], Tensor], then: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
    return first if then is None else lambda logits: then(first(logits))


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
