"""Free memory as the system tells it, and lines of progress by a clock that is set."""

import pytest
import torch

from joma.host import memory, progress


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write what a machine says: kilobytes that are free, and the limit and use of its container, in bytes."""
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)

    def machine(available=None, most=None, used=None):
        for name, content in (("memory.max", most), ("memory.current", used)):
            (tmp_path / name).unlink(missing_ok=True)
            if content is not None:
                (tmp_path / name).write_text(f"{content}\n")
        lines = "MemTotal: 900 kB\nMemFree: 5 kB\n"
        (tmp_path / "meminfo").write_text(lines + (f"MemAvailable: {available} kB\n" if available is not None else ""))

    return machine


def test_free_is_what_machine_and_container_can_both_give(machine):
    for available, most, used, free in (
        (100, None, None, 102_400),
        (100, "max", 7, 102_400),  # a container without a limit
        (100, 90_000, 20_000, 70_000),
        (100, 900_000, 20_000, 102_400),
        (100, 5, 20, 0),
        (None, 90, 20, 70),
        (None, None, None, None),
    ):
        machine(available, most, used)
        assert memory.free_memory() == free


def test_a_gpu_gives_what_is_free_and_what_torch_keeps_unused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda at: (1000, 5000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda at: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda at: 200)
    assert memory.free_memory("cuda:0") == 1100


def test_lines_of_progress_keep_their_distance(monkeypatch):
    now, said = [50.0], []
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    lines = progress.ProgressLines("fig6", said.append, every=10.0)
    for at in range(6):
        lines(at / 10, f"part {at}")
        now[0] += 6.0
    assert said == ["fig6  20%    12 s  part 2", "fig6  40%    24 s  part 4"]
    heard = []
    words = progress.NowAndThen(lambda *word: heard.append(word), every=10.0)
    for share in (0.1, 0.2, 0.3):
        words(share, "a")
        now[0] += 5.0
    assert heard == [(0.1, "a"), (0.3, "a")]
