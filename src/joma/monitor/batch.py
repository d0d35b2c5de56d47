"""The probe batch: what the model reads at every measuring, always the same, so that curves can be compared.

Or, with probe="step", some rows of the batch that the step was trained on. And the pass over it, watched by a probe.
"""

import hashlib
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any, Self

import torch
from torch import Tensor, nn

from joma.host.arguments import as_tensor, shown
from joma.host.devices import lacking
from joma.host.errors import BadInput
from joma.host.words import short
from joma.monitor.errors import MonitorError
from joma.probes import Probe, ProbeError, collect, collect_plain
from joma.probes._parallel import resharded
from joma.probes._untouched import WeightChanged, untouched
from joma.probes.adapters import Adapters

_SAVING: dict[str, Any] = {"use_cache": False, "logits_to_keep": 1}
"""Options of transformers' models that leave out what attention does not depend on: a cache, the head over tokens."""


class ProbeBatch:
    """A copy of what was given, and how it is handed to a model."""

    def __init__(self, given: Any) -> None:
        """given: a mapping from the names of the model's arguments to tensors, token ids, or a tuple of tensors."""
        self._hold(*_read(given))
        self.digest = _digest(self.args, self.kwargs)

    @classmethod
    def of_step(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self:
        batch = cls.__new__(cls)
        batch._hold(args, dict(kwargs))
        batch.digest = StepBatch.digest  # reading the numbers would make a GPU wait
        return batch

    def _hold(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        # Attention does not depend on labels; a loss over the whole vocabulary would only take time.
        self.labels = {name: self.kwargs.pop(name) for name in ("labels",) if name in self.kwargs}

    def call(self, model: nn.Module) -> None:
        """One pass of `model` over the batch, which moves to where the model is."""
        at = next((each.device for each in model.parameters()), torch.device("cpu"))
        self.args = tuple(_moved(each, at) for each in self.args)
        self.kwargs = {name: _moved(each, at) for name, each in self.kwargs.items()}
        labels = {name: _moved(each, at) for name, each in self.labels.items() if _must_have(model, name)}
        model(*self.args, **self._saving(model), **self.kwargs, **labels)

    def needs_head(self, model: nn.Module) -> bool:
        """Whether the pass gives logits of more than one token: for a loss, or since the model knows no other way."""
        return "logits_to_keep" not in self._saving(model)

    def must_suit(self, model: nn.Module) -> None:
        """Refuse token ids that the model does not have: a GPU would only fail later, and for good."""
        embedding = _input_embedding(model)
        ids = self.kwargs.get("input_ids", self.args[0] if self.args else None)
        if embedding is None or not isinstance(ids, Tensor) or ids.is_floating_point() or not ids.numel():
            return
        if int(ids.min()) < 0 or int(ids.max()) >= embedding.num_embeddings:
            known = f"token ids from 0 to {embedding.num_embeddings - 1}"
            raise MonitorError(
                f"probe does not fit {type(model).__name__}, which has {known}: it has {int(ids.min())} "
                f"to {int(ids.max())}"
            )

    def _saving(self, model: nn.Module) -> dict[str, Any]:
        if any(_must_have(model, name) for name in self.labels):
            return {}  # a loss needs all logits
        known = _arguments(type(model)) if hasattr(model, "config") else ()  # type: ignore[arg-type]
        return {name: value for name, value in _SAVING.items() if name in known and name not in self.kwargs}


class StepBatch:
    """The first rows of what a step is trained on: as given, or as the model's own pass gets it."""

    digest = "step"

    def __init__(self, model: nn.Module, rows: int) -> None:
        """model: what is trained. rows: how many are read."""
        self._model, self._rows = model, rows
        self._hook: Any = None
        self._caught: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def arm(self) -> None:
        """Catch the inputs of the next pass with gradients; compiled code knows no hooks, and needs its batch given."""
        if self._hook is None:
            self._hook = self._model.register_forward_pre_hook(self._catch, with_kwargs=True)

    def disarm(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._caught = None

    def rows_of(self, given: Any) -> ProbeBatch:
        """The first rows of `given`, or of what was caught where that is None."""
        caught = self._caught
        self.disarm()
        if given is None and caught is None:
            raise MonitorError(
                f"probe='step' has no batch: no pass of {type(self._model).__name__} was seen, so call "
                "monitor.step(batch) with what the model was given"
            )
        args, kwargs = caught if given is None and caught is not None else _read(given)
        return ProbeBatch.of_step(*_first_rows(args, kwargs, self._rows))

    def _catch(self, model: nn.Module, inputs: Any, options: Any) -> None:
        if torch.compiler.is_compiling() or self._caught is not None or not torch.is_grad_enabled():
            return
        args, kwargs = _first_rows(tuple(inputs), dict(options), self._rows)
        self._caught = tuple(map(_copied, args)), {name: _copied(each) for name, each in kwargs.items()}


def _first_rows(args: tuple[Any, ...], kwargs: dict[str, Any], rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The first rows of every tensor that has as many as the first one; others are no part of the batch."""
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and each.ndim]
    size = len(tensors[0]) if tensors else 0

    def cut(each: Any) -> Any:
        return each[:rows] if isinstance(each, Tensor) and each.ndim and len(each) == size else each

    return tuple(map(cut, args)), {name: cut(each) for name, each in kwargs.items()}


@lru_cache(64)  # reading a signature takes longer than a layer
def _arguments(kind: type[nn.Module]) -> tuple[str, ...]:
    return tuple(signature(kind.forward).parameters)


def _input_embedding(model: nn.Module) -> nn.Embedding | None:
    ask = getattr(model, "get_input_embeddings", None)
    try:
        found = ask() if ask is not None else None
    except (NotImplementedError, AttributeError):
        return None
    return found if isinstance(found, nn.Embedding) else None


def _read(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        if not any(isinstance(each, Tensor) for each in given.values()):
            how = "a tokenizer gives them with return_tensors='pt'"
            raise BadInput(f"probe must hold tensors, got a mapping with {list(given)[:5]}; {how}", argument="probe")
        return (), {str(name): _copied(each) for name, each in given.items()}
    if _is_arguments(given):
        return tuple(_copied(each) for each in given), {}
    wanted = "token ids, a tensor, a tuple of tensors, or a mapping from argument names to tensors"
    if given is None:
        raise BadInput(
            f"probe must be {wanted}; 'step', or inside=True, reads the batches of training", argument="probe"
        )
    try:
        tensor = as_tensor(given, "probe")
    except ValueError:
        raise BadInput(f"probe must be {wanted}, got {shown(given)}", argument="probe") from None
    if tensor.ndim == 0 or not tensor.numel():
        raise BadInput(f"probe must be {wanted}, got {shown(given)}", argument="probe")
    ids = tensor.ndim == 1 and not tensor.is_floating_point()  # one text: a batch of one
    return (_copied(tensor[None] if ids else tensor),), {}


def _is_arguments(given: Any) -> bool:
    """A tuple of tensors, or the list that torch's DataLoader gives. Other lists hold the rows of a batch."""
    if not isinstance(given, tuple | list) or not given or not all(isinstance(each, Tensor) for each in given):
        return False
    return isinstance(given, tuple) or (given[0].ndim > 1 and not given[0].is_floating_point())


def _must_have(model: nn.Module, name: str) -> bool:
    known = signature(model.forward).parameters.get(name)
    return known is not None and known.default is Parameter.empty


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _digest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Tells probe batches apart, in a record that goes on later."""
    found = hashlib.sha256()
    for name, each in [*enumerate(args), *sorted(kwargs.items())]:
        if isinstance(each, Tensor):
            found.update(f"{name} {each.dtype} {tuple(each.shape)}".encode())
            found.update(each.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            found.update(f"{name} {each!r}".encode())
    return found.hexdigest()[:16]


LOOKED_FOR = "transformers' attention, torch's scaled_dot_product_attention and nn.MultiheadAttention"


def watched_pass(
    model: nn.Module,
    batch: ProbeBatch,
    *,
    spread: bool,
    attention: Adapters | None = None,
    autocast: torch.dtype | None = None,
) -> Probe:
    """The probe of one pass. What torch.compile has compiled runs as it is written."""
    with untouched(model, autocast), resharded(model):
        return quiet_pass(model, batch, spread=spread, attention=attention)


def quiet_pass(model: nn.Module, batch: ProbeBatch, *, spread: bool, attention: Adapters | None = None) -> Probe:
    """The same inside `untouched`, which leaves the model as it was."""
    with _probe_for(model, spread, attention) as probe, warnings.catch_warnings():
        # Of activation checkpointing: there are no gradients here, and none are missed.
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
        batch.call(model)
    return probe


def first_pass(model: nn.Module, batch: ProbeBatch, *, attention: Adapters | None = None, **how: Any) -> Probe:
    """`watched_pass`, where everything that does not fit is refused in one sentence."""
    batch.must_suit(model)
    try:
        return watched_pass(model, batch, attention=attention, **how)
    except (MonitorError, WeightChanged):
        raise
    except ProbeError as error:
        if attention:  # the sentence on what they gave is the one that helps
            raise MonitorError(str(error)) from error
        raise MonitorError(
            f"no attention that can be measured was found: {error}; looked for were {LOOKED_FOR}; the argument "
            "attention tells of others, and measures=['stable_rank', 'norm'] needs none"
        ) from error
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as error:
        if isinstance(error, RuntimeError) and (sentence := _left_behind(model)):
            raise MonitorError(sentence) from error
        why = " ".join(str(error).split()) or type(error).__name__
        raise MonitorError(f"probe does not fit {type(model).__name__}: {short(why, 200)}") from error


def _left_behind(model: nn.Module) -> str | None:
    """Why a pass fails though the probe fits: a tensor stayed behind when the model moved. None if none did."""
    devices = {each.device for each in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if len(devices) == 1 and isinstance(value, Tensor) and value.ndim and value.device not in devices:
                return (
                    f"{type(model).__name__} is on {devices.pop()}, but its {path}{path and '.'}{name} is on "
                    f"{value.device}: it is not a buffer, so it does not move with the model; "
                    f"register_buffer({name!r}, ...) makes it one"
                )
    return None


def _probe_for(model: nn.Module, spread: bool, attention: Adapters | None) -> AbstractContextManager[Probe]:
    if not attention and is_of_transformers(model):
        return collect(model, keep=False, single_pass=True, spread=spread)
    return collect_plain(model, keep=False, spread=spread, attention=attention)


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model of transformers is inside; where it was never loaded there is none."""
    library = sys.modules.get("transformers")
    kind = getattr(library, "PreTrainedModel", None)
    return kind is not None and any(isinstance(each, kind) for each in model.modules())


def must_have_one_way(probe: Any, inside: bool) -> None:
    """A probe batch, the batch of each step, or the training pass itself."""
    if not isinstance(inside, bool):
        raise BadInput(f"inside must be True or False, got {shown(inside)}", argument="inside")
    if inside and probe is not None:
        raise BadInput("inside=True measures the batches of training: leave probe out", argument="probe")
    if isinstance(probe, str) and probe != "step":
        raise BadInput(f"probe must be a batch or 'step', got {shown(probe)}", argument="probe")


def must_be_autocast(autocast: torch.dtype | None, inside: bool) -> None:
    """A type of `torch.autocast`, for a pass that the monitor makes itself."""
    if autocast not in (None, torch.float16, torch.bfloat16):
        got = shown(autocast)
        raise BadInput(f"autocast must be torch.bfloat16, torch.float16 or None, got {got}", argument="autocast")
    if inside and autocast is not None:
        raise BadInput("inside=True measures your own passes, as they are: leave autocast out", argument="autocast")


def must_be_replay(replay: bool, *, has_batch: bool) -> None:
    """Whether a pass is recorded: one over a batch that stays the same, on a GPU."""
    if not isinstance(replay, bool):
        raise BadInput(f"replay must be True or False, got {shown(replay)}", argument="replay")
    if replay and not has_batch:
        raise BadInput("replay=True needs a probe batch that stays the same: give one as probe", argument="replay")
    if replay and lacking("cuda") is not None:
        raise BadInput("replay=True records a CUDA graph, and there is no GPU: leave it out", argument="replay")
