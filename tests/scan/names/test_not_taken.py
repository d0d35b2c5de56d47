"""Nothing is lost silently: a matrix of a layer whose name is not known is told, whatever its neighbours are called."""

import pytest
import torch
from checkpoint_series import scan
from safetensors.torch import save_file

from joma.runs import Run
from joma.scan.formats.tensor_file import Stored
from joma.scan.names import roles
from joma.scan.names.architecture import find_groups, not_taken, not_taken_notes
from joma.scan.sweep.record import stored_scan

WILD = "wild_thing"


def matrices(*names):
    return dict.fromkeys(names, (24, 16))


def mlp_families():
    for scheme in roles.TABLE["mlp"]["schemes"]:
        leaves = tuple(leaf for leaf in scheme.values() if leaf is not True)
        yield "mlp " + " ".join(leaves), matrices(*(f"model.layers.0.mlp.{leaf}.weight" for leaf in leaves))


def box_families():
    for of, several, leaves in (
        ("mlp", ("boxes", "shared"), ("up_proj", "down_proj")),
        ("attention", ("self", "cross"), ("q_proj", "k_proj", "v_proj", "o_proj")),
    ):
        for box in (box.replace("*", "1") for each in several for box in roles.TABLE[of][each]):
            yield f"{of} in {box}", matrices(*(f"h.0.{box}.{leaf}.weight" for leaf in leaves))


def attention_families():
    for role, leaves in roles.TABLE["attention"]["projections"].items():
        yield f"attention {role}", matrices(*(f"blocks.0.attn.{leaf}.weight" for leaf in leaves))


OTHERS = {
    "a Sequential": {"blocks.0.mlp.0.weight": (24, 16), "blocks.0.mlp.2.weight": (16, 24)},
    "GEGLU": {"blocks.0.ff.net.0.proj.weight": (48, 16), "blocks.0.ff.net.2.weight": (16, 24)},
    "experts by number": matrices(*(f"layers.0.mlp.experts.0.{leaf}.weight" for leaf in ("up_proj", "down_proj"))),
    "stacked experts": {"layers.0.mlp.experts.up_proj": (2, 24, 16), "layers.0.mlp.experts.down_proj": (2, 16, 24)},
    "shared experts": matrices(*(f"layers.0.mlp.shared_expert.{leaf}.weight" for leaf in ("up_proj", "down_proj"))),
    "T5": matrices("block.0.layer.0.SelfAttention.q.weight", "block.0.layer.1.DenseReluDense.wi.weight"),
    "llama.cpp": matrices("blk.0.ffn_up.weight", "blk.0.ffn_gate.weight", "blk.0.attn_q.weight"),
    "OLMo": matrices("transformer.blocks.0.ff_proj.weight", "transformer.blocks.0.att_proj.weight"),
    "BERT": matrices("encoder.layer.0.intermediate.dense.weight", "encoder.layer.0.attention.self.query.weight"),
    "Whisper of OpenAI": matrices("decoder.blocks.0.cross_attn.out.weight", "decoder.blocks.0.attn.query.weight"),
    "wrapped": matrices("layers.0._fsdp_wrapped_module.mlp.up_proj.weight"),
}  # fmt: skip
for name in roles.TABLE["without_boxes"]:
    alike = [other for other in roles.TABLE["without_boxes"] if other.startswith("ff_") == name.startswith("ff_")]
    OTHERS[f"without a box: {name}"] = matrices(*(f"blk.0.{one}" for one in (name, *alike)))
FAMILIES = dict([*mlp_families(), *box_families(), *attention_families(), *OTHERS.items()])


def aside(shapes):
    stored = {name: Stored(shape, torch.float32) for name, shape in shapes.items()}
    return not_taken(shapes, find_groups(shapes, {}, shape=shapes.__getitem__), stored.__getitem__)


def is_told(name, shapes):
    return any(name in several for several in aside(shapes).values())


def is_taken(name, shapes):
    return any(name in several for several in find_groups(shapes, {}, shape=shapes.__getitem__).values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_name_is_told_in_every_family_of_names(family):
    shapes = FAMILIES[family]
    first = next(iter(shapes))
    words = first.split(".")
    layer = next(at for at, word in enumerate(words) if word.isdecimal())
    for at in range(layer + 1, len(words) + 1):  # in the layer, in the box, behind the leaf: prefixes do not matter
        name = ".".join([*words[:at], WILD, *words[at:]])
        renamed = {name if one == first else one: shape for one, shape in shapes.items()}
        for there in ({**shapes, name: (24, 16)}, renamed):
            inner = any(word.isdecimal() for word in words[at:])  # then it may be a layer of something inside
            assert is_told(name, there) or (inner and is_taken(name, there)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_has_is_taken(family):
    assert aside(FAMILIES[family]) == {}


NO_MATRICES = {
    "layers.0.input_layernorm.weight": (16,),
    "layers.0.self_attn.q_norm.weight": (4, 8),
    "layers.0.mlp.gate.weight": (4, 16),
    "layers.0.mlp.experts.gate_up_proj_bias": (2, 48),
    "layers.0.attn.bias": (16, 16),
    "layers.0.attn.rotary_emb.cos_cached": (16, 8),
    "layers.0.conv.kernel": (16, 1, 4),
    "layers.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, 4),
    "lm_head.weight": (64, 16),
    "optimizer.state.exp_avg.layers.0.mlp.wild.weight": (24, 16),
}


def test_what_is_known_to_be_no_projection_is_not_told():
    known = {"layers.0.mlp.experts.0.up_proj.weight": (24, 16), "layers.0.mlp.experts.0.down_proj.weight": (16, 24)}
    assert aside(known | NO_MATRICES) == {}


def test_a_gate_is_a_router_only_where_there_are_experts():
    assert list(aside({"layers.0.mlp.gate.weight": (24, 16), "layers.0.mlp.up.weight": (24, 16)})) == [
        "layers.*.mlp.gate.weight",
        "layers.*.mlp.up.weight",
    ]


def test_a_matrix_in_a_norm_and_the_gate_of_an_expert_are_told():
    """`norm1.linear` is that of diffusers' adaptive norms; an expert of its own names may have up, gate and down."""
    known = {"h.0.attn.to_q.weight": (16, 16), "h.0.mlp.experts.0.up_proj.weight": (24, 16)}
    wild = ("h.0.norm1.linear.weight", "h.0.mlp.experts.0.gate.weight")
    told = aside(known | dict.fromkeys(wild, (24, 16)))
    assert [one for several in told.values() for one in several] == list(wild)
    assert aside(known | {"h.0.mlp.gate.weight": (4, 16), "h.0.mlp.router.classifier.weight": (4, 16)}) == {}


def test_a_stack_of_one_matrix_is_told():
    assert list(aside(matrices("h.0.mlp.c_fc.weight") | {"h.0.mlp.wild": (1, 24, 16)})) == ["h.*.mlp.wild"]


def test_of_many_kinds_of_names_the_first_four_are_shown_and_the_rest_is_counted():
    shapes = {f"h.0.mlp.wild_{at}.weight": (4, 4 + at) for at in range(6)} | matrices("h.0.mlp.c_fc.weight")
    stored = {name: Stored(shape, torch.float32) for name, shape in shapes.items()}
    (sentence,) = not_taken_notes(aside(shapes), stored.__getitem__)
    shown = ", ".join(f"h.*.mlp.wild_{at}.weight (4 x {4 + at})" for at in range(4))
    why = "because their names are not known"
    line = 'a line of roles: "mlp.wild_0" = "mlp_wild_0"'
    assert sentence == f"not taken: 6 matrices, {why}: {shown} and 2 more kinds of names; {line}"


def test_patterns_and_other_roots_count():
    names = {"h.0.mlp.c_fc.weight": (24, 16), "h.0.mlp.wild.weight": (24, 16)}
    stored = {name: Stored(shape, torch.float32) for name, shape in names.items()}
    groups = find_groups(names, {"wild": r".*wild\.weight"}, shape=names.__getitem__)
    assert not_taken(names, groups, stored.__getitem__) == {}
    averaged = {f"{root}.{name}": shape for root in ("model", "ema") for name, shape in names.items()}
    assert list(aside(averaged)) == ["model.h.*.mlp.wild.weight"]


@pytest.fixture
def partly_known(tmp_path):
    tensors = {}
    for layer in range(2):
        for leaf in ("gate_proj", "up_proj", "down_proj", "wild"):
            tensors[f"layers.{layer}.mlp.{leaf}.weight"] = torch.eye(4) + layer
    save_file(tensors, tmp_path / "step3.safetensors")
    return tmp_path / "step3.safetensors"


def test_a_scan_notes_it_and_its_status_says_so_under_strict(partly_known, tmp_path, capsys):
    status, found = scan(partly_known, out=tmp_path / "out")
    told = (
        "not taken: 2 matrices, because their names are not known: layers.*.mlp.wild.weight (4 x 4, 2 times); "
        'a line of roles: "mlp.wild" = "mlp_wild"'
    )
    assert status == 0
    assert told in found["notes"]
    assert f"note: {told}" in capsys.readouterr().out
    assert found["not_taken"] == ["layers.*.mlp.wild.weight"]
    assert scan(partly_known, "--strict", out=tmp_path / "out")[0] == 3
    with Run.open(found["run"]) as run:
        assert stored_scan(run).not_taken == ("layers.*.mlp.wild.weight",)
    assert scan(partly_known, "--strict", "--list", out=tmp_path / "list")[0] == 3
    assert told in capsys.readouterr().out
    known = ("--strict", "--pattern", r"wild=.*wild\.weight")
    status, found = scan(partly_known, *known, out=tmp_path / "known")
    assert status == 0
    assert found["not_taken"] == []


def test_an_adapter_that_is_not_merged_hides_no_mlp(tmp_path):
    """A state dict of a model that peft has wrapped, saved by a training loop of one's own."""
    peft = pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=32,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    plain = LlamaForCausalLM(config)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    wrapped = peft.get_peft_model(plain, peft.LoraConfig(r=2, target_modules=["up_proj", "q_proj"]))
    torch.save(wrapped.state_dict(), tmp_path / "step1.pt")
    torch.save(before, tmp_path / "step2.pt")
    status, found = scan(tmp_path / "step1.pt", "--strict", out=tmp_path / "out")
    _, whole = scan(tmp_path / "step2.pt", out=tmp_path / "whole")
    assert status == 3  # the factors of the adapter belong to no group
    assert all("lora_" in kind for kind in found["not_taken"])
    assert found["coverage"] == whole["coverage"]
    for name, curve in whole["curves"].items():
        assert found["curves"][name]["values"] == curve["values"], name


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.filterwarnings("ignore")
def test_weight_normalisation_is_undone(new, dim, tmp_path):
    """torch computes the weight itself: it is what the layer multiplies with."""
    linear = torch.nn.Linear(6, 4)
    made = torch.nn.utils.parametrizations.weight_norm if new else torch.nn.utils.weight_norm
    made(linear, dim=dim)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.mul_(1.5).add_(0.1)
    linear(torch.ones(6))  # the older one computes the weight when it is called
    tensors = {f"h.0.mlp.c_fc.{name}": value.contiguous() for name, value in linear.state_dict().items()}
    save_file(tensors, tmp_path / "step0.safetensors")
    from joma.scan.sources.folder import LocalFile

    with LocalFile(tmp_path / "step0.safetensors", 0).open() as checkpoint:
        assert set(checkpoint.names()) == {"h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias"}
        torch.testing.assert_close(checkpoint.read("h.0.mlp.c_fc.weight"), linear.weight.detach())
        torch.testing.assert_close(checkpoint.read_rows("h.0.mlp.c_fc.weight", 1, 3), linear.weight.detach()[1:3])
        assert checkpoint.notes() == ("1 tensor was made from a length and a direction (weight normalisation)",)


def test_lengths_that_fit_no_direction_are_refused(tmp_path):
    from joma.scan.errors import CheckpointError
    from joma.scan.sources.folder import LocalFile

    save_file({"h.0.a.weight_g": torch.ones(3, 1), "h.0.a.weight_v": torch.ones(4, 6)}, tmp_path / "a.safetensors")
    with (
        LocalFile(tmp_path / "a.safetensors", 0).open() as checkpoint,
        pytest.raises(CheckpointError, match="are no lengths of"),
    ):
        checkpoint.read("h.0.a.weight")


def test_a_weight_that_is_there_beside_its_length_and_direction_is_read_as_it_is(tmp_path):
    from joma.scan.sources.folder import LocalFile

    plain = torch.arange(12.0).view(3, 4)
    parts = {"h.0.a.weight": plain, "h.0.a.weight_g": torch.ones(3, 1), "h.0.a.weight_v": torch.ones(3, 4)}
    save_file(parts, tmp_path / "a.safetensors")
    with LocalFile(tmp_path / "a.safetensors", 0).open() as checkpoint:
        assert torch.equal(checkpoint.read("h.0.a.weight"), plain)
        assert set(checkpoint.names()) == set(parts)


def test_other_parametrisations_are_told_and_not_read_as_weights(tmp_path):
    linear = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 4))
    tensors = {f"h.0.mlp.c_fc.{name}": value.contiguous() for name, value in linear.state_dict().items()}
    save_file(tensors | {"h.0.attn.c_attn.weight": torch.eye(4)}, tmp_path / "step0.safetensors")
    _, found = scan(tmp_path / "step0.safetensors", out=tmp_path / "out")
    assert found["not_taken"] == ["h.*.mlp.c_fc.parametrizations.weight.original"]
    assert list(found["curves"]) == ["stable_rank/attention_qkv"]
