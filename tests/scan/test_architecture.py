"""Where the matrices are in real architectures, as transformers saves them."""

import pytest
from checkpoint_series import save_model

from joma.scan.architecture import find_groups, pick_groups, read_patterns
from joma.scan.errors import CheckpointError, UnknownNames
from joma.scan.folder import LocalFolder

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20}
GROUPED = {"head_dim": 8, "num_key_value_heads": 1}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 24, "vocab_size": 20}
# config class, options, lower projection of layer 1, embedding, gates
KNOWN = {
    "GPT2": (GPT, "transformer.h.1.mlp.c_fc.weight", "transformer.wte.weight", False),
    "GPTJ": (GPT | {"rotary_dim": 4}, "transformer.h.1.mlp.fc_in.weight", "transformer.wte.weight", False),
    "GPTNeoX": (SMALL, "gpt_neox.layers.1.mlp.dense_h_to_4h.weight", "gpt_neox.embed_in.weight", False),
    "OPT": (
        SMALL | {"ffn_dim": 24, "word_embed_proj_dim": 16},
        "model.decoder.layers.1.fc1.weight",
        "model.decoder.embed_tokens.weight",
        False,
    ),
    "Llama": (SMALL, "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight", True),
    "Mistral": (SMALL | GROUPED, "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight", True),
    "Gemma2": (SMALL | GROUPED, "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight", True),
    "Phi": (SMALL, "model.layers.1.mlp.fc1.weight", "model.embed_tokens.weight", False),
    "Bert": (SMALL, "bert.encoder.layer.1.intermediate.dense.weight", "bert.embeddings.word_embeddings.weight", False),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_language_models(name, tmp_path):
    import transformers

    options, lower, embedding, gated = KNOWN[name]
    config = getattr(transformers, f"{name}Config")(**options)
    head = "MaskedLM" if name == "Bert" else "LMHeadModel" if name == "GPT2" else "CausalLM"
    save_model(getattr(transformers, name + head if name == "GPT2" else f"{name}For{head}")(config), tmp_path)
    place = LocalFolder(tmp_path, 0)
    with place.open() as checkpoint:
        found = find_groups(checkpoint.names(), {})
        assert [len(found[group]) for group in ("mlp", "embedding")] == [2, 1]
        assert found["mlp"][1] == lower
        assert sorted(checkpoint.stored(lower).shape) == [16, 24]
        assert found["embedding"] == (embedding,)
        assert checkpoint.stored(embedding).shape == (20, 16)
        assert ("mlp_gate" in found) == gated
    assert place.model_type() == config.model_type


def test_vision(tmp_path):
    from transformers import ViTConfig, ViTModel

    config = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    save_model(ViTModel(ViTConfig(**config, image_size=8, patch_size=4)), tmp_path)
    with LocalFolder(tmp_path, 0).open() as checkpoint:
        found = find_groups(checkpoint.names(), {})
        assert len(found["mlp"]) == 2
        with pytest.raises(UnknownNames, match=r"embedding tensors are not known.*vit.*--pattern 'embedding=REGEX'"):
            pick_groups(found, ["embedding"], checkpoint.names(), "vit")


def test_layers_come_in_their_own_order_and_prefixes_do_not_matter():
    names = [f"_orig_mod.module.h.{i}.mlp.c_fc.weight" for i in range(12)]
    assert find_groups(sorted(names), {})["mlp"] == tuple(names)


def test_patterns_add_and_replace():
    names = ["h.0.mlp.c_fc.weight", "h.0.q", "h.1.q", "layers.0.mlp.gate_proj.weight"]
    assert find_groups(names, {"mlp": r"h\.\d\.q", "none": "x"}) == {"mlp": ("h.0.q", "h.1.q")}
    with pytest.raises(UnknownNames, match="--pattern none fits no tensor"):
        pick_groups({}, ["none"], names, None)


@pytest.mark.parametrize("option", ["mlp", "=x", "a b=x", "mlp=", "mlp=("])
def test_patterns_that_are_none(option):
    with pytest.raises(CheckpointError, match="--pattern"):
        read_patterns([option])
    with pytest.raises(CheckpointError, match="twice"):
        read_patterns(["a=x", "a=y"])
