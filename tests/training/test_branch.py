"""Branches: a twin with nothing changed is its base again; what is frozen stays; kills in between change nothing."""

from dataclasses import replace

import numpy as np
import pytest
import small_ensembles
import torch
from later import some_now
from small_ensembles import CONFIG as SHAPE

from joma.models import Decoder
from joma.models.groups import parameter_groups
from joma.runs import Run, RunError
from joma.training import Optimizer, branch, forget_kept, train_all


def weights(decoder, members):
    return {name: p.detach().clone() for name, p in decoder.named_parameters()}


def moved(decoder, before, members):
    return sum((p.detach() - before[name]).flatten(1).norm(dim=1) for name, p in decoder.named_parameters())


def ensemble(**changes):
    given = {
        "members": 3,
        "optimizer": Optimizer("adam", rate=(1e-2, 3e-3, 1e-3), clip=0.5, renew_every=8, weight_decay=0.01),
        "steps": 20,
        "measures": {"weights": weights},
        "between": {"moved": moved},
        "measure_at": (0, 5, 10, 15),
        "keep_at": (7, 12),
    }
    return small_ensembles.ensemble(**given | changes)


def trained(folder, ensembles, name="run"):
    run = Run.create(folder / f"{name}.sqlite", study="branches", config={})
    train_all(ensembles, run)
    return run


def last(run, name):
    return {key: run.array(key)[-1] for key in run.names() if key.startswith(f"{name}/weights/")}


def same(run, one, other, *, rounding=0.0):
    found = last(run, one)
    return all(
        np.allclose(value, run.array(key.replace(one, other, 1))[-1], rtol=rounding, atol=rounding)
        for key, value in found.items()
    )


@pytest.mark.parametrize("together", some_now([2, None], every=2))
def test_a_twin_with_nothing_changed_is_its_base_again(tmp_path, together):
    base = ensemble()
    run = trained(tmp_path, {"base": base, "twin": replace(branch(base, of="base", at=7), together=together)})
    assert run.steps("twin/train_loss").tolist() == [7, 10, 15, 20]
    rounding = 1e-5 if together else 0.0  # bit for bit where as many members are trained at a time
    assert same(run, "base", "twin", rounding=rounding)
    ends = (run.array(f"{name}/train_loss")[-2:] for name in ("base", "twin"))
    np.testing.assert_allclose(*ends, rtol=rounding)


def test_the_order_in_which_they_are_named_does_not_matter(tmp_path):
    base = ensemble()
    run = trained(tmp_path, {"twin": branch(base, of="base", at=7), "base": base})
    assert same(run, "base", "twin")


def test_a_twin_of_a_twin(tmp_path):
    base = ensemble()
    twin = branch(base, of="base", at=7, keep_at=(12,))
    run = trained(tmp_path, {"base": base, "twin": twin, "third": branch(twin, of="twin", at=12)})
    assert same(run, "base", "third")


FROZEN = {
    "whole": ["embedding", "out"],
    "part": [("qkv", (slice(None), 1, ..., slice(0, 16))), ("qkv_bias", (slice(None), 1, ..., slice(0, 16)))],
    "groups": [*parameter_groups(SHAPE)["MLP"], *parameter_groups(SHAPE)["norms"]],
}


def test_what_is_frozen_stays_and_the_rest_moves(tmp_path):
    """Nine twins of one base: each choice of parts with each optimizer."""
    optimizers = (
        None,
        Optimizer("sgd", rate=0.1, momentum=0.9, weight_decay=0.1),
        Optimizer("adamw", rate=1e-2, weight_decay=0.1),
    )
    base = ensemble(steps=10, measure_at=(0,), keep_at=(7,))
    twins = {
        f"{name} {number}": branch(base, of="base", at=7, frozen=parts, optimizer=optimizer)
        for name, parts in FROZEN.items()
        for number, optimizer in enumerate(optimizers)
    }
    run = trained(tmp_path, {"base": base, **twins})
    for twin in twins:
        parts = FROZEN[twin.split()[0]]
        for name, _ in Decoder(SHAPE, [0]).named_parameters():
            course = run.array(f"{twin}/weights/{name}")
            still = np.zeros(course.shape[1:], bool)
            for part in parts:
                if part == name:
                    still[:] = True
                elif part[0] == name:
                    still[part[1]] = True
            assert np.array_equal(course[0][still], course[-1][still]), (twin, name)
            assert still.all() or (course[0] != course[-1])[~still].any(), (twin, name)


def test_what_is_frozen_does_not_count_in_the_norm_that_is_clipped(tmp_path):
    """SGD that clips to a norm of 0.01: every step is as long as that over what learns."""
    short = Optimizer("sgd", rate=1.0, clip=0.01)
    base = ensemble(keep_at=(0,), optimizer=short, measure_at=(0,), steps=1)
    run = trained(tmp_path, {"base": base, "twin": branch(base, of="base", at=0, frozen=["embedding"])})
    lengths = [
        sum(
            ((run.array(key)[-1] - run.array(key)[0]) ** 2).sum(axis=tuple(range(1, run.array(key)[0].ndim)))
            for key in last(run, name)
        )
        for name in ("base", "twin")
    ]
    assert np.allclose(np.sqrt(lengths), 0.01, rtol=1e-3)


def test_between_is_the_way_since_the_point_before(tmp_path):
    run = trained(tmp_path, {"base": ensemble()})
    ways = run.array("base/moved")
    names = [name for name, _ in Decoder(SHAPE, [0]).named_parameters()]
    courses = [torch.from_numpy(run.array(f"base/weights/{name}").copy()) for name in names]
    expected = sum(course.diff(dim=0).flatten(2).norm(dim=2) for course in courses)
    assert np.array_equal(ways[0], np.zeros(3))
    assert np.allclose(ways[1:], expected.numpy(), rtol=1e-6)


def test_a_state_that_is_gone_or_damaged_is_one_sentence(tmp_path):
    base = ensemble()
    run = trained(tmp_path, {"base": base})
    kept = sorted(tmp_path.glob("*.kept"))
    assert [path.name for path in kept] == ["run.sqlite-base.step12.kept", "run.sqlite-base.step7.kept"]
    kept[1].write_bytes(kept[1].read_bytes()[:-9])
    with pytest.raises(RunError, match="step 7, from which a branch begins, cannot be read"):
        train_all({"twin": branch(base, of="base", at=7)}, run)
    forget_kept(run)
    assert not sorted(tmp_path.glob("*.kept"))
    with pytest.raises(RunError, match="step 12, from which a branch begins, is gone"):
        train_all({"twin": branch(base, of="base", at=12)}, run)


def test_a_state_of_another_run_is_not_taken(tmp_path):
    """As where somebody removed the run by hand; those of a run with a longer name are not this one's to forget."""
    base = ensemble(steps=3, measure_at=(), keep_at=(2,))
    trained(tmp_path, {"base": base}).close()
    (tmp_path / "run.sqlite").unlink()
    (tmp_path / "run.sqlite2-base.step2.kept").write_bytes(b"")
    with Run.create(tmp_path / "run.sqlite", study="branches", config={}) as run:
        run.created = "2001-01-01T00:00:00+00:00"  # runs of one second would not differ
        with pytest.raises(RunError, match="step 2, from which a branch begins, is of another run"):
            train_all({"twin": branch(base, of="base", at=2)}, run)
        train_all({"base": base, "twin": branch(base, of="base", at=2)}, run)  # made anew, and taken
        assert same(run, "base", "twin")
        forget_kept(run)
        assert [path.name for path in tmp_path.glob("*.kept")] == ["run.sqlite2-base.step2.kept"]


def test_bad_input_is_one_sentence(tmp_path):
    base, run = ensemble(), Run.create(tmp_path / "run.sqlite", study="branches", config={})
    with pytest.raises(ValueError, match=r"at must be one of the steps whose state is kept, \[7, 12\], got 8"):
        branch(base, of="base", at=8)
    with pytest.raises(ValueError, match="steps must be above 12"):
        branch(base, of="base", at=12, steps=10)
    with pytest.raises(ValueError, match="frozen must name parameters"):
        train_all({"a": branch(base, of="base", at=7, frozen=["embeddings"])}, run)
    names = [name for name, _ in Decoder(SHAPE, [0]).named_parameters()]
    with pytest.raises(ValueError, match="leave something to learn"):
        train_all({"a": branch(base, of="base", at=7, frozen=names)}, run)
    with pytest.raises(ValueError, match="branch off one another"):
        train_all({"a": branch(base, of="b", at=7), "b": branch(base, of="a", at=7)}, run)
