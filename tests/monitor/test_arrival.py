"""Numbers leave the device in one piece and are read when they have arrived; nothing waits for them but the end."""

import pytest
import torch
from networks import PROBE, made

from joma.monitor import LargestLogit, Monitor, TrainingStopped, graphs
from joma.monitor.tables import _in_one


class Event:
    """Stands for one of CUDA's: it has happened when `here` says so, or when somebody waited for it."""

    here, waited = False, 0

    def query(self):
        return Event.here

    def synchronize(self):
        Event.waited += not Event.here


@pytest.fixture
def late(monkeypatch):
    sent = []
    Event.here, Event.waited = False, 0
    monkeypatch.setattr(graphs, "_sent", lambda flat: (sent.append(flat.shape) or flat, Event()))
    return sent


def test_numbers_are_read_at_a_later_step_in_order_and_in_one_piece(late):
    seen = []
    sink = lambda step, values: seen.append(step)
    with Monitor(made(), probe=PROBE, every=2, measures=["entropy", "norm"], sinks=sink) as monitor:
        for _ in range(4):
            monitor.step()
        assert seen == []
        assert late == [torch.Size([4 + 9])] * 3  # two layers of two heads, nine matrices
        Event.here = True
        monitor.step()
        assert seen == [0, 2, 4]
        assert Event.waited == 0
        Event.here = False
        monitor.step()
    assert seen == [0, 2, 4, 6]
    assert Event.waited == 1


def stops_late(seen):
    options = {"measures": ["largest_logit"], "alarms": [LargestLogit(1e-6)], "on_alarm": "stop"}
    return Monitor(made(), probe=PROBE, every=1, sinks=lambda step, values: seen.append(step), **options)


def test_an_alarm_of_numbers_that_arrive_together_stops_when_all_are_given_out(late):
    seen = []
    with stops_late(seen) as monitor:
        monitor.step()
        monitor.step()
        Event.here = True
        with pytest.raises(TrainingStopped):
            monitor.step()
        assert seen == [0, 1, 2]


def test_an_alarm_at_the_end_does_not_hide_what_ended_the_training(late):
    seen = []

    def broken():
        with stops_late(seen) as monitor:
            monitor.step()
            raise RuntimeError("the data ended")

    with pytest.raises(RuntimeError, match="the data ended"):
        broken()
    assert seen == [0, 1]
    with pytest.raises(TrainingStopped), stops_late(seen) as monitor:
        monitor.step()


class Recorder:
    """Stands in for streams, events and tensors of CUDA, and writes down what is asked of them."""

    def __init__(self, name, told):
        self.name, self.told = name, told
        self.device, self.shape, self.dtype = torch.device("cuda", 3), (5,), torch.float64

    def __getattr__(self, what):
        return lambda *args, **options: self.told.append((self.name, what, *map(str, args), options))

    def __str__(self):
        return self.name

    def __enter__(self):
        self.told.append((self.name, "enter"))

    def __exit__(self, *_):
        self.told.append((self.name, "exit"))


def test_on_cuda_numbers_leave_on_a_stream_of_their_own_into_pinned_memory(monkeypatch):
    told = []
    one = lambda name: lambda *_, **options: told.append((name, "made", options)) or Recorder(name, told)
    graphs._aside.cache_clear()
    monkeypatch.setattr(torch.cuda, "Stream", one("aside"))
    monkeypatch.setattr(torch.cuda, "Event", one("event"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "training")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch, "empty", one("host"))
    for _ in range(2):
        graphs._sent(Recorder("numbers", told))
    graphs._aside.cache_clear()
    once = [
        ("aside", "wait_stream", "training", {}),  # the numbers must be there before they are read
        ("aside", "enter"),
        ("host", "made", {"dtype": torch.float64, "pin_memory": True}),
        ("host", "copy_", "numbers", {"non_blocking": True}),
        ("numbers", "record_stream", "aside", {}),
        ("event", "made", {}),
        ("event", "record", "aside", {}),
        ("aside", "exit"),
    ]
    assert told == [("aside", "made", {}), *once, *once]


def test_numbers_of_any_shape_and_type_are_one_row_in_float64():
    third = torch.tensor(1 / 3, dtype=torch.float64)
    series = [[torch.tensor([1.5, 2.0]), torch.tensor(3.0)], [third, torch.tensor([[4.0, 5.0], [6.0, 7.0]])]]
    series.append([torch.tensor([8], dtype=torch.bfloat16)])
    found = _in_one(series)
    assert found.dtype == torch.float64
    assert found.tolist() == [1.5, 2.0, 3.0, 1 / 3, 4.0, 5.0, 6.0, 7.0, 8.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_numbers_of_several_devices_are_one_row_on_the_first():
    found = _in_one([[torch.tensor([1.0], device="cuda")], [torch.tensor([2.0, 3.0])], [torch.ones((), device="cuda")]])
    assert found.is_cuda
    assert found.tolist() == [1.0, 2.0, 3.0, 1.0]
