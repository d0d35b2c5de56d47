"""Before a sweep a few checkpoints are looked at: which, how many, and what is said where none can be used."""

from types import SimpleNamespace

import pytest

from joma.scan.errors import CheckpointError, NoneUsable, UnknownNames
from joma.scan.sweep import plan as planning


@pytest.fixture
def looked():
    """What `_looks` makes of steps: "." can be opened, "?" has unknown names, "x" is damaged; and where it looked."""

    def looked(states):
        places = tuple(SimpleNamespace(step=10 * at, name=f"step{10 * at}", state=one) for at, one in enumerate(states))
        opened = []

        def look(place):
            opened.append(place.step // 10)
            if place.state == "?":
                raise UnknownNames(f"{place.name} is strange")
            if place.state == "x":
                raise CheckpointError(f"{place.name} is damaged", file="a.pt")
            return place.step // 10

        try:
            found = planning._looks(SimpleNamespace(source="here", places=places), look)
            assert all(place.step == 10 * at for place, at in found)
            return [at for _, at in found], opened
        except CheckpointError as error:
            return error, opened

    return looked


def test_first_last_and_middle_are_looked_at_or_others_in_their_place(looked):
    assert looked("......") == ([0, 5, 3], [0, 5, 3])
    assert looked(".") == ([0], [0])
    assert looked("..") == ([0, 1], [0, 1])
    assert looked("x..x..") == ([5, 1, 2], [0, 5, 3, 1, 2])
    assert looked("xx?xxx.") == ([6], [0, 6, 3, 1, 2, 4, 5])


def test_three_with_names_that_are_not_known_speak_for_all(looked):
    error, opened = looked("?????x")
    assert (type(error), str(error)) == (UnknownNames, "step0 is strange")
    assert opened == [0, 5, 3, 1]
    error, opened = looked("??x")
    assert (type(error), str(error), opened) == (UnknownNames, "step0 is strange", [0, 2, 1])
    error, opened = looked("x?x")
    assert (type(error), str(error), opened) == (UnknownNames, "step10 is strange", [0, 2, 1])


def test_where_none_can_be_opened_every_fault_is_told_in_order(looked):
    error, opened = looked("xxxx")
    assert isinstance(error, NoneUsable)
    assert opened == [0, 3, 2, 1]
    assert [(fault.step, fault.checkpoint, fault.file, fault.what) for fault in error.faults] == [
        (step, f"step{step}", "a.pt", f"step{step} is damaged") for step in (0, 10, 20, 30)
    ]
