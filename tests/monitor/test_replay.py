"""A pass that is recorded once and replayed: the numbers of a plain one, with the weights of now."""

import os

import numpy as np
import pytest
import torch
from networks import PROBE, made

from joma.host.errors import BadInput
from joma.monitor import Monitor, MonitorError, replay
from joma.monitor.batch import ProbeBatch, quiet_pass
from joma.monitor.graphs import Memory
from joma.probes._untouched import untouched

ATTENTION = ["entropy", "largest_logit", "sink_mass", "effective_keys"]
gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("JOMA_TEST_DEVICE") != "cuda",
    reason="CUDA graphs need a GPU, and compiled kernels: JOMA_TEST_DEVICE=cuda",
)


def gpt2(dropout=0.1, device="cuda"):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2, "attn_pdrop": dropout, "resid_pdrop": dropout}
    config = transformers.GPT2Config(vocab_size=50, bos_token_id=0, eos_token_id=0, **shape)
    return transformers.GPT2LMHeadModel(config).to(device).train()


def batch(seed=1):
    return {"input_ids": torch.randint(50, (4, 32), generator=torch.Generator().manual_seed(seed)).cuda()}


def trained(watch, steps=6):
    """Weights after some steps, and what the monitor saw at each."""
    model, seen = gpt2(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step():
        ids = batch(7)["input_ids"]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if watch is None:
        for _ in range(steps):
            step()
    else:
        options = {"probe": batch(), "every": 1, "measures": [*ATTENTION, "spread"], **watch}
        with Monitor(model, sinks=lambda at, values: seen.append((at, values)), **options) as monitor:
            for _ in range(steps):
                step()
                monitor.step()
    return [each.detach().clone() for each in model.parameters()], seen


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused():
    with pytest.raises(BadInput, match="replay=True records a CUDA graph, and there is no GPU"):
        Monitor(made(), probe=PROBE, replay=True)


def test_masks_are_made_as_before_and_transformers_is_left_as_it_was():
    masks = pytest.importorskip("transformers.masking_utils")
    own = masks.find_packed_sequence_indices, masks.is_tracing
    with replay._masks_as_before() as remember:
        assert masks.find_packed_sequence_indices(torch.arange(4)[None]) is None  # looked at, as always
        assert masks.is_tracing is own[1]
        remember()
        assert masks.find_packed_sequence_indices(torch.tensor([[0, 1, 0, 1]])) is None  # told, not looked at
        assert masks.is_tracing(torch.zeros(1)) is False
    assert (masks.find_packed_sequence_indices, masks.is_tracing) == own


def test_several_texts_in_one_row_are_refused_and_transformers_is_left_as_it_was():
    masks = pytest.importorskip("transformers.masking_utils")
    own = masks.find_packed_sequence_indices, masks.is_tracing

    def record():
        with replay._masks_as_before() as remember:
            masks.find_packed_sequence_indices(torch.tensor([[0, 1, 0, 1]]))
            remember()

    with pytest.raises(MonitorError, match="several texts in one row"):
        record()
    assert (masks.find_packed_sequence_indices, masks.is_tracing) == own


def test_places_tell_that_a_parameter_or_a_buffer_has_moved():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    before = replay._places(model)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert replay._places(model) == before  # written in place, as optimizers do
    weight, mean = model[0].weight.data, model[1].running_mean
    model[0].weight.data = weight.clone()
    assert replay._places(model) != before
    model[0].weight.data = weight
    assert replay._places(model) == before
    model[1].running_mean = mean.clone()
    assert replay._places(model) != before


def test_the_head_is_left_out_where_nobody_reads_it_and_is_there_again():
    """A head is the largest matrix: under autocast a recording would hold a copy of it."""
    model = gpt2(device="cpu")
    head, ids = model.get_output_embeddings(), {"input_ids": torch.arange(16)[None]}
    whole, few = ProbeBatch(ids | {"logits_to_keep": 0}), ProbeBatch(ids)
    assert whole.needs_head(model)
    assert not few.needs_head(model)
    with untouched(model):
        plain = quiet_pass(model, few, spread=False).mean()
        for read in (whole, few):
            with replay.without_head(model, read):
                assert ("forward" in vars(head)) == (read is few)
                torch.testing.assert_close(quiet_pass(model, read, spread=False).mean(), plain)
                if read is few:
                    shown = model(**ids).logits
                    assert shown.shape == (1, 16, 50)
                    assert not shown.any()
    assert "forward" not in vars(head)

    def broken():
        with replay.without_head(model, few):
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert "forward" not in vars(head)
    assert model(**ids).logits.any()


def test_a_loss_needs_the_head():
    class OnlyWithLabels(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config = inner, inner.config
            self.get_output_embeddings = inner.get_output_embeddings

        def forward(self, input_ids, labels, logits_to_keep=0, use_cache=None):
            raise NotImplementedError

    inner = gpt2(device="cpu")
    model, ids = OnlyWithLabels(inner), torch.arange(16)[None]
    read = ProbeBatch({"input_ids": ids, "labels": ids})
    assert read.needs_head(model)
    with replay.without_head(model, read):
        assert "forward" not in vars(inner.get_output_embeddings())
    assert not read.needs_head(inner)  # which does without


@gpu
def test_a_model_on_the_host_is_refused():
    with (
        pytest.raises(MonitorError, match="needs a model on one CUDA device"),
        Monitor(made(), probe=PROBE, replay=True),
    ):
        pass


@gpu
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_the_numbers_are_those_of_plain_passes_while_the_weights_change(autocast):
    (_, plain), (_, replayed) = trained({"autocast": autocast}), trained({"autocast": autocast, "replay": True})
    assert [step for step, _ in replayed] == [step for step, _ in plain] == list(range(7))
    for (_, one), (_, other) in zip(plain, replayed, strict=True):
        assert list(one) == list(other)
        np.testing.assert_allclose(list(other.values()), list(one.values()), rtol=1e-4, atol=1e-5)
    entropies = [values["entropy/transformer.h.1.attn/mean"] for _, values in replayed]
    assert len(set(entropies)) == len(entropies)  # not one pass told seven times


@gpu
@pytest.mark.filterwarnings("ignore")  # of operations that have no deterministic form
def test_training_is_untouched():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        runs = [trained(watch)[0] for watch in (None, None, {"replay": True})]
    finally:
        torch.use_deterministic_algorithms(False)
    if not all(map(torch.equal, runs[0], runs[1])):
        pytest.skip("two plain trainings differ here already")
    assert all(map(torch.equal, runs[0], runs[2]))


@gpu
def test_weights_that_have_moved_are_recorded_anew():
    model = gpt2()
    with Monitor(model, probe=batch(), every=1, measures=ATTENTION, replay=True) as monitor:
        other = gpt2(dropout=0.0)
        with torch.no_grad():
            for each in other.parameters():
                each.mul_(3.0)
        model.load_state_dict(other.state_dict(), assign=True)
        monitor.step()
    with Monitor(other, probe=batch(), every=1, measures=ATTENTION) as plain:
        pass
    for name in ATTENTION:
        np.testing.assert_allclose(monitor.latest[name].values, plain.latest[name].values, rtol=1e-4)


class Counting(torch.nn.Module):
    """Attention that counts its passes on the GPU, or draws random numbers, or asks the host."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.what == "counts":
            self.seen += 1
        if self.what == "draws":
            x = x + torch.rand_like(x)
        if self.what == "asks" and float(x.sum()) > 1e9:
            return x
        return self.attention(x, x, x)[0]


@gpu
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("counts", "cannot put back what a pass of Counting changes in its buffers"),
        ("draws", "cannot put back random numbers, and a pass of Counting draws some"),
        ("asks", "cannot record the pass of Counting, which runs without it"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_training(what, sentence):
    model = Counting(what).cuda()
    monitor = Monitor(model, probe=torch.randn(2, 6, 8).cuda(), measures=ATTENTION, replay=True)
    with pytest.raises(MonitorError, match=sentence), monitor:
        pass
    torch.manual_seed(0)
    drawn = torch.rand(3, device="cuda")
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)  # random numbers work as before
    assert float(model.seen) == 0


def test_what_a_recording_holds_are_the_means_themselves():
    """A replay writes to tensors that are there. What is worked out after it, once, would stay as it was."""
    recorded = replay.Replay(made(), ProbeBatch(PROBE), None, Memory(), spread=True, attention=None)._pass()
    assert recorded._means._mean is not None
    for measure in ("entropy", "sink_mass", "effective_keys"):
        one, again = recorded.by_layer(measure), recorded.by_layer(measure)
        assert [each.data_ptr() for each in one.values()] == [each.data_ptr() for each in again.values()]


def test_a_pass_that_leaves_something_behind_is_told_apart():
    versions, drawn = [1, 2], torch.tensor([1, 2], dtype=torch.uint8)
    replay._must_be_the_same((versions, drawn), ([1, 2], drawn.clone()), "Net")
    with pytest.raises(MonitorError, match="what a pass of Net changes in its buffers"):
        replay._must_be_the_same((versions, drawn), ([1, 3], drawn), "Net")
    with pytest.raises(MonitorError, match="a pass of Net draws some"):
        replay._must_be_the_same((versions, drawn), ([1, 2], drawn + 1), "Net")


def test_plans_are_made_before_the_recording_and_kept():
    """A recording cannot take them from the host: what the passes before it have made is what it reads."""
    recorded = replay.Replay(made(), ProbeBatch(PROBE), None, Memory(), spread=True, attention=None)
    recorded._pass()
    kept = dict(recorded._plans)
    assert kept
    recorded._pass()
    assert {key: id(plan) for key, plan in recorded._plans.items()} == {key: id(plan) for key, plan in kept.items()}


def test_a_pass_that_is_recorded_goes_without_the_head():
    model, seen = gpt2(device="cpu"), []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda head, given, logits: seen.append(bool(logits.any())))
    batch = ProbeBatch({"input_ids": torch.arange(16)[None]})
    with untouched(model):
        replay.Replay(model, batch, None, Memory(), spread=False, attention=None)._pass()
        quiet_pass(model, batch, spread=False)
    assert seen == [False, True]


def test_a_head_with_a_pass_of_its_own_keeps_it():
    """As accelerate gives one to modules that it moves; nobody else may take it away."""
    model = gpt2(device="cpu")
    head, batch = model.get_output_embeddings(), ProbeBatch({"input_ids": torch.arange(16)[None]})
    own = vars(head)["forward"] = type(head).forward.__get__(head)
    with replay.without_head(model, batch):
        assert vars(head)["forward"] is own
    assert vars(head)["forward"] is own
