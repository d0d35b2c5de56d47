"""The gate: what it must find in a series, and what it must leave in peace."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.scan.errors import CheckpointError
from joma.scan.formats.tensor_file import check_finite
from joma.scan.sweep.integrity import SAMPLES, checksum, equal_steps, not_yet_trained, sketch, suspicions


def training(steps, generator, noise=0.02, size=SAMPLES):
    start, goal, detour = generator.standard_normal((3, size))
    share = np.linspace(0, 1, steps)[:, None] ** 0.7
    wander = np.cumsum(generator.standard_normal((steps, size)), 0) * noise
    return start + share * (goal - start) + np.sin(np.pi * share) * 0.4 * detour + wander * (1 - share)


def judged(points):
    points = np.asarray(points, dtype=np.float32)
    sums = np.array([hash(row.tobytes()) for row in points])
    return {step: what for step, _, what in suspicions((range(len(points)), {"w": points}, {"w": sums}))}


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**32), st.floats(0, 0.1))
def test_training_that_wanders_is_no_fault(steps, seed, noise):
    assert judged(training(steps, np.random.default_rng(seed), noise)) == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1.0, 1.9), min_size=2, max_size=40), st.integers(0, 2**32))
def test_a_tensor_that_only_trembles_is_no_fault(lengths, seed):
    """No step is twice as far from the last one as another, as after convergence at a constant rate."""
    generator = np.random.default_rng(seed)
    base, shakes = generator.standard_normal(SAMPLES), generator.standard_normal((len(lengths), SAMPLES))
    shakes *= 0.1 * np.array(lengths)[:, None] / np.linalg.norm(shakes, axis=1, keepdims=True)
    assert judged([*(base + shakes), base]) == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-3, 0.045), min_size=2, max_size=40, unique=True), st.integers(0, 2**32))
def test_a_tensor_that_moved_once_and_then_hardly_at_all_is_no_fault(lengths, seed):
    """What is left of the way to the last step is below a twentieth of it: rounding, in any order."""
    generator = np.random.default_rng(seed)
    base, ways = generator.standard_normal(SAMPLES), generator.standard_normal((len(lengths) + 1, SAMPLES))
    ways *= 10 * np.array([1.0, *lengths])[:, None] / np.linalg.norm(ways, axis=1, keepdims=True)
    assert judged([*(base + ways), base]) == {}


@settings(max_examples=25, deadline=None)
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


def test_steps_with_equal_weights_are_named_and_none_is_accused():
    points = training(8, np.random.default_rng(0)).astype(np.float32)
    points[1] = points[0]
    points[4] = points[3]
    points[6] = points[-1]
    prints = (range(8), {"w": points}, {"w": np.array([hash(row.tobytes()) for row in points])})
    assert suspicions(prints) == []
    assert equal_steps([prints]) == {0: 0, 1: 0, 2: 2, 3: 3, 4: 3, 5: 5, 6: 6, 7: 6}
    assert not_yet_trained(prints) == {}  # nothing waits: nothing has moved
    assert judged([points[0]] * 3) == {}
    assert judged(points[:1]) == {}
    points[2] = points[-1]  # equal weights are no fault, but those of the end so early are one
    assert "final-era weights" in judged(points)[2]


def test_steps_are_equal_only_if_all_that_was_read_is():
    """Two groups that lack different steps are judged apart: equality in one of them says nothing of the other."""
    one, other = (training(5, np.random.default_rng(seed)).astype(np.float32) for seed in (0, 1))
    one[2] = one[1]
    sums = lambda points: {"w": np.array([hash(row.tobytes()) for row in points])}
    several = [(range(5), {"w": one}, sums(one)), (range(4), {"w": other[:4]}, sums(other[:4]))]
    equal = equal_steps(several)
    assert equal == {at: at for at in range(5)}
    assert suspicions(several[0], equal) == [(2, "w", "identical to step 1")]
    other[2] = other[1]
    several[1] = (range(4), {"w": other[:4]}, sums(other[:4]))
    assert equal_steps(several)[2] == 1
    assert equal_steps([several[0], ([0, 2, 3, 4], {"w": other[:4]}, sums(other[:4]))])[2] == 2  # step 1 lacks one


def test_equal_samples_with_different_checksums_are_not_identical():
    points = training(3, np.random.default_rng(0)).astype(np.float32)
    points[1] = points[0]
    assert equal_steps([([0, 1, 2], {"w": points}, {"w": np.array([1, 2, 3])})])[1] == 1
    assert equal_steps([([0, 1, 2], {"w": points}, {"w": np.array([1, 1, 3])})])[1] == 0


def test_a_frozen_tensor_says_nothing_but_a_stale_shard_does():
    generator = np.random.default_rng(0)
    moving, other = training(6, generator), training(6, generator)
    other[2] = other[-1]  # one shard of step 2 is the final one
    frozen = np.repeat(moving[:1], 6, 0)
    sketches = {"moving": moving, "other": other, "frozen": frozen}
    sums = {name: np.array([hash(row.tobytes()) for row in values]) for name, values in sketches.items()}
    assert suspicions((range(6), sketches, sums)) == [(2, "other", "identical to step 5, the last one")]


def found_in(series):
    points = {name: np.asarray(values, dtype=np.float32) for name, values in series.items()}
    sums = {name: np.array([hash(row.tobytes()) for row in values]) for name, values in points.items()}
    prints = (range(len(next(iter(points.values())))), points, sums)
    return suspicions(prints), not_yet_trained(prints)


@settings(max_examples=20, deadline=None)
@given(st.integers(6, 40), st.integers(0, 2**32), st.data())
def test_layers_that_are_unfrozen_one_after_the_other_are_no_fault(steps, seed, data):
    generator = np.random.default_rng(seed)
    series = {"head": training(steps, generator)}
    begins = {}
    for layer in range(3):
        begin = data.draw(st.integers(1, steps - 3))
        path = training(steps - begin, generator)
        series[f"layer {layer}"] = np.concatenate([np.repeat(path[:1], begin, 0), path])
        begins[f"layer {layer}"] = begin  # path[0] is the same value once more
    found, untrained = found_in(series)
    assert found == []
    assert untrained == begins


@settings(max_examples=20, deadline=None)
@given(st.integers(8, 40), st.integers(0, 2**32))
def test_a_step_at_which_nothing_differs_from_the_first_waits_for_nothing(steps, seed):
    generator = np.random.default_rng(seed)
    series = {name: training(steps, generator) for name in "ab"}
    for values in series.values():
        values[1] = values[0]
    assert found_in(series) == ([], {})
    series["c"] = training(steps, generator)  # now something has moved at step 1: the two others wait
    found, untrained = found_in(series)
    assert found == []
    assert untrained == {"a": 1, "b": 1}


@settings(max_examples=20, deadline=None)
@given(st.integers(10, 40), st.integers(0, 2**32), st.data())
def test_damage_is_still_found_in_a_layer_that_was_unfrozen_late(steps, seed, data):
    """A shard of another step, a shard that is stuck from some step on, one that falls back to the start."""
    generator = np.random.default_rng(seed)
    begin = data.draw(st.integers(1, steps // 3))
    moving, path = training(steps, generator), training(steps - begin, generator)
    late = np.concatenate([np.repeat(path[:1], begin, 0), path])
    first, at = begin + 1, data.draw(st.integers(steps // 3 + 2, steps - 3))
    copied = late.copy()
    copied[at] = late[first]
    assert (at, "late", f"identical to step {first}") in found_in({"moving": moving, "late": copied})[0]
    fallen = late.copy()
    fallen[at] = late[0]
    assert found_in({"moving": moving, "late": fallen})[0] == [(at, "late", "identical to step 0")]
    stuck = late.copy()
    stuck[at:] = late[at]
    last = f"identical to step {steps - 1}, the last one"
    assert found_in({"moving": moving, "late": stuck})[0] == [(step, "late", last) for step in range(at, steps - 1)]


def test_a_tensor_that_is_at_its_start_again_at_the_end_is_no_untrained_one():
    generator = np.random.default_rng(0)
    moving, back = training(6, generator), training(6, generator)
    back[1] = back[-1] = back[0]
    found, untrained = found_in({"moving": moving, "back": back})
    assert [(step, name) for step, name, _ in found] == [(0, "back"), (1, "back")]
    assert untrained == {}


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


def test_a_scan_keeps_steps_with_layers_that_wait_and_leaves_out_a_copied_shard(series, tmp_path):
    from checkpoint_series import change
    from safetensors.torch import load_file

    from joma.runs import Run
    from joma.scan import open_series, plan, sweep

    def copied(layer, source, target):
        held = load_file(series / f"step{source}" / "model.safetensors")
        mine = {name: value for name, value in held.items() if f".layers.{layer}." in name}
        change(series / f"step{target}", lambda tensors: tensors.update(mine))

    def scanned(name, **options):
        settled = plan(open_series(series, downloads=tmp_path))
        with Run.create(tmp_path / f"{name}.sqlite", study="scan", config=settled.config()) as run:
            return sweep(settled, run, **options)

    copied(0, 0, 1)
    copied(0, 0, 2)
    found = scanned("waiting")
    assert (found.steps, found.faults) == ([0, 1, 2, 10, 100], [])
    (note,) = (note for note in found.notes if "not yet trained" in note)
    assert ".layers.0." in note
    assert note.endswith("more tensors stay as they began up to step 2")
    copied(1, 2, 10)
    found = scanned("copied")
    assert found.steps == [0, 1, 2, 100]
    assert {fault.step for fault in found.faults} == {10}
    assert {(fault.tensor, fault.what) for fault in found.faults} >= {
        ("gpt_neox.layers.1.mlp.dense_h_to_4h.weight", "identical to step 2")
    }
    assert all(".layers.1." in fault.tensor for fault in found.faults)  # the others of that step are not accused
    assert scanned("kept", keep_suspicious=True).steps == [0, 1, 2, 10, 100]


def places(*distances):
    return np.array(distances, dtype=np.float32)[:, None]


def test_a_step_off_the_path_is_compared_with_the_nearest_of_the_earlier_ones():
    what = "off the path: 10.0 times as far from step 5, the last one, as the earlier step 2 is"
    assert judged(places(10, 4, 3, 30, 1, 0)) == {3: what}
    # Of the first step one step may say otherwise: it still is where training began.
    what = "off the path: 3.0 times as far from step 4, the last one, as the earlier step 0 is"
    assert judged(places(10, 30, 8, 4, 0)) == {1: what}


def test_most_of_the_earlier_steps_decide_who_is_off_the_path():
    """Step 3 is farther from the first step than two of the three that it contradicts; step 1 is on the other side."""
    found = judged(places(10, -12, 8, 30, 19, 1, 0))
    assert sorted(found) == [3, 4]
    assert all("off the path" in what for what in found.values())


def test_final_era_weights_are_compared_with_the_farthest_of_the_later_ones():
    what = "final-era weights: the later step 3 is 16.0 times as far from step 5, the last one"
    assert judged(places(10, 0.5, 6, 8, 1, 0)) == {1: what}


def test_a_jump_is_one_by_more_than_half_and_beyond_a_twentieth_of_the_way():
    """Steps 1 and 2: the later one is the farther one. Distances from the last step, of which 10 is the longest."""
    for distances, found in {
        (10, 3.0, 5.9, 0): [],  # more than half as far
        (10, 2.9, 5.9, 0): [1],
        (10, 0.2, 0.49, 0): [],  # too near to the last one, both of them
        (10, 0.2, 0.51, 0): [1],
        (10, 5.9, 2.9, 0): [],  # nearer with time, as training is
    }.items():
        assert sorted(judged(places(*distances))) == found, distances


def test_of_very_many_tensors_the_gate_looks_at_some_that_lie_evenly():
    from joma.scan.sweep.plan import Plan

    def gated(count):
        names = tuple(f"expert {i}" for i in range(count))
        plan = Plan(None, {}, None, {"mlp": names}, {}, {}, torch.device("cpu"), None)
        return plan.fingerprints("sketch")["mlp"].tensors

    assert gated(256) == tuple(f"expert {i}" for i in range(256))
    assert gated(300) == tuple(f"expert {i}" for i in range(0, 300, 2))
    assert gated(1024) == tuple(f"expert {i}" for i in range(0, 1024, 4))


def test_a_sketch_keeps_double_precision():
    w = torch.full((3,), 0.1, dtype=torch.float64)  # no number of single precision is so near to a tenth
    assert set(sketch(w).tolist()) == {0.1}
