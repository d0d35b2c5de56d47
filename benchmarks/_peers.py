"""galore-torch 1.0 as its users use it: one optimizer for all weights, or one per weight that steps during backward."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import torch
from torch import nn

_SVD: dict[str, Any] = {}  # galore-torch's own way to find a basis


def is_block_matrix(name: str, parameter: torch.Tensor) -> bool:
    """What is projected of a LLaMA: matrices that are neither embedding nor head."""
    return parameter.ndim == 2 and not any(word in name for word in ("embed", "head"))


def galore_torch(folder: str = "", *, quick_start: bool = False) -> GaloreTorch | None:
    """From a folder, or from where Python looks; None if it is nowhere.

    Its 8-bit optimizer wants bitsandbytes at import: an empty one will do, it is not used. With quick_start its bases
    are found by a QR of random numbers in place of an SVD, for what measures anything but its refreshes.
    """
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    found = importlib.util.find_spec("galore_torch")
    if found is None or found.origin is None:  # a folder of that name without the package is not it
        return None
    for name in ("bitsandbytes", "bitsandbytes.optim", "bitsandbytes.optim.optimizer"):
        sys.modules.setdefault(name, types.ModuleType(name))
    if not hasattr(sys.modules["bitsandbytes.optim.optimizer"], "Optimizer2State"):
        sys.modules["bitsandbytes.optim.optimizer"].Optimizer2State = object  # type: ignore[attr-defined]
    if importlib.util.find_spec("transformers") is None:
        for name in ("transformers", "transformers.utils", "transformers.utils.versions"):
            sys.modules.setdefault(name, types.ModuleType(name))
        sys.modules["transformers.utils.versions"].require_version = lambda words: None  # type: ignore[attr-defined]
    projector = importlib.import_module("galore_torch.galore_projector").GaLoreProjector
    _SVD.setdefault("svd", projector.get_orthogonal_matrix)
    projector.get_orthogonal_matrix = _any_basis if quick_start else _SVD["svd"]
    return GaloreTorch(importlib.import_module("galore_torch.adamw"))


def _any_basis(self: Any, weights: torch.Tensor, rank: int, type: str) -> torch.Tensor:
    side = weights.shape[-2 if type == "left" else -1]
    whole = torch.linalg.qr(torch.randn(side, side, device=weights.device))[0]
    part = whole[:, :rank] if type == "left" else whole[:rank]
    return part if weights.dtype == torch.float32 else part.to(weights.dtype)  # as theirs: of float32 a part of the SVD


class Nothing(torch.optim.Optimizer):
    """What training loops hold where every weight has an optimizer of its own: it does nothing."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})

    def step(self, closure: Any = None) -> None:
        """Hooks have done it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Hooks have done it."""


class GaloreTorch:
    """Makes galore-torch's AdamW for a LLaMA."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def adamw(self, groups: list[dict[str, Any]], lr: float = 1e-3) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = self.module.AdamW(groups, lr=lr, no_deprecation_warning=True)
        return made

    def _options(self, rank: int, refresh: int) -> dict[str, Any]:
        return {"rank": rank, "update_proj_gap": refresh, "scale": 0.25, "proj_type": "std"}

    def whole(self, model: nn.Module, rank: int, refresh: int) -> torch.optim.Optimizer:
        """One optimizer."""
        named = list(model.named_parameters())
        projected = [each for name, each in named if is_block_matrix(name, each)]
        others = [each for name, each in named if not is_block_matrix(name, each)]
        return self.adamw([{"params": projected, **self._options(rank, refresh)}, {"params": others}])

    def in_backward(self, model: nn.Module, rank: int, refresh: int) -> torch.optim.Optimizer:
        """One per weight; each steps as soon as backward has the gradient, and frees it."""
        for name, each in model.named_parameters():
            options = self._options(rank, refresh) if is_block_matrix(name, each) else {}
            own = self.adamw([{"params": [each], **options}])

            def hook(parameter: torch.Tensor, own: torch.optim.Optimizer = own) -> None:
                own.step()
                own.zero_grad()

            each.register_post_accumulate_grad_hook(hook)
        return Nothing(list(model.parameters()))
