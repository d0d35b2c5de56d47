"""Batches drawn ahead: many steps at once, on the device before their step comes, so that neither waits for the other.

A GPU that is handed a batch from ordinary memory stops the host, and the networks beside it get no work meanwhile.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Draw = Callable[[range, Sequence[int]], tuple[Tensor, ...]]
"""draw(steps, members) -> tensors (steps, members, ...). What a step reads depends on its own number alone."""

MOST_BYTES = {"cpu": 2 * 2**20, "cuda": 128 * 2**20}
"""What is kept for later steps: on a CPU as much as its caches hold, beyond that it is slower than a step at a time."""
LONGEST = 256
"""Steps drawn at once, at most."""


class Ahead:
    """What `joma.training.Ensemble` takes as `batch`, from a function that draws many steps at once.

    A step is drawn alone; when the next one is asked for too, as in training, as many are drawn as `most_bytes` hold.
    Each is what it would be if drawn alone, in whatever order. One block is kept: each ensemble wants its own `Ahead`.

    - draw: see `Draw`; its tensors may lie in main memory, they are sent to `device` without waiting
    - steps: none beyond it is drawn before it is asked for
    - device: where batches are wanted
    - most_bytes: of a block that is kept; `MOST_BYTES` unless given

    >>> def draw(steps, members):
    ...     number = torch.tensor(list(steps))[:, None] * 100 + torch.tensor(list(members))
    ...     return (number,)
    >>> batch = Ahead(draw, steps=1000)
    >>> [batch(step, [3, 7]) for step in (5, 6, 2)]
    [(tensor([503, 507]),), (tensor([603, 607]),), (tensor([203, 207]),)]
    """

    def __init__(self, draw: Draw, *, steps: int, device: str = "cpu", most_bytes: int | None = None) -> None:
        """The arguments are described above, with the class."""
        self.draw, self.steps, self.device = draw, steps, torch.device(device)
        self.most_bytes = MOST_BYTES[self.device.type] if most_bytes is None else most_bytes
        self._parts: tuple[Tensor, ...] = ()
        self._held = range(0)
        self._of: tuple[object, ...] = ()

    def __repr__(self) -> str:
        return f"Ahead({self.steps:,} steps, {self.device}, holds {len(self._held)})"

    def __call__(self, step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        """The batch of a step for these members, (members, ...) each."""
        # Memory belongs to the stream it was drawn on: another one draws its own.
        on_gpu = self.device.type == "cuda"
        of = (torch.cuda.current_stream(self.device).cuda_stream if on_gpu else 0, *members)
        if of != self._of or step not in self._held:
            end = step + 1
            if of == self._of and step == self._held.stop and step < self.steps:  # goes on: as large as the last allows
                one = sum(part.nbytes for part in self._parts) // len(self._held)
                end = min(step + max(1, min(LONGEST, self.most_bytes // max(1, one))), self.steps)
            self._parts, self._held, self._of = (), range(0), ()  # let go first: never two blocks, none half drawn
            steps = range(step, end)
            parts = tuple(sent(part, self.device) for part in self.draw(steps, members))
            for part in parts:
                if part.shape[:2] != (len(steps), len(members)):
                    wanted = f"({len(steps)}, {len(members)}, ...), steps and members"
                    raise ValueError(f"draw must give tensors of shape {wanted}, got {tuple(part.shape)}")
            self._parts, self._held, self._of = parts, steps, of
        return tuple(part[step - self._held.start] for part in self._parts)


def sent(values: Tensor | Sequence[int], device: torch.device | str) -> Tensor:
    """These values on a device. Nothing waits: a GPU reads them from pinned memory when it gets there.

    >>> sent(range(3), "cpu")
    tensor([0, 1, 2])
    """
    tensor = values if isinstance(values, Tensor) else torch.tensor(values)
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def turns(steps: range, size: int, count: int, device: torch.device | str) -> Tensor:
    """Which of `count` samples each step reads when steps take `size` of them in turn: (steps, size).

    >>> turns(range(1, 4), 3, 8, "cpu")
    tensor([[3, 4, 5],
            [6, 7, 0],
            [1, 2, 3]])
    """
    return (torch.arange(steps.start * size, steps.stop * size, device=device) % count).view(len(steps), size)
