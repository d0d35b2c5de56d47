"""The pass over the probe batch, recorded once as a CUDA graph: the host starts it with one call.

A pass in plain Python launches some hundred kernels, and where the host is what a training waits for, each of them
counts. The recorded pass reads the weights where they lie. What Python decided in it stays as it was when it was
recorded. So only a pass that changes nothing and draws no random numbers is recorded, and it is recorded anew where a
parameter or a buffer has moved.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from joma.host.words import short
from joma.measure._spread_sums import Plans, plans_kept
from joma.monitor.batch import ProbeBatch, quiet_pass
from joma.monitor.errors import MonitorError
from joma.monitor.graphs import Memory, aside, recording
from joma.monitor.names import Structure
from joma.probes import Probe
from joma.probes._untouched import devices_of, untouched

COMPARED = ("entropy", "largest_logit", "sink_mass")
"""What the recorded pass must give as the plain one does."""
_WARM_UP = 2  # passes on the stream of the recording: kernels are compiled and chosen in them


class Replay:
    """A pass of one model over one batch, and the probe that has watched it."""

    def __init__(
        self, model: nn.Module, batch: ProbeBatch, autocast: torch.dtype | None, memory: Memory, **options: Any
    ) -> None:
        self._model, self._batch, self._autocast, self._options = model, batch, autocast, options
        self._memory = memory
        self._recording: tuple[torch.cuda.CUDAGraph, Probe] | None = None
        self._plans: Plans = {}  # what the recording reads beside the model and the batch
        self._structure = Structure(model)
        self._where: list[int] = []

    def probe(self) -> Probe:
        """What a pass with the weights of now shows. Its numbers stay until the next call."""
        if self._recording is None or not self._structure.is_the_same() or self._where != _places(self._model):
            self._recording = None  # its memory goes before the next one takes some
            self._recording = self._recorded()
        graph, probe = self._recording
        graph.replay()
        return probe

    def _recorded(self) -> tuple[torch.cuda.CUDAGraph, Probe]:
        name = type(self._model).__name__
        if [device.type for device in devices_of(self._model)] != ["cuda"]:
            raise MonitorError(f"replay=True needs a model on one CUDA device, and {name} is not on one")
        self._structure, self._where = Structure(self._model), _places(self._model)
        graph = torch.cuda.CUDAGraph()
        try:
            plain, probe = self._record(graph)
        except MonitorError:
            raise
        except Exception as error:
            why = short(" ".join(str(error).split()) or type(error).__name__, 200)
            raise MonitorError(f"replay=True cannot record the pass of {name}, which runs without it: {why}") from error
        graph.replay()
        for measure, before in plain.items():
            for layer, now in probe.by_layer(measure).items():
                if not torch.allclose(now, before[layer], rtol=1e-3, atol=1e-4, equal_nan=True):
                    raise MonitorError(f"replay=True gives another {measure} of {layer} than the pass of {name} itself")
        return graph, probe

    def _record(self, graph: torch.cuda.CUDAGraph) -> tuple[dict[str, dict[str, Tensor]], Probe]:
        """Record the pass: what a plain one has shown before, and the probe of the recorded one."""
        with untouched(self._model, self._autocast) as states:
            held = [tensor for state in states for tensor, _ in state.tensors]
            before = [each._version for each in held], torch.cuda.get_rng_state()
            with aside(), _masks_as_before() as remember:
                for _ in range(_WARM_UP):
                    probe = self._pass()
                plain = {measure: probe.by_layer(measure) for measure in COMPARED}
                torch.cuda.current_stream().synchronize()
                after = [each._version for each in held], torch.cuda.get_rng_state()
                _must_be_the_same(before, after, type(self._model).__name__)
                remember()
                with recording(graph, self._memory.renew()):
                    probe = self._pass()
        return plain, probe

    def _pass(self) -> Probe:
        with plans_kept(self._plans), without_head(self._model, self._batch):
            probe = quiet_pass(self._model, self._batch, **self._options)
        probe.by_layer()  # a probe works its means out once: that must be in the recording, or they would never change
        return probe


@contextmanager
def without_head(model: nn.Module, batch: ProbeBatch) -> Iterator[None]:
    """Leave out the head over tokens, where nobody reads its logits.

    Under autocast it would be copied in another type, and a recording would hold memory for that copy: it is the
    largest of all.
    """
    head = getattr(model, "get_output_embeddings", _nothing)()
    if not isinstance(head, nn.Linear) or "forward" in vars(head) or batch.needs_head(model):
        yield
        return
    vars(head)["forward"] = lambda hidden: hidden.new_zeros(*hidden.shape[:-1], head.out_features)
    try:
        yield
    finally:
        del vars(head)["forward"]


def _places(model: nn.Module) -> list[int]:
    return [
        each.data_ptr()
        for module in model.modules()
        for each in (*module._parameters.values(), *module._buffers.values())
        if each is not None
    ]


def _must_be_the_same(before: tuple[list[int], Tensor], after: tuple[list[int], Tensor], name: str) -> None:
    if before[0] != after[0]:
        raise MonitorError(f"replay=True cannot put back what a pass of {name} changes in its buffers: leave it out")
    if not torch.equal(before[1], after[1]):
        raise MonitorError(f"replay=True cannot put back random numbers, and a pass of {name} draws some: leave it out")


@contextmanager
def _masks_as_before() -> Iterator[Callable[[], None]]:
    """transformers looks at position ids, on the host, for several texts in one row; a recording must not look.

    From the call of what this gives it is told that there are none, as was found before: the batch is the same. Nor is
    it told that a recording goes on, since it would write out masks then that the plain pass goes without.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    names = ("find_packed_sequence_indices", "is_tracing")
    own = {name: getattr(masks, name) for name in names if hasattr(masks, name)}
    if set(own) != set(names):
        yield lambda: None
        return
    found: list[Any] = []

    def look(*args: Any, **options: Any) -> Any:
        found.append(own[names[0]](*args, **options))
        return found[-1]

    def remember() -> None:
        if any(each is not None for each in found):
            raise MonitorError("replay=True cannot record a pass over several texts in one row: leave it out")
        masks.find_packed_sequence_indices, masks.is_tracing = _nothing, _no

    masks.find_packed_sequence_indices = look
    try:
        yield remember
    finally:
        for name, each in own.items():
            setattr(masks, name, each)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no(*_: Any, **__: Any) -> bool:
    return False
