"""What a matrix is taken for, by its name and its shape, and by patterns of one's own."""

import pytest

from joma.host.errors import BadInput
from joma.scan.errors import UnknownNames
from joma.scan.formats.checkpoint import part_of
from joma.scan.names.architecture import coverage, find_groups, located, pick_groups, read_patterns

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
    "a mixer": ({"layers.0.mixer.in_proj.weight": (9, 9), "layers.0.mixer.out_proj.weight": (9, 9)},
                ["ssm_in", "ssm_out"]),
    "FlashAttention's mixer": (
        {"layers.0.mixer.Wqkv.weight": (27, 9), "layers.0.mixer.out_proj.weight": (9, 9)},
        ["attention_qkv", "attention_o"],
    ),
    "towers": (
        {"visual.merger.mlp.0.weight": (9, 9), "visual.merger.mlp.2.weight": (4, 9),
         "visual.deepstack_merger_list.0.linear_fc1.weight": (9, 9), "multi_modal_projector.linear_1.weight": (9, 4),
         "visual.merger.ln_q.weight": (9,), "multi_modal_projector.linear_1.bias": (9,)},
        ["merger", "merger", "merger", "projector", None, None],
    ),
    "stacks by a line": (
        {"layers.0.self_attention.experts.input_linear.weight": (2, 9, 9),
         "layers.0.temporal_block.rg_lru.input_gate_bias": (3, 4)}, ["attention_experts_q", None],
    ),
    "DeepSeek-V4 as it is published": (
        {"layers.0.attn.wq_a.weight": (8, 9), "layers.0.attn.wo_b.weight": (9, 8),
         "layers.0.attn.indexer.compressor.wkv.weight": (8, 9), "layers.0.attn.compressor.wkv.weight": (8, 9),
         "layers.0.attn.indexer.wq_b.weight": (8, 9), "layers.0.hc_attn_fn": (24, 64),
         "layers.0.attn.compressor.ape": (128, 8)},
        ["attention_q_a", "attention_o_b", "indexer_kv", "compressor_kv", "indexer_q", "hyper_attention", None],
    ),
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
    with pytest.raises(UnknownNames, match="mlp tensors are not known in this architecture"):
        pick_groups({}, ["mlp"], [], None)


def test_layers_that_a_group_lacks_are_counted():
    names = [*(f"h.{i}.mlp.c_fc.weight" for i in range(3)), "h.3.odd.weight", "wte.weight", "head.0.weight"]
    assert coverage(find_groups(names, {}), names) == {"mlp": (3, 4)}
    stages = [f"encoder.layers.{i}.blocks.{j}.mlp.fc1.weight" for i in range(2) for j in range(2)]
    names = [*stages, "encoder.layers.0.downsample.reduction.weight", "encoder.layers.1.blocks.2.norm.weight"]
    assert coverage(find_groups(names, {}), names) == {"mlp": (4, 5)}


@pytest.mark.parametrize("option", ["mlp", "=x", "a b=x", "mlp=", "mlp=("])
def test_patterns_that_are_none(option):
    with pytest.raises(BadInput, match="pattern"):
        read_patterns([option])
    with pytest.raises(BadInput, match="two patterns"):
        read_patterns(["a=x", "a=y"])
