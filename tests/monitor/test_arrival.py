"""Numbers leave the device in one piece and are read when they have arrived; nothing waits for them but the end."""

import pytest
import torch
from networks import PROBE, made

from joma.monitor import Monitor, tables


class Event:
    """Stands for one of CUDA's: it has happened when `here` says so, or when somebody waited for it."""

    here, waited = False, 0

    def query(self):
        return Event.here

    def synchronize(self):
        Event.waited += not Event.here


@pytest.fixture
def late(monkeypatch):
    """A device whose numbers are on their way for some time; the sizes of what was sent."""
    sent = []
    Event.here, Event.waited = False, 0
    monkeypatch.setattr(tables, "_sent", lambda flat: (sent.append(flat.shape) or flat, Event()))
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
