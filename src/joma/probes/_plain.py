"""Plain PyTorch modules: whatever calls scaled_dot_product_attention or nn.MultiheadAttention."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from joma.probes._masks import as_bias
from joma.probes._products import measure_products
from joma.probes._record import Probe, ProbeError, inner, uncompiled
from joma.probes.adapters import Adapters, adapted, checked_adapters

_MULTIHEAD = signature(F.multi_head_attention_forward)


@contextmanager
def collect_plain(
    model: nn.Module, *, keep: bool = True, sparsity: int | None = None, spread: bool = False,
    attention: Adapters | None = None,
) -> Iterator[Probe]:  # fmt: skip
    """Collect the statistics of every attention that `model` computes inside the `with` block, by calling module.

    Seen are torch.nn.functional.scaled_dot_product_attention and nn.MultiheadAttention (with what is built on it:
    nn.Transformer and its layers). PyTorch's fused inference path for the latter is off inside the block, since
    nothing can look into it; outputs agree within rounding. A forward pass without any attention call is refused with
    a `ProbeError` that names the model.

    attention: how modules attend that do so in another way (by hand, by FlexAttention): from their class to a function
    that is called with a module and its inputs, and gives queries (batch, heads, queries, width) and keys (batch,
    kv_heads, keys, width), and where that is not causal attention, a dictionary of options of `attention_stats`.

    The learned key of add_bias_kv and the zero key of add_zero_attn are sinks: no mass of the real keys, but one more
    term of the entropy, as in the weights that nn.MultiheadAttention returns.

    Queries and keys of three dimensions (batch, length, width) count as one head. What torch.compile has compiled runs
    uncompiled inside the block. sparsity, spread: as in `collect`.

    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with collect_plain(layer) as probe:
    ...     _ = layer(torch.zeros(1, 4, 8))
    >>> probe.layers, probe.mean("effective_keys").round(decimals=6).tolist()
    (['self_attn'], [[4.0, 4.0]])
    """
    model = inner(model)
    probe = Probe(model, keep=keep, sparsity=sparsity, spread=spread)
    with (
        probe.watch(model),
        uncompiled(),
        following(probe) as caller,
        adapted(probe, checked_adapters(attention)),
        Watching(probe, caller),
    ):
        yield probe


@contextmanager
def following(probe: Probe, into: list[nn.Module] | None = None) -> Iterator[list[nn.Module]]:
    """The modules of the probe's model that are at work, the innermost last; they are listed in `into`, if given."""
    caller: list[nn.Module] = [] if into is None else into

    def enter(module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            caller.append(module)

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            caller.pop()

    with ExitStack() as hooks:
        for module in probe.names:
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        yield caller


class Watching(TorchFunctionMode):
    """Sees the calls of torch functions made while it is active, and lets them through unchanged."""

    padding_on_diagonal = False
    """Whether a query that does not see its own key is padding, as in the masks of transformers."""

    def __init__(self, probe: Probe, caller: list[nn.Module]) -> None:
        super().__init__()
        self.probe, self.caller = probe, caller

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if self.caller and self.probe.running and not self.probe.adapted:
            self.see(func, self.probe.names[self.caller[-1]], args, options)
        return func(*args, **options)

    def see(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Measure one call of `func` by the module `name`, if it attends."""
        if func is F.scaled_dot_product_attention:
            _dot_product(self.probe, name, self.real, self.padding_on_diagonal, *args, **options)
        elif func is F.multi_head_attention_forward:
            _multihead(self.probe, name, _MULTIHEAD.bind(*args, **options))

    def real(self, queries: int) -> Tensor | None:
        """(batch, queries): which queries are no padding, where that is known."""
        return None


def _dot_product(
    probe: Probe, name: str, known: Callable[[int], Tensor | None], padding_on_diagonal: bool, query: Tensor,
    key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> None:  # fmt: skip
    """One call of scaled_dot_product_attention, with its own defaults; value, dropout and gqa change no statistic."""
    q, k = _four(query), _four(key)
    queries, keys = q.shape[2], k.shape[2]
    options: dict[str, Any] = {"causal": False, "scale": scale}
    real = known(queries)
    if is_causal and queries > keys:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril()
        options["bias"] = as_bias(seen)
    elif is_causal:  # aligned to the first key here, to the last in `attention_stats`
        options["causal"], k = True, k[:, :, :queries]
    elif attn_mask is not None:
        # The mask broadcasts. Dimensions that are folded into the batch must be there in full; heads need not.
        mask, folded = attn_mask[(None,) * (query.ndim - attn_mask.ndim)], query.ndim - 3
        mask = _four(mask.expand(*query.shape[:folded], *mask.shape[folded:]))
        options["bias"] = as_bias(mask)
        if real is None and mask.dtype == torch.bool and mask.shape[1:3] == (1, 1) and queries == keys:
            real = mask[:, 0, 0]  # one row for all queries: padded keys, whose queries are padded too
        elif real is None and padding_on_diagonal and mask.dtype == torch.bool and queries == keys:
            real = mask[:, 0].diagonal(dim1=1, dim2=2)
    measure_products(probe, name, q, k, real, options)


def _four(tensor: Tensor) -> Tensor:
    """(batch, heads, length, width) of whatever leading dimensions there are."""
    return tensor[:, None] if tensor.ndim == 3 else tensor.flatten(0, -4)


def _multihead(probe: Probe, name: str, bound: Any) -> None:
    """One call of nn.MultiheadAttention: project queries and keys as it does, and measure them."""
    bound.apply_defaults()
    call: dict[str, Any] = bound.arguments
    for strange in ("static_k", "bias_k") if call["add_zero_attn"] else ("static_k",):
        if call[strange] is not None:
            also = " with add_zero_attn" if strange == "bias_k" else ""
            raise ProbeError(f"{probe.model_name}: {name} uses {strange}{also}: it cannot be measured")
    query, key, heads = call["query"], call["key"], call["num_heads"]
    if call["use_separate_proj_weight"]:
        weights = call["q_proj_weight"], call["k_proj_weight"]
    else:
        weights = call["in_proj_weight"].chunk(3)[:2]
    biases = (None, None) if call["in_proj_bias"] is None else call["in_proj_bias"].chunk(3)[:2]
    rows = [F.linear(*parts) for parts in zip((query, key), weights, biases, strict=True)]
    rows = [x if x.ndim == 3 else x[:, None] for x in rows]  # (length, batch, width)
    q, k = (x.reshape(*x.shape[:2], heads, -1).permute(1, 2, 0, 3) for x in rows)
    options: dict[str, Any] = {"causal": False, "bias": None, "sink_in_entropy": True}
    real = None
    if call["add_zero_attn"]:
        options["sinks"] = 0.0  # a key of zeros
    elif call["bias_k"] is not None:
        options["sink_key"] = call["bias_k"].detach().view(heads, -1)
    if (mask := call["attn_mask"]) is not None:
        bias = as_bias(~mask if mask.dtype == torch.bool else mask)  # True means masked here
        options["bias"] = bias.unflatten(0, (q.shape[0], -1)) if bias.ndim == 3 else bias
    if (padding := call["key_padding_mask"]) is not None:
        added = as_bias(~padding if padding.dtype == torch.bool else padding).view(q.shape[0], k.shape[2])
        shown = added > -torch.inf
        rest = torch.where(shown, added, 0.0)[:, None, None]  # an additive mask may also say "less"
        options["bias"] = rest if options["bias"] is None else options["bias"] + rest
        options["key_padding"] = shown
        real = shown if query is key else None
    measure_products(probe, name, q, k, real, options)
