"""transformers models that compute attention by themselves: their softmax is watched where it is called.

The logits exist there, scaled, biased and masked, for one layer at a time. They are reduced to statistics on the spot,
and the model goes on with them unchanged. So the numbers are exact and memory is the model's own. Where such a model
can call scaled_dot_product_attention instead (Falcon), queries, keys and mask are had and no matrix is formed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.measure.attention import logit_stats
from joma.probes._plain import Watching, following
from joma.probes._record import Probe, ProbeError
from joma.probes._sparsity import of_logits

ATTENDING = {
    "bloom": "BloomAttention",
    "codegen": "CodeGenAttention",
    "deberta": "DisentangledSelfAttention",
    "deberta-v2": "DisentangledSelfAttention",
    "falcon": "FalconAttention",
    "flaubert": "MultiHeadAttention",
    "gpt_neo": "GPTNeoSelfAttention",
    "gpt_neox_japanese": "GPTNeoXJapaneseAttention",
    "gptj": "GPTJAttention",
    "longformer": "LongformerSelfAttention",
    "luke": "LukeSelfAttention",
    "megatron-bert": "MegatronBertSelfAttention",
    "mpnet": "MPNetSelfAttention",
    "mpt": "MptAttention",
    "openai-gpt": "Attention",
    "rembert": "RemBertSelfAttention",
    "roformer": "RoFormerSelfAttention",
    "tapas": "TapasSelfAttention",
    "xglm": "XGLMAttention",
    "xlm": "MultiHeadAttention",
    "xlnet": "XLNetRelativeAttention",
}
"""By model type, the class whose own softmax is over keys. Every one is tested against output_attentions."""
ON_SDPA = {"falcon"}
"""Those that can run on scaled_dot_product_attention do, where that is the same model: see `runs_on_sdpa`."""
TWICE = (
    "{} has ALiBi and runs eager attention, where transformers 5.22 adds it twice: this was measured, and on sdpa, "
    "where ALiBi is added once, the model gives other numbers"
)
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
_REFUSED = {
    "global_attention_mask": "global tokens attend in a way of their own",
    "entity_ids": "words and entities attend apart",
    "target_mapping": "two streams attend at once",
    "perm_mask": "what a query sees is permuted",
}


def runs_on_sdpa(config: Any) -> bool:
    """Whether a model that computes attention by itself may run on scaled_dot_product_attention while it is measured.

    Falcon with ALiBi may not, if it was loaded with eager attention: it is another model there.
    """
    if config.model_type not in ON_SDPA:
        return False
    return not getattr(config, "alibi", False) or config._attn_implementation == "sdpa"


def no_queries(name: str) -> str:
    """The sentence on a model whose logits are seen, and not what they are products of."""
    return f"{name} models compute attention by themselves, so that joma sees no queries whose mean could be taken"


@contextmanager
def watching(model: nn.Module, model_type: str, probe: Probe) -> Iterator[None]:
    """Record into `probe` what the attention modules of `model` compute inside the block."""
    real: list[Tensor | None] = [None]  # (batch, tokens) of the forward pass under way, False where padded
    names = signature(model.forward)

    def before(module: nn.Module, inputs: Any, options: Any) -> None:
        call = names.bind_partial(*inputs, **options).arguments
        call = {**call, **call.get("kwargs", {})}
        for name, why in _REFUSED.items():
            if call.get(name) is not None:
                raise ProbeError(f"{probe.model_name} was given {name}, and {why}: it cannot be measured")
        mask, padded, ids = (call.get(name) for name in ("attention_mask", "input_mask", "input_ids"))
        if isinstance(mask, Tensor) and mask.ndim == 2:
            real[0] = mask.bool()
        elif isinstance(padded, Tensor):
            real[0] = ~padded.bool()
        else:
            real[0] = torch.ones_like(ids, dtype=torch.bool) if isinstance(ids, Tensor) else None

    with (
        following(probe) as caller,
        model.register_forward_pre_hook(before, with_kwargs=True),  # after `following` has taken the model in
        _Watching(probe, caller, ATTENDING[model_type], real),
    ):
        yield


class _Watching(Watching):
    """Sees softmax inside attention modules, and scaled_dot_product_attention."""

    def __init__(self, probe: Probe, caller: list[nn.Module], attending: str, real: list[Tensor | None]) -> None:
        super().__init__(probe, caller)
        self.attending, self.given = attending, real

    def real(self, queries: int) -> Tensor | None:
        """Of the queries of a call, which are the last tokens, or the first of those that the model pads."""
        tokens = self.given[0]
        if tokens is None or tokens.shape[1] == queries:
            return tokens
        if tokens.shape[1] > queries:
            return tokens[:, -queries:]
        return F.pad(tokens, (0, queries - tokens.shape[1]))

    def see(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        module = self.module()
        if func not in _SOFTMAX or type(module).__name__ != self.attending:
            super().see(func, name, args, options)
            return
        scores, dim = (options.get(key, (*args, None, None)[i]) for i, key in enumerate(("input", "dim")))
        if not isinstance(scores, Tensor) or dim not in (-1, scores.ndim - 1):
            raise ProbeError(
                f"{self.probe.model_name}: {name} applies softmax in an unknown way: it cannot be measured"
            )
        if self.probe.with_spread:
            raise ProbeError(no_queries(self.probe.model_name))
        logits, first, own = scores.detach(), None, None  # the columns of the first key and of the query's own
        if "Longformer" in self.attending:  # (batch, queries, heads, 2 window + 1): column j is key i + j - window
            window: Any = module.one_sided_attn_window_size
            query = torch.arange(scores.shape[1], device=scores.device)
            logits, first, own = logits.transpose(1, 2), window - query, torch.full_like(query, window)
        elif scores.ndim == 3:  # batch and heads in one
            logits = logits.unflatten(0, (-1, int(module.num_heads)))  # type: ignore[arg-type]
        with torch.no_grad():
            stats = logit_stats(logits, first=first, own=own)
            sparsity = None if self.probe.top is None else of_logits(logits, stats, self.probe.top, first)
        self.probe.record(self.probe.names[module], stats, self.real(stats.entropy.shape[2]), sparsity)

    def module(self) -> nn.Module:
        """The module that calls; a softmax that is a module of its own belongs to the one around it."""
        return self.caller[-2] if isinstance(self.caller[-1], nn.Softmax) and len(self.caller) > 1 else self.caller[-1]
