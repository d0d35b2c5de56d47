"""Attention inside code that torch.compile makes: an operation in the graph that the compiler cannot see into.

Compiled code runs no hooks. But the attention function of transformers is part of what is compiled. Here it is the
usual one, scaled_dot_product_attention, and then an operation that is handed queries and keys and gives nothing back.
The operation stays in the graph for as long as it is installed, and looks only when it is told to. Code that is not
compiled can have it too, where it is cheaper than hooks, and around eager attention as well.
"""

import sys
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor, nn

from joma.probes._masks import as_bias
from joma.probes._products import measure_products
from joma.probes._record import Probe, ProbeError
from joma.probes._transformers import configs_of

NAME = "joma_inside"  # neither "flash", "flex" nor "sdpa" may be part of it: transformers would take it for those
EAGER = "joma_inside_eager"
_ORIGINAL = {NAME: "sdpa", EAGER: "eager"}
"""What the configs said before."""
_NUMBER, _MARK = "_joma_number", "_joma_mark"
_numbers = count()
_INSTALLED: dict[int, list["ref[CompiledAttention]"]] = {}
"""Weak: who drops one without taking it off shall not keep it, and with it a model, for ever."""
_KNOWN: WeakKeyDictionary[nn.Module, tuple[int, Tensor]] = WeakKeyDictionary()
"""Number and mark of modules that had them before: with others the code would be compiled anew."""


def _look(
    q: Tensor, k: Tensor, mark: Tensor, number: int, mask: Tensor | None, scale: float | None, causal: bool
) -> None:
    """Show queries and keys of the module with this number. `mark` is said to change, or the compiler would drop it."""
    for each in _INSTALLED.get(number, ()):
        if (installed := each()) is not None:
            installed.see(number, q, k, mask, scale, causal)


# Not by `torch.library.custom_op`: what that puts around a call takes several times as long as the call.
_LIBRARY = torch.library.Library("joma", "FRAGMENT")
_LIBRARY.define(
    "look(Tensor q, Tensor k, Tensor(a!) mark, int number, Tensor? mask, float? scale, bool causal) -> ()",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
_LIBRARY.impl("look", _look, "CompositeExplicitAutograd")
torch.library.register_fake("joma::look", lambda *_: None)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    options = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **kwargs}
    result = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    number, mark = getattr(module, _NUMBER, None), getattr(module, _MARK, None)
    if module.training and number is not None and mark is not None:  # a pass in evaluation mode is none of training
        own = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(own) and attention_mask is None and query.shape[2] > 1
        if torch.compiler.is_compiling():
            torch.ops.joma.look(query.detach(), key.detach(), mark, number, attention_mask, scaling, causal)
        else:  # a call of the operation takes several times as long as that of the function behind it
            with torch.no_grad():
                _look(query, key, mark, number, attention_mask, scaling, causal)
    return result


def _eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> Any:
    """The function that the file of the model has for it. What is hidden stands in the mask, also under causality."""
    own = sys.modules[type(module).__module__].eager_attention_forward
    if module.training and (number := getattr(module, _NUMBER, None)) is not None:
        with torch.no_grad():
            _look(query, key, query, number, attention_mask, kwargs.get("scaling"), False)
    return own(module, query, key, value, attention_mask, **kwargs)


class CompiledAttention:
    """The operation in every attention of a model of transformers, from `install` to `uninstall`.

    `error` keeps what goes wrong while it looks: nothing here may end a training.
    """

    def __init__(self, model: nn.Module, *, compiled: bool = True) -> None:
        from transformers import PreTrainedModel

        self._model, models = model, [each for each in model.modules() if isinstance(each, PreTrainedModel)]
        self._configs = configs_of(models)
        kinds = {str(_original(config)) for config in self._configs}
        name, known = type(model).__name__, {"sdpa"} if compiled else {"sdpa", "eager"}
        if not kinds <= known:
            how, must = " and ".join(sorted(kinds)), " or ".join(map(repr, sorted(known, reverse=True)))
            raise ProbeError(f"{name} {'is compiled and ' * compiled}attends by {how}: it must be {must}")
        if compiled and any(getattr(each, "is_gradient_checkpointing", False) for each in models):
            raise ProbeError(f"{name} is compiled and checkpoints its activations: measure it with a probe batch")
        self._names: dict[int, str] = {}
        self.probe: Probe | None = None
        self.error: Exception | None = None
        self._only: str | None = None

    def install(self) -> None:
        """Put the operation into the model. What was compiled before is compiled anew."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask, sdpa_mask

        for kind, attention, mask in ((NAME, _attention, sdpa_mask), (EAGER, _eager, eager_mask)):
            AttentionInterface.register(kind, attention)
            AttentionMaskInterface.register(kind, mask)
        for module, name in Probe(self._model, keep=False).names.items():
            if hasattr(module, "config"):
                self._number(module, name)
        for config in self._configs:
            config._attn_implementation_internal = NAME if _original(config) == "sdpa" else EAGER
        self._uninstall = finalize(self, _uninstall, ref(self), self._names, ref(self._model), self._configs)

    def uninstall(self) -> None:
        """Leave the model as it was, but for what others have installed there."""
        self._uninstall()

    def _number(self, module: nn.Module, name: str) -> None:
        at = next((each.device for each in module.parameters()), torch.device("cpu"))
        number, mark = _KNOWN.get(module, (next(_numbers), torch.zeros(1, device=at)))
        _KNOWN[module] = number, mark if mark.device == at else torch.zeros(1, device=at)
        self._names[number] = name
        _INSTALLED.setdefault(number, []).append(ref(self))
        vars(module).update(zip((_NUMBER, _MARK), _KNOWN[module], strict=True))

    def arm(self, probe: Probe, layer: str | None) -> None:
        """Look at the next pass: at one layer, or at all."""
        self.probe, self.error, self._only = probe, None, layer

    def disarm(self) -> None:
        self.probe = None

    def see(self, number: int, q: Tensor, k: Tensor, mask: Tensor | None, scale: float | None, causal: bool) -> None:
        """Measure one call: the first of a layer, or every one where the probe takes queries and keys."""
        probe, name = self.probe, self._names[number]
        if probe is None or self.error is not None or name in probe.queries or self._only not in (None, name):
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # what a CUDA graph records would be replayed without us
        try:
            if probe.again is not None and probe.again(name, q, k, mask, scale, causal):
                probe.calls += 1
                return
            measure_products(probe, name, *problem_of(q, k, mask, scale, causal))
        except Exception as error:
            self.error = error


def _uninstall(gone: Any, names: dict[int, str], model: "ref[nn.Module]", configs: list[Any]) -> None:
    for number in names:
        others = [each for each in _INSTALLED.pop(number, []) if each is not gone]
        if others:
            _INSTALLED[number] = others
    modules = [] if (there := model()) is None else [*there.modules()]
    if any(getattr(each, _NUMBER, None) in _INSTALLED for each in modules):
        return
    for config in configs:
        config._attn_implementation_internal = _original(config)
    for module in modules:
        for attribute in (_NUMBER, _MARK):
            vars(module).pop(attribute, None)


def _original(config: Any) -> Any:
    kind = config._attn_implementation
    return _ORIGINAL.get(kind, kind)


def problem_of(
    q: Tensor, k: Tensor, mask: Tensor | None, scale: float | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Any]]:
    """Queries, keys, which queries are no padding, and options of `attention_stats`."""
    if mask is None:
        k = k[:, :, : q.shape[2]] if causal else k
        return q, k, None, {"causal": causal, "scale": scale}
    is_bool = mask.dtype == torch.bool
    real = mask[:, 0].diagonal(dim1=1, dim2=2) if is_bool and mask.shape[-2] == mask.shape[-1] else None
    seen = mask[..., : k.shape[2]]
    return q, k, real, {"causal": False, "scale": scale, "bias": seen if is_bool else as_bias(seen)}
