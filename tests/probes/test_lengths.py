"""What a config says of the length of training and of positions: real configs of transformers, and odd ones."""

import numpy as np
import pytest
import torch

from joma.host.errors import BadInput
from joma.probes import attention_entropy
from joma.probes.lengths import beyond_training, default_seq_len, lengths_of, must_take, unknown_training


def config(kind, **fields):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**fields)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(("kind", "fields", "trained", "most"), [
    ("llama", {"max_position_embeddings": 128}, 128, None),
    ("gpt_neox", {"max_position_embeddings": 128}, 128, None),
    ("llama", {"max_position_embeddings": 256, "rope_parameters": YARN}, 64, None),
    ("phi3", {"max_position_embeddings": 256, "original_max_position_embeddings": 96}, 96, None),
    ("gpt2", {"n_positions": 96}, 96, 96),
    ("openai-gpt", {"n_positions": 96}, 96, 96),
    ("mpt", {"max_seq_len": 96}, 96, 96),
    ("roberta", {"max_position_embeddings": 66, "pad_token_id": 1}, 64, 64),
    ("bloom", {}, None, None),
    ("xlnet", {}, None, None),
])  # fmt: skip
def test_lengths_of_real_configs(kind, fields, trained, most):
    found = lengths_of(config(kind, **fields))
    assert (found.trained, found.most) == (trained, most)
    assert default_seq_len(config(kind, **fields)) == min(512, trained or 512)


def test_what_config_json_holds_says_the_same():
    of = config("llama", max_position_embeddings=256, rope_parameters=YARN)
    assert lengths_of(of.to_dict()) == lengths_of(of)
    assert lengths_of({"max_position_embeddings": True}).trained is None
    assert lengths_of({"max_position_embeddings": -1}).trained is None


def test_a_long_context_does_not_make_the_default_longer():
    assert default_seq_len(config("llama", max_position_embeddings=131_072)) == 512


def test_warnings_begin_one_token_after_training():
    of = config("llama", max_position_embeddings=128)
    assert beyond_training(of, 128) is None
    said = beyond_training(of, 129)
    assert said.startswith("sequences have 129 tokens")
    assert "at most 128 (max_position_embeddings)" in said
    assert unknown_training(of, 129) is None
    assert "before its positions were rescaled" in beyond_training(config("llama", rope_parameters=YARN), 65)
    assert beyond_training(config("bloom"), 10_000) is None
    assert "fewer than 10000 tokens" in unknown_training(config("bloom"), 10_000)


@pytest.mark.parametrize("asked", [1, 0, -5, 2.5, True, "many"])
def test_no_number_of_tokens(asked):
    with pytest.raises(BadInput, match="seq_len must be a number of tokens, at least 2, got"):
        must_take(config("llama"), asked)


def test_learned_positions_end_and_rotations_do_not():
    assert must_take(config("llama", max_position_embeddings=64), 100) == 100
    assert must_take(config("gpt2", n_positions=64), 64) == 64
    with pytest.raises(
        BadInput, match="seq_len must be at most 64, where the positions of this gpt2 model end, got 65"
    ):
        must_take(config("gpt2", n_positions=64), 65)


@pytest.mark.parametrize("kind", ["roberta", "gpt2"])
def test_the_last_position_can_really_be_read(kind):
    """And one more cannot: what is refused by the config would break the model."""
    from transformers import AutoModel

    common = {"vocab_size": 20, "pad_token_id": 1}
    roberta = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    fields = (
        roberta | {"max_position_embeddings": 18}
        if kind == "roberta"
        else {"n_positions": 16, "n_embd": 8, "n_head": 2, "n_layer": 1}
    )
    model = AutoModel.from_config(config(kind, **common, **fields)).eval()
    most = lengths_of(model.config).most
    assert most == 16
    tokens = torch.from_numpy(np.full((1, most + 1), 5))
    with torch.no_grad():
        assert model(tokens[:, :most]).last_hidden_state.isfinite().all()
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            model(tokens)


def test_entropy_refuses_more_than_a_table_of_positions_has():
    from transformers import GPT2Model

    model = GPT2Model(config("gpt2", vocab_size=20, n_positions=16, n_embd=8, n_head=2, n_layer=1))
    with pytest.raises(ValueError, match="GPT2Model reads at most 16 tokens at a time, context is 17"):
        attention_entropy(model, torch.arange(100) % 20, context=17)


@pytest.mark.parametrize("padding", [-1, 0, 500, "none", None])
def test_a_padding_token_that_makes_no_sense_leaves_a_length(padding):
    assert lengths_of({"model_type": "roberta", "max_position_embeddings": 20, "pad_token_id": padding}).most >= 1


def test_entropy_takes_windows_of_training_unless_told():
    from transformers import LlamaModel

    shape = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaModel(config("llama", **shape, intermediate_size=16, max_position_embeddings=24))
    seen = []
    model.register_forward_pre_hook(lambda _, __, given: seen.append(given["input_ids"].shape[1]), with_kwargs=True)
    attention_entropy(model, torch.arange(100) % 20)
    attention_entropy(model, torch.arange(100) % 20, context=50)
    assert seen == [24, 50]
