"""Gradients that are taken during backward and freed: each at once, or few together where large steps are faster.

Which subspaces are found together follows from that too: those of matrices whose gradients are there together.
"""

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from joma.optim import _matrix
from joma.optim._matrix import Matrix, is_sharded

WAITING_SHARE = 2  # of the largest gradient: gradients that wait and copies of them are together no more than it
TINY = 1024  # times fewer entries than that share has a parameter that may wait for the end of backward
SEARCHED = 1 << 23  # entries of gradients that are searched together at most
REFRESHED_TOGETHER = 4  # subspaces that are found at once where products are stacked: more make a step too long
_HOOKS = WeakTensorKeyDictionary()  # one per parameter: were there two, the second would find no gradient
Place = Callable[[Matrix], Hashable]
Take = Callable[[Any, nn.Parameter], None]
"""A method of an optimizer, with that optimizer first."""


class Bucket:
    """Parameters that are updated together, as soon as all of them have gradients."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.waiting: set[int] = set()  # of the parameters whose gradients are there

    @property
    def entries(self) -> int:
        return sum(each.numel() for each in self.parameters if id(each) in self.waiting)

    def part(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters with gradients that wait, and the others; somebody may have cleared a gradient meanwhile."""
        there: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for each in self.parameters:
            (there if id(each) in self.waiting and each.grad is not None else others).append(each)
        return there, others


def most_together(parameters: Iterable[nn.Parameter]) -> int:
    """Entries of a gradient that is alone; gradients of a bucket and copies of them are twice as many at most."""
    return max(each.numel() for each in parameters) // WAITING_SHARE


def plan_buckets(parameters: Sequence[nn.Parameter], most: int) -> list[Bucket]:
    """Few buckets of neighbours, the last ones first: so backward mostly meets them.

    Buckets between two large parameters have about as many entries each: layers are alike, and so are their buckets.
    What has next to no entries, as norms and biases, waits for the last bucket: beside matrices it would take a step of
    the inner optimizer of its own in each. Where products are not stacked each parameter is alone: there small steps
    are as fast as large ones.
    """
    stretches: list[list[nn.Parameter]] = []
    tiny: list[nn.Parameter] = []
    for each in reversed(parameters):
        alone = each.numel() >= most or not _matrix.is_stacked_on(each.device)
        if not alone and each.numel() * TINY <= most:
            tiny.append(each)
            continue
        last = stretches[-1][-1] if stretches else None
        if alone or last is None or last.numel() >= most or last.device != each.device:
            stretches.append([])
        stretches[-1].append(each)
    buckets = [Bucket(some) for stretch in stretches for some in _balance(stretch, 2 * most)]
    last_on = {bucket.parameters[-1].device: bucket for bucket in buckets}
    for each in tiny:
        if each.device not in last_on:
            buckets.append(last_on.setdefault(each.device, Bucket([])))
        last_on[each.device].parameters.append(each)
    return buckets


def _balance(stretch: list[nn.Parameter], most: int) -> list[list[nn.Parameter]]:
    """Neighbours in as few buckets as `most` allows, with the smallest bound that is enough for so few."""
    best = _fill(stretch, most)
    low, high = max(each.numel() for each in stretch), most
    while low < high:
        middle = (low + high) // 2
        if len(found := _fill(stretch, middle)) == len(best):
            best, high = found, middle
        else:
            low = middle + 1
    return best


def _fill(stretch: list[nn.Parameter], most: int) -> list[list[nn.Parameter]]:
    found: list[list[nn.Parameter]] = [[]]
    load = _Load()
    for each in stretch:
        load.add(each)
        if found[-1] and load.total > most:
            found.append([])
            load = _Load()
            load.add(each)
        found[-1].append(each)
    return found


class _Load:
    """Entries of gradients, and of copies of those that are alike: one kind at a time is copied for one product."""

    def __init__(self) -> None:
        self._entries = self._copied = 0
        self._alike: dict[torch.Size, int] = {}

    def add(self, parameter: nn.Parameter) -> None:
        size = parameter.numel()
        self._entries += size
        alike = self._alike[parameter.shape] = self._alike.get(parameter.shape, 0) + size
        if alike > size:  # what is alone is not copied
            self._copied = max(self._copied, alike)

    @property
    def total(self) -> int:
        return self._entries + self._copied


def give_turns(matrices: Sequence[Matrix], parameters: Sequence[nn.Parameter], *, staggered: bool, alone: bool) -> None:
    """Say which matrices are refreshed together: all, or few at a time, spread over the updates between refreshes.

    Turns follow from shapes and order alone, so that a resumed run has those of the run before, and with per_layer they
    are the same as without.
    """
    buckets = plan_buckets(parameters, most_together(parameters))
    bucket_of = {id(each): bucket for bucket in buckets for each in bucket.parameters}
    turns = [[matrix] for matrix in matrices]
    if not alone:
        turns = refresh_batches(matrices, lambda matrix: bucket_of[id(matrix.owner)])
    for number, batch in enumerate(turns):
        for matrix in batch:
            matrix.turn = (number, len(turns)) if staggered else (0, 1)


def refresh_batches(matrices: Iterable[Matrix], place: Place = lambda matrix: None) -> list[list[Matrix]]:
    """Alike matrices whose subspaces are found together: of one place, or of places that have one each."""
    kinds: dict[object, list[Matrix]] = {}
    for matrix in matrices:
        kinds.setdefault(matrix.kind, []).append(matrix)
    return [batch for alike in kinds.values() for batch in _batches(alike, place)]


def _batches(alike: list[Matrix], place: Place) -> list[list[Matrix]]:
    together = REFRESHED_TOGETHER if _matrix.is_stacked_on(alike[0].parameter.device) else 1
    most = max(1, min(together, SEARCHED // max(1, alike[0].parameter.numel())))
    there = Counter(map(place, alike))
    places = [each if there[each] > 1 else None for each in map(place, alike)]
    runs = groupby(zip(places, alike, strict=True), key=itemgetter(0))
    each_run = ([matrix for _, matrix in run] for _, run in runs)
    return [run[at : at + most] for run in each_run for at in range(0, len(run), most)]


class InBackward:
    """Whose gradients were taken before a step, and whose are waiting to be used."""

    def __init__(self, *, per_layer: bool) -> None:
        """With per_layer each gradient is used once, and microbatches cannot add up."""
        self.per_layer = per_layer
        self.most_waiting = 0  # entries of all gradients that wait, however they come
        self._hooks: dict[int, BackwardHook] = {}
        self._taken: set[int] = set()
        self._bucket_of: dict[int, Bucket] = {}
        self._begun: dict[Bucket, None] = {}  # buckets with gradients that wait, the oldest first
        self._entries = 0  # of gradients that wait

    def start(self, named: Iterable[tuple[str, nn.Parameter]], optimizer: object, take: Take) -> None:
        for name, parameter in named:
            if id(parameter) not in self._hooks:
                self._hooks[id(parameter)] = BackwardHook(name, parameter, optimizer, take)

    def plan(self, parameters: Sequence[nn.Parameter]) -> None:
        """Say which parameters are updated together; gradients that wait already go on waiting."""
        most = most_together(parameters)
        waiting = [each for bucket in self._begun for each in bucket.part()[0]]
        self.most_waiting = 2 * most
        self._begun, self._entries = {}, 0
        self._keep(plan_buckets(parameters, most))
        for each in waiting:
            self._wait(each)

    def _keep(self, buckets: Iterable[Bucket]) -> None:
        self._bucket_of.update({id(each): bucket for bucket in buckets for each in bucket.parameters})

    def bucket_of(self, parameter: nn.Parameter) -> Bucket | None:
        """With whom it is updated; None if there is no plan."""
        return self._bucket_of.get(id(parameter))

    @property
    def begins(self) -> bool:
        return not self._taken

    def take(self, parameter: nn.Parameter) -> None:
        """A gradient is taken; with per_layer a second one before a step is refused."""
        if self.per_layer and id(parameter) in self._taken:
            raise ValueError(
                f"{self._hooks[id(parameter)].name} has a second gradient before step(): per_layer updates in every "
                "backward, so microbatches cannot add up; give per_layer='project' instead"
            )
        self._taken.add(id(parameter))

    def collect(self, parameter: nn.Parameter) -> list[Bucket]:
        """Let a gradient wait for the others of its bucket; what is to be updated now: mostly nothing, or that bucket.

        Where gradients come in another order than that of the plan, so many may wait that the oldest cannot any longer.
        """
        bucket = self._wait(parameter)
        if len(bucket.waiting) == len(bucket.parameters):
            return self._release(bucket)
        ready: list[Bucket] = []
        while self._entries > self.most_waiting:
            ready += self._release(next(iter(self._begun)))
        return ready

    def _wait(self, parameter: nn.Parameter) -> Bucket:
        bucket = self._bucket_of[id(parameter)]
        if id(parameter) not in bucket.waiting:
            bucket.waiting.add(id(parameter))
            self._entries += parameter.numel()
        self._begun[bucket] = None
        return bucket

    def release(self) -> list[Bucket]:
        return [each for bucket in list(self._begun) for each in self._release(bucket)]

    def _release(self, bucket: Bucket) -> list[Bucket]:
        """Use a bucket as it is: those without a gradient leave it for good, and nobody waits for them again."""
        there, others = bucket.part()
        del self._begun[bucket]
        self._entries -= bucket.entries
        bucket.waiting.clear()
        if not there or not others:
            return [bucket] if there else []
        halves = [Bucket(there), Bucket(others)]
        self._keep(halves)
        return halves[:1]

    def check(self) -> None:
        """At a step: refuse what cannot be right, and begin anew."""
        for key, hook in self._hooks.items():
            hook.check(taken=key in self._taken)
        self.forget()

    def forget(self) -> None:
        self._taken.clear()


class ClippingWatch:
    """Sees whether gradients were scaled after backward, as clip_grad_norm_ does, while projected ones were not.

    torch counts how often a tensor was written to. What scales all gradients, as GradScaler, writes to both kinds.
    """

    def __init__(self) -> None:
        self.warned = False
        self._seen: dict[str, tuple[nn.Parameter, torch.Tensor, int]] = {}

    def start(self, passing: nn.Parameter) -> None:
        """Look at this parameter whenever its gradient is complete; a frozen one never has any."""
        if passing.requires_grad:
            passing.register_post_accumulate_grad_hook(lambda each: self.note("passing", each))

    def note(self, kind: str, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            self._seen[kind] = parameter, parameter.grad, parameter.grad._version

    def check(self) -> None:
        """At a step: warn once."""
        seen, self._seen = self._seen, {}
        still = {kind: one.grad is grad and grad._version == at for kind, (one, grad, at) in seen.items()}
        alive = all(one.grad is grad for one, grad, _ in seen.values())
        if alive and still.get("compact") and still.get("passing") is False and not self.warned:
            self.warned = True
            warnings.warn(
                "gradients were scaled after backward, as clip_grad_norm_ does, but per_layer='project' had projected "
                "those of matrices: the norm was of the others alone; give clip=... to the optimizer instead",
                stacklevel=4,
            )


class BackwardHook:
    """Lets an optimizer have a gradient as soon as it is complete; the optimizer frees it."""

    def __init__(self, name: str, parameter: nn.Parameter, optimizer: object, take: Take) -> None:
        """Start it.

        `take` is a method of the optimizer; the hook does nothing once that optimizer is gone. The newest optimizer has
        the gradient, so that training can go on with a new one on the same model.
        """
        if is_sharded(parameter):
            raise ValueError(f"{name} lies on several processes, and FSDP2 gathers its gradient: leave per_layer out")
        self.name, self.parameter = name, parameter
        kept = weakref.ref(optimizer)

        def hook(parameter: Any) -> None:
            if (taking := kept()) is not None and parameter.grad is not None:
                take(taking, parameter)

        if (before := _HOOKS.get(parameter)) is not None:
            before.remove()
        # torch hooks only what requires a gradient; a frozen parameter keeps its hook and may be trained later.
        requires_grad = parameter.requires_grad
        parameter.requires_grad_(True)
        self._handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)
        _HOOKS[parameter] = self._handle
        parameter.requires_grad_(requires_grad)

    def check(self, *, taken: bool) -> None:
        """Refuse to step where a newer optimizer has the gradient, or something puts it back once it was taken."""
        if taken and self.parameter.grad is not None:
            raise ValueError(
                f"{self.name} has a gradient although it was taken during backward: leave per_layer "
                "out inside DistributedDataParallel, which averages later"
            )
        if self._handle.id not in (self._handle.hooks_dict_ref() or ()):  # a newer hook has removed this one
            raise ValueError(f"the gradient of {self.name} goes to a newer GaLore with per_layer: step that one")
