"""Which layer and which expert a tensor belongs to, as its name says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from joma.scan.names.architecture import spots


class Row(NamedTuple):
    """One row of a curve: a layer, or an expert of a layer. Layers count from 0; None: the tensor is of no layer."""

    layer: int | None
    expert: int | None
    name: str
    """The tensor, or what else has this row's numbers."""

    @property
    def label(self) -> str:
        """For people.

        >>> Row(3, None, "h.3.mlp").label, Row(3, 7, "h.3.experts.7.w1").label, Row(None, None, "wte").label
        ('layer 3', 'layer 3, expert 7', 'wte')
        """
        if self.layer is None:
            return self.name
        return f"layer {self.layer}" + ("" if self.expert is None else f", expert {self.expert}")

    def as_json(self) -> dict[str, Any]:
        return {"layer": self.layer, "expert": self.expert, "name": self.name}


def layers(count: int) -> tuple[Row, ...]:
    """Rows for the layers of a running model.

    >>> [row.label for row in layers(2)]
    ['layer 0', 'layer 1']
    """
    return tuple(Row(layer, None, f"layer {layer}") for layer in range(count))


def rows_of(tensors: Sequence[str]) -> tuple[Row, ...]:
    """A row for every tensor of a group.

    Where names do not tell the tensors apart (the encoder and the decoder have layers 0 to 5 each), layers are counted
    in the order of the group.

    >>> [tuple(row) for row in rows_of(["h.2.mlp.w", "h.10.mlp.w"])]
    [(2, None, 'h.2.mlp.w'), (10, None, 'h.10.mlp.w')]
    >>> [row.layer for row in rows_of(["encoder.layers.0.fc1.weight", "decoder.layers.0.fc1.weight"])]
    [0, 1]
    >>> rows_of(["layers.1.mlp.experts.up_proj[5]"])[0].label
    'layer 1, expert 5'
    """
    rows = [Row(spot.number, spot.expert, name) for name, spot in zip(tensors, spots(tensors), strict=True)]
    if len(rows) > 1 and len({(row.layer, row.expert) for row in rows}) < len(rows):
        return tuple(Row(at, None, row.name) for at, row in enumerate(rows))
    return tuple(rows)
