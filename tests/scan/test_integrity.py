"""The gate: what it must find in a series, and what it must leave in peace."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.scan.errors import CheckpointError
from joma.scan.integrity import SAMPLES, check_finite, checksum, sketch, suspicions


def training(steps, generator, noise=0.02, size=SAMPLES):
    """(steps, size): a start, a goal, and steps ever nearer to the goal, wandering on the way."""
    start, goal, detour = generator.standard_normal((3, size))
    share = np.linspace(0, 1, steps)[:, None] ** 0.7
    wander = np.cumsum(generator.standard_normal((steps, size)), 0) * noise
    return start + share * (goal - start) + np.sin(np.pi * share) * 0.4 * detour + wander * (1 - share)


def judged(points):
    """{step: what} for a series of one moving tensor; its checksum is a hash of its values."""
    points = np.asarray(points, dtype=np.float32)
    sums = np.array([hash(row.tobytes()) for row in points])
    return {step: what for step, _, what in suspicions(range(len(points)), {"w": points}, {"w": sums})}


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**32), st.floats(0, 0.1))
def test_training_that_wanders_is_no_fault(steps, seed, noise):
    assert judged(training(steps, np.random.default_rng(seed), noise)) == {}


@settings(max_examples=50, deadline=None)
@given(st.integers(5, 40), st.integers(0, 2**32), st.data())
def test_a_tensor_that_only_trembles_is_no_fault(steps, seed, data):
    """Steps that are all the same distance apart, as after convergence at a constant rate."""
    generator = np.random.default_rng(seed)
    base = generator.standard_normal(SAMPLES)
    assert judged(base + 1e-3 * generator.standard_normal((steps, SAMPLES))) == {}


@settings(max_examples=50, deadline=None)
@given(st.integers(20, 154), st.floats(0.05, 0.6), st.integers(0, 2**32))
def test_final_era_weights_are_found_even_when_they_are_the_majority(steps, share, seed):
    generator = np.random.default_rng(seed)
    points = training(steps, generator)
    early = np.flatnonzero(generator.random(int(steps * 0.7)) < share)
    # Near the last step, and no two of them alike.
    points[early] = points[-1] + 0.02 * generator.standard_normal((len(early), SAMPLES))
    found = judged(points)
    witnesses = np.setdiff1d(np.arange(steps - 1), early)
    must = [at for at in early if at < witnesses[witnesses < steps * 0.7].max()]
    assert set(must) <= set(found) <= set(early)
    assert all("final-era" in found[at] for at in must)


@settings(max_examples=30, deadline=None)
@given(st.integers(8, 60), st.integers(0, 2**32), st.booleans())
def test_one_step_off_the_path_does_not_accuse_the_others(steps, seed, foreign):
    generator = np.random.default_rng(seed)
    points = training(steps, generator)
    at = int(steps * 0.8)
    points[at] = 2 * generator.standard_normal(SAMPLES) if foreign else points[0] + 0.01
    found = judged(points)
    assert list(found) == [at]
    assert "off the path" in found[at]


def test_identical_steps():
    points = training(8, np.random.default_rng(0))
    points[1] = points[0]
    points[4] = points[-1]
    assert judged(points) == {1: "identical to step 0", 4: "identical to step 7, the last one"}
    assert judged([points[0]] * 3) == {0: "identical to step 2, the last one", 1: "identical to step 2, the last one"}
    assert judged(points[:1]) == {}


def test_equal_samples_with_different_checksums_are_not_identical():
    points = training(3, np.random.default_rng(0)).astype(np.float32)
    points[1] = points[0]
    assert suspicions([0, 1, 2], {"w": points}, {"w": np.array([1, 2, 3])}) == []
    assert [s for s, _, _ in suspicions([0, 1, 2], {"w": points}, {"w": np.array([1, 1, 3])})] == [1]


def test_a_frozen_tensor_says_nothing_but_a_stale_shard_does():
    generator = np.random.default_rng(0)
    moving, other = training(6, generator), training(6, generator)
    other[2] = other[-1]  # one shard of step 2 is the final one
    frozen = np.repeat(moving[:1], 6, 0)
    sketches = {"moving": moving, "other": other, "frozen": frozen}
    sums = {name: np.array([hash(row.tobytes()) for row in values]) for name, values in sketches.items()}
    assert suspicions(range(6), sketches, sums) == [(2, "other", "identical to step 5, the last one")]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=2),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    st.integers(0, 2**32),
)
def test_fingerprints_see_every_bit_and_no_layout(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(shape, generator=generator).to(dtype)
    raw = w.reshape(-1).view(torch.uint8)
    words = raw.tolist() + [0] * (-len(raw.tolist()) % 8)
    slow = sum(int.from_bytes(bytes(words[i : i + 8]), "little") for i in range(0, len(words), 8)) % 2**64
    assert checksum(w) % 2**64 == slow
    part = torch.cat([w.new_zeros(1), w.reshape(-1)])[1:].view(shape)
    assert checksum(part) == checksum(w)
    assert torch.equal(sketch(w.T.contiguous().T) if w.ndim == 2 else sketch(w.clone()), sketch(w))
    assert set(sketch(w).tolist()) <= set(w.double().reshape(-1).tolist())
    changed = w.clone().reshape(-1)
    changed.view(torch.uint8)[seed % len(raw)] ^= 1
    assert checksum(changed) != checksum(w)


def test_the_sketch_does_not_keep_to_one_column():
    columns = sketch(torch.arange(512.0).repeat(2048, 1)).unique()
    assert len(columns) > 300


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_named(dtype, bad):
    w = torch.ones(30, 30, dtype=dtype)
    check_finite(w, "w", "f")
    check_finite(torch.full((400, 400), torch.finfo(dtype).max, dtype=dtype), "w", "f")  # an infinite sum, no infinity
    w[3, 4] = bad
    with pytest.raises(CheckpointError, match="w has 1 of 900 values") as caught:
        check_finite(w, "w", "f")
    assert (caught.value.tensor, caught.value.file) == ("w", "f")
