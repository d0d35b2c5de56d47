"""What cannot work is refused in one sentence, before training begins."""

from types import SimpleNamespace

import pytest
import torch
from networks import LENGTH, PROBE, TOKENS, gpt2, made
from torch import nn

from joma.host.errors import JomaError
from joma.monitor import LargestLogit, Monitor, MonitorError

INSIDE = {"inside": True, "probe": None}


def entered(model=None, **options):
    with Monitor(made() if model is None else model, **{"probe": PROBE} | options) as monitor:
        return monitor


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"every": 1.5}, "every must be a whole number of at least 1, got 1.5"),
        ({"measures": ["entropi"]}, "measures has no 'entropi': did you mean 'entropy'?"),
        ({"measures": ["zebra"]}, "measures has no 'zebra': there are stable_rank, entropy, largest_logit"),
        ({"measures": [3]}, "measures has no 3: there are stable_rank"),
        ({"measures": []}, "measures must name at least one of stable_rank"),
        ({"measures": {"norm": 0}}, "the interval of norm must be a whole number of at least 1, got 0"),
        ({"inside": True}, "inside=True measures the batches of training: leave probe out"),
        ({"inside": 3}, "inside must be True or False, got 3"),
        ({"probe": "steps"}, "probe must be a batch or 'step', got 'steps'"),
        ({"probe": "step", "rows": 0}, "rows must be a whole number of at least 1, got 0"),
        ({"autocast": torch.float32}, r"autocast must be torch\.bfloat16, torch\.float16 or None, got torch\.float32"),
        ({**INSIDE, "autocast": torch.bfloat16}, "inside=True measures your own passes, as they are: leave autocast"),
        ({"replay": 1}, "replay must be True or False, got 1"),
        ({"replay": True, "probe": "step"}, "replay=True needs a probe batch that stays the same"),
        ({**INSIDE, "replay": True}, "replay=True needs a probe batch that stays the same"),
        ({"per": 4}, "per must be one of model, layer, head, got 4"),
        ({"sinks": [3]}, r"sinks must be callables \(step, values\), got 3"),
        ({"include": [3]}, r"include must be patterns such as 'model.layers.0.\*'"),
        ({"include": "nothing"}, "stable_rank needs a weight matrix, and Model has none that is followed"),
        ({"include": "*mlp*"}, r"include and exclude leave out all attention: there are \['h.0.attn', 'h.1.attn'\]"),
        ({"probe": None}, "probe must be token ids, a tensor, a tuple of tensors, or a mapping"),
        ({"probe": {}}, "probe must hold tensors"),
        (
            {"probe": {"ids": [[1, 2]]}},
            r"got a mapping with \['ids'\]; a tokenizer gives them with return_tensors='pt'",
        ),
        ({"out": 3}, "out must be the path of a file, got 3"),
        ({"probe": torch.zeros(2, LENGTH)}, "probe does not fit Model: "),
        ({"probe": {"input_ids": PROBE}}, "probe does not fit Model: .*unexpected keyword argument 'input_ids'"),
        ({"probe": PROBE + TOKENS}, "probe does not fit Model: .*index out of range"),
        ({"on_alarm": "shout"}, "on_alarm must be 'log', 'stop' or a function, got 'shout'"),
        (
            {"alarms": [SimpleNamespace(look=print)]},
            "alarms must be those of joma.monitor or have look and measure, got",
        ),
        ({"alarms": [3]}, "alarms must be those of joma.monitor or have look and measure, got 3"),
        ({"alarms": [LargestLogit()], "measures": ["norm"]}, "which needs largest_logit among measures"),
        ({"start": -1}, "start must be a whole number of at least 0, got -1"),
        ({"model": 3}, "model must be a torch module, got 3"),
    ],
)
def test_one_sentence_says_what_would_be_right(options, sentence):
    with pytest.raises(JomaError, match=sentence) as error:
        entered(**options)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)


def test_a_model_without_attention_is_told_what_was_looked_for():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(
        MonitorError, match=r"no attention .* looked for were transformers' attention, torch's scaled_dot"
    ):
        entered(model, probe=torch.zeros(2, 4))
    assert entered(model, probe=torch.zeros(2, 4), measures=["stable_rank", "norm"]).latest["norm"].values.shape == (1,)


def test_token_ids_are_looked_at_before_a_gpu_would_fail_on_them():
    transformers = pytest.importorskip("transformers")
    with pytest.raises(MonitorError, match="probe does not fit GPT2Model, which has token ids from 0 to 16: it has 17"):
        entered(gpt2("GPT2Model"), probe=torch.full((1, 4), 17))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "state_size": 2}
    mamba = transformers.MambaModel(transformers.MambaConfig(vocab_size=TOKENS, **sizes))
    with pytest.raises(MonitorError, match=r"no attention .*Mamba"):
        entered(mamba)


@pytest.mark.parametrize(
    ("behind", "probe", "sentence"),
    [
        (
            torch.zeros(1, device="meta"),
            PROBE,
            r"Model is on cpu, but its h.1.seen is on meta: it is not a buffer.*register_buffer",
        ),
        (torch.zeros((), device="meta"), PROBE + TOKENS, "probe does not fit Model: .*index out of range"),
        (torch.zeros(1), PROBE + TOKENS, "probe does not fit Model: .*index out of range"),
    ],
)
def test_a_tensor_that_did_not_move_with_the_model_is_named(behind, probe, sentence):
    """As under DataParallel, which moves weights and buffers to its GPU. torch lets a single number stay."""
    model = made()
    model.h[1].seen = behind
    with pytest.raises(MonitorError, match=sentence):
        entered(model, probe=probe)


def test_steps_rise_and_stand_inside_the_block():
    monitor = Monitor(made(), probe=PROBE, measures=["norm"])
    with pytest.raises(JomaError, match="must be called inside the block"):
        monitor.step()
    with monitor:
        monitor.step(5)
        with pytest.raises(JomaError, match="step must rise from one call to the next, got 5 after 5"):
            monitor.step(5)
        monitor.step()
    assert monitor.step_number == 6
    with pytest.raises(JomaError, match="make a new one"):
        monitor.__enter__()


def test_what_fails_later_ends_the_measuring_and_not_the_training(monkeypatch, log):
    with Monitor(made(), probe=PROBE, every=1, measures=["norm"]) as monitor:
        monkeypatch.setattr(monitor._matrices, "norm", lambda: 1 / 0)
        for _ in range(3):
            monitor.step()
    assert log == ["step 1: measuring failed and ends here, training continues: division by zero"]
    assert monitor.step_number == 3
