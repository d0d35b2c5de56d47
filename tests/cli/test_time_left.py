"""Is the time left right? Recorded studies are played on two processes, at several speeds; nothing looks at a clock.

recorded_progress.json: of studies at quick scale on an x86 core, what they took once (`known`), what they took when
they were recorded, judging and drawing included, and the share that they said they had done at which second.
"""

import json
from pathlib import Path

import pytest

from joma.cli.time_left import LOADING, TimeLeft

RECORDED = json.loads(Path(__file__).with_name("recorded_progress.json").read_text(encoding="utf-8"))
LONGEST_FIRST = sorted(RECORDED, key=lambda name: -RECORDED[name]["known"])


def played(names, slower, jobs):
    free, events = [LOADING * slower] * jobs, []
    for name in names:
        process = free.index(min(free))
        begin, one = free[process], RECORDED[name]
        events += [(begin + slower * at, name, share) for at, share in one["events"]]
        free[process] = begin + slower * one["took"]
        events.append((free[process], name, None))
    return sorted(events, key=lambda event: event[0])


def estimates(names, slower, jobs=2):
    events = played(names, slower, jobs)
    left, second = TimeLeft({name: RECORDED[name]["known"] for name in names}, jobs=jobs), 10
    for at, name, share in events:
        while second < at:
            yield left.seconds(second), events[-1][0] - second
            second += 1
        left.finished(name, at) if share is None else left.heard(name, share, at)


@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0])
def test_the_time_left_is_right_within_a_third_from_the_tenth_second_on(slower):
    seen = list(estimates(LONGEST_FIRST, slower))
    assert len(seen) > 20
    wrong = [(at, told, true) for at, (told, true) in enumerate(seen, 10) if abs(told - true) > max(true / 3, 6.0)]
    assert not wrong


def test_what_is_there_already_takes_no_time():
    left = TimeLeft({"a": 100.0, "b": 100.0, "c": 50.0}, jobs=1)
    left.finished("a", 3.5, cached=True)
    left.finished("b", 4.0, cached=True)
    assert left.seconds(4.0) == pytest.approx(50.0, rel=0.1)
    left.finished("c", 54.0)
    assert left.seconds(54.0) == 0.0
