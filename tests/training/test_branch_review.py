"""Branches where it is easy to go wrong: other states, other members, several kills, full disks, leftovers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_ensembles import CONFIG, RATES, SEEDS, Killed, batch, dies_at, ensemble, fresh, full, networks, weights

from joma.models import Decoder
from joma.models.groups import parameter_groups
from joma.runs import Run, RunError
from joma.training import Optimizer, branch, train_all

SGD = Optimizer("sgd", rate=RATES)
HEAVY = Optimizer("sgd", rate=RATES, momentum=0.9, weight_decay=0.02, clip=0.5)
ADAM = Optimizer("adam", rate=RATES, clip=0.5, renew_every=5, weight_decay=0.01)
DECAYED = Optimizer("adamw", rate=RATES, weight_decay=0.1, decay=0.7, decay_every=3)


def moved(decoder, before, members):
    return torch.stack([(p - before[name]).flatten(1).norm(dim=1) for name, p in decoder.named_parameters()], 1)


def made(optimizer=ADAM, **changes):
    return ensemble(optimizer=optimizer, **({"keep_at": (0, 4, 7), "between": {"moved": moved}} | changes))


def equal(one, other):
    assert one.names() == other.names()
    for name in one.names():
        assert np.array_equal(one.array(name), other.array(name), equal_nan=True), name


QK = parameter_groups(CONFIG)["QK"]


@pytest.mark.parametrize(
    ("base", "twin", "together"),
    [(ADAM, None, 5), pytest.param(HEAVY, DECAYED, 3, marks=pytest.mark.long)],
    ids=["adam", "momentum to adamw"],
)
def test_kills_here_and_there_change_nothing(tmp_path, base, twin, together):
    """Killed at one step after the other, in the base and in two twins, one of them of the other."""

    def ensembles(dies):
        first = made(base, together=together)
        second = branch(first, of="base", at=4, frozen=["embedding", *QK], optimizer=twin, keep_at=(9,))
        third = branch(second, of="twin/1", at=9, steps=15)
        whole = {"base": first, "twin/1": second, "twin/2": third}
        return {n: replace(one, batch=dies_at(dies[n])) if n in dies else one for n, one in whole.items()}

    with fresh(tmp_path / "whole.sqlite") as whole, fresh(tmp_path / "killed.sqlite") as killed:
        train_all(ensembles({}), whole)
        for name, step in [("base", 4), ("base", 8), ("twin/1", 4), ("twin/2", 14)]:
            with pytest.raises(Killed):
                train_all(ensembles({name: step}), killed, checkpoint_every=0)
        train_all(ensembles({}), killed)
        equal(whole, killed)


@pytest.mark.long
def test_a_kill_without_a_checkpoint_changes_nothing(tmp_path):
    """Only the states that were kept are there: nothing is trained from a wrong place, nothing recorded twice."""

    def ensembles(dies=-1):
        base = made(together=2)
        return {"base": base, "twin": replace(branch(base, of="base", at=7, frozen=QK), batch=dies_at(dies))}

    with fresh(tmp_path / "whole.sqlite") as whole, fresh(tmp_path / "killed.sqlite") as killed:
        train_all(ensembles(), whole)
        with pytest.raises(Killed):
            train_all(ensembles(dies=10), killed)
        assert not list(tmp_path.glob("*.checkpoint"))
        train_all(ensembles(), killed)
        equal(whole, killed)


def test_a_full_disk_at_a_kept_state_is_one_sentence_and_changes_nothing(tmp_path, monkeypatch):
    def ensembles():
        base = made(keep_at=(7,))
        return {"base": base, "twin": branch(base, of="base", at=7)}

    with fresh(tmp_path / "whole.sqlite") as whole, fresh(tmp_path / "full.sqlite") as run:
        train_all(ensembles(), whole)
        with monkeypatch.context() as patched:
            patched.setattr("safetensors.torch.save_file", full)
            with pytest.raises(RunError, match=r"state of base at step 7 could not be kept.*No space left"):
                train_all(ensembles(), run)
        assert not [path for path in tmp_path.iterdir() if path.name.startswith((".full", "full.sqlite-base.s"))]
        train_all(ensembles(), run)
        equal(whole, run)


def test_another_split_of_the_base_keeps_the_same_state(tmp_path):
    """Groups that no longer fit: what was kept by five together is where two together begin."""

    def ensembles(together):
        base = made(together=5)
        return {"base": base, "twin": replace(branch(base, of="base", at=7), together=together)}

    with fresh(tmp_path / "a.sqlite") as a, fresh(tmp_path / "b.sqlite") as b:
        train_all(ensembles(5), a)
        train_all(ensembles(2), b)
        for name in a.names():
            np.testing.assert_allclose(a.array(name), b.array(name), atol=1e-12, err_msg=name)


def test_a_member_that_diverged_stays_marked_and_disturbs_nobody(tmp_path):
    rates = (1e-3, 1e200, 3e-3, 1e-3, 2e-2)
    base = made(Optimizer("sgd", rate=rates), keep_at=(5,))
    twin = branch(base, of="base", at=5, frozen=QK, optimizer=ADAM)
    with fresh(tmp_path / "a.sqlite") as run, fresh(tmp_path / "b.sqlite") as other:
        train_all({"base": base, "twin": twin}, run)
        ended = run.array("twin/diverged_at")[-1]
        assert 0 < ended[1] < 5
        assert (np.delete(ended, 1) == -1).all()
        sound = made(replace(SGD, rate=(1e-3, 1e-2, 3e-3, 1e-3, 2e-2)), keep_at=(5,))
        train_all({"base": sound, "twin": branch(sound, of="base", at=5, frozen=QK, optimizer=ADAM)}, other)
        for name in ("twin/weights", "twin/moved"):
            assert np.array_equal(np.delete(run.array(name), 1, 1), np.delete(other.array(name), 1, 1))


def test_a_state_of_another_kind_is_not_taken_over():
    """Velocities are no means of squares: said when the branch is made, not when a key is missing."""
    for one, other in ((SGD, ADAM), (ADAM, HEAVY), (HEAVY, ADAM)):
        with pytest.raises(ValueError, match="renew must be True"):
            branch(made(one), of="base", at=4, optimizer=other, renew=False)
    assert branch(made(SGD), of="base", at=4, optimizer=replace(SGD, clip=1.0), renew=False).origin is not None


@pytest.mark.parametrize("other", [ADAM, HEAVY], ids=["adam", "momentum"])
def test_a_branch_made_of_another_ensemble_begins_with_a_state_of_its_own(tmp_path, other):
    """As recipes make it: of a twin's own ensemble, which does not know the optimizer of the base."""
    base, unlike = made(SGD), branch(made(other), of="base", at=4)
    assert unlike.origin is not None
    assert not unlike.origin.renew
    with fresh(tmp_path / "a.sqlite") as run:
        train_all({"base": base, "twin": unlike, "same": branch(base, of="base", at=4, optimizer=other)}, run)
        assert np.array_equal(run.array("twin/weights"), run.array("same/weights"))
        with pytest.raises(ValueError, match="state of another kind of optimizer"):
            train_all({"third": unlike}, run)


def test_what_was_frozen_can_learn_again(tmp_path):
    """The optimizer has no state of it, and begins with none: nor with that of the group before it."""
    base = made()
    twin = branch(base, of="base", at=4, frozen=["embedding", *QK], keep_at=(7,))
    third = branch(twin, of="twin", at=7)
    groups = branch(twin, of="twin", at=7, together=2, measure_at=())  # each is trained to its end
    with fresh(tmp_path / "a.sqlite") as run:
        train_all({"base": base, "twin": twin, "third": third, "groups": groups}, run)
        np.testing.assert_allclose(run.array("groups/weights")[-1], run.array("third/weights")[-1], atol=1e-12)
        names = [name for name, _ in networks([0]).named_parameters()]
        way = run.array("third/moved")[-1][:, names.index("embedding")]
        assert (way > 0).all()
        assert (run.array("twin/moved")[..., names.index("embedding")] == 0).all()


def test_a_branch_has_the_members_of_its_base(tmp_path):
    base = made()
    some = branch(base, of="base", at=4, optimizer=replace(ADAM, rate=1e-3), members=3)
    with fresh(tmp_path / "a.sqlite") as run:
        with pytest.raises(ValueError, match="twin begins at step 4 of base, which has 5 members, not 3"):
            train_all({"base": base, "twin": some}, run)
        assert run.names() == []
        train_all({"base": base}, run)
        with pytest.raises(ValueError, match="has 5 members, the branch has 3"):
            train_all({"twin": some}, run)


@pytest.mark.parametrize(
    "shape", [CONFIG.with_(mlp=7), CONFIG.with_(positions="learned"), CONFIG.with_(layers=1)], ids=repr
)
def test_a_branch_has_the_parameters_of_its_base(tmp_path, shape):
    base = made()
    other = branch(base, of="base", at=4, networks=lambda some: Decoder(shape, [SEEDS[m] for m in some]).double())
    with fresh(tmp_path / "a.sqlite") as run, pytest.raises(ValueError, match="does not fit its networks"):
        train_all({"base": base, "twin": other}, run)


def test_a_step_that_is_not_kept_is_refused_before_anything_is_trained(tmp_path):
    base = made()
    twin = branch(base, of="base", at=4)
    with fresh(tmp_path / "a.sqlite") as run:
        with pytest.raises(ValueError, match=r"twin begins at step 4 of base, which keeps \[7\]"):
            train_all({"base": replace(base, keep_at=(7,)), "twin": twin}, run)
        assert run.names() == []


def test_names_that_differ_only_in_a_slash_have_files_of_their_own(tmp_path):
    one, other = made(SGD), made(HEAVY)
    twins = {"x": branch(one, of="a/b", at=7), "y": branch(other, of="a.b", at=7)}
    with fresh(tmp_path / "a.sqlite") as run:
        train_all({"a/b": one, "a.b": other, **twins}, run)
        assert np.array_equal(run.array("x/weights")[-1], run.array("a/b/weights")[-1])
        assert np.array_equal(run.array("y/weights")[-1], run.array("a.b/weights")[-1])


def test_what_was_kept_goes_with_the_run(tmp_path):
    """A run made anew within the same second would otherwise branch off the states of the old one."""
    path = tmp_path / "a.sqlite"
    with fresh(path) as run:
        train_all({"base": made()}, run)
    assert list(tmp_path.glob("*.kept"))
    Run.delete(path)
    assert not list(tmp_path.glob("*.kept"))
    with fresh(path) as run:
        train_all({"base": made()}, run)
        run.finish()  # leaves a single file
        assert [one.name for one in tmp_path.iterdir() if not one.name.endswith(".lock")] == ["a.sqlite"]


def test_a_measure_and_a_change_cannot_have_one_name():
    with pytest.raises(ValueError, match="between and measures both have 'weights'"):
        made(between={"weights": moved})


def test_between_begins_where_training_does_if_that_is_no_measuring_point(tmp_path):
    base = made(measure_at=(5,))
    twin = branch(base, of="base", at=7, measure_at=(9,))
    with fresh(tmp_path / "a.sqlite") as run, fresh(tmp_path / "b.sqlite") as more:
        train_all({"base": base, "twin": twin}, run)
        every = made(measure_at=(0, 5))
        train_all({"base": every, "twin": branch(every, of="base", at=7, measure_at=(7, 9))}, more)
        assert np.array_equal(run.array("base/moved"), more.array("base/moved")[1:])
        assert np.array_equal(run.array("twin/moved"), more.array("twin/moved")[1:])
        assert np.array_equal(run.array("twin/weights"), more.array("twin/weights")[1:])


def torch_twin(member, optimizer, frozen):
    """One member alone, by hand: 7 steps of SGD with momentum, then another optimizer, new, with parts frozen."""
    from joma.models.dropout import keys
    from joma.training import next_token_loss

    network = networks([member])
    theirs = torch.optim.SGD(network.parameters(), RATES[member], momentum=0.9)
    for step in range(12):
        if step == 7:
            kept = {name: p.detach().clone() for name, p in network.named_parameters()}
            theirs = optimizer(network.parameters(), RATES[member])
        theirs.zero_grad()
        noise = keys(network.seeds, torch.tensor(step, dtype=torch.int32))
        next_token_loss(network, batch(step, [member]), noise).sum().backward()
        if step >= 7:
            _still(network, frozen, lambda p, index: p.grad[index].zero_())
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.3)
        theirs.step()
        if step >= 7:
            with torch.no_grad():
                _still(network, frozen, lambda p, index: None, kept)
    return weights(network, [member]).detach()


def _still(network, frozen, do, kept=None):
    named = dict(network.named_parameters())
    for part in frozen:
        name, index = (part, ...) if isinstance(part, str) else part
        do(named[name], index)
        if kept is not None:
            named[name][index] = kept[name][index]


def test_a_twin_is_what_torch_optim_makes_of_it(tmp_path):
    """Momentum first, then Adam with weight decay and clipping, its age counted from the branch, parts frozen."""
    frozen = ["out_bias", *QK, *parameter_groups(CONFIG, by_layer=True)["layer 1 MLP"]]
    base = made(replace(HEAVY, weight_decay=0.0, clip=None))
    after = Optimizer("adam", rate=RATES, clip=0.3, weight_decay=0.02)
    twin = branch(base, of="base", at=7, frozen=frozen, optimizer=after)
    with fresh(tmp_path / "a.sqlite") as run:
        train_all({"base": base, "twin": twin}, run)
        for member in (1, 4):
            wanted = torch_twin(member, lambda p, rate: torch.optim.Adam(p, rate, weight_decay=0.02), frozen)
            found = torch.from_numpy(run.array("twin/weights")[-1][member].copy())
            torch.testing.assert_close(found, wanted[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"frozen": "embedding"}, "frozen must be a list of parameters, got the one name 'embedding'"),
        ({"optimizer": "adam"}, "optimizer must be an Optimizer of joma.training, got 'adam'"),
        ({"steps": 8.5}, "steps must be a whole number of at least 1, got 8.5"),
    ],
)
def test_what_a_branch_cannot_be_is_said_when_it_is_made(changes, said):
    with pytest.raises(ValueError, match=said):
        branch(made(), of="base", at=4, **changes)
