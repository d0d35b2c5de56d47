"""The lines that `joma scan` ends with."""

import sys
from pathlib import Path
from types import SimpleNamespace

from joma.cli import scan
from joma.scan.errors import Fault


def said(capsys, *, beyond=0, earlier=False, on_page=True, faults=()):
    found = SimpleNamespace(
        faults=list(faults), warnings=("longer than trained",), notes=("step30 is aside", "cut"), steps=[0, 10, 20],
        looked_at=5, axis="epoch",
    )  # fmt: skip
    lines = tuple(f"mlp[{at}] 0.{at}" for at in range(beyond))
    done = scan.Done(found, Path("out/scan.sqlite"), lines, ("stable_rank<5: 2 of 9",), earlier)
    scan._summarise(done, sys.stdout, on_page=on_page)
    return capsys.readouterr().out.splitlines()


HEAD = ["note: step30 is aside", "note: cut", "fail-if: stable_rank<5: 2 of 9"]
END = ["3 of 5 epochs usable", "run: out/scan.sqlite"]


def test_ten_numbers_beyond_a_threshold_are_printed_and_the_others_counted(capsys):
    every = [f"beyond: mlp[{at}] 0.{at}" for at in range(10)]
    assert said(capsys) == [*HEAD, *END]
    assert said(capsys, beyond=10) == [*HEAD, *every, *END]
    more = "beyond: 3 more; the page lists them, and --csv FILE writes every number"
    assert said(capsys, beyond=13) == [*HEAD, *every, more, *END]
    more = "beyond: 3 more; --csv FILE writes every number"
    assert said(capsys, beyond=13, on_page=False) == [*HEAD, *every, more, *END]


def test_of_a_step_and_measure_the_first_fault_is_told(capsys):
    faults = [Fault(10, "step10", "a.pt", tensor, f"{tensor} is NaN", measure)
              for measure in (None, "rank") for tensor in ("u", "v", "w")[: 1 if measure is None else 3]]  # fmt: skip
    faults.append(Fault(20, "step20", "a.pt", "u", "u is gone"))
    lines = said(capsys, faults=faults, earlier=True)
    assert lines == [
        f"left out: {faults[0]}", f"left out: {faults[1]} (and 2 more tensors)", f"left out: {faults[4]}",
        "warning: longer than trained", *HEAD, *END,
    ]  # fmt: skip
    assert str(faults[1]) != str(faults[2])


def test_of_several_scans_the_worst_status_counts():
    def status(steps, beyond, complete):
        return scan.Done(SimpleNamespace(steps=steps, complete=complete), Path("a"), beyond).status

    assert status([], (), True) == 1
    assert status([], ("x",), True) == 1
    assert status([1], ("x",), False) == 4
    assert status([1], (), False) == 3
    assert status([1], (), True) == 0
    assert [max(pair, key=scan._RANK.index) for pair in ((0, 3), (3, 4), (4, 1), (0, 1))] == [3, 4, 1, 1]
