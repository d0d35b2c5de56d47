"""As many tests run side by side as there are cores, and in another order if one asks for it."""

import os
import sys

import cores
import in_memory
import pytest
from shuffle import shuffled


@pytest.mark.parametrize(("text", "expected"), [("200000 100000", 2), ("150000 100000", 2), ("max 100000", 10**6)])
def test_a_quota_is_counted_in_cores(text, expected):
    assert cores.quota(text) == expected


@pytest.mark.parametrize(
    ("usable", "given", "expected"), [(16, "max", 16), (16, "400000", 4), (1, "max", 2), (3, "900000", 3)]
)
def test_the_lesser_of_affinity_and_quota_counts_and_two_at_least(usable, given, expected, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(f"{given} 100000\n")
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(usable)), raising=False)
    assert cores.cores() == expected
    (tmp_path / "cpu.max").unlink()
    assert cores.cores() == max(usable, 2)


TESTS = [(file, number) for file in "abcdef" for number in range(6)]


def test_another_order_keeps_files_together_and_loses_no_test():
    order = shuffled(TESTS, 7, lambda test: test[0])
    assert sorted(order) == TESTS
    assert len([file for at, (file, _) in enumerate(order) if at == 0 or order[at - 1][0] != file]) == 6


def test_files_and_the_tests_of_each_change_places_and_a_seed_gives_the_same_order_again():
    first, other = (shuffled(TESTS, seed, lambda test: test[0]) for seed in (7, 8))
    assert first == shuffled(TESTS, 7, lambda test: test[0]) != other
    assert list(dict.fromkeys(file for file, _ in first)) != list("abcdef")
    assert any([number for file, number in first if file == one] != list(range(6)) for one in "abcdef")


TELLS = """
import os, stat, sys
folder = os.environ.get("TMPDIR", "")
mode = oct(stat.S_IMODE(os.stat(folder).st_mode)) if folder else ""
open(sys.argv[1], "w").write(f"{folder} {mode}")
sys.exit(3)
"""


@pytest.mark.parametrize("used", [True, False])
def test_temporary_files_lie_in_memory_and_are_taken_away(used, tmp_path, monkeypatch):
    monkeypatch.setattr(in_memory, "FOLDER", tmp_path / "memory")
    monkeypatch.setattr(in_memory, "has_room", lambda: used)
    monkeypatch.delenv("TMPDIR", raising=False)
    (tmp_path / "memory").mkdir()
    assert in_memory.run([sys.executable, "-c", TELLS, str(tmp_path / "told")]) == 3
    folder, mode = (tmp_path / "told").read_text().split(" ")
    assert folder.startswith(str(tmp_path / "memory")) if used else folder == ""
    assert mode == ("0o711" if used else "")  # tests that go on as another user get through
    assert not list((tmp_path / "memory").iterdir())
