"""What goes on beside a device's current stream: recordings of CUDA graphs, and numbers on their way to the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor


class Memory:
    """What recordings of CUDA graphs need. A pass over the probe batch is recorded first, looks at weights after it.

    What a pass has shown lies in this memory, and must outlast the looks. So a pass that is recorded anew takes new
    memory: in the old one a look might write over it.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    @property
    def pool(self) -> Any:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return self._pool

    def renew(self) -> Any:
        self._pool = None
        return self.pool


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Record what is done inside, on the current stream, which must be `stream_of` its device."""
    stream = torch.cuda.current_stream()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        yield


@contextmanager
def aside() -> Iterator[None]:
    """Work on the stream of recordings, after what the current one has, and before what it gets.

    Where a recording fails inside, torch believes that it goes on, and would draw no more random numbers: they go on.
    """
    device = torch.cuda.current_device()
    random_numbers, now, stream = torch.cuda.default_generators[device], torch.cuda.current_stream(), stream_of(device)
    drawn = random_numbers.clone_state()
    stream.wait_stream(now)
    try:
        with torch.cuda.stream(stream):
            yield
    except BaseException:
        random_numbers.graphsafe_set_state(drawn)
        raise
    finally:
        now.wait_stream(stream)


@cache
def stream_of(device: int) -> torch.cuda.Stream:
    """The one for recordings: each further stream would hold memory for products of its own."""
    return torch.cuda.Stream(device)


class Arrival:
    """A copy of a tensor in the host's memory: from CUDA on a stream of its own, pinned, so that nothing waits."""

    def __init__(self, tensor: Tensor) -> None:
        """tensor: what is copied."""
        self._host, self._event = _sent(tensor)

    @property
    def at_once(self) -> bool:
        return self._event is None

    def is_there(self) -> bool:
        return self._event is None or bool(self._event.query())

    def numbers(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._host


def _sent(flat: Tensor) -> tuple[Tensor, Any]:
    """The numbers in memory of the CPU, and what says that they are there; None where they are at once."""
    if flat.device.type != "cuda":
        return flat.cpu(), None
    aside = _aside(flat.device)
    aside.wait_stream(torch.cuda.current_stream(flat.device))
    with torch.cuda.stream(aside):
        host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        host.copy_(flat, non_blocking=True)
        flat.record_stream(aside)  # its memory is not given away before it was read
        event = torch.cuda.Event()
        event.record(aside)
    return host, event


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
