"""The weight matrices that a monitor follows, with what it remembers of them between two measurings."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from joma.host.arguments import FLOATS
from joma.measure.spectrum import TOGETHER, spectrum
from joma.monitor.names import Names, plain_name


class Matrices:
    """Parameters with two dimensions, but for embeddings and a head that is tied to one, by name."""

    def __init__(self, model: nn.Module, names: Names) -> None:
        """model: whose matrices they are. names: which of them are followed."""
        self._model, self._names = model, names
        self.by_name = self._followed()
        self._leading: dict[str, Tensor] = {}  # singular vectors found last, where the next search begins
        self._before: dict[str, Tensor] = {}  # weights at the last measuring of their update

    def _followed(self) -> dict[str, Tensor]:
        embeddings = {id(each.weight) for each in self._model.modules() if isinstance(each, nn.Embedding)}
        return {
            plain_name(name): each
            for name, each in self._model.named_parameters()
            if each.ndim == 2 and each.dtype in FLOATS and id(each) not in embeddings
            if plain_name(name) in self._names
        }

    def look_again(self) -> None:
        """At the parameters that the model has now: `load_state_dict(..., assign=True)` gives it other ones."""
        self.by_name = self._followed()

    @torch.no_grad()
    def norm(self) -> dict[str, Tensor]:
        """Frobenius norms."""
        return {name: _norm(each) for name, each in self.by_name.items()}

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
        """Those of all matrices; NaN for one that is not finite. Matrices of one shape are done together."""
        found: dict[str, Tensor] = {}
        for names in self._alike():
            try:
                found |= self._ranks(names)
            except ValueError:  # NaN or infinity in one of them: the others have their rank
                for name in names:
                    found[name] = self._rank_or_nan(name)
        return {name: found[name] for name in self.by_name}

    def _ranks(self, names: list[str]) -> dict[str, Tensor]:
        warm = all(name in self._leading for name in names)
        start = torch.stack([self._leading[name] for name in names]) if warm else None
        found = spectrum(torch.stack([self.by_name[name].detach() for name in names]), start=start)
        self._leading |= dict(zip(names, found.vectors, strict=True))
        return dict(zip(names, found.stable_rank, strict=True))

    def _rank_or_nan(self, name: str) -> Tensor:
        try:
            return self._ranks([name])[name]
        except ValueError:
            self._leading.pop(name, None)
            return torch.full((), torch.nan, device=self.by_name[name].device)

    def _alike(self) -> Iterator[list[str]]:
        """Names of matrices that lie on one device and have one shape and type, some at a time."""
        groups: dict[object, list[str]] = {}
        for name, each in self.by_name.items():
            groups.setdefault((each.device, each.dtype, each.shape), []).append(name)
        for names in groups.values():
            some = max(1, TOGETHER // self.by_name[names[0]].numel())
            yield from (names[at : at + some] for at in range(0, len(names), some))


def _norm(w: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(w, dtype=torch.promote_types(w.dtype, torch.float32))
    return size
