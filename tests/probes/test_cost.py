"""What a probed pass asks of the host beyond a plain one: operations per layer, and no waiting for a GPU."""

import os
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from joma.measure import attention
from joma.measure._attention_triton import covers, launch
from joma.probes import collect

transformers = pytest.importorskip("transformers")
DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
LENGTH = 8
WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero"}
"""Operations for which the host waits until the device has caught up."""
NO_WORK = {
    "new_empty",
    "unbind",
    "transpose",
    "slice",
    "alias",
    "view",
    "select",
    "unsqueeze",
    "expand",
    "scalar_tensor",
}
"""Operations that launch nothing on a GPU."""


class Counted(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.name().removeprefix("aten::").partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


class Kernel:
    """Stands in for the compiled kernel, which is started once per call and does nothing here."""

    def __init__(self):
        self.started = 0

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **kwargs):
        self.started += 1


@pytest.fixture
def kernel(monkeypatch):
    stand_in = Kernel()
    monkeypatch.setattr("joma.measure._attention_triton._attention", stand_in)
    monkeypatch.setattr("joma.measure._attention_problem._must_rise", lambda ends, keys: None)  # not asked on a GPU
    monkeypatch.setattr(attention, "_fastest", lambda problem: launch if covers(problem) else pytest.fail("covers"))
    return stand_in


def model_of(layers):
    shape = {"vocab_size": 9, "n_positions": LENGTH, "n_embd": 32, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Model(transformers.GPT2Config(n_layer=layers, **shape)).eval()


def calls_of(model, probed, **inputs):
    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    run = lambda: model(input_ids=ids, use_cache=False, **inputs)
    with torch.no_grad(), Counted() as counted:
        if probed:
            with collect(model, keep=False, single_pass=True) as probe:
                run()
            for measure in ("entropy", "largest_logit", "sink_mass", "effective_keys"):
                probe.by_layer(measure)
        else:
            run()
    return counted.calls


def beyond_plain(layers, **inputs):
    model = model_of(layers)
    found = calls_of(model, True, **inputs)
    found.subtract(calls_of(model, False, **inputs))
    return found


def test_a_layer_starts_one_kernel_and_no_other_work(kernel):
    few, many = beyond_plain(2), beyond_plain(6)
    assert kernel.started == 8
    per_layer = {name: (many[name] - few[name]) / 4 for name in many}
    assert sum(count for name, count in per_layer.items() if name not in NO_WORK) <= 0  # less: sdpa's own call
    assert sum(count for name, count in per_layer.items() if count > 0) <= 9
    assert sum(max(count, 0) for name, count in many.items() if name not in NO_WORK) <= 10  # of the whole pass


@pytest.mark.parametrize(
    ("inputs", "waits"),
    [
        ({}, 0),
        ({"attention_mask": torch.tensor([[1] * LENGTH, [1] * 5 + [0] * 3])}, 1),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]] * 2)}, 3),
    ],
    ids=["plain", "padded", "packed"],
)
@pytest.mark.skipif(DEVICE != "cpu", reason="other kernels than the one that is replaced must be interpreted")
def test_nobody_waits_for_a_layer(kernel, inputs, waits):
    for layers in (2, 6):  # masks are read once per pass, for transformers waits there itself
        assert sum(count for name, count in beyond_plain(layers, **inputs).items() if name in WAITS) == waits


def test_models_are_walked_through_once(monkeypatch):
    model = model_of(3)
    with torch.no_grad(), collect(model, keep=False):  # transformers is asked how to switch, the first time
        model(torch.zeros(1, LENGTH, dtype=torch.long))
    monkeypatch.setattr(torch.nn.Module, "named_modules", lambda *_: pytest.fail("walked through"))
    with collect(model, keep=False) as probe:
        assert {each.config._attn_implementation for each in probe.names if hasattr(each, "config")} == {"joma_stats"}
    assert model.config._attn_implementation == "sdpa"
