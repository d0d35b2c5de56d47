"""Stable ranks from one measuring to the next: certified at first, then followed, certified again in doubt."""

from types import SimpleNamespace

import pytest
import torch

from joma.monitor import graphs, ranks
from joma.monitor.ranks import Ranks, ranks_of


def exact(w):
    squares = torch.linalg.svdvals(w.double()).square()
    return float(squares.sum() / squares[0])


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def certified(monkeypatch):
    asked, own = [], ranks.spectrum
    monkeypatch.setattr(ranks, "spectrum", lambda w: asked.append(len(w)) or own(w))
    return asked


class Event:
    """Stands for one of CUDA's: what was sent is there when `here` says so."""

    here = False

    def query(self):
        return Event.here

    def synchronize(self):
        assert Event.here, "nothing waits here"


@pytest.fixture
def late(monkeypatch):
    Event.here = False
    monkeypatch.setattr(graphs, "_sent", lambda flat: (flat, Event()))


def test_large_matrices_are_certified_once_and_then_followed(certified):
    known, w = Ranks(), {"a": gaussian(300, 400), "b": gaussian(300, 400, seed=1), "c": gaussian(500, 300)}
    for step in range(5):
        found = known.of(w)
        for name, each in w.items():
            assert float(found[name]) == pytest.approx(exact(each), rel=1e-3)
        w = {name: each + 0.003 * gaussian(*each.shape, seed=10 + step) for name, each in w.items()}
    assert certified == [2, 1]
    assert list(found) == ["a", "b", "c"]


def test_each_keeps_its_own_where_shapes_take_turns(certified, late):
    """They are followed by shape: a and c together. Nothing arrives that could mend a mix-up."""
    w = {"a": gaussian(300, 400), "b": gaussian(500, 300), "c": gaussian(300, 400, seed=1), "d": gaussian(300, 500)}
    for factor, each in zip((2.0, 4.0, 8.0, 16.0), w.values(), strict=True):
        each[0] *= factor
    known = Ranks()
    for _ in range(3):
        found = known.of(w)
        assert list(found) == list(w)
        for name, each in w.items():
            assert float(found[name]) == pytest.approx(exact(each), rel=1e-3)
    Event.here = True
    known.of(w)
    assert sum(certified) == len(w)  # and nobody was in doubt


def test_the_next_look_begins_where_the_last_one_ended(late):
    """On the way from one matrix to another each step is small. From the first one's vectors the last is far."""
    first, last, known = gaussian(300, 300), gaussian(300, 300, seed=7), Ranks()
    for share in torch.linspace(0, 1, 41):
        w = (1 - share) * first + share * last
        found = known.of({"a": w})["a"]
    assert float(found) == pytest.approx(exact(w), rel=1e-4)


def test_no_more_entries_are_followed_together_than_memory_allows(monkeypatch):
    together, own = [], ranks.follow
    w = {name: gaussian(300, 300 + 10 * at, seed=at) for at, name in enumerate("abcde")}
    w["b"] = gaussian(300, 900, seed=9)  # too many alone
    known = Ranks()
    known.of(w)
    monkeypatch.setattr(ranks, "AT_A_TIME", 2 * 300 * 340)
    follow = lambda some, *rest: together.append([each.shape[1] for each in some]) or own(some, *rest)
    monkeypatch.setattr(ranks, "follow", follow)
    found = known.of(w)
    assert together == [[300], [900], [320, 330], [340]]  # a, then b, c with d, e
    for name, each in w.items():
        assert float(found[name]) == pytest.approx(exact(each), rel=1e-3)


def test_small_matrices_are_exact_each_time_on_a_cpu(certified):
    known, w = Ranks(), {"a": gaussian(100, 400)}
    for _ in range(3):
        assert float(known.of(w)["a"]) == pytest.approx(exact(w["a"]), rel=1e-5)
    assert certified == [1, 1, 1]


def test_in_doubt_it_is_certified_at_once(certified):
    """Other matrices altogether: what was followed is worth nothing."""
    known = Ranks()
    known.of({"a": gaussian(300, 300), "b": gaussian(300, 300, seed=1)})
    other = {"a": gaussian(300, 300, seed=7), "b": gaussian(300, 300, seed=1)}
    found = known.of(other)
    assert certified == [2, 1]
    for name, each in other.items():
        assert float(found[name]) == pytest.approx(exact(each), rel=1e-3)


def test_on_a_gpu_it_is_certified_when_the_residual_has_arrived(certified, late):
    known, first, other = Ranks(), {"a": gaussian(300, 300)}, {"a": gaussian(300, 300, seed=7)}
    known.of(first)
    known.of(other)
    known.of(other)
    assert certified == [1]  # nothing has arrived: nothing is waited for
    Event.here = True
    assert float(known.of(other)["a"]) == pytest.approx(exact(other["a"]), rel=1e-3)
    assert certified == [1, 1]
    known.of(other)
    assert certified == [1, 1]


def test_a_matrix_that_is_not_finite_has_none_and_the_others_theirs(certified):
    known, w = Ranks(), {"a": gaussian(300, 300), "b": gaussian(300, 300, seed=1)}
    known.of(w)
    spoiled = {"a": w["a"], "b": torch.full((300, 300), torch.nan)}
    for _ in range(3):
        found = known.of(spoiled)
        assert found["b"].isnan()
        assert float(found["a"]) == pytest.approx(exact(w["a"]), rel=1e-3)
    found = known.of(w)  # mended
    for name, each in w.items():
        assert float(found[name]) == pytest.approx(exact(each), rel=1e-3)
    assert certified == [2, 1, 1, 1, 1]  # a residual that is no number is a doubt, and nothing is followed from it


def test_one_that_has_another_shape_now_begins_anew(certified):
    known = Ranks()
    known.of({"a": gaussian(300, 300)})
    wider = gaussian(310, 400)
    assert float(known.of({"a": wider})["a"]) == pytest.approx(exact(wider), rel=1e-3)
    assert certified == [1, 1]


def test_those_without_a_past_are_certified(certified):
    w = {"a": gaussian(300, 300), "b": gaussian(40, 50)}
    for _ in range(2):
        found = ranks_of(w)
    assert {name: pytest.approx(exact(each), rel=1e-3) for name, each in w.items()} == {
        name: float(each) for name, each in found.items()
    }
    assert certified == [1, 1, 1, 1]


def test_what_is_not_followed_has_no_vectors_made_for_it(monkeypatch):
    """Gradients of two steps have little in common: forty steps on them would be for nothing."""
    monkeypatch.setattr(ranks, "follow", lambda *_, **__: pytest.fail("nobody will ask for these vectors"))
    w = {"a": gaussian(300, 300), "b": torch.full((300, 300), torch.nan)}
    found = ranks_of(w)
    assert float(found["a"]) == pytest.approx(exact(w["a"]), rel=1e-3)
    assert found["b"].isnan()


@pytest.mark.parametrize("drift", [0.003, 0.03, 0.1])
def test_below_the_doubt_the_error_is_small(drift):
    """Without a second opinion: what `follow` says where its residual raises no doubt."""
    w, generator = gaussian(3, 300, 300), torch.Generator().manual_seed(1)
    block, seen = ranks.first_block(torch.zeros(3, 300, 0), generator), 0
    for step in range(12):
        w = w + drift * gaussian(3, 300, 300, seed=50 + step)
        looked = ranks.follow(list(w), block, ranks.random_vectors(block, 1, generator))
        block = looked.vectors
        errors = looked.stable_rank.double() / torch.tensor([exact(each) for each in w]) - 1
        sure = looked.residual <= ranks.DOUBT
        seen += int(sure.sum())
        assert (errors[sure] < 0.002).all()
    assert seen >= 18


def test_a_gpu_follows_what_a_host_does_at_once():
    """Where small matrices are done exactly, a host has nothing to gain, and a GPU waits."""
    of = lambda kind, *shape: SimpleNamespace(shape=shape, device=torch.device(kind))
    worth = lambda *given: ranks._is_worth_following(of(*given))
    assert [worth("cpu", 256, 999), worth("cpu", 257, 999), worth("cpu", 999, 257)] == [False, True, True]
    assert [worth("cuda", 31, 999), worth("cuda", 32, 999), worth("cuda", 999, 32)] == [False, True, True]
