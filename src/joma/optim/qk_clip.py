"""QK-clip: after a step of the optimizer, the queries and keys of heads whose logits are too large are scaled down.

The rule is that of MuonClip (Kimi K2, arXiv 2507.20534, Algorithm 1), for any optimizer. Of every head h and of the
passes since the last step, S_h is the largest scaled product of a query and a key. Where it is above the threshold t,

    g_h = t / S_h,     W_q,h <- sqrt(g_h) W_q,h,     W_k,h <- sqrt(g_h) W_k,h

and biases alike, so that on the same batch the head's largest logit would have been t. Other heads stay as they are,
bit for bit. Where that and the equal split do not go together, the query takes what the key cannot:

- a key that several heads read (grouped queries, the rotary key of MLA) stays, and the query takes all of g_h
- of MLA, the rotary part of a query takes g_h, its other part and that of the key the square root of it
- under QK-norm, weights before the norm have no effect, so that its gain is scaled. A gain for every place of all heads
  (OLMo 2) is scaled head by head. One that all heads share (Qwen 3, Gemma 3) is scaled by the smallest g_h of the layer
  for all of them: its other heads then shrink too
"""

from collections.abc import Mapping
from functools import partial
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.host.arguments import integer, shown
from joma.host.errors import BadInput, as_bad_input
from joma.measure._largest import again, largest_products
from joma.models.decoder import Decoder
from joma.optim._heads import Piece, pieces_of, pieces_of_decoder, refusal
from joma.probes import Probe, ProbeError, can_probe, collect, collect_plain
from joma.probes._compiled import CompiledAttention, problem_of
from joma.probes._inside import InPass
from joma.probes._parallel import Team, is_compiled, is_split, must_be_supported, reshard, unwrapped
from joma.probes._support import INTERFACE, way
from joma.probes._untouched import untouched
from joma.probes.adapters import Adapters, checked_adapters

_FIRST, _SECOND = ("exp_avg", "momentum_buffer"), ("exp_avg_sq", "max_exp_avg_sq")
_MASKS = ("causal", "scale", "window", "key_padding", "cu_seqlens", "bias")


class QKClip:
    """Scales queries and keys of heads whose largest logit is above a threshold: `step()` after the optimizer's.

    What is compared is the largest scaled product of a query and a key that it sees, before soft caps and biases, as in
    the source: a soft cap hides how far the products grow. Processes that train together share the largest of all.

    - model: any model of transformers that `joma.probes` can read, a torch module that calls
      scaled_dot_product_attention or nn.MultiheadAttention, or a `joma.models.Decoder`
    - threshold: the largest logit that is let be. Kimi K2 has 100
    - probe: the batch that is read for it, as the model is called with it: a tensor, a tuple of tensors, or a mapping
      from names of arguments. None: the passes of training themselves are looked at, all of them since the last step
    - every: steps from one look to the next
    - attention: how modules attend that joma does not see, as in `joma.probes.collect_plain`
    - moments: the optimizer whose moments follow their weights: the first times the factor of its weight, the second
      times its square. None leaves them, as the source does: with Adam both cancel in the update, so that it matters
      only until gradients of the new weights outweigh the old ones. Momentum of SGD does not cancel: left as it is, it
      goes on with steps that are as large as before the weights shrank
    - group: the processes whose largest logits are put together; None: all of them

    What cannot be clipped is refused in one sentence, at the latest by the first `step`. Layers whose weights are all
    frozen are left out. Modules of your own are known by the names of their layers: q_proj and k_proj, query and key
    and the like, or one fused layer (c_attn, qkv, Wqkv) with all queries, then all keys, then all values.

    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> clip = QKClip(layer, threshold=0.5)
    >>> x = 9 * torch.ones(1, 4, 8)
    >>> _ = layer(x, x, x)  # ... loss.backward(), optimizer.step()
    >>> clip.step()
    >>> before = clip.largest["MultiheadAttention"]
    >>> _ = layer(x, x, x)
    >>> clip.step()
    >>> after = clip.largest["MultiheadAttention"]
    >>> torch.allclose(after, before.clamp(max=0.5))
    True
    """

    def __init__(
        self, model: nn.Module, threshold: float = 100.0, *, probe: Any = None, every: int = 1,
        attention: Adapters | None = None, moments: torch.optim.Optimizer | None = None, group: Any = None,
    ) -> None:  # fmt: skip
        """The parameters are those of the class; the model is looked at from its next pass on."""
        if not isinstance(model, nn.Module):
            raise BadInput(f"model must be a torch module, got {shown(model)}", argument="model")
        number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
        if not number or not isfinite(threshold) or threshold <= 0:
            raise BadInput(f"threshold must be a number above 0, got {shown(threshold)}", argument="threshold")
        if moments is not None and not isinstance(moments, torch.optim.Optimizer):
            raise BadInput(f"moments must be an optimizer or None, got {shown(moments)}", argument="moments")
        with as_bad_input():
            self._every = integer(every, "every", 1)
        must_be_supported(model)
        self.model, self.threshold = unwrapped(model), float(threshold)
        self.steps = 0
        """Steps of the optimizer so far."""
        self._tables: dict[str, dict[str, Tensor]] = {name: {} for name in _TABLES}  # as they were loaded
        self._flat: dict[str, Tensor] = {}  # after a step of all layers in a row
        self._batch = None if probe is None else _batch(probe)
        self._adapters, self._moments, self._group = checked_adapters(attention), moments, group
        self._must_be_known()
        self._found: dict[str, Tensor] = {}  # after the first step parts of one tensor, `_all`
        self._all: Tensor | None = None
        self._any = False  # whether anything was seen since the last step
        self._widths: dict[str, int] = {}
        self._launches: dict[str, tuple[Any, Any]] = {}  # of every layer how a call was, and how to take one like it
        self._plan: _Plan | None = None
        self._watching: CompiledAttention | InPass | None = None
        self._operation: CompiledAttention | None = None
        self._seen: tuple[str, ...] = ()
        if self._batch is None and not isinstance(self.model, Decoder):
            self._watch(is_compiled(model))

    @property
    def largest(self) -> dict[str, Tensor]:
        """Of every layer that attended, what was seen last, (heads,)."""
        return self._table("largest")

    @property
    def clips(self) -> dict[str, Tensor]:
        """How often each head was scaled down, (heads,)."""
        return self._table("clips")

    def _table(self, name: str) -> dict[str, Tensor]:
        if self._plan is None or name not in self._flat:
            return self._tables[name]
        parts = self._flat[name].split([*self._plan.heads.values()])
        return self._tables[name] | dict(zip(self._plan.heads, parts, strict=True))

    def __repr__(self) -> str:
        return f"QKClip({type(self.model).__name__}, threshold={self.threshold:g}, step {self.steps})"

    @torch.no_grad()
    def step(self, largest: Mapping[str, Tensor] | Tensor | None = None) -> None:
        """Scale what is above the threshold: call it after the optimizer's step.

        largest: the largest logits where somebody else has them: (heads,) of each layer by its name, or of a Decoder
        (members, layers, heads). None: those of the passes since the last step, or of the probe batch
        """
        self.steps += 1
        due = self.steps % self._every == 0
        if largest is not None:
            self._take_all(largest if isinstance(largest, Mapping) else {_DECODER: largest.flatten()})
        elif due:
            self._look()
        if self._any:
            self._clip()
        self._arm()

    def _clip(self) -> None:
        """Scale by what was found, and begin to look anew."""
        if self._plan is None or self._plan.here != {name: len(each) for name, each in self._found.items()}:
            self._keep_tables()
            self._plan, self._all = self._planned(self._found), None
        if self._all is None:
            parts = [*self._found.values()]
            self._all = torch.cat([each.to(parts[0]) for each in parts])
            self._found = dict(zip(self._found, self._all.split([len(each) for each in parts]), strict=True))
        before = self._flat["clips"] if self._flat else self._tables["clips"]
        self._flat = dict(zip(_TABLES, self._plan.apply(self._all, self.threshold, before), strict=True))
        self._all.fill_(-torch.inf)
        self._any = False

    def _keep_tables(self) -> None:
        """Layer by layer: what is in a row belongs to a plan."""
        self._tables, self._flat = {name: self._table(name) for name in _TABLES}, {}

    def _take_all(self, found: Mapping[str, Tensor]) -> None:
        """Take what somebody else has found, in place of what passes showed."""
        self._found, self._all, self._any = dict(found), None, True

    def remove(self) -> None:
        """Take everything off the model."""
        if isinstance(self._watching, InPass):
            self._watching.remove()
        if self._operation is not None:
            self._operation.uninstall()
        self._watching = self._operation = None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the number of steps, the largest logits seen last, and how often heads were scaled.

        The threshold is not among it: it is what the new one is made with.
        """
        tables = {name: {at: each.cpu().clone() for at, each in getattr(self, name).items()} for name in _TABLES}
        return {"steps": self.steps, **tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was."""
        if missing := [name for name in ("steps", *_TABLES) if name not in state]:
            raise BadInput(f"state must be what state_dict of a QKClip gives: it has no {missing[0]}", argument="state")
        self.steps = int(state["steps"])
        self._tables = {table: {name: each.clone() for name, each in state[table].items()} for table in _TABLES}
        self._flat = {}
        self._arm()

    def _must_be_known(self) -> None:
        """Refuse models of transformers without softmax, or with logits that no factor scales."""
        if isinstance(self.model, Decoder) and self.model.config.attention == "sigmoid":
            raise BadInput("model cannot be clipped: Decoder has sigmoid attention, and no softmax", argument="model")
        if isinstance(self.model, Decoder) and len(self.model.kinds) > 1:
            raise refusal("Decoder", "has members of several kinds, and only one kind can be scaled")
        self._of_library = [each for each in self.model.modules() if hasattr(each, "_can_set_attn_implementation")]
        for each in self._of_library[: 0 if self._adapters else 1]:
            config: Any = each.config
            if config.model_type == "bloom":
                raise refusal(type(each).__name__, "adds a bias that grows with the position to its logits")
            if not getattr(config, "is_encoder_decoder", False) and (why := can_probe(config)):
                raise BadInput(f"model cannot be clipped: {why}", argument="model")

    def _watch(self, compiled: bool) -> None:
        """Look at passes of training: by an operation in the attention of transformers, else by hooks."""
        models = () if self._adapters else self._of_library
        try:
            if models and all(way(each) == INTERFACE for each in models):
                self._operation = CompiledAttention(self.model, compiled=compiled)
                self._operation.install()
            elif compiled:
                raise ProbeError(f"{type(self.model).__name__} is compiled and runs no hooks")
        except ProbeError as error:
            raise BadInput(f"{error}; or give QKClip a batch as probe", argument="probe") from error
        self._arm()

    def _arm(self) -> None:
        """Look at the passes that come, if the next step is one at which logits are looked at."""
        due = self._batch is None and not isinstance(self.model, Decoder) and (self.steps + 1) % self._every == 0
        if self._operation is not None:
            if due and self._watching is None:
                probe = Probe(self.model, keep=False)
                probe.products, probe.again = self._take, self._take_again
                self._operation.arm(probe, None)
                self._watching = self._operation
            elif not due and self._watching is not None:
                self._operation.disarm()
                self._watching = None
        elif due and (self._watching is None or self._seen == ()):
            if isinstance(self._watching, InPass):
                self._watching.remove()
            self._seen = tuple(self._widths)
            layers = self._seen or None
            self._watching = InPass(self.model, layers=layers, attention=self._adapters, every_pass=True)
            self._watching.probe.products = self._take
        elif not due and isinstance(self._watching, InPass):
            self._watching.remove()
            self._watching = None

    def _take(self, name: str, q: Tensor, k: Tensor, real: Tensor | None, options: dict[str, Any]) -> None:
        """Keep the largest of what a layer was seen to do."""
        masks = {key: value for key, value in options.items() if key in _MASKS}
        before = self._found.get(name)
        if before is not None and before.device != q.device:  # the copies of a layer in DataParallel
            before.copy_(torch.maximum(before, largest_products(q, k, real=real, **masks).to(before)))
        else:
            self._found[name] = largest_products(q, k, real=real, into=before, **masks)
        self._widths[name], self._any = q.shape[-1], True

    def _take_again(
        self, name: str, q: Tensor, k: Tensor, mask: Tensor | None, scale: float | None, causal: bool
    ) -> bool:
        """Keep the largest of a call like the one before it, with few steps on the host. False: it is not like it."""
        into = self._found.get(name)
        if into is None or into.device != q.device:
            return False
        masked = None if mask is None else (mask.dtype, mask.shape, mask.stride())
        call = q.dtype, q.shape, q.stride(), k.dtype, k.shape, k.stride(), masked, scale, causal
        before, launch = self._launches.get(name, (None, None))
        if before != call:
            *_, real, options = problem_of(q, k, mask, scale, causal)
            launch = again(q, k, mask, real, options)
            self._launches[name] = call, launch
        if launch is None:
            return False
        launch(q, k, mask, into)
        self._any = True
        return True

    def _look(self) -> None:
        """What the armed passes showed, or what a pass over the probe batch shows now."""
        if self._batch is not None:
            self._read_batch()
        elif isinstance(self.model, Decoder):
            raise BadInput("probe must be token ids, or step be given the largest logits: a Decoder has no hooks")
        elif self._watching is not None and self._watching.error is not None:
            why = self._watching.error
            raise BadInput(f"QKClip could not read the attention of {type(self.model).__name__}: {why}") from why
        elif not self._any and not self.largest:
            raise BadInput(
                f"QKClip saw no attention in the training pass of {type(self.model).__name__}: looked for were torch's "
                "scaled_dot_product_attention, nn.MultiheadAttention and the classes in attention, in training mode; "
                "or give it a batch as probe",
                argument="model",
            )

    def _read_batch(self) -> None:
        """One pass over the probe batch, in evaluation mode, which leaves no trace."""
        args, kwargs = self._batch or ((), {})
        if isinstance(self.model, Decoder):
            self._take_all({_DECODER: _of_decoder(self.model, args[0])})
            return
        plain = bool(self._adapters) or not self._of_library
        how: Any = partial(collect_plain, attention=self._adapters) if plain else collect
        try:
            with untouched(self.model), how(self.model, keep=False) as probe:
                probe.products = self._take
                self.model(*args, **kwargs)
            if not self._any:  # a model that shows logits alone, and no queries and keys
                self._take_all(probe.by_layer("largest_logit"))
        except ProbeError as error:
            raise BadInput(f"model cannot be clipped: {error}", argument="model") from error
        finally:
            reshard(self.model)

    def _planned(self, found: dict[str, Tensor]) -> "_Plan":
        if isinstance(self.model, Decoder):
            return _Plan({_DECODER: (pieces_of_decoder(self.model), len(found[_DECODER]), 0)}, found, self)
        modules = {name: module for module, name in Probe(self.model, keep=False).names.items()}
        team, layers = Team(self.model), {}
        for name, each in found.items():
            if name not in modules:
                raise BadInput(f"largest names {name}, and the model has no such module", argument="largest")
            width = self._widths.get(name) or _width(modules[name], len(each))
            pieces, heads = pieces_of(name, modules[name], len(each), width)
            parameters = [getattr(piece.owner, piece.attribute) for piece in pieces]
            frozen = [not parameter.requires_grad for parameter in parameters]
            if any(frozen) and not all(frozen):
                raise refusal(name, "has frozen weights among those of its queries and keys: freeze all or none")
            layers[name] = [] if all(frozen) else pieces, heads, team.part(name) if heads > len(each) else 0
        return _Plan(layers, found, self)


_TABLES = ("largest", "clips")
_DECODER = "attention"
"""The name of all heads of a Decoder, which has one tensor for all layers and members."""


class _Plan:
    """What is multiplied at every step, found once: then nothing waits for the host."""

    def __init__(
        self, layers: dict[str, tuple[list[Piece], int, int]], found: Mapping[str, Tensor], clip: QKClip
    ) -> None:
        """Take in the layers.

        - layers: of each its parameters, its heads on all processes, and which part of them is here
        - found: the largest logits of heads that are here
        - clip: whose plan it is
        """
        self.here = {name: len(each) for name, each in found.items()}
        self.heads = {name: heads for name, (_, heads, _) in layers.items()}
        self._moments, self._group = clip._moments, clip._group
        total, first, places, slots = sum(self.heads.values()), 0, [], []
        self.pieces: list[Piece] = []
        for at, (name, (pieces, heads, part)) in enumerate(layers.items()):
            here = self.here[name]
            places.append(first + part * here + torch.arange(here))
            whole = 1 + first + torch.arange(heads)
            table = torch.cat(
                [torch.zeros(1, dtype=torch.long), whole, total + whole, torch.tensor([1 + 2 * total + at])]
            )
            for piece in pieces:
                parameter = getattr(piece.owner, piece.attribute)
                if any(parameter is getattr(each.owner, each.attribute) for each in self.pieces):
                    raise refusal(name, "shares weights of queries or keys with another module")
                local = _local(piece.slots, parameter, name)
                self.pieces.append(piece._replace(slots=local))
                slots.append(table[local].flatten())
            first += heads
        self._places = torch.cat(places)
        self._everywhere = len(self._places) == total
        self._slots = torch.cat(slots) if slots else torch.zeros(0, dtype=torch.long)
        self._layer = torch.arange(len(self.heads)).repeat_interleave(torch.tensor([*self.heads.values()]))
        self._shares = bool((self._slots > 2 * total).any())  # gains that all heads share
        self._factors: list[Tensor] = []
        self._row: Tensor | None = None  # in which those lie

    def apply(self, found: Tensor, threshold: float, clips: dict[str, Tensor] | Tensor) -> tuple[Tensor, Tensor]:
        """Scale by the largest logits of the heads here, and give those of all processes, and the counts of clips.

        Both are (heads of all layers,), in a row.
        """
        flat = self._of_all_processes(found)
        above = (flat > threshold) & (flat < torch.inf)
        if not isinstance(clips, Tensor):
            before = [clips.get(name, torch.zeros(heads, dtype=torch.long)) for name, heads in self.heads.items()]
            clips = torch.cat([each.to(flat.device) for each in before])
        if flat.device.type != "cpu" or bool(above.any()):  # to ask a GPU would make it wait
            self._scale(torch.where(above, threshold / flat, 1.0))
        return flat, clips + above

    def _of_all_processes(self, found: Tensor) -> Tensor:
        """(heads of all layers,), float64 where the device has it."""
        flat = found.to(torch.float32 if found.device.type == "mps" else torch.float64, copy=True)
        if not self._everywhere:
            whole = flat.new_full((sum(self.heads.values()),), -torch.inf)
            flat = whole.index_copy(0, self._places.to(flat.device), flat)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(flat, dist.ReduceOp.MAX, group=self._group)
        return flat

    def _scale(self, factor: Tensor) -> None:
        if not self.pieces:
            return
        parameters: list[Any] = [getattr(piece.owner, piece.attribute) for piece in self.pieces]
        here = [each.to_local() if is_split(each) else each for each in parameters]
        by = self._factor_of_each(factor, here)
        torch._foreach_mul_(here, by)
        for piece, parameter, mine, one in zip(self.pieces, parameters, here, by, strict=True):
            if piece.offset:
                mine.add_(piece.offset * (one - 1))
            if self._moments is not None and parameter.requires_grad:
                _follow(self._moments, parameter, one, piece.attribute)

    def _factor_of_each(self, factor: Tensor, here: list[Tensor]) -> list[Tensor]:
        """What each parameter is multiplied by. They lie in a row of memory that stays, as few kernels fill it."""
        parts = [factor, factor.sqrt()]
        if self._shares:
            smallest = factor.new_ones(len(self.heads))
            parts.append(smallest.scatter_reduce(0, self._layer.to(factor.device), factor, "amin").sqrt())
        table = torch.cat([factor.new_ones(1), *parts])
        if all(each.dtype != torch.float64 for each in here):
            table = table.float()
        if self._row is None or (self._row.dtype, self._row.device) != (table.dtype, table.device):
            self._slots = self._slots.to(factor.device)
            self._row = table.new_empty(len(self._slots))
            parts = self._row.split([piece.slots.numel() for piece in self.pieces])
            self._factors = [each.view(piece.slots.shape) for each, piece in zip(parts, self.pieces, strict=True)]
        torch.index_select(table, 0, self._slots, out=self._row)
        if all(each.device == table.device for each in here):
            return self._factors
        return [each.to(w.device) for each, w in zip(self._factors, here, strict=True)]


def _follow(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, by: Tensor, name: str) -> None:
    """Scale the moments of a parameter as itself."""
    state = optimizer.state.get(parameter, {})
    known = {**dict.fromkeys(_FIRST, 1), **dict.fromkeys(_SECOND, 2)}
    held = {key: each for key, each in state.items() if isinstance(each, Tensor) and each.ndim > 0}
    each: Any
    for key, each in held.items():
        if key not in known or each.shape != parameter.shape or not each.is_floating_point():
            wanted = f"an optimizer that holds {', '.join(known)} in the shape of its parameters"
            raise BadInput(
                f"moments must be {wanted}: {type(optimizer).__name__} has {key} of a {name}", argument="moments"
            )
        here = each.to_local() if is_split(each) else each
        here.mul_(by if known[key] == 1 else by.square())


def _local(slots: Tensor, parameter: Any, name: str) -> Tensor:
    """Slots of the part of a parameter that this process has."""
    if not is_split(parameter):
        return slots
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    here = parameter.to_local().shape
    shape, start = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if tuple(shape) != tuple(here):
        raise refusal(name, f"has a parameter split as {parameter.placements}, which cannot be followed")
    for dim in range(slots.ndim):
        if slots.shape[dim] > 1:
            slots = slots.narrow(dim, min(start[dim], slots.shape[dim]), here[dim])
    return slots


def _width(module: nn.Module, heads: int) -> int:
    """Of a head, where no pass has shown it."""
    for name in ("head_dim", "attention_head_size", "head_size", "qk_head_dim"):
        if isinstance(found := getattr(module, name, None), int):
            return int(found)
    raise BadInput(f"largest alone does not say how wide the {heads} heads of {type(module).__name__} are: give probe")


def _batch(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, Tensor):
        return (given,), {}
    if isinstance(given, tuple | list) and given and all(isinstance(each, Tensor) for each in given):
        return tuple(given), {}
    wanted = "a tensor, a tuple of tensors, or a mapping from argument names to tensors"
    raise BadInput(f"probe must be {wanted}, got {shown(given)}", argument="probe")


def _of_decoder(decoder: Decoder, tokens: Tensor) -> Tensor:
    """(members x layers x heads,)."""
    query: list[Tensor] = []
    found: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "query":
            query.append(value.transpose(0, 1).flatten(1, 2))
        elif name == "key":
            key = value.transpose(0, 1).flatten(1, 2)
            found.append(largest_products(query.pop(), key, causal=decoder.config.causal))

    decoder.features(tokens, look=look)
    # of each layer (members x heads,)
    by_member: Tensor = torch.stack(found).unflatten(1, (decoder.members, -1)).transpose(0, 1)
    return by_member.flatten()
