"""Means over queries, whatever is reduced together, against one query after the other."""

import pytest
import torch

from joma.probes._means import RunningMeans


def call(seed, heads=3, batch=2, queries=4):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, batch, heads, queries, generator=generator).unbind())


def oracle(calls):
    """Means and largest of calls [(numbers, real)], one query after the other."""
    heads = calls[0][0][0].shape[1]
    means, largest = [], []
    for head in range(heads):
        rows = [
            (float(numbers[0][b, head, q]), float(numbers[1][b, head, q]))
            for numbers, real in calls
            for b in range(numbers[0].shape[0])
            for q in range(numbers[0].shape[2])
            if (real is None or real[b, q]) and float(numbers[1][b, head, q]) > -float("inf")
        ]
        means.append([sum(column) / len(rows) for column in zip(*rows, strict=True)])
        largest.append(max(row[1] for row in rows))
    return torch.tensor(means).T.double(), torch.tensor(largest)


def check(means, calls):
    for name, mine in calls.items():
        mean, largest = oracle(mine)
        torch.testing.assert_close(torch.stack(means.mean()[name]), mean, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(means.largest()[name], largest)


def fed(calls, most=None, monkeypatch=None):
    if most is not None:
        monkeypatch.setattr("joma.probes._means.MOST", most)
    means = RunningMeans(largest=1)
    for turn in range(max(map(len, calls.values()))):
        for name, mine in calls.items():
            if turn < len(mine):
                means.add(name, *mine[turn])
    return means


@pytest.mark.parametrize("most", [1, 60, 1 << 20])
def test_means_do_not_depend_on_what_is_reduced_together(most, monkeypatch):
    padded = torch.tensor([[True, True, False, True], [True, False, False, False]])
    calls = {
        "a": [(call(0), None), (call(1), padded)],
        "b": [(call(2, heads=2), padded), (call(3, heads=2), None), (call(4, heads=2, queries=7), None)],
        "c": [(call(5), None)],
        "e": [(call(8), padded)],  # of the shape of the others, and with other queries
    }
    hidden = call(6)
    hidden[1][0, :, 1] = -torch.inf  # a query that sees no key
    calls["d"] = [(hidden, None)]
    check(fed(calls, most, monkeypatch), calls)


def test_numbers_that_were_read_go_on():
    hidden = call(1)
    hidden[1][0, 1, 1] = -torch.inf
    calls = {"a": [(call(0), None)], "b": [(hidden, None)]}
    means = fed(calls)
    check(means, calls)
    means.add("b", call(2), None)
    calls["b"].append((call(2), None))
    check(means, calls)


def test_masks_that_change_after_the_pass_change_nothing():
    real = torch.ones(2, 4, dtype=torch.bool)
    means = RunningMeans(largest=1)
    means.add("a", call(0), real)
    means.reduce()
    real.zero_()
    check(means, {"a": [(call(0), None)]})


def test_a_head_without_queries_has_no_mean():
    means = RunningMeans(largest=0)
    means.add("a", [torch.full((1, 2, 3), -torch.inf)], None)
    assert torch.stack(means.mean()["a"]).isnan().all()
    assert means.largest(empty=torch.nan)["a"].isnan().all()


def test_each_call_counts_its_own_queries_where_several_with_padding_are_reduced_together():
    """Masks of one shape, and one for all rows of a batch."""
    masks = torch.tensor([[[1, 1, 0, 1], [1, 0, 0, 0]], [[0, 1, 1, 1], [1, 1, 0, 0]], [[0, 0, 0, 1], [1, 1, 1, 1]]]) > 0
    for_all = torch.tensor([[True, False, False, True]])
    means, calls = RunningMeans(largest=1), {}
    for at, real in enumerate([*masks, for_all]):
        numbers = call(10 + at)
        means.add(f"h.{at}", numbers, real)
        calls[f"h.{at}"] = [(numbers, real.expand(2, 4))]
    check(means, calls)
    counted = {name: each.tolist() for name, each in means.counted().items()}
    assert counted == {"h.0": [4] * 3, "h.1": [5] * 3, "h.2": [5] * 3, "h.3": [4] * 3}


def test_as_many_calls_wait_after_a_reduction_as_before_it(monkeypatch):
    """Three calls of 48 numbers fit. What has been reduced waits no more."""
    monkeypatch.setattr("joma.probes._means.MOST", 150)
    reduced, own = [], RunningMeans._summed
    monkeypatch.setattr(RunningMeans, "_summed", lambda self, calls: reduced.append(len(calls)) or own(self, calls))
    calls = {f"h.{at}": [(call(at), None)] for at in range(7)}
    check(fed(calls), calls)
    assert reduced == [3, 3, 1]
