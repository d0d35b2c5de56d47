"""A step where products are stacked: few operations, no wait for the device, the same weights. A CPU stands for it."""

import math
import weakref
from collections import Counter
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training import IN_8_BITS, loss_of, network, same, waiting

from joma.optim import GaLore, Projected, _matrix, _update
from joma.optim._update import Guard, are_finite

OPTIONS = {"rank": 3, "refresh": 50, "lr": 0.01, "weight_decay": 0.5, "fused": True, "skip": ()}
VIEWS = {"view", "detach", "unbind", "expand", "transpose", "select", "split_with_sizes", "t", "alias"}
VIEWS |= {"_reshape_alias"}
WAITS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero"}


class Operations(TorchDispatchMode):
    """Counts what is started, by name; and the entries of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.names, self.largest = Counter(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        namespace, name = str(function).split(".")[:2]
        if namespace != "profiler":
            self.names[name] += 1
        if isinstance(made, torch.Tensor) and name not in VIEWS:
            self.largest = max(self.largest, made.numel())
        return made

    @property
    def started(self):
        return sum(count for name, count in self.names.items() if name not in VIEWS)


class NewBytes(TorchDispatchMode):
    """The most bytes that tensors made while it is entered hold at one time; `held`: those that were there before."""

    def __init__(self, *held):
        super().__init__()
        self.now = self.most = 0
        self.held = [each.untyped_storage() for each in held]
        self.known = {storage._cdata: storage for storage in self.held}

    def freed(self, key, size):
        del self.known[key]
        self.now -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if str(function).split(".")[1] in VIEWS:
            return made
        for each in made if isinstance(made, list | tuple) else [made]:
            if isinstance(each, torch.Tensor) and (key := each.untyped_storage()._cdata) not in self.known:
                storage, size = each.untyped_storage(), each.untyped_storage().nbytes()
                self.known[key] = weakref.ref(storage, lambda _, key=key, size=size: self.freed(key, size))
                self.now += size
                self.most = max(self.most, self.now)
        return made


@pytest.fixture
def _stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    monkeypatch.setattr(Guard, "devices", ("cpu",))


def drawn(count, seed=0, shape=(5, 9), dtype=torch.float64):
    return list(torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype))


def made(weights, **options):
    return GaLore([(f"w{place}", each) for place, each in enumerate(weights)], **(OPTIONS | options))


def step(optimizer, weights, seed, spoil=lambda gradients: None):
    gradients = drawn(len(weights), seed, tuple(weights[0].shape), weights[0].dtype)
    spoil(gradients)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optimizer.step()


def operations_of_a_step(count, **options):
    weights = [nn.Parameter(each) for each in drawn(count)]
    optimizer = made(weights, **options)
    step(optimizer, weights, 1)
    with Operations() as seen:
        optimizer.step()
    return seen


@pytest.mark.usefixtures("_stacked")
@pytest.mark.parametrize("options", [{}, {"clip": 1.0}, {"projected": IN_8_BITS}], ids=str)
def test_a_step_waits_for_nothing_and_starts_no_more_for_more_layers(options):
    few, many = operations_of_a_step(2, **options), operations_of_a_step(12, **options)
    assert not WAITS & {*few.names, *many.names}
    assert few.started == many.started
    assert many.names["bmm"] == 2
    assert many.names["_fused_sgd_"] == many.names["_fused_adamw_"] == 1


@pytest.mark.usefixtures("_stacked")
def test_a_step_with_a_rate_on_the_device_waits_for_nothing():
    """What shrinks the weights is on the device too, and no number of a kernel's options."""
    seen = operations_of_a_step(4, lr=torch.tensor(0.01))
    assert not WAITS & {*seen.names}


def test_a_step_that_must_look_is_seen_by_this_test():
    """Without the flag on the device a step waits: the count above would find it."""
    assert WAITS & {*operations_of_a_step(4).names}


@pytest.mark.usefixtures("_stacked")
def test_beside_the_gradients_there_is_one_stack_of_a_pack_at_a_time(monkeypatch):
    monkeypatch.setattr(_matrix, "STACK", 4 * 45)
    assert operations_of_a_step(12, rank=1).largest == 4 * 45
    monkeypatch.setattr(_matrix, "ALONE", 45)  # matrices that are large enough are not copied, nor are updates
    seen = operations_of_a_step(12)
    assert seen.names["mm"] == seen.names["addmm_"] == 12


@pytest.mark.usefixtures("_stacked")
@pytest.mark.parametrize("most", [4, 12])
def test_a_step_needs_one_stack_and_two_compact_copies_beside_what_is_there(most, monkeypatch):
    """Entries of one pack in full shape; compact gradients and compact updates of all packs of a round."""
    monkeypatch.setattr(_matrix, "STACK", most * 64 * 96)
    weights = [nn.Parameter(each) for each in drawn(12, shape=(64, 96))]
    optimizer = made(weights, rank=8)
    step(optimizer, weights, 1)
    with NewBytes() as seen:
        optimizer.step()
    expected = 8 * (most * 64 * 96 + 2 * 12 * 8 * 96)
    assert expected <= seen.most < 1.05 * expected


@pytest.mark.usefixtures("_stacked")
def test_a_stack_that_is_not_copied_gives_the_same(monkeypatch):
    ends = []
    for alone in (1 << 21, 45):
        monkeypatch.setattr(_matrix, "ALONE", alone)
        weights = [nn.Parameter(each) for each in drawn(4)]
        optimizer = made(weights)
        for seed in range(3):
            step(optimizer, weights, seed)
        ends.append(torch.stack([each.detach() for each in weights]))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def spoiled(gradients):
    gradients[2][1, 4] = torch.inf


@pytest.mark.usefixtures("_stacked")
@pytest.mark.parametrize("options", [{}, {"lr": torch.tensor(0.01)}, {"clip": 1.0}], ids=str)
def test_a_step_that_is_held_changes_nothing_and_names_the_gradient(options):
    """Decay neither: it is the same kernel that shrinks and adds."""
    weights = [nn.Parameter(each) for each in drawn(4)]
    optimizer = made(weights, nonfinite="skip", **options)
    step(optimizer, weights, 1)
    before = [each.detach().clone() for each in weights]
    step(optimizer, weights, 2, spoiled)
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
    assert optimizer.skipped == 1
    step(optimizer, weights, 3)
    assert not any(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
    strict = made(weights, **options)
    step(strict, weights, 4)
    step(strict, weights, 5, spoiled)
    with pytest.raises(ValueError, match="the gradient of w2 is not finite: nothing was updated"):
        strict.step()


@pytest.mark.usefixtures("_stacked")
@pytest.mark.parametrize(
    "kind",
    [{"lr": torch.tensor(0.01)}, {"projected": Projected(basis_dtype=torch.float32)}, {}],
    ids=["rate", "basis", "columns"],
)
@pytest.mark.parametrize("shape", [(5, 9), (9, 5)], ids=["wide", "tall"])
def test_what_the_one_kernel_does_not_take_is_done_without_it(shape, kind):
    """A rate in a tensor, a basis of another precision, weights that lie by columns."""
    plain, other = ([nn.Parameter(each) for each in drawn(4, shape=shape)] for _ in range(2))
    if not kind:
        other = [nn.Parameter(each.detach().mT.contiguous().mT) for each in other]
    optimizers = made(plain), made(other, **kind)
    for seed in range(4):
        for optimizer, weights in zip(optimizers, (plain, other), strict=True):
            step(optimizer, weights, seed)
    for one, another in zip(plain, other, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-5, atol=1e-6)


def test_processes_agree_within_the_groups_of_their_meshes_alone(monkeypatch):
    """A fault that any group of any dimension saw counts; processes that hold no part are not waited for."""
    sharded, asked = torch.ones(2), []
    sharded.device_mesh = Mock(ndim=2, get_group=lambda dimension: f"group {dimension}")

    def least(flags, operation, group):
        asked.append(group)
        flags[int(group[-1])] = 0

    monkeypatch.setattr(_update, "is_sharded", lambda one: one is sharded)
    monkeypatch.setattr(_update.dist, "all_reduce", least)
    assert are_finite([torch.ones(1), sharded, torch.ones(1)]).tolist() == [False, False, True]
    assert asked == ["group 0", "group 1"]


@pytest.mark.parametrize("stacked", [False, True])
def test_gradients_too_large_for_a_sum_are_finite_and_opposite_infinities_are_not(stacked, monkeypatch):
    if stacked:
        monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    huge = torch.full((4,), 3e38)
    opposite = torch.tensor([torch.inf, -torch.inf])
    half = torch.full((50,), 6e4, dtype=torch.float16)
    assert are_finite([huge, torch.ones(2)]).tolist() == [True, True]
    assert are_finite([huge, opposite, half]).tolist() == [True, False, True]
    assert are_finite([torch.ones(3), torch.tensor([1.0, math.nan])]).tolist() == [True, False]
    stack = torch.stack([huge, huge.clone().fill_(math.nan)]).view(2, 2, 2)
    assert are_finite([opposite, huge], [stack]).tolist() == [True, True, False, False, False, True]
    assert are_finite([], [stack]).tolist() == [True, True, False, False]


@pytest.mark.usefixtures("_stacked")
@pytest.mark.parametrize("count", [1, 9, 30])
@pytest.mark.parametrize("refresh", [2, 5, 40])
def test_no_step_has_more_refreshes_than_its_share(count, refresh):
    weights = [nn.Parameter(torch.zeros(6, 9)) for _ in range(count)]
    optimizer = made(weights, rank=2, refresh=refresh)
    turns = math.ceil(count / 4)  # four subspaces are found together
    for matrix in optimizer.matrices:
        matrix.refreshed = 0
    found = Counter()
    for _ in range(refresh):
        optimizer.count_replays()
        due = optimizer.due()
        assert len(due) <= 4 * math.ceil(turns / refresh)
        found.update(due)
    assert set(found.values()) == {1}
    assert len(found) == count


@pytest.mark.usefixtures("_stacked")
@pytest.mark.parametrize("place", range(7))
def test_a_gradient_that_is_not_finite_is_named_whichever_it_is(place):
    """Flags are counted by rows of several stacks, then by matrices that are alone, then by what passes."""
    shapes = [(5, 9), (5, 9), (9, 5), (9, 5), (9, 5), (6, 8), (7,)]
    weights = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = made(weights)
    assert [len(pack.matrices) for pack in optimizer.packs] == [2, 3, 1]
    for turn in range(2):
        for number, each in enumerate(weights):
            each.grad = torch.randn(each.shape, generator=torch.Generator().manual_seed(number))
        if turn:
            weights[place].grad.view(-1)[-1] = math.nan
        optimizer.step()
    with pytest.raises(ValueError, match=f"the gradient of w{place} is not finite"):
        optimizer.step()


def test_weights_move_on_where_packs_have_parted_and_rounds_are_new():
    """What was kept of the rounds before is not used for packs that are gone."""
    model, other = network(), network()
    optimizer, plain = (GaLore(one, rank=4, refresh=3, lr=0.01) for one in (model, other))
    for turn in range(6):
        plain._rounds.clear()
        for one, each in ((model, optimizer), (other, plain)):
            each.zero_grad()
            loss_of(one).backward()
            if turn in (2, 4):
                one.layers[turn - 2].weight.grad = None
            each.step()
    assert same(model, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kept", [None, torch.int8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_a_step_waits_for_nothing_and_is_captured(dtype, kept):
    weights = [nn.Parameter(each.to("cuda", dtype)) for each in drawn(6)]
    passing = nn.Parameter(torch.ones(9, device="cuda", dtype=dtype))
    optimizer = made([*weights, passing], capturable=True, projected=Projected(basis_dtype=kept))
    for place, each in enumerate(each for group in optimizer.param_groups for each in group["params"]):
        each.grad = torch.randn(each.shape, generator=torch.Generator().manual_seed(place)).to(each)
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize()
    with waiting("error"):
        optimizer.step()
    copies = [each.detach().clone() for each in weights]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    optimizer.count_replays()
    assert not any(torch.equal(one, other) for one, other in zip(weights, copies, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_weights_are_those_of_a_cpu():
    weights = [[nn.Parameter(each.to(device)) for each in drawn(6, dtype=torch.float32)] for device in ("cpu", "cuda")]
    for some in weights:
        optimizer = made(some, fused=True, projector="exact")
        for seed in range(4):
            for weight, gradient in zip(some, drawn(6, 1 + seed, dtype=torch.float32), strict=True):
                weight.grad = gradient.to(weight.device)
            optimizer.step()
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-3, atol=1e-4)
