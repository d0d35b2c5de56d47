"""joma: the theory of how Transformers learn, executable.

`joma.theory` holds the closed forms, `joma.measure` what can be measured, `joma.probes`, `joma.monitor` and `joma.scan`
attach it to running models, to training and to checkpoints, `joma.cache` cuts their caches, `joma.optim` has GaLore.
`joma.runs` is the record of what happened, `joma.studies` the claims and their verdicts, `joma.report` the page that
shows them, `joma.view` what can be touched. Submodules load when they are first named.
"""

from importlib import import_module
from types import ModuleType

from joma.host.showing import drawers

__version__ = "0.2.0"

_PARTS = (
    "cache", "claims", "data", "figures", "host", "measure", "models", "monitor", "optim", "probes", "recipes",
    "report", "runs", "scale", "scan", "studies", "theory", "training", "view",
)  # fmt: skip
__all__ = ["__version__", *_PARTS]

drawers["figure"] = lambda *given: import_module("joma.view.plotting").plotted(*given)
drawers["widget"] = lambda *given, **named: import_module("joma.view.notebook").bundle(*given, **named)


def __getattr__(name: str) -> ModuleType:
    if name in _PARTS:
        return import_module(f"joma.{name}")
    raise AttributeError(f"module 'joma' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
