"""One checkpoint: which tensors are measured together, from which streams, and of which architecture it must be."""

import zlib
from types import SimpleNamespace

import pytest
import torch

from joma.scan.errors import CheckpointError, Unmeasurable
from joma.scan.sweep import reading

CPU = torch.device("cpu")


class Opened:
    """A checkpoint of small tensors that says what it is asked for."""

    def __init__(self, **tensors):
        self.tensors, self.ahead = tensors, []

    def prefetch(self, name):
        self.ahead.append(name)


@pytest.fixture
def stacked(monkeypatch):
    """The names that are measured together, of matrices of these shapes, one letter each."""
    monkeypatch.setattr(reading, "_read", lambda plan, checkpoint, name: checkpoint.tensors[name])
    monkeypatch.setattr(reading, "SMALL_SIDE", 4)
    monkeypatch.setattr(reading, "TOGETHER", 48)
    monkeypatch.setattr(reading, "LANES_TOGETHER", 150)

    def stacked(*tensors, lanes=1):
        named, told = dict(zip("abcdefgh", tensors, strict=False)), []
        checkpoint = Opened(**named)
        found = []
        for names, held in reading._stacks(None, checkpoint, tuple(named), told.append, lanes):
            assert [id(named[name]) for name in names] == [id(w) for w in held]
            found.append("".join(names))
        assert checkpoint.ahead == list(named)[1:]  # each but the first, while the one before it is measured
        assert told == [f"about to read {name}" for name in named]
        return found

    return stacked


def test_small_neighbours_of_one_shape_and_type_are_measured_together(stacked):
    small, wide, half = torch.ones(4, 4), torch.ones(4, 5), torch.ones(4, 4, dtype=torch.float16)
    assert stacked(*[small.clone() for _ in range(7)]) == ["abc", "def", "g"]  # 48 numbers at most
    assert stacked(small.clone(), small.clone(), wide.clone(), wide.clone()) == ["ab", "cd"]
    assert stacked(small.clone(), half.clone(), small.clone()) == ["a", "b", "c"]
    # Narrow, and too long for a stack; or of few numbers, and neither side is small.
    for large in (torch.ones(3, 20), torch.ones(5, 6)):
        assert stacked(large, large.clone(), lanes=2) == ["ab"]
    assert stacked(small.clone(), torch.ones(8, 2), small.clone()) == ["a", "b", "c"]  # as many numbers, another shape


def test_large_matrices_are_measured_by_lanes(stacked):
    def large():
        return torch.ones(5, 10)  # neither side is small

    assert stacked(*[large() for _ in range(3)]) == ["a", "b", "c"]
    assert stacked(*[large() for _ in range(5)], lanes=2) == ["ab", "cd", "e"]
    assert stacked(*[large() for _ in range(5)], lanes=8) == ["abc", "de"]  # 150 numbers at most
    assert stacked(large(), torch.ones(5, 12), torch.ones(4, 4), large(), lanes=2) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_every_tensor_has_a_stream_of_its_own_whatever_is_measured_beside_it(side_by_side):
    def compute(w, generator):
        return float(w[0, 0]), generator.initial_seed()

    measure = SimpleNamespace(stacked=None, side_by_side=side_by_side, compute=compute)
    named = {name: torch.full((2, 2), float(at)) for at, name in enumerate(("h.0.w", "h.1.w", "h.2.w"))}
    together = reading._results(measure, list(named), list(named.values()), CPU)
    assert together == [(float(at), zlib.crc32(name.encode())) for at, name in enumerate(named)]
    assert [reading._results(measure, [name], [w], CPU)[0] for name, w in named.items()] == together


def test_a_measure_that_refuses_a_tensor_is_left_out_from_there_on_and_the_others_go_on():
    asked = []

    def refusing(name, error):
        def compute(w, generator):
            asked.append(name)
            if w.sum() == 0:
                raise error
            return w.sum().item()

        return compute

    errors = {"own": Unmeasurable("no such matrix"), "foreign": ValueError("it overflows")}
    measures = {
        name: SimpleNamespace(compute=refusing(name, error), pick=lambda found: [found], stacked=None)
        for name, error in errors.items()
    }
    measures["none"] = SimpleNamespace(compute=lambda w, generator: w.sum().item(), pick=lambda w: [w], stacked=None)
    rows, wrong = {name: [] for name in measures}, {}
    for name, w in {"a": torch.ones(2, 2), "b": torch.zeros(2, 2), "c": torch.ones(2, 3)}.items():
        reading._measure(measures, [name], [w], CPU, rows, wrong)
    assert rows == {"own": [4.0], "foreign": [4.0], "none": [4.0, 0.0, 6.0]}
    assert list(wrong) == ["own", "foreign"]
    assert wrong["own"] is errors["own"]
    assert (str(wrong["foreign"]), wrong["foreign"].tensor) == ("it overflows", "b")
    assert asked == ["own", "foreign"] * 2  # of the third nobody asks them


def test_a_checkpoint_of_another_architecture_is_left_out(monkeypatch):
    plan = SimpleNamespace(model_type="llama", groups={})
    checkpoint = SimpleNamespace(notes=tuple, expect=lambda tensors: None)

    class Place:
        def open(self):
            return self

        def __enter__(self):
            return checkpoint

        def __exit__(self, *_):
            return None

    for kind in ("llama", None):  # one without a config is of no other kind
        monkeypatch.setattr(reading, "model_type", lambda place, kind=kind: kind)
        assert reading._measured(plan, Place(), [], lambda doing: None, 1) == ({}, [], ())
    monkeypatch.setattr(reading, "model_type", lambda place: "gpt2")
    with pytest.raises(CheckpointError, match="its architecture is gpt2, the series is llama"):
        reading._measured(plan, Place(), [], lambda doing: None, 1)
