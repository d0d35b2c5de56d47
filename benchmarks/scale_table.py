"""What two large jobs take on 1, 8 and 64 machines, simulated from measured rates: bytes, hours, money.

    python benchmarks/scale_table.py

Measured: what a scan takes beyond reading (results/bench_scan.json) and what Figure 6 takes (results/fig6). The reader
is simulated with joma's own numbers of requests at a time, sizes of requests and bytes held. Stated, and not measured:
the store, the network and the prices below.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from pathlib import Path

from joma.scan.formats.ranges import HELD, PIECE, READERS, pieces_of

RESULTS = Path(__file__).parents[1] / "results"
MACHINES = (1, 8, 64)
# Prices in dollars. They are assumptions of 2026-11-17, of the size of list prices, and no quotes.
HOUR, READS, OUT = 4.0, 0.0004, 0.09
"""A machine with one H200 for an hour, 1,000 reads of a store, a gigabyte that leaves its cloud."""


@dataclass(frozen=True)
class Store:
    """An object store and the way to it. Rates in bytes a second."""

    name: str
    latency: float
    connection: float
    machine: float
    together: float
    paid: bool  # whether bytes leave the cloud

    def rate(self, machines: int, connections: int) -> float:
        """Of one connection, if all are used: everybody gets the same."""
        return min(self.connection, self.machine / connections, self.together / (machines * connections))


GBIT = 1e9 / 8
NEAR = Store("in the same region", 0.03, 80e6, 10 * GBIT, 100 * GBIT, paid=False)
FAR = Store("across the ocean", 0.15, 20e6, 1 * GBIT, 10 * GBIT, paid=True)


@dataclass(frozen=True)
class Series:
    """Checkpoints of which one kind of matrix is read."""

    checkpoints: int
    parameters: int
    layers: int
    numbers: int  # of a matrix
    bytes_each: int = 2

    @property
    def needed(self) -> int:
        """Bytes of one checkpoint."""
        return self.layers * self.numbers * self.bytes_each


PYTHIA = Series(154, 11_846_072_320, 36, 5120 * 20480)
OPENING = 3  # requests before the first matrix, one after the other: the list, the config, the header


@dataclass
class Machine:
    """One machine that scans its share: jobs that read, and one GPU that measures one matrix at a time."""

    store: Store
    series: Series
    share: int
    jobs: int
    rate: float
    measuring: float  # seconds for a matrix
    now: float = 0.0
    free: float = 0.0  # when the GPU is
    busy: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: count[int] = field(default_factory=count)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), call))

    def run(self) -> float:
        """Seconds until the last checkpoint is measured."""
        for _ in range(min(self.jobs, self.share)):
            self.begin()
        while self._events:
            self.now, _, call = heapq.heappop(self._events)
            call()
        return self.now

    def begin(self) -> None:
        """A job takes the next checkpoint, if there is one."""
        if self.share:
            self.share -= 1
            self.after(OPENING * self.store.latency, Reading(self).start)

    def measure(self, then: Callable[[], None]) -> None:
        self.free = max(self.free, self.now) + self.measuring
        self.busy += self.measuring
        self.after(self.free - self.now, then)


class Reading:
    """One checkpoint: pieces come in order, READERS at a time, as far as there is room; one matrix after the other."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        size = machine.series.numbers * machine.series.bytes_each
        self.pieces = [stop - start for start, stop in pieces_of(0, size, PIECE)] * machine.series.layers
        self.per_matrix = len(self.pieces) // machine.series.layers
        self.asked = self.used = self.held = self.under_way = 0
        self.come: set[int] = set()
        self.measures = False

    def start(self) -> None:
        self.ask()

    def ask(self) -> None:
        while self.asked < len(self.pieces) and self.under_way < READERS:
            size = self.pieces[self.asked]
            if self.held + size > HELD:
                return
            self.held += size
            self.under_way += 1
            seconds = self.machine.store.latency + size / self.machine.rate
            self.machine.after(seconds, lambda at=self.asked: self.arrived(at))  # type: ignore[misc]
            self.asked += 1

    def arrived(self, at: int) -> None:
        self.under_way -= 1
        self.come.add(at)
        self.use()
        self.ask()

    def use(self) -> None:
        """Put what has come into the matrix that is next, and measure it once it is complete."""
        while not self.measures and self.used in self.come:
            self.come.remove(self.used)
            self.held -= self.pieces[self.used]
            self.used += 1
            if self.used % self.per_matrix == 0:
                self.measures = True
                self.machine.measure(self.measured)

    def measured(self) -> None:
        self.measures = False
        if self.used == len(self.pieces):
            self.machine.begin()
            return
        self.use()
        self.ask()


def measured_seconds(numbers: int) -> float:
    """What a scan takes for a matrix beyond reading it, by the record of one H200."""
    (row,) = json.loads((RESULTS / "bench_scan.json").read_text())["rows"]
    return (row["scan_s"] - row["reading_s"]) / (row["needed_bytes"] / 4) * numbers


def simulated(series: Series, store: Store, machines: int, jobs: int) -> tuple[float, float]:
    """Seconds until the machine with most to do has done it, and the part of them in which its GPU measures."""
    share = ceil(series.checkpoints / machines)
    rate = store.rate(machines, min(jobs, share) * READERS)
    machine = Machine(store, series, share, jobs, rate, measured_seconds(series.numbers))
    seconds = machine.run()
    return seconds, machine.busy / seconds


def saturation(series: Series, store: Store, jobs: int) -> int:
    """Machines that together would read as fast as the store gives."""
    alone = series.checkpoints * series.needed / simulated(series, store, 1, jobs)[0]
    return int(store.together / alone)


def scan_row(series: Series, store: Store, machines: int, jobs: int) -> tuple[str, ...]:
    share = ceil(series.checkpoints / machines)
    seconds, busy = simulated(series, store, machines, jobs)
    dollars = machines * seconds / 3600 * HOUR
    reads = series.checkpoints * (
        OPENING + series.layers * len(pieces_of(0, series.numbers * series.bytes_each, PIECE))
    )
    dollars += reads / 1000 * READS
    read = series.checkpoints * series.needed
    dollars += read / 1e9 * OUT if store.paid else 0.0
    return (
        store.name, str(machines), str(jobs), str(share), f"{seconds / 3600:.3f}", f"{read / seconds / 1e9:.2f}",
        f"{busy:.0%}", f"{dollars:,.2f}",
    )  # fmt: skip


def decoder_rows(decoders: int) -> list[tuple[str, ...]]:
    """Figure 6 again and again, with other seeds: one run has 20 decoders."""
    path = RESULTS / "fig6" / "fig6.sqlite"
    seconds = json.loads((path.parent / "findings.json").read_text())["seconds"]
    runs = decoders // 20
    rows = []
    for machines in MACHINES:
        each = ceil(runs / machines)
        hours = each * seconds / 3600
        used = min(machines, runs)
        size, dollars = runs * path.stat().st_size / 1e6, used * hours * HOUR
        rows.append((str(machines), str(used), str(each), f"{hours:.2f}", f"{size:,.0f}", f"{dollars:,.2f}"))
    return rows


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in [head, *rows])


def main() -> None:
    needed, held = PYTHIA.needed / 1e9, PYTHIA.parameters * PYTHIA.bytes_each / 1e9
    read, there = (PYTHIA.checkpoints * each / 1e3 for each in (needed, held))
    print(f"Pythia-12B: {needed:.2f} of {held:.1f} GB a checkpoint, {read:.3f} of {there:.3f} TB in all")
    print(f"as bytes that leave a cloud: {1e3 * read * OUT:.2f} dollars")
    ms = 1e3 * measured_seconds(PYTHIA.numbers)
    print(f"one matrix: {PYTHIA.numbers * PYTHIA.bytes_each / 1e6:.0f} MB, {ms:.0f} ms on an H200 beyond reading it")
    head = ("store", "machines", "jobs", "checkpoints each", "hours", "GB/s in all", "GPU busy", "dollars")
    cells = [(NEAR, m, j) for m in MACHINES for j in (1, 4)] + [(FAR, m, 4) for m in MACHINES]
    print(table(head, [scan_row(PYTHIA, *cell) for cell in cells]))
    for store in (NEAR, FAR):
        print(f"{store.name}: the store is the limit above {saturation(PYTHIA, store, 4)} machines with 4 jobs")
    print("\n1,000 decoders of Figure 6, 20 in one run")
    head = ("machines", "used", "runs each", "hours", "MB of records", "dollars")
    print(table(head, decoder_rows(1000)))


if __name__ == "__main__":
    main()
