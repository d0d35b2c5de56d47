"""GaLore's step, and the updates and projections that are made during backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from joma.optim._backward import Bucket
from joma.optim._groups import Passing
from joma.optim._guard import are_finite
from joma.optim._matrix import Pack
from joma.optim._updating import NOT_CAPTURED, Updating, is_captured


class Stepping(Updating):
    """Steps as a whole, or takes gradients while backward goes on."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns what the closure gives.

        - closure: computes the loss and its gradients; it is evaluated once, before the update
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _step(self) -> None:
        """torch.compile leaves this as it is: which packs step, and which are due, is not known when it compiles."""
        captured = is_captured()
        if not captured and self._backward.begins:
            self._outcomes.read()
        try:
            self._update_buckets(self._backward.release(), captured=captured)
        except Exception:  # a gradient that is not finite: the next backward begins anew
            self._backward.forget()
            raise
        self._check_backward()
        if not captured and not self.per_layer:
            self._look_back(wait=False)
        folded = self._members.folded
        try:
            for each in folded:
                each.lend()
            packs = self._packs_with_gradients()
            passing = [each for each in self.passing if each.parameter.grad is not None]
            if packs or passing:
                self._update(packs, passing, captured=captured)
            else:
                self._following.hand_over_options(self.decay)
        finally:
            for each in folded:
                each.give_back()
        self._hide_compact()

    def _start_hooks(self) -> None:
        """Of parameters that have none: of all with per_layer=True, of projected matrices with per_layer='project'."""
        named = [(each.name, each.parameter) for each in self.matrices]
        if self.per_layer:
            named += [(each.name, each.parameter) for each in self.passing]
            self._backward.start(named, self, Stepping._update_in_backward)
            self._backward.plan([each for group in self.param_groups for each in group["params"]])
        elif self.project_in_backward:
            self._backward.start(named, self, Stepping._project_in_backward)
            self._matrix_of = {id(each.parameter): each for each in self.matrices}

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch.amp.GradScaler asks; with per_layer it then calls step(), which refuses it in one sentence."""
        return self.per_layer

    def _check_backward(self) -> None:
        """Refuse what cannot be right where gradients are taken during backward."""
        if self.per_layer and "grad_scale" in vars(self):
            for name in ("grad_scale", "found_inf"):
                vars(self).pop(name, None)
            self._backward.forget()
            raise ValueError(
                "per_layer updates during backward, before GradScaler could unscale: leave GradScaler out, or give "
                "per_layer='project'"
            )
        self._backward.check()

    def _update_in_backward(self, parameter: nn.Parameter) -> None:
        """Of one parameter and of those that have waited for it, with per_layer.

        What the updates of the last backward came to is looked at when the next one begins: amid one, or at its step, a
        GPU would still be at work on them.
        """
        if self._backward.begins:
            try:
                self._begin_backward()
            except Exception:  # backward ends here: the next one must not add to this gradient
                parameter.grad = None
                raise
        self._backward.take(parameter)
        if ready := self._backward.collect(parameter):
            with torch.no_grad():
                self._update_buckets(ready, captured=is_captured())

    def _begin_backward(self) -> None:
        """Refuse what cannot be right before anything is updated."""
        if not is_captured():
            self._outcomes.read()
            self._look_back(wait=False)
        elif any(map(self.is_due, self.matrices)):
            raise ValueError(NOT_CAPTURED)

    def _update_buckets(self, buckets: list[Bucket], *, captured: bool) -> None:
        """With the gradients that have waited; they are freed."""
        if not buckets:
            return
        try:
            members = [self._members_of(bucket) for bucket in buckets]
            packs = [one for some, _ in members for one in some]
            self._update(packs, [one for _, some in members for one in some], captured=captured)
        finally:
            for each in (each for bucket in buckets for each in bucket.parameters):
                each.grad = None

    def _members_of(self, bucket: Bucket) -> tuple[list[Pack], list[Passing]]:
        """Packs and parameters that pass; packs of which only a part is in the bucket are parted."""
        if (found := self._of_bucket.get(bucket)) is None:
            inside = {id(each) for each in bucket.parameters}
            matrices = [each for each in self.matrices if id(each.parameter) in inside]
            packs = {id(each.pack): each.pack for each in matrices}
            if sum(len(pack.matrices) for pack in packs.values()) > len(matrices):
                self._form_packs(list(packs.values()))
                packs = {id(each.pack): each.pack for each in matrices}
            found = list(packs.values()), [each for each in self.passing if id(each.parameter) in inside]
            self._of_bucket[bucket] = found
        return found

    @torch.no_grad()
    def _project_in_backward(self, parameter: nn.Parameter) -> None:
        """Of one matrix, with per_layer='project'.

        Projecting is linear: the compact gradients of microbatches add up to the projected sum, and nothing is updated
        before step(). A subspace that is due is found from the first microbatch, never from a gradient that is not
        finite.
        """
        matrix = self._matrix_of[id(parameter)]
        pack = matrix.pack
        pack.check_dense()
        captured = is_captured()
        if self._backward.begins and not captured:
            self._outcomes.read()
        if captured and self.is_due(matrix):
            raise ValueError(NOT_CAPTURED)
        self._backward.take(parameter)
        with torch.autocast(parameter.device.type, enabled=False):
            if self.is_due(matrix) and self._can_follow(matrix):
                self._follow([matrix])
            elif self.is_due(matrix) and bool(are_finite([parameter.grad]).all()):  # type: ignore[list-item]
                self._search([matrix])
            if matrix.found:
                pack.take_gradients()
            else:
                pack.compact.grad = torch.full(pack.shape, torch.nan, dtype=pack.zero.dtype, device=pack.device)
        # torch.amp.GradScaler looks here: it unscales compact gradients and sees an overflow in them.
        listed = self.param_groups[pack.group]["params"]
        if not any(each is pack.compact for each in listed):
            listed.append(pack.compact)
        parameter.grad = None

    def _hide_compact(self) -> None:
        """Compact parameters are in the groups only while they have gradients."""
        if self.project_in_backward:
            compact = {id(pack.compact) for pack in self.packs}
            for group in self.param_groups:
                group["params"] = [each for each in group["params"] if id(each) not in compact]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those already projected too.

        - set_to_none: free the gradients instead of filling them with zeros
        """
        super().zero_grad(set_to_none)
        if self.project_in_backward:  # what per_layer has updated cannot be forgotten
            self._backward.forget()
        for pack in self.packs:
            pack.compact.grad = None
        self._hide_compact()
