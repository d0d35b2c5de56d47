"""What a step does while a CUDA graph is captured; here a CPU says that it captures."""

import copy
import math

import bucketed
import pytest
import torch
from training import LABELS, TOKENS, loss_of, near, network, same, train

from joma.optim import GaLore, _matrix, _update
from joma.optim._backward import Bucket
from joma.optim._update import Guard, Outcomes

OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01}


@pytest.fixture(autouse=True)
def _together(monkeypatch):
    monkeypatch.setattr(GaLore, "staggered", False)


def capture(patch):
    patch.setattr(torch.cuda, "is_initialized", lambda: True)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    without_checks(patch)


def without_checks(patch):
    for check in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):
        patch.setattr(torch.optim.AdamW, check, lambda inner: None, raising=False)


def step_captured(optimizer, patch, before=lambda: None):
    capture(patch)
    before()
    with torch.no_grad():
        optimizer._step()


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setattr(Guard, "devices", ("cpu",))


def train_captured(model, optimizer, patch):
    step_captured(optimizer, patch, lambda: optimizer.zero_grad() or loss_of(model).backward())


WAYS = {"plain": {}, "per_layer": {"per_layer": True}, "project_in_backward": {"per_layer": "project"}}


def test_the_step_is_made_without_counting_or_waiting(guarded, monkeypatch):
    model, other = network(), network()
    optimizer, plain = (GaLore(each, fused=True, **OPTIONS) for each in (model, other))
    for one, each in ((model, optimizer), (other, plain)):
        train(one, each, 1)
        each.zero_grad()
        loss_of(one).backward()
    plain.step()
    monkeypatch.setattr(Guard, "look_back", lambda guard: pytest.fail("nobody may wait"))
    with monkeypatch.context() as now:
        step_captured(optimizer, now)
    assert same(model, other)
    assert [matrix.count for matrix in optimizer.matrices] == [1, 1]
    optimizer.count_replays()
    assert optimizer.state[model.layers[0].weight]["count"] == 2


def test_a_step_that_finds_subspaces_and_an_optimizer_that_must_be_waited_for_are_refused(guarded, monkeypatch):
    model = network()
    first, slow = GaLore(model, fused=True, **OPTIONS), GaLore(model, **OPTIONS)
    train(model, slow, 1)
    capture(monkeypatch)
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"cannot be captured: capture one for which due\(\) is empty"):
        first._step()
    with pytest.raises(ValueError, match="an inner optimizer that is fused and capturable: give both"):
        slow._step()


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_training_step_is_made_without_counting_or_waiting(way, guarded, monkeypatch):
    """Backward is captured too; what it updates or projects is part of the graph."""
    model, other = network(), network()
    optimizer, plain = GaLore(model, fused=True, **OPTIONS, **WAYS[way]), GaLore(other, fused=True, **OPTIONS)
    train(model, optimizer, 1)
    train(other, plain, 2)
    sent = [*optimizer._guard.pending]
    with monkeypatch.context() as now:
        for each in (Guard, "look_back"), (Outcomes, "read"):
            now.setattr(*each, lambda self: pytest.fail("nobody may wait"))
        train_captured(model, optimizer, now)
    assert near(model, other, 1e-6)
    assert not near(model, network(), 1e-3)
    assert [matrix.count for matrix in optimizer.matrices] == [1, 1]
    assert optimizer._guard.pending == sent
    optimizer.count_replays()
    train(model, optimizer, 1)
    train(other, plain, 1)
    assert near(model, other, 1e-6)


@pytest.mark.parametrize("way", ["per_layer", "project_in_backward"])
def test_a_backward_that_finds_subspaces_is_refused_before_it_changes_anything(way, guarded, monkeypatch):
    model, other = network(), network()
    optimizer, plain = GaLore(model, fused=True, **OPTIONS, **WAYS[way]), GaLore(other, fused=True, **OPTIONS)
    train(model, optimizer, 3)
    train(other, plain, 3)
    assert len(optimizer.due()) == 2
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with monkeypatch.context() as now:
        capture(now)
        with pytest.raises(ValueError, match=r"cannot be captured: capture one for which due\(\) is empty"):
            loss_of(model).backward()
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    train(model, optimizer, 2)
    train(other, plain, 2)
    assert near(model, other, 1e-6)


def test_what_has_waited_for_a_gradient_that_does_not_come_is_captured_with_the_step(guarded, monkeypatch):
    """The other parameters of its bucket are updated by the step; that is not counted either."""
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    model, other = network(), network()
    optimizer, plain = (GaLore(each, fused=True, per_layer=each is model, **OPTIONS) for each in (model, other))
    optimizer._backward.most_waiting = 10**9
    optimizer._backward._keep([Bucket([*model.parameters()])])
    for one, each in ((model, optimizer), (other, plain)):
        train(one, each, 1)
        one.lm_head.weight.requires_grad_(False)
    train(other, plain, 1)

    def backward():
        loss_of(model).backward()
        assert model.layers[0].weight.grad is not None

    sent = [*optimizer._guard.pending]
    with monkeypatch.context() as now:
        step_captured(optimizer, now, backward)
    assert model.layers[0].weight.grad is None
    assert near(model, other, 1e-6)
    assert [matrix.count for matrix in optimizer.matrices] == [1, 1]
    assert optimizer._guard.pending == sent


@pytest.mark.parametrize("way", ["plain", "per_layer"])
def test_packs_are_not_parted_while_a_graph_is_captured(way, guarded, monkeypatch):
    """Each replay would copy their states anew. Once they are parted, such a step is captured."""
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    model = bucketed.network()
    optimizer = GaLore(model, fused=True, **OPTIONS | {"refresh": 9}, **WAYS[way])
    optimizer._backward.most_waiting = 10**9  # what misses a gradient waits for the step
    bucketed.train(model, optimizer, 1)
    model.left_out = {2}
    packs = [*optimizer.packs]
    assert any(len(pack.matrices) > 1 for pack in packs)

    def captured_step():
        with monkeypatch.context() as now:
            step_captured(optimizer, now, lambda: optimizer.zero_grad() or bucketed.loss_of(model).backward())

    with pytest.raises(ValueError, match="has no gradient for the first time: make such a step as usual before"):
        captured_step()
    assert optimizer.packs == packs
    assert way == "plain" or all(each.grad is None for each in model.parameters())
    bucketed.train(model, optimizer, 1)
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert {count for name, count in counts.items() if "layers.2." in name} == {1}
    assert {count for name, count in counts.items() if "layers.2." not in name} == {2}
    parted = [*optimizer.packs]
    assert len(parted) > len(packs)
    captured_step()
    assert optimizer.packs == parted


@pytest.mark.parametrize("way", WAYS)
def test_a_frozen_matrix_is_not_due_and_a_step_without_it_is_captured(way, guarded, monkeypatch):
    model, other = network(), network()
    options = {"fused": True, **OPTIONS, "refresh": 100}
    optimizer, plain = GaLore(model, **options, **WAYS[way]), GaLore(other, **options)
    frozen = [one.layers[2].weight.requires_grad_(False) for one in (model, other)]
    train(model, optimizer, 1)
    train(other, plain, 2)
    assert optimizer.due() == plain.due() == []
    with monkeypatch.context() as now:
        train_captured(model, optimizer, now)
    assert near(model, other, 1e-6)
    for each in frozen:
        each.requires_grad_(True)
    assert optimizer.due() == plain.due() == ["layers.2.weight"]


@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_not_finite_in_a_replay_is_told_of_at_the_next_count(way, nonfinite, guarded, monkeypatch):
    """Here every captured step is a replay, too. One is sound, two are not, one is sound again."""
    model = network()
    optimizer = GaLore(model, fused=True, nonfinite=nonfinite, **OPTIONS | {"refresh": 50}, **WAYS[way])
    train(model, optimizer, 1)
    assert optimizer.skipped == 0
    noted, refused, own = [], [], _update.Sent
    monkeypatch.setattr(_update, "Sent", lambda flags: own(flags.clone()))  # a device sends what is there now
    for spoiled in (False, True, True, False, False):
        with monkeypatch.context() as now:
            before = {name: each.clone() for name, each in model.state_dict().items()}
            handle = model.layers[0].weight.register_hook(
                lambda gradient, by=spoiled: gradient * (math.nan if by else 1)
            )
            train_captured(model, optimizer, now)
            handle.remove()
        same_weight = torch.equal(model.layers[0].weight, before["layers.0.weight"])
        assert same_weight == spoiled
        try:
            optimizer.count_replays()
        except ValueError as error:
            refused.append(str(error))
        noted.append((optimizer.param_groups[0]["galore_skipped"], len(refused)))
    if nonfinite == "skip":
        assert noted == [(0, 0), (0, 0), (1, 0), (2, 0), (2, 0)]
    else:
        assert noted == [(0, 0), (0, 0), (0, 1), (0, 2), (0, 2)]
        assert all("of some parameter in a replay is not finite" in each for each in refused)
    assert optimizer.skipped == (2 if nonfinite == "skip" else 0)
    assert {matrix.count for matrix in optimizer.matrices} == {6}  # a count that raises has counted


def test_who_asks_for_skipped_steps_waits_for_the_last_replay(guarded, monkeypatch):
    model = network()
    optimizer = GaLore(model, fused=True, nonfinite="skip", **OPTIONS)
    train(model, optimizer, 1)
    loss_of(model).backward()
    model.layers[0].weight.grad.fill_(math.inf)
    for _ in range(3):
        with monkeypatch.context() as now:
            step_captured(optimizer, now)
    assert [optimizer.skipped, optimizer.skipped] == [3, 3]
    assert optimizer.state_dict()["param_groups"][0]["galore_skipped"] == 3


@pytest.mark.parametrize("way", ["plain", "per_layer"])
def test_a_step_as_usual_does_not_wait_for_replays_but_who_saves_does(way, monkeypatch):
    model, waits, own = network(), [], Guard.held_in_replays
    optimizer = GaLore(model, fused=True, **OPTIONS, **WAYS[way])
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    monkeypatch.setattr(Guard, "held_in_replays", lambda self, *, wait: waits.append(wait) or own(self, wait=wait))
    train(model, optimizer, 2)
    assert waits == [False, False]
    optimizer.count_replays()
    assert waits == [False] * 3
    for ask in (optimizer.state_dict, lambda: optimizer.skipped, lambda: copy.deepcopy(optimizer)):
        waits.clear()
        ask()
        assert waits[0]


def test_a_step_before_any_other_is_not_captured(guarded, monkeypatch):
    """Where the subspaces come from a file: the count of what is held back needs memory that no graph makes anew."""
    model, other = network(), network()
    first, optimizer = (GaLore(each, fused=True, **OPTIONS) for each in (model, other))
    train(model, first, 1)
    optimizer.load_state_dict(first.state_dict())
    loss_of(other).backward()
    with monkeypatch.context() as now:
        capture(now)
        with pytest.raises(ValueError, match="has made no step yet: make one as usual before"):
            optimizer._step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", WAYS)
def test_on_a_gpu_replays_of_a_whole_training_step_give_the_weights_of_training(way):
    """Three steps as usual, then four more, captured or not; then one more that finds subspaces."""
    models, options = ([network().cuda() for _ in range(2)], {"fused": True, **OPTIONS, "refresh": 7})
    optimizer, plain = (GaLore(model, capturable=True, **options, **WAYS[way]) for model in models)
    tokens, labels = TOKENS.cuda(), LABELS.cuda()

    def once(model, optimizer):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            once(models[0], optimizer)
    torch.cuda.current_stream().wait_stream(side)
    assert optimizer.due() == []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once(models[0], optimizer)
    for _ in range(4):
        graph.replay()
        optimizer.count_replays()
    for _ in range(7):
        once(models[1], plain)
    assert near(*models, 1e-5)
    assert not near(models[0], network().cuda(), 1e-2)
    assert optimizer.due() == plain.due() != []
    once(models[0], optimizer)
    once(models[1], plain)
    assert near(*models, 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", WAYS)
def test_on_a_gpu_a_replay_with_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(way):
    model = network().cuda()
    optimizer = GaLore(model, capturable=True, fused=True, nonfinite="skip", **OPTIONS | {"refresh": 50}, **WAYS[way])
    tokens, factor = TOKENS.cuda(), torch.ones((), device="cuda")

    def once():
        optimizer.zero_grad()
        (factor * model(tokens).square().mean()).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    moved = []
    for value in (1.0, math.nan, math.inf, 1.0):
        factor.fill_(value)
        before = {name: each.clone() for name, each in model.state_dict().items()}
        graph.replay()
        optimizer.count_replays()
        moved.append(not all(torch.equal(each, before[name]) for name, each in model.state_dict().items()))
    assert moved == [True, False, False, True]
    updates = 1 if way != "per_layer" else len({*map(optimizer._backward.bucket_of, model.parameters())})
    assert optimizer.skipped == 2 * updates
