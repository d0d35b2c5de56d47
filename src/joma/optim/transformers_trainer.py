"""GaLore inside transformers' Trainer.

The Trainer hands groups of parameters without names to an optimizer class. Then nothing would tell embeddings and the
head from other matrices. So GaLore is made from the model, in one of two ways:

    Trainer(model, arguments, ..., optimizers=(galore_for(model, arguments, rank=128), None))
    Trainer(model, arguments, ..., optimizer_cls_and_kwargs=(FromModel, {"rank": 128, "lr": 0.01}))

The second needs transformers 5.22 or newer. It is the one for FSDP, where the optimizer is made after the model was
wrapped. The Trainer's scheduler, clipping, accumulation, saving and resuming work as with any optimizer.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from joma.optim._groups import embedding_names
from joma.optim.galore import SKIP, GaLore

Inner = Callable[..., torch.optim.Optimizer]


def galore_for(model: nn.Module, arguments: Any, inner: Inner = torch.optim.AdamW, **options: Any) -> GaLore:
    """GaLore for a model, with what transformers.TrainingArguments say: rate, weight decay, betas and epsilon.

    - model: what is trained
    - arguments: its learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon are used where the inner
      optimizer has such options
    - inner: makes the inner optimizer
    - options: of GaLore and of the inner optimizer; they go before those of the arguments

    >>> from types import SimpleNamespace
    >>> args = SimpleNamespace(learning_rate=0.01, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8)
    >>> model = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 64), nn.LayerNorm(64))
    >>> [group["weight_decay"] for group in galore_for(model, args, rank=4).param_groups]
    [0.1, 0.0]
    """
    if getattr(arguments, "fsdp", None):
        raise ValueError(
            "with FSDP the optimizer is made after wrapping: give optimizer_cls_and_kwargs=(FromModel, {...})"
        )
    asked = {
        "lr": arguments.learning_rate,
        "weight_decay": arguments.weight_decay,
        "betas": (arguments.adam_beta1, arguments.adam_beta2),
        "eps": arguments.adam_epsilon,
    }
    known = inspect.signature(inner).parameters
    return FromModel()(model, inner=inner, **{**{key: asked[key] for key in asked if key in known}, **options})


class FromModel:
    """Makes GaLore from a model: what the Trainer's optimizer_cls_and_kwargs takes, with GaLore's options.

    >>> FromModel()(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)), rank=4, lr=0.01, weight_decay=0.1)
    GaLore(AdamW, 1 matrix projected, rank=4, refresh=200)
    """

    def __call__(self, model: nn.Module, **options: Any) -> GaLore:
        """Two groups, as the Trainer has them: biases and norms are not decayed."""
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        decayed: dict[str, Any] = {"params": [(name, each) for name, each in trained if each.ndim > 1]}
        others = {"params": [(name, each) for name, each in trained if each.ndim <= 1], "weight_decay": 0.0}
        skip = {*options.pop("skip", SKIP), *embedding_names(model)}
        return GaLore([group for group in (decayed, others) if group["params"]], skip=sorted(skip), **options)

    def __repr__(self) -> str:
        return "FromModel()"
