"""Where the matrices are in real architectures, as transformers saves them."""

import numpy as np
import pytest
import torch
from checkpoint_series import save_model

from joma.runs import Run
from joma.scan import open_series, plan, sweep
from joma.scan.errors import UnknownNames
from joma.scan.formats.tensor_file import Stored
from joma.scan.names.architecture import coverage, find_groups, located, not_taken, others, pick_groups
from joma.scan.sources.folder import LocalFile, LocalFolder
from joma.scan.sources.series import model_type

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20}
GROUPED = {"head_dim": 8, "num_key_value_heads": 1}
ONE_KEY = {"num_key_value_heads": 1}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 24, "vocab_size": 20}
HALVES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
          "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 20}  # fmt: skip
DEEPSEEK = {"num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "moe_intermediate_size": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4, "v_head_dim": 8}  # fmt: skip
QWEN = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
PADDED = {"pad_token_id": 0}
BERT_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
MLP, GATED = "mlp mlp_down", "mlp mlp_gate mlp_down"
EXPERTS, SHARED = "mlp_experts mlp_experts_gate mlp_experts_down", "mlp_shared mlp_shared_gate mlp_shared_down"
QKVO, QKV_O = "attention_q attention_k attention_v attention_o", "attention_qkv attention_o"
CROSS = "cross_attention_q cross_attention_k cross_attention_v cross_attention_o"


def every(layers, *groups):
    return {name: layers for group in groups for name in group.split()}


# class: options, a name in the MLP's group with its shape, layers covered by every group (of how many in all)
KNOWN = {
    "GPT2LMHeadModel": (GPT, "transformer.h.1.mlp.c_fc.weight", (16, 24), every(2, MLP, QKV_O), 2),
    "GPTJForCausalLM": (GPT | {"rotary_dim": 4}, "transformer.h.1.mlp.fc_in.weight", (24, 16), every(2, MLP, QKVO), 2),
    "GPTNeoForCausalLM": (
        {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 20, "attention_types": [[["global"], 2]]},
        "transformer.h.1.mlp.c_fc.weight", (64, 16), every(2, MLP, QKVO), 2,
    ),
    "GPTNeoXForCausalLM": (
        SMALL, "gpt_neox.layers.1.mlp.dense_h_to_4h.weight", (24, 16), every(2, MLP, QKV_O), 2,
    ),
    "GPTBigCodeForCausalLM": (GPT, "transformer.h.1.mlp.c_fc.weight", (24, 16), every(2, MLP, QKV_O), 2),
    "OPTForCausalLM": (
        SMALL | {"ffn_dim": 24, "word_embed_proj_dim": 16},
        "model.decoder.layers.1.fc1.weight", (24, 16), every(2, MLP, QKVO), 2,
    ),
    "BloomForCausalLM": (
        {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 20},
        "transformer.h.1.mlp.dense_h_to_4h.weight", (64, 16), every(2, MLP, QKV_O), 2,
    ),
    "FalconForCausalLM": (SMALL, "transformer.h.1.mlp.dense_h_to_4h.weight", (64, 16), every(2, MLP, QKV_O), 2),
    "MptForCausalLM": (
        {"d_model": 16, "n_heads": 2, "n_layers": 2, "vocab_size": 20},
        "transformer.blocks.1.ffn.up_proj.weight", (64, 16), every(2, MLP, QKV_O), 2,
    ),
    "LlamaForCausalLM": (SMALL, "model.layers.1.mlp.up_proj.weight", (24, 16), every(2, GATED, QKVO), 2),
    "MistralForCausalLM": (SMALL | GROUPED, "model.layers.1.mlp.up_proj.weight", (24, 16), every(2, GATED, QKVO), 2),
    "Gemma2ForCausalLM": (SMALL | GROUPED, "model.layers.1.mlp.up_proj.weight", (24, 16), every(2, GATED, QKVO), 2),
    "Starcoder2ForCausalLM": (SMALL | ONE_KEY, "model.layers.1.mlp.c_fc.weight", (24, 16), every(2, MLP, QKVO), 2),
    "PhiForCausalLM": (SMALL, "model.layers.1.mlp.fc1.weight", (24, 16), every(2, MLP, QKVO), 2),
    "Phi3ForCausalLM": (
        SMALL | ONE_KEY | PADDED, "model.layers.1.mlp.gate_up_proj.weight[24:48]", (24, 16), every(2, GATED, QKV_O), 2,
    ),
    "GlmForCausalLM": (
        SMALL | GROUPED | PADDED, "model.layers.1.mlp.gate_up_proj.weight[24:48]", (24, 16), every(2, GATED, QKVO), 2,
    ),
    "ModernBertForMaskedLM": (
        SMALL | BERT_TOKENS, "model.layers.1.mlp.Wi.weight[24:48]", (24, 16), every(2, GATED, QKV_O), 2,
    ),
    "BertForMaskedLM": (
        SMALL, "bert.encoder.layer.1.intermediate.dense.weight", (24, 16), every(2, MLP, QKVO), 2,
    ),
    "DistilBertForMaskedLM": (
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 20},
        "distilbert.transformer.layer.1.ffn.lin1.weight", (24, 16), every(2, MLP, QKVO), 2,
    ),
    "DebertaV2ForMaskedLM": (
        SMALL, "deberta.encoder.layer.1.intermediate.dense.weight", (24, 16), every(2, MLP, QKVO), 2,
    ),
    "MPNetForMaskedLM": (SMALL, "mpnet.encoder.layer.1.intermediate.dense.weight", (24, 16), every(2, MLP, QKVO), 2),
    "AlbertForMaskedLM": (
        SMALL | {"embedding_size": 8}, "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight", (24, 16),
        every(1, MLP, QKVO), 1,
    ),
    "XLNetLMHeadModel": (
        {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "vocab_size": 20},
        "transformer.layer.1.ff.layer_1.weight", (24, 16), every(2, MLP), 2,  # its attention is 3-D by head
    ),
    "T5ForConditionalGeneration": (
        {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 20,
         "feed_forward_proj": "gated-gelu"},
        "decoder.block.1.layer.2.DenseReluDense.wi_1.weight", (24, 16), every(4, GATED, QKVO) | every(2, CROSS), 4,
    ),
    "BartForConditionalGeneration": (
        HALVES, "model.decoder.layers.1.fc1.weight", (24, 16), every(4, MLP, QKVO) | every(2, CROSS), 4,
    ),
    "MixtralForCausalLM": (
        SMALL | GROUPED | {"num_local_experts": 3},
        "model.layers.1.block_sparse_moe.experts.2.w3.weight", (24, 16), every(2, EXPERTS, QKVO), 2,
    ),
    "Qwen2MoeForCausalLM": (
        SMALL | ONE_KEY | QWEN | {"shared_expert_intermediate_size": 20, "mlp_only_layers": [0]},
        "model.layers.1.mlp.experts.2.up_proj.weight", (12, 16),
        every(1, GATED, EXPERTS, SHARED) | every(2, QKVO), 2,
    ),
    "Qwen3MoeForCausalLM": (
        SMALL | GROUPED | QWEN, "model.layers.1.mlp.experts.2.up_proj.weight", (12, 16), every(2, EXPERTS, QKVO), 2,
    ),
    "GptOssForCausalLM": (
        SMALL | GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2},
        "model.layers.1.mlp.experts.gate_up_proj[2,:,1::2]", (16, 24), every(2, EXPERTS, QKVO), 2,
    ),
    "GraniteMoeForCausalLM": (
        SMALL | ONE_KEY | {"num_local_experts": 3, "num_experts_per_tok": 2},
        "model.layers.1.block_sparse_moe.input_linear.weight[2,24:48]", (24, 16), every(2, EXPERTS, QKVO), 2,
    ),
    "OlmoeForCausalLM": (
        SMALL | ONE_KEY | {"num_experts": 3, "num_experts_per_tok": 2},
        "model.layers.1.mlp.experts.2.up_proj.weight", (24, 16), every(2, EXPERTS, QKVO), 2,
    ),
    "DeepseekV2ForCausalLM": (
        SMALL | DEEPSEEK | {"q_lora_rank": None}, "model.layers.1.mlp.experts.3.up_proj.weight", (12, 16),
        every(1, GATED, EXPERTS, SHARED) | every(2, "attention_q attention_kv_a attention_kv_b attention_o"), 2,
    ),
    "DeepseekV3ForCausalLM": (
        SMALL | DEEPSEEK | {"q_lora_rank": 8, "n_group": 2, "topk_group": 1},
        "model.layers.1.mlp.experts.3.up_proj.weight", (12, 16),
        every(1, GATED, EXPERTS, SHARED)
        | every(2, "attention_q_a attention_q_b attention_kv_a attention_kv_b attention_o"), 2,
    ),
    "JambaForCausalLM": (
        SMALL | ONE_KEY | {"num_experts": 3, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
         "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 4,
         "mamba_dt_rank": 2},
        "model.layers.0.feed_forward.up_proj.weight", (24, 16),
        every(1, GATED, EXPERTS, QKVO, "ssm_in ssm_x ssm_dt ssm_out"), 2,
    ),
}  # fmt: skip


PLAIN = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
BOTH_KINDS = {"layer_types": ["linear_attention", "full_attention"]}
SSM = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 20, "state_size": 4}
INDEXED = DEEPSEEK | {"q_lora_rank": 8, "n_group": 2, "topk_group": 1, "index_n_heads": 2, "index_head_dim": 8,
                      "index_topk": 4}  # fmt: skip
LORA_QKV = every(2, "attention_q_a attention_q_b attention_kv_a attention_kv_b attention_o")
LINEAR = "linear_attention_q linear_attention_k linear_attention_v linear_attention_o"

# Mixers that are no softmax attention, or more than that: options, and layers covered by every group.
MIXERS = {
    "Qwen3NextForCausalLM": (
        SMALL | GROUPED | PLAIN | QWEN | DELTA | BOTH_KINDS | {"shared_expert_intermediate_size": 12},
        every(2, EXPERTS, SHARED)
        | every(1, QKVO, "linear_attention_ba linear_attention_o linear_attention_qkvz"),
    ),
    "OlmoHybridForCausalLM": (
        SMALL | PLAIN | DELTA | BOTH_KINDS,
        every(2, GATED) | every(1, QKVO, LINEAR, "linear_attention_a linear_attention_b linear_attention_gate"),
    ),
    "FalconH1ForCausalLM": (
        SMALL | PLAIN | ONE_KEY
        | {"mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4},
        every(2, GATED, QKVO, "ssm_in ssm_out"),
    ),
    "NemotronHForCausalLM": (
        SMALL | PLAIN | GROUPED
        | {"layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 2, "mamba_head_dim": 8, "n_groups": 1,
           "ssm_state_size": 4, "num_hidden_layers": 3},
        every(1, QKVO, "ssm_in ssm_out", MLP),
    ),
    "Lfm2ForCausalLM": (
        SMALL | PLAIN | ONE_KEY | {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
        every(2, GATED) | every(1, QKVO, "conv_in conv_out"),
    ),
    "MambaForCausalLM": (SSM | PLAIN | {"time_step_rank": 2}, every(2, "ssm_in ssm_out ssm_x ssm_dt")),
    "Mamba2ForCausalLM": (
        SSM | PLAIN | {"num_heads": 4, "head_dim": 8, "n_groups": 1}, every(2, "ssm_in ssm_out"),
    ),
    "xLSTMForCausalLM": (
        SSM | PLAIN | {"embedding_dim": 16, "num_blocks": 2, "num_heads": 2},
        every(2, GATED, LINEAR, "linear_attention_gate linear_attention_i linear_attention_f"),
    ),
    "RwkvForCausalLM": (
        SSM | PLAIN | {"attention_hidden_size": 16},
        every(2, MLP, "mlp_receptance attention_k attention_v attention_r attention_o"),
    ),
    "JetMoeForCausalLM": (
        SMALL | PLAIN | ONE_KEY | {"kv_channels": 8, "num_local_experts": 2, "num_experts_per_tok": 2},
        every(2, EXPERTS, "attention_experts_q attention_experts_o attention_kv"),
    ),
    "DogeForCausalLM": (SMALL | PLAIN | {"num_key_value_heads": 2}, every(2, GATED, QKVO, "attention_dt")),
    "MiniMaxForCausalLM": (
        SMALL | GROUPED | PLAIN | BOTH_KINDS | {"num_local_experts": 2},
        every(2, EXPERTS, "attention_o") | every(1, "attention_q attention_k attention_v attention_qkv attention_gate"),
    ),
    "LongcatFlashForCausalLM": (
        SMALL | PLAIN | DEEPSEEK
        | {"num_layers": 1, "ffn_hidden_size": 24, "expert_ffn_hidden_size": 12, "q_lora_rank": 8, "head_dim": 4,
           "zero_expert_num": 1, "moe_topk": 1},
        every(1, GATED, EXPERTS, *LORA_QKV),  # one layer has two of each but the experts
    ),
    "DeepseekV32ForCausalLM": (
        SMALL | INDEXED, every(1, GATED, EXPERTS, SHARED) | LORA_QKV | every(2, "indexer_q indexer_k indexer_weights"),
    ),
    "DeepseekV4ForCausalLM": (
        SMALL | PLAIN
        | {"head_dim": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 12,
           "q_lora_rank": 8, "o_lora_rank": 8, "o_groups": 2, "index_n_heads": 2, "index_head_dim": 8,
           "num_hash_layers": 0},
        every(2, EXPERTS, SHARED, "attention_q_a attention_q_b attention_kv attention_o_a attention_o_b",
              "compressor_kv compressor_gate hyper_attention hyper_mlp"),
    ),
    "NanoChatForCausalLM": (SMALL | PLAIN, every(2, MLP, QKVO)),
    "RecurrentGemmaForCausalLM": (
        SMALL | PLAIN | ONE_KEY | {"num_hidden_layers": 3, "lru_width": 16},
        every(3, GATED) | every(1, QKVO)
        | every(2, "recurrent_x recurrent_gate recurrent_out recurrent_input_gate recurrent_recurrent_gate"),
    ),
}  # fmt: skip


def groups_of(place, **options):
    with place.open() as checkpoint:
        names = checkpoint.names()
        shape = {name: checkpoint.stored(name).shape for name in names}
        found = find_groups(names, {}, shape=shape.__getitem__, model_type=model_type(place), **options)
        matrices = {name: checkpoint.read(name) for group in found.values() for name in group}
        return found, coverage(found, names), matrices


def model_of(name, options):
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**options))


@pytest.mark.parametrize("name", KNOWN)
def test_architectures(name, tmp_path):
    options, lower, shape, covered, layers = KNOWN[name]
    found, counted, matrices = groups_of(LocalFolder(save_model(model_of(name, options), tmp_path), 0))
    assert {group: k for group, (k, _) in counted.items()} == covered
    assert {n for _, n in counted.values()} == {layers}
    assert set(found) - {"head_transform", "projector"} == {*covered, "embedding"}
    assert lower in [*found.get("mlp", ()), *found.get("mlp_experts", ())]
    assert matrices[lower].shape == shape
    assert all(matrix.ndim == 2 for matrix in matrices.values())
    (embedding,) = found["embedding"]
    assert matrices[embedding].shape[0] == 20


@pytest.mark.parametrize("name", MIXERS)
def test_every_matrix_of_a_mixer_is_measured_or_named(name, tmp_path):
    """In the file that transformers saves, and in the state dict that it holds in memory."""
    options, covered = MIXERS[name]
    model = model_of(name, options)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for place in (LocalFolder(save_model(model, tmp_path / "saved"), 0), LocalFile(tmp_path / "model.pt", 0)):
        found, counted, matrices = groups_of(place)
        assert {group: k for group, (k, _) in counted.items()} == covered
        assert {matrix.ndim for matrix in matrices.values()} == {2}
        with place.open() as checkpoint:
            rest = others(checkpoint.names(), found)
            told = not_taken(checkpoint.names(), found, checkpoint.stored)
            sizes = {each: checkpoint.stored(each).shape for each in rest}
        assert not told
        unnamed = [each for each, role in rest.items() if role is None and len(sizes[each]) == 2]
        assert all(min(sizes[each]) == 1 for each in unnamed), unnamed


def test_stacked_experts_of_a_model_in_memory(tmp_path):
    """transformers 5 keeps in memory, and in state dicts, what it saves expert by expert."""
    model = model_of("MixtralForCausalLM", KNOWN["MixtralForCausalLM"][0])
    saved, _, apart = groups_of(LocalFolder(save_model(model, tmp_path / "saved"), 0))
    (tmp_path / "state").mkdir()
    torch.save(model.state_dict(), tmp_path / "state" / "model.pt")
    found, _, stacked = groups_of(LocalFolder(tmp_path / "state", 0))
    assert "model.layers.0.mlp.experts.gate_up_proj" in model.state_dict()
    for group in ("mlp_experts", "mlp_experts_gate", "mlp_experts_down"):
        assert len(found[group]) == 6
        for one, other in zip(found[group], saved[group], strict=True):
            assert torch.equal(stacked[one], apart[other])


@pytest.mark.parametrize("name", ["Phi3ForCausalLM", "ModernBertForMaskedLM", "GlmForCausalLM"])
def test_gate_and_up_compute_what_the_model_computes(name, tmp_path):
    model = model_of(name, KNOWN[name][0]).eval()
    found, _, matrices = groups_of(LocalFolder(save_model(model, tmp_path), 0))
    up, gate, down = (matrices[found[group][1]] for group in ("mlp", "mlp_gate", "mlp_down"))
    mlp = model.model.layers[1].mlp
    act = mlp.act if hasattr(mlp, "act") else mlp.activation_fn
    x = torch.randn(3, 16)
    torch.testing.assert_close((act(x @ gate.T) * (x @ up.T)) @ down.T, mlp(x))


def test_gate_and_up_of_gpt_oss(tmp_path):
    model = model_of("GptOssForCausalLM", KNOWN["GptOssForCausalLM"][0])
    experts = model.model.layers[1].mlp.experts
    torch.nn.init.zeros_(experts.gate_up_proj_bias)
    torch.nn.init.zeros_(experts.down_proj_bias)
    found, _, matrices = groups_of(LocalFolder(save_model(model, tmp_path), 0))
    up, gate, down = (matrices[found[f"mlp_experts{role}"][4]] for role in ("", "_gate", "_down"))  # layer 1, expert 1
    x = torch.randn(3, 16)
    gated = (x @ gate) * torch.sigmoid(1.702 * (x @ gate))
    ones = torch.ones(3, 1)
    torch.testing.assert_close((((x @ up) + 1) * gated) @ down, experts(x, torch.ones(3, 1, dtype=torch.int64), ones))


@pytest.mark.parametrize(("name", "group"), [
    ("Phi3ForCausalLM", "mlp_gate"),
    ("GptOssForCausalLM", "mlp_experts"),
    ("GraniteMoeForCausalLM", "mlp_experts_gate"),
    ("DeepseekV3ForCausalLM", "mlp_shared_down"),
])  # fmt: skip
def test_stable_ranks_are_those_of_numpy(name, group, tmp_path):
    place = LocalFolder(save_model(model_of(name, KNOWN[name][0]), tmp_path / "model"), 0)
    found, _, matrices = groups_of(place)
    with Run.create(tmp_path / "run.sqlite", study="mine", config={}) as run:
        curve = sweep(plan(open_series(place.path, downloads=tmp_path)), run).curves[f"stable_rank/{group}"]
    singular = [np.linalg.svd(matrices[tensor].double().numpy(), compute_uv=False) for tensor in found[group]]
    np.testing.assert_allclose(curve.values[0].ravel(), [(s**2).sum() / s[0] ** 2 for s in singular], rtol=1e-3)


def test_vision(tmp_path):
    options = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    model = model_of("ViTModel", options | {"image_size": 8, "patch_size": 4})
    with LocalFolder(save_model(model, tmp_path), 0).open() as checkpoint:
        found = find_groups(checkpoint.names(), {})
        assert len(found["mlp"]) == 2
        with pytest.raises(UnknownNames, match=r"embedding tensors are not known.*vit.*a pattern embedding=REGEX"):
            pick_groups(found, ["embedding"], checkpoint.names(), "vit")


def test_text_and_image_towers_are_one_model(tmp_path):
    vision = {key: value for key, value in SMALL.items() if key != "vocab_size"} | {"image_size": 8, "patch_size": 4}
    model = model_of("CLIPModel", {"text_config": SMALL, "vision_config": vision})
    found, counted, _ = groups_of(LocalFolder(save_model(model, tmp_path), 0))
    assert counted["mlp"] == (4, 4)
    assert len(found["attention_q"]) == 4


def test_a_number_of_5000_digits_is_no_layer(tmp_path):
    from safetensors.torch import save_file

    honest, long = ("model.layers.0.mlp.up_proj.weight", f"model.layers.{'1' * 5000}.mlp.up_proj.weight")
    save_file({honest: torch.eye(4), long: torch.eye(4)}, tmp_path / "step1.safetensors")
    series = open_series(tmp_path, downloads=tmp_path)
    with Run.create(tmp_path / "a.sqlite", study="scan", config={}) as run:
        sweep(plan(series, measures=("stable_rank",)), run)
        assert run.array("stable_rank/mlp").shape == (1, 1)


def test_experts_whose_rows_lie_in_one_matrix(tmp_path):
    """MegaBlocks, as DBRX of transformers has it: 3 experts of 8 rows each, and the router counts them."""
    config = pytest.importorskip("transformers.models.dbrx.configuration_dbrx", reason="needs transformers")
    from transformers import DbrxConfig, DbrxForCausalLM

    attention = config.DbrxAttentionConfig(kv_n_heads=1)
    attention.rope_theta = 1e4
    shape = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 32, "vocab_size": 20}
    ffn = {"ffn_hidden_size": 8, "moe_num_experts": 3, "moe_top_k": 1, "hidden_size": 16}
    torch.manual_seed(0)
    model = DbrxForCausalLM(DbrxConfig(**shape, ffn_config=ffn, attn_config=attention))
    model.save_pretrained(tmp_path)
    with LocalFolder(tmp_path, 0).open() as checkpoint:
        names = checkpoint.names()
        groups = find_groups(names, {}, shape=lambda name: checkpoint.stored(name).shape)
        assert not_taken(names, groups, checkpoint.stored) == {}
        inside = model.transformer.blocks[1].ffn.experts.mlp
        for group, stack in {"_gate": inside.w1, "": inside.v1, "_down": inside.w2}.items():
            group = f"mlp_experts{group}"
            assert len(groups[group]) == 6
            rows = located(groups[group], names)
            assert [(row.layer, row.expert) for row in rows] == [(at, of) for at in range(2) for of in range(3)]
            for row in rows[3:]:
                mine = stack.detach().view(3, 8, 16)[row.expert]
                assert torch.equal(checkpoint.read(row.name), mine)


def test_experts_that_nobody_counts_are_named(tmp_path):
    """Without a router, or with rows that do not fit it, nothing is guessed; without v1, w1 has no gate."""
    name, router = "blocks.0.ffn.experts.mlp.w1", "blocks.0.ffn.router.layer.weight"
    for shapes in ({name: (24, 16)}, {name: (24, 16), router: (5, 16)}, {name: (3, 16), router: (3, 16)}):
        groups = find_groups(shapes, {}, shape=shapes.__getitem__)
        assert groups == {}
        assert list(not_taken(shapes, groups, lambda each: Stored(shapes[each], torch.half))) == [
            "blocks.*.ffn.experts.mlp.w1"
        ]
    shapes = {name: (24, 16), router: (3, 16)}
    assert find_groups(shapes, {}, shape=shapes.__getitem__)["mlp_experts"][2] == f"{name}[16:24]"
    assert find_groups(shapes, {})["mlp_experts"] == (name,)
