"""Where the matrices are in real architectures, as transformers saves them, and under other names."""

import re

import numpy as np
import pytest
import torch
from checkpoint_series import save_model

from joma.host.errors import BadInput
from joma.runs import Run
from joma.scan import open_series, plan, sweep
from joma.scan.errors import UnknownNames
from joma.scan.formats.checkpoint import part_of
from joma.scan.names.architecture import coverage, find_groups, located, matrix_groups, pick_groups, read_patterns
from joma.scan.names.roots import choose_root, root_notes, roots
from joma.scan.sources.folder import LocalFolder
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
         "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 4},
        "model.layers.0.feed_forward.up_proj.weight", (24, 16), every(1, GATED, EXPERTS, QKVO), 2,
    ),
}  # fmt: skip


def groups_of(place, **options):
    """Groups, coverage, and the matrices themselves."""
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
    assert set(found) == {*covered, "embedding"}
    assert lower in [*found.get("mlp", ()), *found.get("mlp_experts", ())]
    assert matrices[lower].shape == shape
    assert all(matrix.ndim == 2 for matrix in matrices.values())
    (embedding,) = found["embedding"]
    assert matrices[embedding].shape[0] == 20


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


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("Phi3ForCausalLM", "mlp_gate"),
        ("GptOssForCausalLM", "mlp_experts"),
        ("GraniteMoeForCausalLM", "mlp_experts_gate"),
        ("DeepseekV3ForCausalLM", "mlp_shared_down"),
    ],
)
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


# names with shapes, and what they are taken for
NAMED = {
    "blocks.N.mlp.0": ({"blocks.3.mlp.0.weight": (24, 16), "blocks.3.mlp.2.weight": (16, 24)}, ["mlp", "mlp_down"]),
    "a norm first": (
        {"layers.0.ff.0.weight": (16,), "layers.0.ff.1.weight": (24, 16), "layers.0.ff.4.weight": (16, 24)},
        [None, "mlp", "mlp_down"],
    ),
    "GEGLU in a Sequential": (
        {"blocks.0.ff.net.0.proj.weight": (48, 16), "blocks.0.ff.net.2.weight": (16, 24)}, ["mlp_gate_up", "mlp_down"],
    ),
    "three matrices in a Sequential": (
        {f"blocks.0.mlp.{at}.weight": (16, 16) for at in (0, 2, 4)}, [None, None, None],
    ),
    "ffn.*": (
        {"layers.0.ffn.w1.weight": (24, 16), "layers.0.ffn.w2.weight": (16, 24), "layers.0.ffn.w3.weight": (24, 16)},
        ["mlp_gate", "mlp_down", "mlp"],
    ),
    "w1 and w2 alone": (
        {"layers.0.ffn.w1.weight": (24, 16), "layers.0.ffn.w2.weight": (16, 24)}, ["mlp", "mlp_down"],
    ),
    "ffn.fc1": ({"layers.0.ffn.fc1.weight": (24, 16), "layers.0.ffn.fc2.weight": (16, 24)}, ["mlp", "mlp_down"]),
    "Wi that is not fused": ({"layers.0.mlp.Wi.weight": (24, 16), "layers.0.mlp.Wo.weight": (16, 24)},
                             ["mlp", "mlp_down"]),
    "Qwen 1": (
        {f"h.0.mlp.{leaf}.weight": (24, 16) for leaf in ("w1", "w2", "c_proj")}, ["mlp", "mlp_gate", "mlp_down"],
    ),
    "LitGPT": (
        {"transformer.h.0.mlp.fc_1.weight": (24, 16), "transformer.h.0.mlp.fc_2.weight": (24, 16),
         "transformer.h.0.mlp.proj.weight": (16, 24), "transformer.h.0.attn.qkv.weight": (48, 16)},
        ["mlp_gate", "mlp", "mlp_down", "attention_qkv"],
    ),
    "Megatron": (
        {"decoder.layers.0.mlp.linear_fc1.weight": (48, 16), "decoder.layers.0.mlp.linear_fc2.weight": (16, 24),
         "decoder.layers.0.self_attention.linear_qkv.weight": (48, 16)},
        ["mlp_gate mlp", "mlp_down", "attention_qkv"],
    ),
    "torch": (
        {"layers.0.self_attn.in_proj_weight": (48, 16), "layers.0.self_attn.out_proj.weight": (16, 16),
         "layers.0.linear1.weight": (24, 16), "layers.0.linear2.weight": (16, 24)},
        ["attention_qkv", "attention_o", "mlp", "mlp_down"],
    ),
    "Llama 4": (
        {"layers.0.feed_forward.experts.gate_up_proj": (2, 16, 48),
         "layers.0.feed_forward.experts.down_proj": (2, 24, 16)},
        ["mlp_experts_gate mlp_experts", "mlp_experts_down"],
    ),
    "stacked experts of an order that nobody knows": (
        {"layers.0.moe.experts.gate_up_proj": (2, 16, 48), "layers.0.moe.experts.down_proj": (2, 24, 16)},
        ["mlp_experts_gate_up", "mlp_experts_down"],
    ),
    "Moonshine": ({"layers.0.mlp.fc1.weight": (48, 16), "layers.0.mlp.fc2.weight": (16, 24)},
                  ["mlp_gate_up", "mlp_down"]),
    "gpt-oss without its config": (
        {"layers.0.mlp.experts.gate_up_proj": (2, 16, 48), "layers.0.mlp.experts.gate_up_proj_bias": (2, 48),
         "layers.0.mlp.experts.down_proj": (2, 24, 16)},
        ["mlp_experts_gate_up", None, "mlp_experts_down"],
    ),
    "Phi-3 with another shape": (
        {"layers.0.mlp.gate_up_proj.weight": (50, 16), "layers.0.mlp.down_proj.weight": (16, 24)},
        ["mlp_gate_up", "mlp_down"],
    ),
    "routers and norms": (
        {"layers.0.mlp.gate.weight": (4, 16), "layers.0.mlp.shared_expert_gate.weight": (1, 16),
         "layers.0.input_layernorm.weight": (16,), "layers.0.mlp.experts.gate_up_proj_bias": (2, 48)}, [None] * 4,
    ),
    "a mixer": ({"layers.0.mixer.in_proj.weight": (9, 9), "layers.0.mixer.out_proj.weight": (9, 9)}, [None, None]),
    "an optimizer": ({"optimizer.state.exp_avg.layers.0.mlp.c_fc.weight": (9, 9)}, [None]),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_names(case):
    named, expected = NAMED[case]
    kind = "llama4_text" if case == "Llama 4" else None
    found = find_groups(named, {}, shape=named.__getitem__, model_type=kind)
    groups = {}
    for group, members in found.items():
        for member in members:
            groups.setdefault(part.base if (part := part_of(member)) else member, set()).add(group)
    assert [groups.get(name, set()) for name in named] == [set(words.split()) if words else set() for words in expected]


def test_layers_come_in_their_own_order_and_prefixes_do_not_matter():
    names = [f"_orig_mod.module.h.{i}.mlp.c_fc.weight" for i in range(12)]
    assert find_groups(sorted(names), {})["mlp"] == tuple(names)


def test_patterns_add_and_replace():
    names = ["h.0.mlp.c_fc.weight", "h.0.q", "h.1.q", "layers.0.mlp.gate_proj.weight"]
    assert find_groups(names, {"mlp": r"h\.\d\.q", "none": "x"}) == {"mlp": ("h.0.q", "h.1.q")}
    with pytest.raises(UnknownNames, match="the pattern none fits no tensor"):
        pick_groups({}, ["none"], names, None)


def test_a_pattern_for_the_mlp_replaces_its_gate_too():
    """A gate beside other matrices would be that of none of them; a gate of one's own stays."""
    gate, up, down = (f"layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
    names = [gate, up, down, "layers.0.q"]
    assert find_groups(names, {}) == {"mlp": (up,), "mlp_down": (down,), "mlp_gate": (gate,)}
    mine = {"mlp": r"layers\.0\.q"}
    assert find_groups(names, mine) == {"mlp": ("layers.0.q",), "mlp_down": (down,)}
    assert find_groups(names, mine | {"mlp_gate": r".*up_proj.*"})["mlp_gate"] == (up,)


def test_a_pattern_takes_a_stack_of_matrices_apart():
    found = find_groups(["h.0.w"], {"mine": r"h\.0\.w"}, shape=lambda name: (3, 4, 5))
    assert found == {"mine": ("h.0.w[0]", "h.0.w[1]", "h.0.w[2]")}
    assert [row.expert for row in located(found["mine"])] == [0, 1, 2]


def test_what_a_wish_brings():
    found = {group: (group,) for group in ("mlp", "mlp_gate", "mlp_down", "mlp_experts", "attention_q", "attention_o",
                                           "embedding", "mine")}  # fmt: skip
    assert list(pick_groups(found, ["mlp"], [], None)) == ["mlp", "mlp_gate", "mlp_experts"]
    assert list(pick_groups(found, ["attention", "mine"], [], None)) == ["attention_q", "attention_o", "mine"]
    assert "embedding" not in matrix_groups(found)
    with pytest.raises(UnknownNames, match="mlp tensors are not known in this architecture"):
        pick_groups({}, ["mlp"], [], None)


def test_layers_that_a_group_lacks_are_counted():
    names = [*(f"h.{i}.mlp.c_fc.weight" for i in range(3)), "h.3.odd.weight", "wte.weight", "head.0.weight"]
    assert coverage(find_groups(names, {}), names) == {"mlp": (3, 4)}
    stages = [f"encoder.layers.{i}.blocks.{j}.mlp.fc1.weight" for i in range(2) for j in range(2)]
    names = [*stages, "encoder.layers.0.downsample.reduction.weight", "encoder.layers.1.blocks.2.norm.weight"]
    assert coverage(find_groups(names, {}), names) == {"mlp": (4, 5)}


# One root per checkpoint

LAYER = ("h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight", "ln.weight")


def under(*words):
    return [f"{word}.{name}" if word else name for word in words for name in LAYER]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("model", "ema"), ("model", "ema")),
        (("state_dict.model", "state_dict.model_ema"), ("state_dict.model", "state_dict.model_ema")),
        (("state_dict", "state_dict_ema"), ("state_dict", "state_dict_ema")),
        (("", "ema"), (".", "ema")),
        (("module", "swa_model.module"), (".", "swa_model")),
        (("student", "teacher"), ("student", "teacher")),
        (("", "module"), (".", "module")),
        (("encoder", "decoder"), (".",)),
        (("module._orig_mod.model",), (".",)),
        (("ema",), (".",)),
    ],
)
def test_roots(words, expected):
    names = under(*words)
    assert roots(names) == expected
    for root in expected:
        found = find_groups(names, {}, root=root)["mlp"]
        assert len(found) == (4 if words == ("encoder", "decoder") else 2)
        assert len({re.split(r"h\.\d", name)[0] for name in found}) == (2 if words == ("encoder", "decoder") else 1)
        assert coverage({"mlp": found}, names)["mlp"][1] == len(found)


def test_raw_weights_before_their_average_and_both_by_name():
    names = under("state_dict.model", "state_dict.model_ema")
    assert find_groups(names, {})["mlp"][0].startswith("state_dict.model.")
    assert find_groups(names, {}, root="model_ema")["mlp"][0].startswith("state_dict.model_ema.")
    assert "state_dict.model_ema were left aside: choose them as root state_dict.model_ema" in root_notes(names)[0]
    assert root_notes(under("model")) == ()
    assert find_groups(names, {}, root=".") == find_groups(names, {})


def test_which_of_two_models_is_not_guessed():
    names = under("student", "teacher")
    with pytest.raises(UnknownNames, match="several sets of weights, student and teacher; choose one as root student"):
        find_groups(names, {})
    assert len(find_groups(names, {}, root=".")["mlp"]) == 4
    with pytest.raises(UnknownNames, match="no weights under 'other'; root must be one of student, teacher"):
        choose_root(names, "other")


def test_parts_of_a_larger_model_are_no_models():
    names = [*under("model.left", "model.right"), "model.text.layers.0.mlp.fc1.weight"]
    assert roots(names) == (".",)


def test_an_average_never_joins_the_optimizer():
    names = [
        *under("model"),
        *(f"optimizer.state.{name}.exp_avg" for name in LAYER),
        "optimizer.ema.h.0.mlp.c_fc.weight",
    ]
    assert roots(names) == (".",)
    assert find_groups(names, {})["mlp"] == ("model.h.0.mlp.c_fc.weight", "model.h.1.mlp.c_fc.weight")


@pytest.mark.parametrize("option", ["mlp", "=x", "a b=x", "mlp=", "mlp=("])
def test_patterns_that_are_none(option):
    with pytest.raises(BadInput, match="pattern"):
        read_patterns([option])
    with pytest.raises(BadInput, match="two patterns"):
        read_patterns(["a=x", "a=y"])
