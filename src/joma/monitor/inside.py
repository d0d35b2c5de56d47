"""Attention measured in the training pass itself: one layer per step in turn, so that every step can be measured.

The first pass shows all layers. From then on each measured step has hooks on one attention module, and a table is whole
when every layer had its turn. Between two measured steps nothing is attached. Compiled code runs no hooks: models of
transformers get an operation that stays while the monitor does (`CompiledAttention`), others are refused.
"""

from torch import Tensor, nn

from joma.measure.spread import SpreadSums
from joma.monitor.batch import is_of_transformers
from joma.monitor.errors import MonitorError
from joma.monitor.names import Names
from joma.probes import Probe, ProbeError
from joma.probes._compiled import CompiledAttention
from joma.probes._inside import InPass
from joma.probes.adapters import Adapters

SEEN = "torch's scaled_dot_product_attention, nn.MultiheadAttention and the classes in attention"


class Round:
    """What the layers had to show in their turns, in the form in which `Probe` gives it."""

    def __init__(self, probes: dict[str, Probe]) -> None:
        """probes: by layer, the one that has seen it."""
        self._probes = probes
        self.layers = list(probes)
        self.names: dict[nn.Module, str] = next(iter(probes.values())).names
        self.queries: dict[str, int] = {name: each.queries[name] for name, each in probes.items()}
        self.spread: dict[str, SpreadSums] = {
            name: each.spread[name] for name, each in probes.items() if name in each.spread
        }

    def counted(self) -> dict[str, Tensor]:
        """How many queries the means are over, each (heads,)."""
        return {name: each.counted()[name] for name, each in self._probes.items()}

    def by_layer(self, measure: str = "entropy") -> dict[str, Tensor]:
        """Means over queries, or the largest logit, each (heads,)."""
        return {name: each.by_layer(measure)[name] for name, each in self._probes.items()}


class Inside:
    """Goes round the layers of a model in training."""

    def __init__(
        self, model: nn.Module, names: Names, *, spread: bool, attention: Adapters | None, compiled: bool = False
    ) -> None:
        """Nothing is attached before `enter`."""
        self._compiled = _in_compiled_code(model, attention) if compiled else None
        self._model, self._names, self._spread, self._attention = model, names, spread, attention
        self._known: dict[nn.Module, str] | None = None
        self._layers: list[str] = []
        self._done: dict[str, Probe] = {}
        self._round: Probe | None = None  # of compiled code: one for all layers, whose numbers are reduced together
        self._watching: InPass | _CompiledPass | None = None

    def enter(self) -> None:
        if self._compiled is not None:
            self._compiled.install()

    def leave(self) -> None:
        self.disarm()
        if self._compiled is not None:
            self._compiled.uninstall()

    def arm(self) -> None:
        if self._watching is not None:
            return
        seen = len(self._round.queries) if self._round is not None else len(self._done)
        layer = self._layers[seen] if self._layers else None
        if self._compiled is None:
            self._watching = InPass(
                self._model,
                layers=None if layer is None else (layer,),
                spread=self._spread,
                attention=self._attention,
                names=self._known,
            )
        else:
            probe = self._round or Probe(self._model, keep=False, spread=self._spread, names=self._known)
            self._watching = _CompiledPass(self._compiled, probe, layer)

    def seen(self) -> Probe | Round | None:
        """What the armed pass showed: all layers at the first time, then a whole round at a time; else None."""
        watching = self._watching
        if watching is None:
            return None
        self.disarm()
        if watching.error is not None:
            raise MonitorError(str(watching.error)) from watching.error
        probe = watching.probe
        if self._layers and self._compiled is not None:
            self._round = probe if 0 < len(probe.queries) < len(self._layers) else None
            return probe if len(probe.queries) == len(self._layers) else None
        probe.reduce()
        if not self._layers:
            if not probe.calls:
                raise MonitorError(
                    f"inside=True saw no attention in the training pass of {type(self._model).__name__}: looked for "
                    f"were {SEEN}, in a pass in training mode, with gradients; a compiled model must be given as "
                    "torch.compile hands it back"
                )
            self._known, self._layers = probe.names, [name for name in probe.layers if name in self._names]
            return probe
        if not probe.calls:  # no pass was made; the layer has its turn at the next one
            return None
        self._done[self._layers[len(self._done)]] = probe
        if len(self._done) < len(self._layers):
            return None
        done, self._done = self._done, {}
        return Round(done)

    def disarm(self) -> None:
        if self._watching is not None:
            self._watching.remove()
            self._watching = None


class _CompiledPass:
    """What `InPass` is to hooks, for the operation in compiled code."""

    def __init__(self, attention: CompiledAttention, probe: Probe, layer: str | None) -> None:
        self._attention, self.probe = attention, probe
        attention.arm(probe, layer)

    @property
    def error(self) -> Exception | None:
        return self._attention.error

    def remove(self) -> None:
        self._attention.disarm()


def _in_compiled_code(model: nn.Module, attention: Adapters | None) -> CompiledAttention:
    name = type(model).__name__
    if attention or not is_of_transformers(model):
        raise MonitorError(
            f"inside=True looks into compiled code of transformers' models alone, and {name} is compiled: measure it "
            "with a probe batch"
        )
    try:
        return CompiledAttention(model)
    except ProbeError as error:
        raise MonitorError(f"inside=True cannot look into compiled code: {error}") from error
