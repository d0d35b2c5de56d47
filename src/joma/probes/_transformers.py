"""Any transformers model, measured while it runs on fast attention.

transformers looks attention functions up by name, and the functions that build masks under the same name. Both are
registered here: a model with the attention function alone would get no mask, and causality would vanish silently.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from joma.host.extras import how_to_install
from joma.measure.attention import attention_stats, attention_with_stats
from joma.probes._masks import is_selection, seen_by, selected, structure
from joma.probes._own import ON_SDPA, TWICE, no_queries, runs_on_sdpa, watching
from joma.probes._products import record_products
from joma.probes._record import Probe, ProbeError, inner, uncompiled
from joma.probes._support import INTERFACE, OWN, no_gradient, unseen, way

NAME = "joma_stats"  # neither "flash", "flex" nor "sdpa" may be part of it: transformers would take it for those
_ACTIVE: list[Probe] = []
"""Found by the module that attends, so models in several threads do not mix; a ContextVar would be empty in the
threads of a model that spreads its own work."""
_SWITCHED: set[tuple[type, ...]] = set()
"""Classes of models and their sub-models that were switched before, by transformers' own way."""


@contextmanager
def collect(
    model: Module, *, keep: bool = True, single_pass: bool = False, sparsity: int | None = None, spread: bool = False,
    gradients: bool = False,
) -> Iterator[Probe]:  # fmt: skip
    """Collect the attention statistics of every forward pass of a transformers model inside the `with` block.

    - model: any of transformers' models; `can_probe` says beforehand whether it is one that can be probed
    - keep: whether every call is kept; False keeps the running means alone, so that memory does not grow
    - single_pass: statistics come out of the pass that computes the output (faster; logits then agree within rounding)
    - sparsity: also measures `AttentionSparsity`, with this number of `top_keys`: four more passes over logits
    - spread: also measures `joma.measure.spread`, for `mean_spread`; not of models that compute attention by themselves
    - gradients: leaves the graph in `stats`, so that a mean entropy can be differentiated by the model's parameters;
      models that compute attention by themselves have none

    The model runs on scaled_dot_product_attention whatever it was loaded with, so logits are those of "sdpa"; its own
    setting comes back afterwards. Soft-capped logits, learned sinks and documents given as cu_seq_lens_q, which sdpa
    cannot do, always take the single pass. Dropout in training mode acts on the output as usual, and not on the
    statistics; together with one of those three it is refused.

    Packed text (position_ids that restart, or cu_seq_lens_q) gives the statistics of every document alone. Entropy
    leaves learned sinks out, as transformers' own attention weights do. What torch.compile has compiled runs uncompiled
    inside the block. Models that compute attention by themselves (GPT-Neo, GPT-J, BLOOM, Falcon, MPT, CodeGen, XLNet,
    DeBERTa, MPNet, RoFormer, Longformer and others) run unchanged: the logits of one layer at a time are reduced as
    they appear. Falcon runs on sdpa, unless it has ALiBi and was loaded with eager attention: a warning says that it is
    another model there. What remains is refused by name with a `ProbeError`.

    >>> from transformers import GPT2Config, GPT2Model
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> model = GPT2Model(shape)
    >>> with collect(model) as probe:
    ...     _ = model(torch.arange(8)[None])
    >>> probe.mean_entropy().shape  # (layers, heads)
    torch.Size([2, 4])
    >>> probe.stats["h.0.attn"][0].lse.shape  # of the first call: (batch, heads, queries)
    torch.Size([1, 4, 8])
    """
    model = inner(model)
    probe = Probe(model, keep=keep, sparsity=sparsity, spread=spread, gradients=gradients)
    probe.single_pass = single_pass
    models = _pretrained(probe)
    configs = configs_of(models)
    before = [config._attn_implementation_internal for config in configs]
    try:
        own = _own_way(models)
        if own and gradients:
            raise ProbeError(no_gradient(type(model).__name__))
        on_sdpa = own is not None and all(runs_on_sdpa(config) for config in configs)
        if own and spread and not on_sdpa:
            raise ProbeError(no_queries(type(model).__name__))
        if own in ON_SDPA and not on_sdpa:
            warnings.warn(TWICE.format(type(model).__name__), stacklevel=3)
        for config in configs if on_sdpa else ():
            config._attn_implementation_internal = "sdpa"
        if not own:
            _switch(models, configs)
            _ACTIVE.append(probe)
        with probe.watch(model), uncompiled(), watching(model, own, probe) if own else nullcontext():
            yield probe
    finally:
        if probe in _ACTIVE:
            _ACTIVE.remove(probe)
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation


def _pretrained(probe: Probe) -> list[Any]:
    try:
        from transformers import PreTrainedModel
    except ImportError:
        raise ProbeError(f"transformers is not installed: {how_to_install('hf')}") from None
    found = [module for module in probe.names if isinstance(module, PreTrainedModel)]
    if not found:
        raise ProbeError(f"{probe.model_name} is not a transformers model: use joma.probes.collect_plain")
    return found


def configs_of(models: list[Any]) -> list[Any]:
    """Every config that says which attention is used, sub-models' included, each once."""
    queue = [module.config for module in models]
    found: dict[int, Any] = {}
    while queue:
        config = queue.pop()
        if config is not None and id(config) not in found:
            found[id(config)] = config
            queue += [getattr(config, key, None) for key in config.sub_configs]
    return list(found.values())


def _own_way(models: list[Any]) -> str | None:
    """The model type, if all of `models` compute attention by themselves in a way that is known; refuse what is not."""
    ways = {way(each) for each in models}
    if ways == {INTERFACE}:
        return None
    kinds = {each.config.model_type for each in models}
    if ways != {OWN} or len(kinds) > 1:
        strange = next(each for each in models if way(each) != INTERFACE)
        raise ProbeError(unseen(type(strange).__name__))
    return str(kinds.pop())


def _switch(models: list[Any], configs: list[Any]) -> None:
    """Make every attention of `models` call `_attention`, or refuse."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    kinds = tuple(map(type, models))
    if kinds in _SWITCHED:  # transformers walks through all modules of each model to find out what is known here
        for config in configs:
            config._attn_implementation_internal = NAME
        return
    for each in models:
        refusal = ProbeError(unseen(type(each).__name__))
        try:
            each.set_attn_implementation(NAME)
        except (ValueError, NotImplementedError, AttributeError) as error:
            raise refusal from error
        if each.config._attn_implementation != NAME:
            raise refusal
    if all(config._attn_implementation_internal == NAME for config in configs):
        _SWITCHED.add(kinds)


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask sdpa would get, with a note on how it is made up."""
    from transformers.masking_utils import sdpa_mask

    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask if mask is None else structure(mask, **kwargs)


def _attention(
    module: Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """What every attention layer calls in place of sdpa. query (batch, heads, queries, width)."""
    probes = [probe for probe in _ACTIVE if module in probe.names]  # usually one
    if not probes:
        raise ProbeError(f"{type(module).__name__} is set to {NAME!r} but no probe is attached to its model")
    name, model = probes[0].names[module], probes[0].model_name
    for unknown in ("block_indices", "score_mod", "block_mask", "cache"):
        if kwargs.get(unknown) is not None:
            raise ProbeError(f"{model}: {name} passes {unknown!r} to its attention: it cannot be measured")
    if (indices := kwargs.pop("indices", None)) is not None:
        if attention_mask is None or not is_selection(indices, query, attention_mask):
            what = "passes 'indices' to its attention that select no keys"
            raise ProbeError(f"{model}: {name} {what}: it cannot be measured")
        attention_mask = selected(indices, attention_mask)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    seen = seen_by(name, query, key, attention_mask, bool(causal), kwargs.get("position_bias"))
    softcap, sinks, documents = kwargs.get("softcap"), kwargs.get("s_aux"), kwargs.get("cu_seq_lens_q")
    options = {**seen.options, "softcap": softcap, "sinks": sinks if sinks is None else sinks.flatten()}
    beyond_sdpa = softcap is not None or sinks is not None
    if documents is not None and options.get("cu_seqlens") is None:  # flash attention reads these, and sdpa does not
        if len(query) > 1 or query.shape[2] != key.shape[2]:
            raise ProbeError(f"{model}: {name} is given cu_seq_lens_q, which needs one row and no cache")
        options["cu_seqlens"], beyond_sdpa = documents, True
    if beyond_sdpa and dropout > 0:
        what = "soft caps, sinks or cu_seq_lens_q"
        raise ProbeError(f"{model}: {name} uses dropout with {what}: call model.eval() before measuring")
    listening = [probe for probe in probes if probe.running]
    tracked = any(probe.gradients for probe in listening)
    cut = seen.keys < key.shape[2]
    k, v = (key[:, :, : seen.keys], value[:, :, : seen.keys]) if cut else (key, value)
    if beyond_sdpa or (dropout == 0 and any(probe.single_pass for probe in probes)):
        output, stats = attention_with_stats(query, k, v, scale=scaling, **options)
        result = output.transpose(1, 2).contiguous()
    else:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        kwargs |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        result, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        if listening:
            with nullcontext() if tracked else torch.no_grad():
                stats = attention_stats(query, k, scale=scaling, **options)
    options["scale"] = scaling
    for probe in listening:
        record_products(probe, probe.names[module], query, k, stats, seen.real, options)
    return result, None
