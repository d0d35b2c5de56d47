"""GaLore with inner optimizers from everywhere: each trains, resumes bit for bit, or is refused in a sentence."""

import io
from functools import partial

import pytest
import torch
from torch import nn
from training import network, same, train

from joma.optim import GaLore, StateError
from joma.optim._inner import try_inner

SIGN = {"lr": 0.001}
OF_TORCH = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "SGD")
OF_PYTORCH_OPTIMIZER = ("AdEMAMix", "Adan", "CAME", "SOAP", "Shampoo", "StableAdamW", "AggMo", "FAdam", "DAdaptAdam")
WORK = {  # where each is from, and options that it needs
    "torch.optim": {name: {} for name in OF_TORCH},
    "pytorch_optimizer": {name: {} for name in OF_PYTORCH_OPTIMIZER} | {"Lion": SIGN, "Tiger": SIGN, "SignSGD": SIGN},
    "optimi": {name: {} for name in ("Adam", "AdamW", "Adan", "RAdam", "SGD")} | {"Lion": SIGN},
    "bitsandbytes.optim": {"AdamW8bit": {}, "Lion8bit": SIGN},
    "torchao.optim": {"AdamW8bit": {}, "AdamW4bit": {}},
    "heavyball": {"AdamW": {}},
}
LOOK_AT_WEIGHTS = {
    "pytorch_optimizer": ("Prodigy", "ScheduleFreeAdamW", "Ranger", "MADGRAD", "Amos", "Lamb", "LARS", "AdamP"),
    "optimi": ("Ranger",),
}


@pytest.fixture(autouse=True)
def without_compiling():
    """torchao compiles its step; here that would only take time."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


ALONE = ("heavyball",)
"""Compiles its step for more than a minute."""
TABLE = [(place, name, options) for place, some in WORK.items() for name, options in some.items()]


def found(place, name):
    if place in ALONE:
        pytest.skip(f"{place} compiles its step for more than a minute")
    return getattr(pytest.importorskip(place, reason=f"{place} is not installed"), name)


def made(place, name, options, **more):
    return partial(GaLore, inner=found(place, name), rank=4, refresh=3, **{"lr": 0.01, **options, **more})


@pytest.mark.parametrize(("place", "name", "options"), TABLE, ids=[f"{one[0]}.{one[1]}" for one in TABLE])
def test_each_trains_and_resumes_bit_for_bit(place, name, options):
    make = made(place, name, options)
    torch.manual_seed(0)
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = make(model)
    train(model, optimizer, 5)
    assert all(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(value.isfinite().all() for value in model.state_dict().values())
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), torch.get_rng_state()], file)
    train(model, optimizer, 5)

    file.seek(0)
    weights, state, luck = torch.load(file, weights_only=True)
    again = network()
    again.load_state_dict(weights)
    resumed = make(again)
    resumed.load_state_dict(state)
    torch.set_rng_state(luck)
    train(again, resumed, 5)
    assert same(model, again)


@pytest.mark.parametrize(("place", "name", "options"), TABLE, ids=[f"{one[0]}.{one[1]}" for one in TABLE])
def test_each_is_projected_during_backward_and_steps_there_where_it_can(place, name, options):
    plain, projected, during = network(), network(), network()
    make = made(place, name, options, projector="exact")  # refreshes at the same updates, however gradients come
    for model, per_layer in ((plain, False), (projected, "project")):
        torch.manual_seed(0)
        train(model, make(model, per_layer=per_layer), 5)
    assert same(plain, projected)
    if place == "pytorch_optimizer" or (place == "optimi" and name not in ("Lion", "SGD")):
        with pytest.raises(ValueError, match=rf"^inner {name} keeps '.*' for a group, .* give per_layer='project'$"):
            make(during, per_layer=True)
        return
    train(during, make(during, per_layer=True), 5)
    assert same(plain, during)


@pytest.mark.parametrize(("place", "name"), [(place, one) for place, some in LOOK_AT_WEIGHTS.items() for one in some])
def test_what_looks_at_weights_is_refused_by_name(place, name):
    inner = found(place, name)
    with pytest.raises(ValueError, match=rf"^inner {name} looks at the matrix itself"):
        GaLore(network(), inner, rank=4, lr=0.01)


# ---- small optimizers, each with one trait ---------------------------------------------------------------------------


class Plain(torch.optim.Optimizer):
    """Gradient descent that does not look at weights, but for what a subclass adds."""

    def __init__(self, params, lr=0.1, **more):
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, **more})

    def size(self, group, weight):
        return 1.0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.add_(each.grad, alpha=-group["lr"] * self.size(group, each))


class Counting(Plain):
    """The rate rises with the steps that a group has made."""

    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        super().step()

    def size(self, group, weight):
        return group["step"]


class Learning(Counting):
    """What it has learnt stands in its group from the beginning."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr, learnt=torch.tensor(1.0))

    def size(self, group, weight):
        group["learnt"] = group["learnt"] * 0.9 + 0.1 * weight.grad.norm().float()
        return float(group["learnt"])


class Slow(Plain):
    """An average of weights, looked at every fifth step."""

    def step(self):
        super().step()
        for each in (each for group in self.param_groups for each in group["params"]):
            state = self.state[each]
            state["count"] = state.get("count", 0) + 1
            slow = state.setdefault("slow", each.detach().clone())
            if state["count"] % 5 == 0:
                slow.lerp_(each.detach(), 0.5)
                each.data.copy_(slow)


class Scheduled(Plain):
    def step(self):
        super().step()
        for group in self.param_groups:
            group["lr"] *= 0.9


class Forgetful(Plain):
    """Keeps what it counts where no state_dict has it."""

    count = 0

    def step(self):
        self.count += 1
        super().step()

    def size(self, group, weight):
        return self.count


class Drawing(Plain):
    def size(self, group, weight):
        return float(torch.rand(()))


class Tagged(Plain):
    def size(self, group, weight):
        return 2.0 if group["twice"] else 1.0


class Wrapper:
    """Has the groups of another one, as a property that cannot be set."""

    def __init__(self, params, lr=0.1):
        self.base = Plain(params, lr)
        self.defaults, self.state_dict, self.load_state_dict = (
            getattr(self.base, name) for name in ("defaults", "state_dict", "load_state_dict")
        )

    def step(self):
        self.base.step()

    param_groups = property(lambda self: self.base.param_groups)
    state = property(lambda self: self.base.state)


def test_one_that_draws_from_numpy_and_does_not_resume_is_named():
    with pytest.warns(UserWarning, match=r"^inner Kron does not go on from its own state_dict"):
        GaLore(network(), found("pytorch_optimizer", "Kron"), rank=4, lr=0.01)


def test_what_the_first_group_alone_counts_is_written_and_is_not_in_every_group():
    class First(Counting):
        def step(self):
            self.param_groups[0]["all"] = self.param_groups[0].get("all", 0) + 1
            super().step()

    trial = try_inner(First, First([nn.Parameter(torch.ones(2))]), {"lr": 0.1})
    assert (trial.writes, trial.everywhere, trial.counts) == ({"all", "step"}, {"step"}, {"all", "step"})


@pytest.mark.parametrize("kind", [Counting, Learning])
def test_what_an_inner_optimizer_keeps_in_its_group_is_state(kind):
    model = network()
    optimizer = GaLore(model, kind, rank=4, refresh=3, lr=0.01)
    train(model, optimizer, 5)
    (group,) = optimizer.param_groups
    own = {key: value for key, value in group.items() if key.startswith("inner/")}
    assert {key.split("/")[1] for key in own} == {"compact", "passing"}
    assert own["inner/compact/step"] == own["inner/passing/step"] == 5
    assert "step" not in group
    assert "learnt" not in group
    assert optimizer.state_dict()["param_groups"][0]["inner/compact/step"] == 5


def test_no_part_of_an_update_is_counted_for_all(monkeypatch):
    """Large models step in rounds of few packs; a counter of the group must not see those."""
    counts = []
    for least in (1 << 17, 1):
        monkeypatch.setattr("joma.optim._update.UNFOLDED_LEAST", least)
        model = network()
        optimizer = GaLore(model, Counting, rank=4, refresh=3, lr=0.01)
        train(model, optimizer, 4)
        counts.append(optimizer.param_groups[0]["inner/compact/step"])
    assert counts == [4, 4]


@pytest.mark.parametrize("begun", [True, False])
def test_loading_takes_back_what_was_counted_since(begun):
    model = network()
    optimizer = GaLore(model, Counting, rank=4, refresh=3, lr=0.01)
    train(model, optimizer, 2 if begun else 0)
    state = {**optimizer.state_dict(), "param_groups": [dict(one) for one in optimizer.state_dict()["param_groups"]]}
    train(model, optimizer, 3)
    optimizer.load_state_dict(state)
    for key in ("inner/compact/step", "inner/passing/step"):
        assert optimizer.param_groups[0].get(key) == (2 if begun else None)
    assert [group.get("step") for group in optimizer.inner.param_groups] == [2 if begun else None] * 2


def test_a_state_without_what_was_kept_or_with_damage_in_it_is_refused():
    pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
    from pytorch_optimizer import AdEMAMix

    model = network()
    optimizer = GaLore(model, AdEMAMix, rank=4, lr=0.01)
    train(model, optimizer, 2)
    for key, value, words in (
        ("inner/compact/step", None, "group 0 of the state has no entry 'inner/compact/step'"),
        ("inner/passing/step", None, "group 0 of the state has no entry 'inner/passing/step'"),
        ("inner/passing/step", float("nan"), "inner/passing/step of group 0 of the state must be finite"),
    ):
        state = optimizer.state_dict()
        (group,) = state["param_groups"] = [dict(state["param_groups"][0])]
        group.pop(key)
        if value is not None:
            group[key] = value
        with pytest.raises(StateError, match=words):
            optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["inner/compact/step"] == 2


def test_what_foreign_optimizers_keep_in_lists_must_be_finite():
    pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")
    from pytorch_optimizer import SOAP

    model = network()
    optimizer = GaLore(model, SOAP, rank=4, lr=0.01)
    train(model, optimizer, 2)
    state = optimizer.state_dict()
    number = next(number for number, one in state["state"].items() if "basis" in one)
    entry = state["state"][number]
    spoiled = [one.clone() for one in entry["GG"]]
    spoiled[0][0, 0] = torch.nan
    state["state"] = {**state["state"], number: {**entry, "GG": spoiled}}
    with pytest.raises(StateError, match="the saved GG of"):
        optimizer.load_state_dict(state)
    state["state"][number] = {**entry, "GG": object()}
    with pytest.raises(StateError, match="must be a tensor or a number, got object"):
        optimizer.load_state_dict(state)


def test_traits_are_seen_on_a_tiny_matrix():
    with pytest.raises(ValueError, match=r"^inner Slow looks at the matrix itself"):
        GaLore(network(), Slow, rank=4)
    with pytest.raises(ValueError, match=r"^inner Scheduled changes lr in its group"):
        GaLore(network(), Scheduled, rank=4)
    with pytest.warns(UserWarning, match="inner Forgetful does not go on from its own state_dict"):
        GaLore(network(), Forgetful, rank=4)
    with pytest.raises(ValueError, match="inner Counting keeps 'step' for a group"):
        GaLore(network(), Counting, rank=4, per_layer=True)


def test_decay_is_not_looking_at_weights():
    """GaLore shrinks the matrix itself; the inner optimizer never sees a decay of a compact parameter."""

    class Decaying(Plain):
        def __init__(self, params, lr=0.1, weight_decay=0.5):
            super().__init__(params, lr)
            self.param_groups[0]["weight_decay"] = weight_decay

        def step(self):
            for group in self.param_groups:
                for each in group["params"]:
                    each.data.mul_(1 - group["lr"] * group["weight_decay"])
            super().step()

    model = network()
    train(model, GaLore(model, Decaying, rank=4, lr=0.01), 2)


def test_a_trial_leaves_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    GaLore(network_without_seed(), Drawing, rank=4)
    assert torch.equal(torch.rand(3), expected)


def network_without_seed():
    with torch.random.fork_rng():
        return network()


def test_one_that_wraps_another_steps_too():
    model, other = network(), network()
    train(model, GaLore(model, Wrapper, rank=4, lr=0.01), 3)
    train(other, GaLore(other, Plain, rank=4, lr=0.01), 3)
    assert same(model, other)


def test_a_key_that_the_inner_optimizer_reads_may_stand_in_a_group():
    model = nn.Sequential(nn.Linear(12, 9, bias=False), nn.Linear(9, 12, bias=False))
    groups = [
        {"params": [(str(place), each)], "twice": bool(place)}
        for place, (_, each) in enumerate(model.named_parameters())
    ]
    optimizer = GaLore(groups, Tagged, rank=3, lr=0.01)
    assert [group["twice"] for group in optimizer.inner.param_groups] == [False, True]
    with pytest.raises(ValueError, match="group 0 has an option 'thrice' that nobody reads"):
        GaLore([{**group, "thrice": 1} for group in groups], Tagged, rank=3, lr=0.01)


def test_a_copy_goes_on_and_takes_further_groups():
    import copy

    model = network()
    optimizer = GaLore([*model.named_parameters()][:3], Counting, rank=4, lr=0.01)
    further = nn.Parameter(torch.ones(9, 12))
    for each in (copy.deepcopy(optimizer), optimizer):
        each.add_param_group({"params": [("further", further)]})
        further.grad = torch.ones(9, 12)
        each.step()
        assert each.param_groups[1]["inner/compact/step"] == 1
