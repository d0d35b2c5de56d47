"""The parameters that a monitor follows, with what it remembers of them between two measurings."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from joma.host.arguments import FLOATS
from joma.host.errors import BadInput
from joma.measure.embedding import coherence
from joma.monitor.graphs import Memory
from joma.monitor.measures import MONITORED
from joma.monitor.names import Names, Structure, layer_of
from joma.monitor.ranks import Ranks, ranks_of
from joma.probes._record import plain_name


class Matrices:
    """Parameters by name: all that are followed, and the matrices among them, but for embeddings and a head that is
    tied to one.
    """

    def __init__(self, model: nn.Module, names: Names, memory: Memory | None = None) -> None:
        """model: whose matrices they are. names: which of them are followed. memory: as in `Ranks`."""
        self._model, self._names = model, names
        self._find()
        self._ranks = Ranks(memory)
        self._before: dict[str, Tensor] = {}  # weights at the last measuring of their update

    def _find(self) -> None:
        self._structure = Structure(self._model)
        tables = {id(each.weight) for each in self._model.modules() if isinstance(each, nn.Embedding)}
        self.parameters = dict(self._named())
        flat = {name: each for name, each in self.parameters.items() if each.ndim == 2}
        self.by_name = self._some({name: each for name, each in flat.items() if id(each) not in tables})
        self.embeddings = self._some({name: w for name, w in flat.items() if id(w) in tables and len(w) > 1})
        self.layers: dict[str, list[str]] = {}
        for name in self.parameters:
            self.layers.setdefault(layer_of(name), []).append(name)

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for name, each in self._model.named_parameters():
            if each.dtype in FLOATS and plain_name(name) in self._names:
                yield plain_name(name), each

    def _some(self, matrices: dict[str, Tensor]) -> dict[str, Tensor]:
        return matrices

    def look_again(self) -> None:
        """At the parameters that the model has now: `load_state_dict(..., assign=True)` gives it other ones."""
        if not self._structure.is_the_same():
            self._find()

    def rows(self, measure: str) -> tuple[str, ...]:
        """What a measure has numbers of: layers, embeddings or matrices."""
        needs = MONITORED[measure].needs
        if measure == "gradient_norm":
            return tuple(self.layers)
        return tuple(self.embeddings if needs == "embeddings" else self.by_name)

    def must_have(self, measures: Iterable[str]) -> None:
        for name in measures:
            needs = MONITORED[name].needs
            if needs == "embeddings" and not self.embeddings:
                what, looked = "an embedding", "nn.Embedding with at least two rows"
            elif needs in ("matrices", "gradients") and not self.rows(name):
                what, looked = "a weight matrix", "parameters of two dimensions that are no embedding"
            else:
                continue
            raise BadInput(
                f"{name} needs {what}, and {type(self._model).__name__} has none that is followed: looked for were "
                f"{looked}",
                argument="measures",
            )

    def leave(self) -> None:
        self._ranks.record_no_more()

    @torch.no_grad()
    def norm(self) -> dict[str, Tensor]:
        matrices = [each.detach() for each in self.by_name.values()]
        wide = torch.promote_types(matrices[0].dtype, torch.float32) if matrices else None
        if len({(each.device, each.dtype) for each in matrices}) > 1:
            return {name: _norm(each) for name, each in self.by_name.items()}
        return dict(zip(self.by_name, torch._foreach_norm(matrices, 2, wide), strict=True)) if matrices else {}

    @torch.no_grad()
    def update_ratio(self) -> dict[str, Tensor]:
        """|W - W before| / |W|, since the last call of this; nothing at the first one. 0 for a matrix of zeros."""
        found = {}
        for name, before in self._before.items():
            size = _norm(self.by_name[name])
            moved = _norm(self.by_name[name] - before.to(self.by_name[name].device))
            found[name] = torch.where(size > 0, moved / torch.where(size > 0, size, 1.0), size)
        self._before = {name: each.detach().clone() for name, each in self.by_name.items()}
        return found

    @torch.no_grad()
    def stable_rank(self) -> dict[str, Tensor]:
        """Those of all matrices; NaN for one that is not finite. The next search begins with what this one found."""
        return self._ranks.of({name: each.detach() for name, each in self.by_name.items()})

    @torch.no_grad()
    def gradient_norm(self) -> dict[str, Tensor]:
        """Of every layer, over all of its parameters, as they are now; nothing where no parameter has a gradient."""
        norms = {name: _norm(dense(w.grad)) for name, w in self.parameters.items() if w.grad is not None}
        if not norms:
            return {}
        none = torch.zeros_like(next(iter(norms.values())))
        by_layer = {layer: [norms.get(name, none) for name in names] for layer, names in self.layers.items()}
        return {layer: torch.linalg.vector_norm(torch.stack(each)) for layer, each in by_layer.items()}

    @torch.no_grad()
    def gradient_stable_rank(self) -> dict[str, Tensor]:
        """Those of the gradients that there are now, 0 for a matrix without one; nothing where no matrix has any."""
        gradients = {name: each.grad for name, each in self.by_name.items()}
        if all(each is None for each in gradients.values()):
            return {}
        there = {name: dense(each) for name, each in gradients.items() if each is not None}
        found = ranks_of(there)  # gradients of two steps have little in common
        none = {name: torch.zeros((), device=each.device) for name, each in self.by_name.items() if name not in there}
        return {name: (found | none)[name] for name in self.by_name}

    @torch.no_grad()
    def embedding_coherence(self) -> dict[str, Tensor]:
        """The mean |cos| of two rows of every embedding; NaN for one that is not finite."""
        return {name: _coherence(each.detach()) for name, each in self.embeddings.items()}


def _coherence(table: Tensor) -> Tensor:
    try:
        return coherence(table).mean
    except ValueError:
        return torch.full((), torch.nan, device=table.device)


def dense(gradient: Tensor) -> Tensor:
    """A gradient, with the zeros that a sparse one leaves out."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def _norm(w: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(w, dtype=torch.promote_types(w.dtype, torch.float32))
    return size
