"""A probe on a pass that is made anyway: in training itself, with its gradients and its random numbers left alone.

Queries and keys are looked at where a module hands them to torch, detached, without gradients. The model runs on with
its own attention, whatever that is. Nothing here may end a training: what goes wrong is kept in `error`.
"""

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from joma.probes._plain import Watching, following
from joma.probes._record import Probe
from joma.probes.adapters import Adapters, Leaving, adapter_of, attached


class InPass:
    """Watches the next pass with gradients, once, or every one: all attention, or some modules alone.

    A pass without gradients is an evaluation, and is not looked at. Activation checkpointing calls modules again in the
    backward pass, outside of the model's own: that is not looked at either. Of several passes the first is measured.
    What torch.compile has compiled is not seen: its code knows no hooks.
    """

    def __init__(
        self, model: nn.Module, *, layers: Collection[str] | None = None, spread: bool = False,
        attention: Adapters | None = None, names: dict[nn.Module, str] | None = None, every_pass: bool = False,
    ) -> None:  # fmt: skip
        """Attach hooks, until `remove`."""
        self.probe = Probe(model, keep=False, spread=spread, names=names)
        self.error: Exception | None = None
        self._whole, self._every = False, every_pass  # whether the pass came to its end
        self._hooks, self._modes = ExitStack(), ExitStack()
        some = None if layers is None else [each for each, name in self.probe.names.items() if name in layers]
        self._all, adapters = some is None, attention or {}
        self._caller: list[nn.Module] = []
        self._watching = _Guarded(self, self._caller, padding_on_diagonal=hasattr(model, "config"))
        self._on(model.register_forward_pre_hook(self._before))
        if some is None:
            self._hooks.enter_context(following(self.probe, self._caller))
        for module in some or ():
            if adapter_of(module, adapters) is None:
                self._on(module.register_forward_pre_hook(self._enter))
                self._on(module.register_forward_hook(self._leave, always_call=True))
        for module in self.probe.names if some is None else some:
            if (tell := adapter_of(module, adapters)) is not None:
                self._hooks.push(attached(module, _GuardedLeaving(self, tell)))
        self._on(model.register_forward_hook(self._finish))
        self._on(model.register_forward_hook(self._after, always_call=True))

    def remove(self) -> None:
        self.probe.running = False
        self._modes.close()
        self._hooks.close()

    def _on(self, hook: Any) -> None:
        self._hooks.callback(hook.remove)

    def _before(self, model: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or self._whole or self.error is not None or not torch.is_grad_enabled():
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # what a CUDA graph records would be replayed without us
        self.probe.running = True
        if self._all:
            self._modes.enter_context(self._watching)

    def _after(self, model: nn.Module, inputs: Any, output: Any = None) -> None:
        if torch.compiler.is_compiling() or not self.probe.running:
            return
        self.probe.running = False
        self._modes.close()
        if not self._whole and not self._every:
            self.probe.forget()

    def _finish(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self.probe.running:
            self._whole = not self._every

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling() and self.probe.running:
            self._caller[:] = [module]
            self._modes.enter_context(self._watching)

    def _leave(self, module: nn.Module, inputs: Any, output: Any = None) -> None:
        if not torch.compiler.is_compiling():
            self._modes.close()


class _Guarded(Watching):
    """`Watching` that keeps what goes wrong, so that the pass goes on."""

    def __init__(self, owner: InPass, caller: list[nn.Module], *, padding_on_diagonal: bool) -> None:
        super().__init__(owner.probe, caller)
        self.owner, self.padding_on_diagonal = owner, padding_on_diagonal

    def see(self, func: Any, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self.owner.error is None:
            try:
                super().see(func, name, args, options)
            except Exception as error:
                self.owner.error = error


class _GuardedLeaving(Leaving):
    def __init__(self, owner: InPass, tell: Any) -> None:
        super().__init__(owner.probe, tell)
        self.owner = owner

    def __call__(self, module: nn.Module, inputs: Any, options: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self.owner.error is not None:
            return
        try:
            super().__call__(module, inputs, options, output)
        except Exception as error:
            self.owner.error = error
