"""Ranges that are needed: which are read as one, in which pieces, in which order, and what is held of them."""

import random
import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE
from safetensors.torch import save

from joma.scan.errors import CheckpointError
from joma.scan.formats import ranges
from joma.scan.formats.checkpoint import Checkpoint
from joma.scan.formats.ranges import RangedBytes, coalesced, pieces_of
from joma.scan.formats.safetensors_file import SafetensorsFile


class Server:
    """Bytes that can be asked for, and a list of what was."""

    def __init__(self, size, seed=0):
        self.content = random.Random(seed).randbytes(size)
        self.asked = []

    def fetch(self, start, buffer):
        self.asked.append((start, start + len(buffer)))
        buffer[:] = self.content[start : start + len(buffer)]

    def source(self, readers=1):
        return RangedBytes("a file", len(self.content), self.fetch, readers=readers)

    def read(self, source, start, stop):
        buffer = bytearray(stop - start)
        source.read_into(start, memoryview(buffer))
        assert buffer == self.content[start:stop]


def covered(parts):
    return {at for start, stop in parts for at in range(start, stop)}


some_ranges = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 60)).map(lambda r: (r[0], r[0] + r[1])), max_size=12
)


@given(some_ranges, st.integers(0, 80), st.floats(0, 1))
def test_what_is_joined_holds_what_is_needed_and_little_else(wanted, gap, slack):
    found, needed = coalesced(wanted, gap=gap, slack=slack), covered(wanted)
    assert needed <= covered(found)
    assert len(covered(found)) <= (1 + slack) * len(needed) + 1e-9
    assert all(before[1] < after[0] for before, after in pairwise(found))
    assert all({start, stop - 1} <= needed for start, stop in found)
    run = 0  # no gap inside is longer than may be
    for at in range(500):
        run = run + 1 if at in covered(found) and at not in needed else 0
        assert run <= gap


def test_the_smallest_gaps_are_closed_first_and_all_within_the_slack():
    wanted = [(0, 1000), (1015, 2000), (2005, 3000), (3005, 4000)]  # gaps of 15, 5 and 5; 1 % are 39
    assert coalesced(wanted) == [(0, 4000)]
    assert coalesced(wanted, slack=0.004) == [(0, 1000), (1015, 4000)]
    assert coalesced(wanted, slack=0.002) == [(0, 1000), (1015, 3000), (3005, 4000)]
    assert coalesced(wanted, gap=5) == [(0, 1000), (1015, 4000)]
    assert coalesced(wanted, gap=4) == wanted
    assert coalesced([(0, 2), (4, 6)], slack=0.5) == [(0, 6)]  # just as much as may be
    assert coalesced([(0, 2), (5, 7)], slack=0.5) == [(0, 2), (5, 7)]
    assert coalesced([(5, 5), (7, 3)]) == []


@given(st.integers(0, 100), st.integers(1, 500), st.integers(1, 60))
def test_pieces_are_short_enough_and_as_few_as_can_be(start, length, most):
    found = pieces_of(start, start + length, most)
    assert found[0][0] == start
    assert found[-1][1] == start + length
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert all(0 < stop - begin <= most for begin, stop in found)
    assert len(found) == -(-length // most)


@given(st.lists(some_ranges, max_size=4), st.sampled_from([1, 40, 300, 10**6]), st.sampled_from([1, 7, 50, 10**6]))
def test_whatever_is_expected_every_read_gives_the_bytes_there(batches, held, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "HELD", held)
        patch.setattr(ranges, "PIECE", piece)
        server = Server(500)
        source = server.source(readers=2)
        source.expect(batches)
        for start, stop in (each for batch in batches for each in batch):
            server.read(source, start, stop)
        server.read(source, 0, 500)
        assert source._held == 0  # what was expected was used up, and is not kept
        assert not source._pieces
        source.close()


@given(st.lists(some_ranges, max_size=4))
def test_what_is_expected_is_asked_for_once(batches):
    server = Server(500)
    source = server.source()
    source.expect(batches)
    seen = set()
    for start, stop in (each for batch in batches for each in batch):
        if not seen & set(range(start, stop)):
            server.read(source, start, stop)
            seen |= set(range(start, stop))
    source.close()
    together = [at for start, stop in server.asked for at in range(start, stop)]
    assert len(together) == len(set(together))


def test_pieces_come_in_the_order_in_which_they_are_needed(monkeypatch):
    monkeypatch.setattr(ranges, "PIECE", 100)
    server = Server(1000)
    source = server.source()
    source.expect([[(700, 800), (0, 200), (500, 550)]])
    server.read(source, 700, 800)
    server.read(source, 0, 200)
    server.read(source, 500, 550)
    assert server.asked == [(700, 800), (0, 100), (100, 200), (500, 550)]
    source.close()


def test_what_has_come_and_was_not_used_stays_within_its_room(monkeypatch):
    monkeypatch.setattr(ranges, "PIECE", 100)
    monkeypatch.setattr(ranges, "HELD", 300)
    monkeypatch.setattr(ranges, "GAP", 0)
    server = Server(3000)
    source = server.source(readers=8)
    most = []
    wanted = [(at, at + 100) for at in range(0, 3000, 200)]
    source.expect([[each] for each in wanted])
    for start, stop in wanted:
        most.append(source._held)
        server.read(source, start, stop)
    source.close()
    assert max(most) == 300
    assert len(server.asked) == len(wanted)


def test_few_bytes_of_several_groups_are_read_together_and_many_are_not(monkeypatch):
    groups = [[(0, 1000), (2005, 3000)], [(1002, 2003), (3001, 4000)]]
    for held, requests in ((10**6, 1), (3000, 4)):
        monkeypatch.setattr(ranges, "HELD", held)
        server = Server(5000)
        source = server.source()
        source.expect(groups)
        for start, stop in groups[0] + groups[1]:
            server.read(source, start, stop)
        source.close()
        assert len(server.asked) == requests


def test_what_an_earlier_group_reads_gives_a_later_one_no_slack(monkeypatch):
    monkeypatch.setattr(ranges, "HELD", 10)
    server = Server(10_000)
    source = server.source()
    source.expect([[(0, 8000)], [(0, 8000), (9000, 9100), (9150, 9250)]])
    for start, stop in ((0, 8000), (9000, 9100), (9150, 9250)):
        server.read(source, start, stop)
    source.close()
    assert sorted(server.asked) == [(0, 8000), (9000, 9100), (9150, 9250)]


def test_of_a_part_of_a_tensor_its_rows_alone_are_read():
    experts = torch.arange(8 * 100 * 50, dtype=torch.float32).reshape(8, 100, 50)
    server = Server(0)
    server.content = save({"experts": experts, "other": torch.ones(30_000)})
    with Checkpoint({"a file": lambda: SafetensorsFile(server.source())}, None) as checkpoint:
        server.asked.clear()
        checkpoint.expect([["experts[3]", "experts[4]", "experts[6,0:50]"]])
        assert torch.equal(checkpoint.read("experts[4]"), experts[4])
        assert torch.equal(checkpoint.read("experts[3]"), experts[3])
        assert torch.equal(checkpoint.read("experts[6,0:50]"), experts[6, :50])
    first = server.content.index(experts[3].numpy().tobytes())
    row = 100 * 50 * 4
    assert sorted(server.asked) == [(first, first + 2 * row), (first + 3 * row, first + 4 * row)]


def test_what_is_needed_before_its_turn_comes_at_once(monkeypatch):
    monkeypatch.setattr(ranges, "PIECE", 10)
    monkeypatch.setattr(ranges, "HELD", 20)
    server = Server(200)
    source = server.source()
    source.expect([[(0, 100)]])
    server.read(source, 90, 100)
    server.read(source, 0, 100)
    source.close()


def test_what_is_given_up_while_it_comes_is_still_read(monkeypatch):
    monkeypatch.setattr(ranges, "PIECE", 10)
    monkeypatch.setattr(ranges, "HELD", 20)
    server = Server(200)

    def fetch(start, buffer):
        server.fetch(start, buffer)
        if start == 90:  # a reader waits for it
            source.close()

    source = RangedBytes("a file", 200, fetch, readers=1)
    source.expect([[(0, 100)]])
    server.read(source, 90, 100)


def test_an_error_is_told_where_its_bytes_are_read():
    def fetch(start, buffer):
        if start >= 500:
            raise CheckpointError("the server is gone")
        buffer[:] = bytes(len(buffer))

    source = RangedBytes("a file", 1000, fetch)
    source.expect([[(0, 10), (600, 700)]])
    source.read_into(0, memoryview(bytearray(10)))
    with pytest.raises(CheckpointError, match="the server is gone"):
        source.read_into(600, memoryview(bytearray(100)))
    source.close()


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (8, 3), (11, 1)])
def test_bytes_that_are_not_there_are_refused(start, length):
    with pytest.raises(CheckpointError, match="a file ends at byte 10"):
        Server(10).source().read_into(start, memoryview(bytearray(length)))


def test_closing_does_not_wait_for_what_is_under_way():
    begun, go_on = threading.Event(), threading.Event()
    asked = []

    def fetch(start, buffer):
        asked.append(start)
        begun.set()
        assert go_on.wait(PATIENCE)

    source = RangedBytes("a file", 10**7, fetch, readers=1)
    source.expect([[(0, 10)], [(5 * 10**6, 5 * 10**6 + 10)]])
    assert begun.wait(PATIENCE)
    source.close()
    go_on.set()
    assert asked == [0]


def test_a_download_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(ranges, "PIECE", 30)
    server = Server(100)
    path = tmp_path / "a"
    path.write_bytes(server.content[:45])
    with path.open("ab") as stream:
        server.source(readers=2).copy_to(stream)
    assert path.read_bytes() == server.content
    assert min(start for start, _ in server.asked) == 45
    with path.open("ab") as stream:
        server.source().copy_to(stream)
    assert path.read_bytes() == server.content
