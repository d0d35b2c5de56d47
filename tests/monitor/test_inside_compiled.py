"""inside=True in compiled code: an operation in the graph that looks at one layer, and changes no bit of training."""

import numpy as np
import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from networks import LENGTH, PROBE, TEXT, TOKENS, made, same, train

from joma.host.errors import JomaError
from joma.monitor import Monitor
from joma.probes._compiled import _INSTALLED, CompiledAttention, problem_of
from joma.probes._record import Probe

transformers = pytest.importorskip("transformers")
MEASURES = ["entropy", "largest_logit", "sink_mass", "spread"]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def model_of(dropout=0.1, layers=2, **options):
    shape = transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=LENGTH, n_embd=8, n_head=2, initializer_range=0.6, bos_token_id=0,
        eos_token_id=0, attn_pdrop=dropout, embd_pdrop=dropout, resid_pdrop=dropout, n_layer=layers, **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(shape).train()


def loss(model, ids, **options):
    return F.cross_entropy(model(input_ids=ids, **options).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def trained(backend, layers, **watching):
    torch.compiler.reset()
    model = made(lambda: model_of(layers=layers))
    called = torch.compile(model, backend=backend)
    monitor = Monitor(called, every=1, measures=MEASURES, **watching) if watching else None
    return train(model, monitor, loss=loss, called=called, steps=5), monitor


@pytest.mark.parametrize(("backend", "layers"), [("eager", 2), pytest.param("inductor", 1, marks=pytest.mark.long)])
def test_training_is_the_same_bit_for_bit(backend, layers):
    """Also with a probe batch, whose passes are not compiled. A layer takes seconds to compile."""
    with torch._inductor.config.patch(compile_threads=1):  # else processes start, which load torch
        plain, _ = trained(backend, layers)
        watched, monitor = trained(backend, layers, inside=True)
    assert same(plain, watched)
    assert monitor.latest["entropy"].rows.names == tuple(f"transformer.h.{n}.attn" for n in range(layers))
    assert monitor.alerts == []
    if backend == "eager":
        probed, _ = trained(backend, layers, probe=PROBE)
        assert same(plain, probed)


def test_numbers_are_those_of_the_slow_weights_of_that_step():
    """Of a batch with padding; without it `test_leaving` compares them with those of a probe."""
    torch.compiler.reset()
    model = made(lambda: model_of(dropout=0.0))
    called = torch.compile(model, backend="eager")
    mask = torch.ones_like(PROBE)
    mask[0, 5:] = 0
    real = mask.bool()[:, None].expand(-1, 2, -1)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.2), []
    with Monitor(
        called, inside=True, every=1, measures=["entropy"], sinks=lambda step, _: seen.append(step)
    ) as monitor:
        expected = {}
        for step in range(1, 6):
            before = {name: each.clone() for name, each in model.state_dict().items()}
            loss(called, PROBE, attention_mask=mask).backward()
            monitor.step()
            optimizer.step()
            optimizer.zero_grad()
            slow = made(lambda: model_of(dropout=0.0, attn_implementation="eager"))
            slow.load_state_dict(before)
            weights = slow(PROBE, attention_mask=mask, output_attentions=True).attentions
            turn = None if step == 1 else step % 2
            for layer, each in enumerate(weights):
                if turn in (None, layer):
                    rows = torch.special.entr(each.detach().double()).sum(-1)
                    expected[layer] = (rows * real).sum((0, 2)) / real.sum((0, 2))
            if step in (1, 3, 5):
                now = torch.stack([expected[0], expected[1]])
                np.testing.assert_allclose(monitor.latest["entropy"].values, now, **CLOSE)
    assert seen == [1, 3, 5]


def test_leaving_takes_everything_away_and_evaluation_is_not_measured():
    torch.compiler.reset()
    model = made(lambda: model_of(dropout=0.0))
    called, before = torch.compile(model, backend="eager"), dict(_INSTALLED)
    with Monitor(called, inside=True, every=1, measures=["entropy"]) as monitor:
        assert model.config._attn_implementation == "joma_inside"
        assert before != _INSTALLED
        model.eval()
        with torch.no_grad():
            called(input_ids=TEXT[0])
        model.train()
        loss(called, PROBE[:1]).backward()
        loss(called, PROBE).backward()
        monitor.step()
        assert list(model.state_dict()) == list(made(model_of).state_dict())
    assert model.config._attn_implementation == "sdpa"
    assert not [name for each in model.modules() for name in vars(each) if "joma" in name]
    assert before == _INSTALLED
    with Monitor(model, probe=PROBE[:1], measures=["entropy"]) as alone:
        np.testing.assert_allclose(monitor.latest["entropy"].values, alone.latest["entropy"].values, **CLOSE)


def test_what_cannot_be_looked_into_is_refused():
    torch.compiler.reset()
    written_out = made(lambda: model_of(attn_implementation="eager"))
    with pytest.raises(JomaError, match="compiled and attends by eager: it must be 'sdpa'"):
        Monitor(torch.compile(written_out, backend="eager"), inside=True)
    checkpointed = made(model_of)
    checkpointed.gradient_checkpointing_enable()
    with pytest.raises(JomaError, match="compiled and checkpoints its activations: measure it with a probe batch"):
        Monitor(torch.compile(checkpointed, backend="eager"), inside=True)
    own = made(model_of)  # of transformers, but its attention is to be asked by hooks, which compiled code does not run
    adapters = {type(own.transformer.h[0].attn): lambda *_: None}
    with pytest.raises(JomaError, match="looks into compiled code of transformers' models alone"):
        Monitor(torch.compile(own, backend="eager"), inside=True, attention=adapters)


def test_what_goes_wrong_while_looking_does_not_end_training(log, monkeypatch):
    torch.compiler.reset()
    model = made(model_of)
    called = torch.compile(model, backend="eager")
    with Monitor(called, inside=True, every=1, measures=["entropy"]) as monitor:
        for step in range(1, 4):
            if step == 2:
                monkeypatch.setattr("joma.probes._products.attention_stats", lambda *_, **__: 1 / 0)
            loss(called, PROBE).backward()
            monitor.step()
    assert log == ["step 2: measuring failed and ends here, training continues: division by zero"]


def test_code_is_not_made_again_when_a_monitor_comes_back():
    torch.compiler.reset()
    made_anew = []
    model = made(model_of)
    called = torch.compile(model, backend=lambda graph, _: made_anew.append(graph) or graph.forward)
    loss(called, PROBE).backward()
    for _ in range(2):
        with Monitor(called, inside=True, every=1, measures=["entropy"]) as monitor:
            loss(called, PROBE).backward()
            monitor.step()
        loss(called, PROBE).backward()
    assert len(made_anew) == 2  # without the operation and with it


def slow_entropy(model):
    with torch.no_grad():
        weights = torch.stack(model(PROBE, output_attentions=True).attentions).double()
    return torch.special.entr(weights).sum(-1).mean((1, 3))


def of_next_pass(model):
    attention, probe = CompiledAttention(model), Probe(model, keep=False)
    attention.install()
    attention.arm(probe, None)
    model(PROBE)
    attention.uninstall()
    assert attention.error is None
    return probe.mean_entropy()


def test_the_scale_is_that_of_the_layer():
    make = lambda **how: made(lambda: model_of(dropout=0.0, scale_attn_by_inverse_layer_idx=True, **how))
    torch.testing.assert_close(of_next_pass(make()), slow_entropy(make(attn_implementation="eager")), **CLOSE)


def test_attention_that_is_not_causal_sees_every_key():
    def make(**how):
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        shape = transformers.BertConfig(vocab_size=TOKENS, initializer_range=0.6, **sizes, **drop, **how)
        return made(lambda: transformers.BertModel(shape, add_pooling_layer=False).train())

    torch.testing.assert_close(of_next_pass(make()), slow_entropy(make(attn_implementation="eager")), **CLOSE)


def test_nothing_is_looked_at_while_a_cuda_graph_is_captured(monkeypatch):
    model = made(model_of)
    attention, probe = CompiledAttention(model), Probe(model, keep=False)
    attention.install()
    attention.arm(probe, None)
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_initialized", lambda: True)
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        for number in attention._names:
            attention.see(number, torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4), None, None, True)
    assert (probe.calls, attention.error) == (0, None)
    model(PROBE)
    attention.uninstall()
    assert probe.calls == 2


def test_a_mask_tells_padding_only_where_queries_and_keys_are_the_same_tokens():
    """And is as long as the keys: with a cache of fixed size it is longer."""
    q, k = torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 5, 4)
    seen = torch.arange(8) <= torch.arange(2, 5)[:, None]
    longer = seen.expand(2, 1, 3, 8)
    _, keys, real, options = problem_of(q, k, longer, 0.5, False)
    assert real is None
    assert keys is k
    assert torch.equal(options.pop("bias"), seen[:, :5].expand(2, 1, 3, 5))
    assert options == {"causal": False, "scale": 0.5}
    square = torch.ones(3, 3, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    square[1, :, 2] = False
    _, _, real, options = problem_of(q, q, square, None, True)
    assert real.tolist() == [[True, True, True], [True, True, False]]
    assert options["bias"].dtype == torch.bool
    assert options["causal"] is False


def test_the_lowest_numbers_of_an_added_mask_are_minus_infinity():
    q, low = torch.zeros(1, 1, 2, 4), torch.finfo(torch.float32).min
    added = torch.tensor([[0.5, low], [0.0, -1.0]])[None, None]
    _, _, real, options = problem_of(q, q, added, None, False)
    assert real is None
    assert options["bias"].tolist() == [[[[0.5, -torch.inf], [0.0, -1.0]]]]
