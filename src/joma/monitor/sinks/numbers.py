"""Every number of a measuring by name, for sinks that are to get all heads."""

from __future__ import annotations

import numpy as np

from joma.monitor.tables import Tables


def every_number(tables: Tables) -> dict[str, float]:
    """The number of every head and of every matrix. No name is a folder of another: MLflow keeps files by these names.

    >>> from joma.monitor.tables import Rows, Table
    >>> every_number({"entropy": Table(np.array([[1.0, 2.0]]), Rows(("h.0.attn",), (2,), (8,)))})
    {'entropy/h.0.attn/head0': 1.0, 'entropy/h.0.attn/head1': 2.0}
    >>> every_number({"norm": Table(np.array([3.0]), Rows(("h.0.up.weight",)))})
    {'norm/h.0.up.weight/value': 3.0}
    """
    found: dict[str, float] = {}
    for name, table in tables.items():
        for at in map(tuple, np.argwhere(table.real).tolist()):
            layer, head = table.place(at)
            found[f"{name}/{layer}/{'value' if head is None else f'head{head}'}"] = float(table.values[at])
    return found
