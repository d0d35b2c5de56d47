"""Which compiled kernel serves which arguments, with a stand-in for triton's kernels, which need a GPU."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed here")

from joma.host import kernels

GRID = (5, 7)


class StandIn:
    """What a kernel is told of a tensor: its kind of numbers, its device and its address."""

    def __init__(self, dtype=torch.float32, device="cuda:0", address=256):
        self.dtype, self.device, self.address = dtype, torch.device(device), address

    def data_ptr(self):
        return self.address


class Kernel:
    """Compiles, and writes down what was compiled and what was started."""

    def __init__(self, gives=True):
        self.compiled, self.started, self.gives = [], [], gives

    def __getitem__(self, grid):
        def compile_and_start(*args, **options):
            number = len(self.compiled)
            self.compiled.append((grid, args, options))
            return Compiled(self.started, number) if self.gives else None

        return compile_and_start


class Compiled:
    def __init__(self, started, number):
        self.started, self.number = started, number

    def __getitem__(self, grid):
        return lambda *args: self.started.append((self.number, grid, args))


@pytest.fixture(autouse=True)
def _none_is_kept(monkeypatch):
    monkeypatch.setattr(kernels, "_FOUND", {})
    monkeypatch.setattr(kernels, "_version", lambda: (3, 6))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)


def start(kernel, tensors=None, numbers=(3, 16, 0.5), constants=None, options=None, grid=GRID):
    tensors = (StandIn(), StandIn()) if tensors is None else tensors
    constants = {"BLOCK": 16, "CAUSAL": True} if constants is None else constants
    kernels.start(kernel, grid, tensors, numbers, constants, options or {"num_warps": 4})
    return tensors


def test_the_second_time_nothing_is_compiled_and_all_arguments_come_in_their_order():
    kernel = Kernel()
    first = start(kernel)
    assert kernel.compiled == [(GRID, (*first, 3, 16, 0.5), {"BLOCK": 16, "CAUSAL": True, "num_warps": 4})]
    assert kernel.started == []
    again = start(kernel, numbers=(3, 16, 0.25), grid=(9, 2))  # another scale, a longer text, other tensors
    assert len(kernel.compiled) == 1
    assert kernel.started == [(0, (9, 2, 1), (*again, 3, 16, 0.25, 16, True))]


def test_a_repeated_start_takes_tensors_alone_and_looks_at_their_addresses():
    kernel = Kernel()
    again = kernels.repeated(kernel, GRID, (3, 0.5), {"BLOCK": 16}, {"num_warps": 4})
    calls = [(StandIn(), StandIn(address=at)) for at in (256, 512, 264, 1024)]
    for tensors in calls:
        again(*tensors)
    assert [given[:2] for _, given, _ in kernel.compiled] == [calls[0], calls[2]]
    assert kernel.started == [(0, (*GRID, 1), (*calls[at], 3, 0.5, 16)) for at in (1, 3)]


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": (StandIn(), StandIn(torch.bfloat16))},
        {"tensors": (StandIn(), StandIn(address=264))},
        {"tensors": (StandIn(address=264), StandIn())},
        {"tensors": (StandIn(device="cuda:1"), StandIn(device="cuda:1"))},
        {"numbers": (4, 16, 0.5)},
        {"numbers": (3, 1, 0.5)},
        {"numbers": (3, 16, 1)},
        {"constants": {"BLOCK": 32, "CAUSAL": True}},
        {"constants": {"BLOCK": 16, "CAUSAL": False}},
        {"options": {"num_warps": 8}},
        {"options": {"num_stages": 4}},
        {"options": {"num_warps": 4, "maxnreg": 128}},
    ],
    ids=[
        "kind of numbers", "address", "first address", "device", "length", "step of one", "a whole scale", "block",
        "causal", "warps", "stages", "registers",
    ],
)  # fmt: skip
def test_what_is_compiled_in_is_compiled_anew(change):
    kernel = Kernel()
    start(kernel)
    start(kernel, **change)
    assert len(kernel.compiled) == 2
    start(kernel)
    start(kernel, **change)
    assert len(kernel.compiled) == 2
    assert [number for number, _, _ in kernel.started] == [0, 1]


def test_each_kernel_has_its_own():
    one, other = Kernel(), Kernel()
    for _ in range(2):
        start(one)
        start(other)
    assert len(one.compiled) == len(other.compiled) == len(one.started) == len(other.started) == 1


def test_an_address_may_change_as_long_as_it_is_a_multiple_of_16():
    kernel = Kernel()
    for address in (256, 272, 1024):
        start(kernel, (StandIn(), StandIn(address=address)))
    assert len(kernel.compiled) == 1
    for address in (264, 260, 257):
        start(kernel, (StandIn(), StandIn(address=address)))
    assert len(kernel.compiled) == 2


def test_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(kernels, "MOST", 3)
    kernel = Kernel()
    for length in range(8):
        start(kernel, numbers=(length,))
        assert 1 <= len(kernels._FOUND) <= 3
    start(kernel, numbers=(7,))
    assert len(kernel.compiled) == 8


@pytest.mark.parametrize(("gives", "version"), [(False, (3, 6)), (True, (3, 5))], ids=["interpreted", "older"])
def test_nothing_is_kept_that_could_not_be_started_again(gives, version, monkeypatch):
    monkeypatch.setattr(kernels, "_version", lambda: version)
    kernel = Kernel(gives)
    for _ in range(2):
        start(kernel)
    assert len(kernel.compiled) == 2
    assert kernel.started == []


def test_a_kernel_starts_on_the_device_of_its_tensors(monkeypatch):
    """The first time and again, also where it is compiled."""
    entered = []

    @contextmanager
    def on(device):
        entered.append(str(device))
        yield
        entered.append("left")

    monkeypatch.setattr(torch.cuda, "device", on)
    for device, expected in (("cuda:0", []), ("cpu", []), ("cuda:1", ["cuda:1", "left"])):
        kernel, tensor = Kernel(), StandIn(device=device)
        for turn in range(2):
            entered.clear()
            kernels.start(kernel, GRID, (tensor,), (), {}, {})
            assert (len(kernel.compiled), len(kernel.started)) == (1, turn)
            assert entered == expected
