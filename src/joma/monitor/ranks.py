"""Stable ranks of the matrices that a monitor follows, from one measuring to the next.

The first time each is certified by `spectrum`, to a thousandth. From then on `follow` turns a block of vectors after
it, and the host waits for nothing. Where what it leaves over is more than `DOUBT`, the rank is certified again: at once
where the numbers lie in the host's memory, else at the next measuring, when they have arrived.

Where looks are to be recorded, those that come a second time with the same matrices are. One that cannot be recorded
goes on as it was.
"""

from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor

from joma.host.words import short
from joma.measure._following import BLOCK, Followed, first_block, follow, random_vectors, takes_grams
from joma.measure.spectrum import GRAM_SIDE, TOGETHER, spectrum
from joma.monitor.graphs import Arrival, Memory
from joma.monitor.recorded import RecordedLook
from joma.monitor.sinks.guard import report

DOUBT = 0.01
"""A residual above which a rank is certified anew. Below it a test sees no error above 0.002."""

AT_A_TIME = 1 << 27
"""Entries of matrices that are followed together: copies of them are held for a moment."""
GRAM_ENTRIES = 1 << 23
"""Entries of Gram matrices in one recorded look, which holds memory for them: 32 MiB."""
FIRST_STEPS = 40
"""Steps of subspace iteration before the first look; each reads the matrices twice."""


class Ranks:
    """The stable ranks of matrices by name, and what was found last of each."""

    def __init__(self, memory: Memory | None = None) -> None:
        """memory: for recordings of looks at matrices on a CUDA device; None: nothing is recorded."""
        self.blocks: dict[str, Tensor] = {}
        """By name, the vectors that the next look begins with."""
        self.certified = 0
        """How often a rank was certified."""
        self.recorded: dict[tuple[str, ...], RecordedLook | None] = {}
        """By the names of its matrices, each recorded look; None: it came once, or cannot be recorded."""
        self._memory = memory
        self._doubted: set[str] = set()
        self._residuals: list[tuple[list[str], Arrival]] = []
        self._random: dict[torch.device, torch.Generator] = {}

    def of(self, matrices: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of all matrices; NaN for one that is not finite."""
        self._hear()
        known = {name: each for name, each in matrices.items() if self._can_follow(name, each)}
        found: dict[str, Tensor] = {}
        for names in _of_one_side(known, None if self._memory is None else GRAM_ENTRIES):
            found |= self._follow({name: matrices[name] for name in names})
        for names in _alike({name: each for name, each in matrices.items() if name not in known}):
            found |= self._certify({name: matrices[name] for name in names})
        return {name: found[name] for name in matrices}

    def _can_follow(self, name: str, matrix: Tensor) -> bool:
        block = self.blocks.get(name)
        if block is None or name in self._doubted or matrix.device != block.device:
            return False
        return len(block) == min(matrix.shape)

    def _follow(self, matrices: dict[str, Tensor]) -> dict[str, Tensor]:
        names = [name for group in _groups(matrices, lambda each: each.shape) for name in group]
        each, blocks = [matrices[name] for name in names], [self.blocks[name] for name in names]
        looked = self._looked(tuple(names), each, blocks)
        self.blocks |= dict(zip(names, looked.vectors, strict=True))
        self._residuals.append((names, Arrival(looked.residual)))
        found = dict(zip(names, looked.stable_rank, strict=True))
        if self._residuals[-1][1].at_once:
            self._hear()
            for doubted in _alike({name: each for name, each in matrices.items() if name in self._doubted}):
                found |= self._certify({name: matrices[name] for name in doubted})
        return found

    def _looked(self, names: tuple[str, ...], matrices: list[Tensor], blocks: list[Tensor]) -> Followed:
        random = self._generator(blocks[0].device)
        if (recorded := self._recorded(names, matrices, blocks)) is not None:
            return recorded.again(blocks, random)
        vectors = torch.stack(blocks)
        return follow(matrices, vectors, random_vectors(vectors, 1, random))

    def _recorded(self, names: tuple[str, ...], matrices: list[Tensor], blocks: list[Tensor]) -> RecordedLook | None:
        """The look at these matrices, from the second time on that they come together; None: they have none."""
        device, side = blocks[0].device, len(blocks[0])
        if self._memory is None or device.type != "cuda" or not takes_grams(device, side):
            return None
        if names not in self.recorded:
            others = {key: look for key, look in self.recorded.items() if not set(key) & set(names)}
            self.recorded = others | {names: None}
            return None
        look = self.recorded[names]
        if look is None or not look.is_of(matrices):
            self.recorded[names] = look = None  # its memory goes before the next one takes some
            try:
                self.recorded[names] = look = RecordedLook(matrices, torch.stack(blocks), self._memory)
            except Exception as error:
                self.record_no_more()
                report(f"stable ranks come without a recording, and take the host longer: {short(str(error), 200)}")
        return look

    def record_no_more(self) -> None:
        """Give the memory of recordings back; the same numbers come without them."""
        self._memory = None
        self.recorded.clear()

    def _certify(self, matrices: dict[str, Tensor], *, begin: bool = True) -> dict[str, Tensor]:
        """By `spectrum`, each alone where one of them is not finite. begin: whether they will be followed."""
        self._doubted -= set(matrices)
        self.certified += len(matrices)
        stack = torch.stack(list(matrices.values()))
        try:
            found = spectrum(stack)
        except ValueError:
            if len(matrices) > 1:
                alone = [self._certify({name: each}, begin=begin) for name, each in matrices.items()]
                return {name: rank for one in alone for name, rank in one.items()}
            ((name, matrix),) = matrices.items()
            self.blocks.pop(name, None)
            return {name: torch.full((), torch.nan, device=matrix.device)}
        if begin and _is_worth_following(next(iter(matrices.values()))):
            random = self._generator(found.vectors.device)
            # A vector that is good enough for the number is not yet one to follow.
            first = first_block(found.vectors, random)
            looked = follow(stack.unbind(), first, random_vectors(first, 1, random), steps=FIRST_STEPS)
            self.blocks |= dict(zip(matrices, looked.vectors, strict=True))
        return dict(zip(matrices, found.stable_rank, strict=True))

    def _hear(self) -> None:
        while self._residuals and self._residuals[0][1].is_there():
            names, arrival = self._residuals.pop(0)
            residuals = zip(names, arrival.numbers().tolist(), strict=True)
            self._doubted |= {name for name, each in residuals if not each <= DOUBT}  # NaN is a doubt too

    def _generator(self, device: torch.device) -> torch.Generator:
        """Numbers of our own: those of the training stay as they are."""
        if device not in self._random:
            self._random[device] = torch.Generator(device).manual_seed(0)
        return self._random[device]


def _is_worth_following(matrix: Tensor) -> bool:
    """Not where a small matrix is done exactly at once, which costs a host nothing but a GPU much waiting."""
    side = min(matrix.shape)
    return side >= 2 * BLOCK if matrix.device.type == "cuda" else side > GRAM_SIDE


def ranks_of(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stable ranks of matrices that have neither past nor future; NaN for one that is not finite."""
    ranks, found = Ranks(), dict[str, Tensor]()
    for names in _alike(matrices):
        found |= ranks._certify({name: matrices[name] for name in names}, begin=False)
    return {name: found[name] for name in matrices}


def _alike(matrices: dict[str, Tensor]) -> Iterator[list[str]]:
    for names in _groups(matrices, lambda each: (each.device, each.dtype, each.shape)):
        some = max(1, TOGETHER // matrices[names[0]].numel())
        yield from (names[at : at + some] for at in range(0, len(names), some))


def _of_one_side(matrices: dict[str, Tensor], grams: int | None = None) -> Iterator[list[str]]:
    """Names of matrices that have one smaller side, on one device, in one type: as many at a time as memory allows."""
    for names in _groups(matrices, lambda each: (each.device, each.dtype, min(each.shape))):
        some: list[str] = []
        most = len(names) if grams is None else max(1, grams // min(matrices[names[0]].shape) ** 2)
        for name in names:
            entries = sum(matrices[each].numel() for each in (*some, name))
            if some and (entries > AT_A_TIME or len(some) == most):
                yield some
                some = []
            some.append(name)
        yield some


def _groups(matrices: dict[str, Tensor], key: Callable[[Tensor], Hashable]) -> list[list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name, each in matrices.items():
        groups.setdefault(key(each), []).append(name)
    return list(groups.values())
