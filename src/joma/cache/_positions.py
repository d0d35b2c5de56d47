"""How rotary positions are counted anew inside a cache.

A rotation by a and then by b is one by a + b, so what a model has rotated can be rotated on with the model's own
functions. Which angles a layer gets is seen, not guessed: some models have one table of them for all layers, others one
for each type of layer (Gemma 3 and 4, OLMo 3, ModernBERT as a decoder). Whether they do what they seem to is tried: a
text of one token repeated has the same hidden state everywhere, so its keys must be each other's rotations, in every
layer.
"""

import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from joma.cache._attention import Rotation, attending, plain_attention
from joma.cache.rules import CacheError

REPEATS = 4  # of the token


@dataclass(frozen=True)
class Angles:
    """A module that gives tables of cosines and sines, as a model called it.

    - make: the module
    - further, named: its arguments after the hidden state and the positions: the type of layer, where there are several
    - made: what it gave
    """

    make: Callable[..., tuple[Tensor, Tensor]]
    further: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    made: tuple[Tensor, ...] = ()

    def tables(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """(1, tokens, width) each, of positions (tokens,), without the factor that YaRN multiplies them by."""
        zero = torch.zeros_like(position[:1])
        factor = self.make(x, zero[None], *self.further, **self.named)[0].flatten()[0]  # cos 0 = 1
        cos, sin = self.make(x, position[None], *self.further, **self.named)
        return cos / factor, sin / factor

    @property
    def depend_on_length(self) -> bool:
        """Then one text rotates by other angles than another, and no rotation leads from one to the other."""
        kind: Any = getattr(self.make, "rope_type", "default")
        if isinstance(kind, dict):
            kind = next((kind[one] for one in (*self.further, *self.named.values()) if one in kind), "default")
        return "dynamic" in kind or kind == "longrope"


@dataclass(frozen=True)
class _Heard:
    """What was heard of one attention while the model read one token repeated.

    - key: (1, key-value heads, REPEATS, width)
    - hidden: what the attention was given, (1, REPEATS, width)
    - angles: those that it was given; None where there are none
    """

    key: Tensor
    hidden: Tensor | None
    angles: Angles | None


def rotations(model: nn.Module) -> dict[nn.Module, Rotation | None]:
    """How every attention of a model rotates queries and keys; None where positions are no rotation.

    Refuses models that may rotate in a way that is not found out, rather than taking them for models without rotations.
    """
    heard, any_angles = _listen(model)
    return {module: _rotation_of(model, module, one, any_angles) for module, one in heard.items()}


def _listen(model: nn.Module) -> tuple[dict[nn.Module, _Heard], bool]:
    heard: dict[nn.Module, _Heard] = {}
    inputs: dict[nn.Module, list[Any]] = {}
    made: list[Angles] = []

    def hear_inputs(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs[module] = [*given, *named.values()]

    def hear_output(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if _are_angles(output):
            further = {name: value for name, value in named.items() if name not in ("x", "position_ids")}
            made.append(Angles(module, given[2:], further, _as_tuple(output)))

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        given = inputs.get(module, [])
        hidden = next((one for one in given if isinstance(one, Tensor) and one.ndim == 3), None)
        heard[module] = _Heard(key, hidden, _angles_of(module, given, made))
        return plain_attention(module, query, key, value, None, scale)

    words = model.get_input_embeddings().weight  # type: ignore[operator]
    with torch.inference_mode(), attending(model, attend), ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(hear_inputs, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(hear_output, with_kwargs=True).remove)
        loudest = words.float().norm(dim=1).argmax()  # a token of padding may have no embedding, and no keys
        model(input_ids=loudest.expand(1, REPEATS), use_cache=False)
    return heard, bool(made)


def _angles_of(module: nn.Module, given: list[Any], made: list[Angles]) -> Angles | None:
    tables = [found for one in given if (found := _as_tuple(one))]
    inside = set(module.modules())
    for same in (lambda a, b: a is b, _equal):  # several types of layers may have the same angles, in short texts
        for one in made:
            if any(len(one.made) == len(got) and all(map(same, one.made, got)) for got in tables):
                return one
    return next((one for one in made if one.make in inside), None)


def _rotation_of(model: nn.Module, module: nn.Module, heard: _Heard, any_angles: bool) -> Rotation | None:
    key, angles = heard.key, heard.angles
    refusal = CacheError(
        f"positions of {type(model).__name__} cannot be counted inside the cache, as the policy sinks does; "
        "the other policies leave positions as they are"
    )
    if not key.any():  # nothing can be seen
        raise refusal
    if _alike(key, key[:, :, :1]):  # this layer knows no positions
        return None
    if not any_angles and heard.hidden is not None and not _alike(heard.hidden, heard.hidden[:, :1]):
        return None  # positions came in before attention, as GPT-2 adds them to the embeddings
    model_rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if model_rotate is None or angles is None or angles.depend_on_length:
        raise refusal
    takes_both = "k" in inspect.signature(model_rotate).parameters  # query and key at once, but not in Gemma 4

    def rotate(x: Tensor, by: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        cos, sin = angles.tables(wide, by)
        width = cos.shape[-1]
        part = wide[..., :width]
        rotated = model_rotate(part, part, cos, sin)[0] if takes_both else model_rotate(part, cos, sin)
        return torch.cat([rotated, wide[..., width:]], -1).to(x.dtype)

    try:
        expected = rotate(key[:, :, :1].expand_as(key), torch.arange(key.shape[2], device=key.device))
    except (TypeError, RuntimeError, ValueError) as error:
        raise refusal from error
    if not _alike(key, expected):
        raise refusal
    return rotate


def _as_tuple(value: Any) -> tuple[Tensor, ...]:
    """The tensors of a pair, or a tensor alone; nothing of anything else."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(values) if all(isinstance(one, Tensor) for one in values) else ()


def _are_angles(output: Any) -> bool:
    """Whether a module gave cosines and sines of REPEATS positions, whatever it is called: their squares add up."""
    tables = _as_tuple(output)
    if not tables or any(one.shape != tables[0].shape or one.ndim < 2 for one in tables):
        return False
    if len(tables) == 1 and tables[0].is_complex():
        return True
    if len(tables) != 2 or tables[0].shape[-2] != REPEATS or not tables[0].is_floating_point():
        return False
    squares = tables[0].float().square() + tables[1].float().square()
    return bool(squares.max() > 0 and squares.max() - squares.min() <= 0.05 * squares.max())


def _equal(one: Tensor, other: Tensor) -> bool:
    """Also on another device: a model that is spread over several copies its tables."""
    return one.shape == other.shape and torch.equal(one.cpu(), other.cpu())


def _alike(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-4 if one.dtype in (torch.float32, torch.float64) else 0.05
    return bool((one - other).abs().max() <= tolerance * one.abs().max())
