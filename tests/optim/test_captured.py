"""What a step does while a CUDA graph is captured; here a CPU says that it captures."""

import pytest
import torch
from training import loss_of, network, same, train

from joma.optim import GaLore
from joma.optim._guard import Guard

OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01, "stagger": False}


@pytest.fixture
def capturing(monkeypatch):
    """Call it to say that from now on a graph is captured."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))

    def begin():
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    return begin


def test_the_step_is_made_without_counting_or_waiting(capturing, monkeypatch):
    model, other = network(), network()
    optimizer, plain = (GaLore(each, fused=True, **OPTIONS) for each in (model, other))
    for one, each in ((model, optimizer), (other, plain)):
        train(one, each, 1)
        each.zero_grad()
        loss_of(one).backward()
    plain.step()
    monkeypatch.setattr(Guard, "look_back", lambda guard: pytest.fail("nobody may wait"))
    with monkeypatch.context() as now:
        for check in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):
            now.setattr(torch.optim.AdamW, check, lambda inner: None, raising=False)  # by torch's version
        capturing()
        with torch.no_grad():
            optimizer._step()
    assert same(model, other)
    assert [matrix.count for matrix in optimizer.matrices] == [1, 1]
    optimizer.count_replays()
    assert optimizer.state[model.layers[0].weight]["count"] == 2


def test_a_step_that_finds_subspaces_and_an_optimizer_that_must_be_waited_for_are_refused(capturing):
    model = network()
    first, slow = GaLore(model, fused=True, **OPTIONS), GaLore(model, **OPTIONS)
    train(model, slow, 1)
    capturing()
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"cannot be captured: capture one for which due\(\) is empty"):
        first._step()
    with pytest.raises(ValueError, match="an inner optimizer that is fused and capturable: give both"):
        slow._step()
