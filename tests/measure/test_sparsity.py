"""Sparsity of attention: blocks against the float64 matrix on every kind of mask, and what must hold of any of it."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import sparsity_oracle as oracle
import torch
from largest import LargestTensor
from later import some_now

from joma.measure import _sparsity_blocks as blocks
from joma.measure.sparsity import (
    HeavyHitters,
    effective_keys,
    heavy_hitters,
    keys_above,
    mass_above,
    sink_mass,
    sparsity_stats,
    stability,
    top_mass,
)

LENGTH = 23
KEPT = (1, 3, LENGTH, 0.1, 0.5, 1.0)
PADDING = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(5)) > 0.4
PADDING[0, :7] = False  # the first queries of this sample see nothing at all
NUMBERS = torch.randn(4, LENGTH, LENGTH, generator=torch.Generator().manual_seed(6))
ADDED = torch.where(NUMBERS > 1, -torch.inf, NUMBERS)  # a bias that masks, as models add it
MASKS = {
    "causal": {},
    "all keys": {"causal": False},
    "window": {"window": 5},
    "window both ways": {"window": 4, "causal": False},
    "soft cap": {"softcap": 2.0},
    "alibi": {"bias": NUMBERS[None, :, :1]},
    "masking bias": {"bias": ADDED[None]},
    "padding": {"key_padding": PADDING},
    "own scale": {"scale": 0.7},
    "learned logits": {"sinks": NUMBERS[:, 0, 0]},
    "learned key": {"sink_key": NUMBERS[:2, 0, :8]},
    "packed": {"cu_seqlens": [0, 5, 6, 17, LENGTH]},
    "packed by sample": {"cu_seqlens": [[0, 5, 17, LENGTH], [0, 1, LENGTH, LENGTH]], "causal": False},
    "everything": {
        "cu_seqlens": [0, 12, LENGTH],
        "window": 6,
        "softcap": 3.0,
        "bias": ADDED[None],
        "sinks": NUMBERS[:, 0, 0],
        "key_padding": PADDING,
    },
}


def draw(seed=0, heads=4, kv_heads=2, queries=LENGTH, keys=LENGTH, width=8, spread=2.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, heads, queries, width, generator=generator) * spread
    k = torch.randn(2, kv_heads, keys, width, generator=generator)
    return q.to(dtype), k.to(dtype)


@cache
def whole(mask, dtype=torch.float32):
    q, k = draw(dtype=dtype)
    p, seen = oracle.matrix(q, k, **MASKS[mask])
    return q, k, p, seen, [(keep, oracle.top_mass(p, seen, keep)) for keep in KEPT]


@pytest.fixture(params=["small blocks", "one block"])
def any_block(request, monkeypatch):
    if request.param == "small blocks":
        monkeypatch.setattr(blocks, "ELEMENTS", 2 * LENGTH * 5)
        monkeypatch.setattr(blocks, "LEAST", 6)


def close(found, wanted, tolerance=2e-6):
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.usefixtures("any_block")
@pytest.mark.parametrize(
    ("any_block", "dtype", "mask"),
    [
        *product(["small blocks"], [torch.float32], MASKS),
        *some_now(product(["one block"], [torch.bfloat16], MASKS), every=3),
        *(
            pytest.param(block, dtype, mask, marks=pytest.mark.long)
            for block, dtype in (("one block", torch.float32), ("small blocks", torch.bfloat16))
            for mask in MASKS
        ),
    ],
    indirect=["any_block"],
)
def test_masses_agree_with_the_matrix(mask, dtype):
    options, (q, k, p, seen, largest) = MASKS[mask], whole(mask, dtype)
    assert ((p - 0.05).abs() > 1e-6).all(), "a probability at the threshold would decide by rounding"
    for relative in (False, True):
        close(mass_above(q, k, 0.05, relative=relative, **options), oracle.mass_above(p, 0.05, relative))
    assert (keys_above(q, k, 0.05, **options) == (p > 0.05).sum(-1)).all()
    assert (keys_above(q, k, 0.05, relative=True, **options) == (p > 0.05 * p.amax(-1, keepdim=True)).sum(-1)).all()
    for keep, wanted in largest:
        close(top_mass(q, k, keep, **options), wanted)
    for first in (1, 4, LENGTH):
        close(sink_mass(q, k, first, **options), oracle.sink_mass(p, first, options.get("cu_seqlens")))
    entropy = torch.special.entr(p).sum(-1)
    close(effective_keys(q, k, **options), torch.where(seen.any(-1), entropy.exp(), 0.0), 2e-4)


@pytest.mark.parametrize("mask", some_now(MASKS, every=3))
def test_all_at_once_is_each_for_itself(mask):
    options, (q, k, p, seen, _) = MASKS[mask], whole(mask)
    found = sparsity_stats(q, k, threshold=0.05, relative=False, first=4, **options)
    close(found.mass_above, oracle.mass_above(p, 0.05))
    assert (found.keys_above == (p > 0.05).sum(-1)).all()
    close(found.sink_mass, oracle.sink_mass(p, 4, options.get("cu_seqlens")))
    assert (found.seen == seen.sum(-1)).all()
    assert torch.equal(found.effective_keys, effective_keys(q, k, **options))
    h2o = sparsity_stats(q, k, **options)
    assert torch.equal(h2o.keys_above, keys_above(q, k, 0.01, relative=True, **options))
    assert torch.equal(h2o.sink_mass, sink_mass(q, k, 1, **options))


@pytest.mark.usefixtures("any_block")
@pytest.mark.parametrize(("even", "mask"), some_now(product([False, True], MASKS), every=3))
def test_heavy_hitters_agree_with_the_matrix(mask, even):
    options, (q, k, p, seen, _) = MASKS[mask], whole(mask)
    for start, stop, among in ((0, LENGTH, LENGTH), (11, LENGTH, 11), (2, 3, LENGTH)):
        found = heavy_hitters(q, k, 5, queries=(start, stop), among=among, even=even, **options)
        wanted = oracle.scores(p[:, :, start:stop], seen[:, :, start:stop], even)
        could = seen[:, :, start:stop].any(-2) & (torch.arange(LENGTH) < among)
        assert (found.seen == could).all()
        size = could.sum(-1).clamp(max=5)
        assert ((found.keys >= 0).sum(-1) == size).all()
        best = wanted.masked_fill(~could, -1).topk(found.keys.shape[-1]).values.clamp(min=0)
        close(found.score, best, 2e-5)
        chosen = torch.where(found.keys < 0, 0.0, wanted.gather(-1, found.keys.clamp(min=0)))
        close(found.score, chosen, 2e-5)


def test_a_share_of_heavy_hitters_is_a_share_of_the_keys_that_are_seen():
    q, k = draw(2)
    found = heavy_hitters(q, k, 0.5, key_padding=PADDING)
    wanted = (PADDING.sum(-1) * 0.5).ceil()
    assert ((found.keys >= 0).sum(-1) == wanted[:, None]).all()
    assert (found.score.masked_select(found.keys < 0) == 0).all()


def test_of_equal_keys_the_earlier_is_taken_and_evenness_takes_position_away():
    q = torch.zeros(1, 1, 9, 4)
    plain, even = heavy_hitters(q, q, 9), heavy_hitters(q, q, 9, even=True)
    assert plain.keys.flatten().tolist() == even.keys.flatten().tolist() == list(range(9))
    torch.testing.assert_close(even.score, torch.ones(1, 1, 9))
    assert (plain.score.diff() < 0).all()
    assert heavy_hitters(q, q, 3, causal=False).keys.flatten().tolist() == [0, 1, 2]


def test_equal_weights_are_kept_as_often_as_asked():
    """Two keys share each value: whichever of the two is kept, the mass is the same."""
    s = torch.tensor([3.0, 3.0, 2.0, 2.0, 1.0, 1.0]).view(1, 1, 6, 1)
    p = s.flatten().double().softmax(0)
    for keep in range(1, 7):
        found = top_mass(torch.ones(1, 1, 1, 1), s, keep, causal=False, scale=1.0)
        assert found.item() == pytest.approx(p[:keep].sum().item(), abs=1e-6)


def test_a_share_that_is_a_whole_number_of_keys_is_not_rounded_up():
    """0.28 * 25 is above 7 in binary."""
    q = torch.zeros(1, 1, 25, 4)
    assert top_mass(q, q, 0.28)[..., -1].item() == pytest.approx(0.28)
    assert heavy_hitters(q, q, 0.28).keys.shape[-1] == 7


def test_decoding_is_the_end_of_the_whole():
    q, k = draw(4)
    for measure in (lambda q: top_mass(q, k, 4), lambda q: mass_above(q, k, 0.1), lambda q: sink_mass(q, k, 2)):
        torch.testing.assert_close(measure(q[:, :, -3:]), measure(q)[:, :, -3:], rtol=0, atol=2e-6)


def test_rows_that_see_nothing_have_no_mass_and_no_heavy_hitters():
    q, k = draw(5)
    nothing = {"key_padding": torch.zeros(2, LENGTH, dtype=torch.bool)}
    for options in (nothing, {**nothing, "sinks": 0.0}):
        for found in (mass_above(q, k, 0.0, **options), top_mass(q, k, 0.5, **options), sink_mass(q, k, 3, **options)):
            assert (found == 0).all()
    for keep in (3, 0.5):
        sets = heavy_hitters(q, k, keep, **nothing)
        assert (sets.keys == -1).all()
        assert all(each.isnan().all() for each in stability(sets, sets))


def test_a_strong_learned_sink_takes_all_the_mass():
    q, k = draw(6)
    assert (top_mass(q, k, LENGTH, sinks=1e4) == 0).all()
    torch.testing.assert_close(top_mass(q, k, LENGTH, sinks=-1e4), torch.ones(2, 4, LENGTH))


def test_doubles_stay_doubles_and_gradients_are_left_alone():
    q, k = (x.double().requires_grad_() for x in draw(7))
    found = top_mass(q, k, 3)
    assert found.dtype == torch.float64
    assert not found.requires_grad
    p, seen = oracle.matrix(q.detach(), k.detach())
    torch.testing.assert_close(found, oracle.top_mass(p, seen, 3), rtol=0, atol=1e-13)
    assert effective_keys(q, k).requires_grad


def test_autocast_does_not_round_the_logits():
    q, k = draw(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = top_mass(q, k, 3)
    assert torch.equal(rounded, top_mass(q, k, 3))


@pytest.mark.parametrize(
    "measure",
    [
        lambda q, k: mass_above(q, k, 0.001),
        lambda q, k: top_mass(q, k, 64),
        lambda q, k: top_mass(q, k, 0.1),
        lambda q, k: sink_mass(q, k, 4),
        lambda q, k: heavy_hitters(q, k, 64, even=True).score,
    ],
    ids=["mass_above", "top_mass", "top share", "sink_mass", "heavy_hitters"],
)
def test_memory_is_linear_in_the_length(measure):
    length = 4096
    q, k = (x[:1] for x in draw(9, 1, 1, length, length))
    with LargestTensor() as largest:
        measure(q, k)
    assert largest.bytes <= 4 * blocks.ELEMENTS == 4 * length * length / 16


def sets(keys, seen):
    keys = torch.tensor(keys)[None, None]
    return HeavyHitters(keys, torch.ones(keys.shape), torch.tensor(seen)[None, None] > 0)


def test_overlap_and_its_chance():
    every = [1] * 8
    found = stability(sets([0, 1, 2, 3], every), sets([2, 3, 4, 5], every))
    assert (found.overlap.item(), found.chance.item()) == (0.5, 0.5)
    smaller = stability(sets([7, -1], every), sets([0, 1, 7, 2], every))
    assert (smaller.overlap.item(), smaller.chance.item()) == (1.0, 0.5)
    apart = stability(sets([0, 1], [1] * 4), sets([4, 5], [0] * 4 + [1] * 4))
    assert (apart.overlap.item(), apart.chance.item()) == (0.0, 0.0)


def test_sets_drawn_at_random_overlap_as_chance_says():
    """Seen keys differ: 30 of 40 and 20 of them; 2,000 heads make the mean good to 0.01."""
    generator = torch.Generator().manual_seed(0)
    seen = torch.arange(40) < torch.tensor([30, 20])[:, None]
    drawn = [
        HeavyHitters(
            torch.rand(1, 2000, int(one.sum()), generator=generator).argsort(-1)[..., :size],
            torch.ones(1, 2000, size),
            one.expand(1, 2000, 40),
        )
        for one, size in zip(seen, (9, 6), strict=True)
    ]
    found = stability(*drawn)
    assert found.overlap.mean().item() == pytest.approx(found.chance.mean().item(), abs=0.015)
    assert found.chance.mean().item() == pytest.approx(9 / 30)


def test_numpy_numbers_are_numbers():
    q, k = draw()
    assert torch.equal(top_mass(q, k, np.int64(3)), top_mass(q, k, 3))
    assert torch.equal(top_mass(q, k, np.float32(0.5)), top_mass(q, k, 0.5))


@pytest.mark.parametrize("keep", [0, -1, 6, True, 0.0, 1.5, float("nan"), "all", None])
@pytest.mark.parametrize("measure", [top_mass, heavy_hitters])
def test_what_cannot_be_kept_is_refused(measure, keep):
    q = torch.zeros(1, 1, 5, 4)
    with pytest.raises(ValueError, match=r"^keep must be a whole number from 1 to the number of keys, 5, or a share"):
        measure(q, q, keep)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), "low"])
@pytest.mark.parametrize("measure", [mass_above, keys_above])
def test_a_threshold_is_a_probability(measure, threshold):
    q = torch.zeros(1, 1, 5, 4)
    with pytest.raises(ValueError, match=r"^threshold must "):
        measure(q, q, threshold)


Q = torch.zeros(1, 2, 5, 4)


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda: sink_mass(Q, Q, 0), "first must be a whole number of at least 1, got 0"),
    (lambda: sink_mass(Q, Q, 6), "first must be at most the number of keys, 5, got 6"),
    (lambda: heavy_hitters(Q, Q, 2, among=6), "among must be at most the number of keys, 5, got 6"),
    (
        lambda: heavy_hitters(Q, Q, 2, queries=(3, 3)),
        r"queries must be \(start, stop\) with 0 <= start < stop <= 5",
    ),
    (lambda: heavy_hitters(Q, Q, 2, queries=(0, 6)), r"queries must be \(start, stop\).*got \(0, 6\)"),
    (lambda: heavy_hitters(Q, Q, 2, queries=3), r"queries must be \(start, stop\).*got 3"),
    (lambda: mass_above(Q[0], Q, 0.1), "q and k must be"),
    (lambda: top_mass(Q, Q[..., :3], 2), "disagree on batch or width"),
    (lambda: top_mass(Q, Q[:, :, :4], 2), "causal attention aligns"),
    (lambda: stability(Q, Q), "sets_a must be what heavy_hitters returns, got Tensor"),
    (
        lambda: stability(heavy_hitters(Q, Q, 2), heavy_hitters(Q[:, :1], Q[:, :1], 2)),
        r"sets_a and sets_b must have the same batch and heads, got \(1, 2\) and \(1, 1\)",
    ),
])  # fmt: skip
def test_bad_input_gets_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}|{sentence}$"):
        call()
