"""What a tensor is to its layer, by the names that architectures give: a projection of the MLP, or of attention.

A name is read as `LAYER.BOX.LEAF`: "model.layers.3" + "mlp" + "up_proj.weight". The leaf alone does not tell (w1 is the
gate where there is a w3, else it is the lower projection), so the leaves of one box are judged together.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

Shape = Callable[[str], tuple[int, ...]]  # the shape of a tensor, by name

MLP, EXPERTS, SHARED = "mlp", "mlp_experts", "mlp_shared"
ATTENTION, CROSS = "attention", "cross_attention"
UP, GATE, DOWN, FUSED = "", "_gate", "_down", "_gate_up"
"""The lower (input) projection, its gate, the projection back, and gate and up in one matrix."""
_UP_FIRST = "_up_gate"  # both in one matrix, and the gate is the second half


@dataclass(frozen=True)
class Taken:
    """What a tensor, or a part of it, was taken for."""

    name: str
    group: str
    layer: str
    expert: int | None = None


# The first scheme whose leaves are all there decides; the projection back may be missing, unless `complete` is true.
# A gate is the matrix whose product goes through the nonlinearity, whatever the architecture calls it.
@dataclass(frozen=True)
class _Scheme:
    roles: Mapping[str, str]
    complete: bool = False

    def fits(self, leaves: Mapping[str, str]) -> bool:
        return all(leaf in leaves or (role == DOWN and not self.complete) for role, leaf in self.roles.items())


_SCHEMES = (
    _Scheme({GATE: "gate_proj", UP: "up_proj", DOWN: "down_proj"}),  # Llama, Mistral, Gemma, Qwen, OLMo
    _Scheme({UP: "up_proj", DOWN: "down_proj"}),  # MPT, Nemotron
    _Scheme({FUSED: "gate_up_proj", DOWN: "down_proj"}),  # Phi-3, GLM, experts in transformers 5
    _Scheme({FUSED: "input_linear", DOWN: "output_linear"}),  # Granite MoE
    _Scheme({_UP_FIRST: "ff_proj", DOWN: "ff_out"}),  # OLMo's own code
    _Scheme({FUSED: "Wi", DOWN: "Wo"}),  # ModernBERT
    _Scheme({FUSED: "linear_fc1", DOWN: "linear_fc2"}),  # Megatron
    _Scheme({GATE: "w1", UP: "w3", DOWN: "w2"}),  # Llama in its original names, Mixtral
    _Scheme({UP: "w1", GATE: "w2", DOWN: "c_proj"}, complete=True),  # Qwen 1
    _Scheme({UP: "w1", DOWN: "w2"}, complete=True),
    _Scheme({GATE: "wi_0", UP: "wi_1", DOWN: "wo"}),  # T5 1.1
    _Scheme({UP: "wi", DOWN: "wo"}),  # T5
    _Scheme({GATE: "fc_1", UP: "fc_2", DOWN: "proj"}, complete=True),  # LitGPT
    _Scheme({UP: "dense_h_to_4h", DOWN: "dense_4h_to_h"}),  # GPT-NeoX (Pythia), BLOOM, Falcon
    _Scheme({UP: "c_fc", DOWN: "c_proj"}),  # GPT-2, GPT-Neo, nanoGPT, StarCoder2
    _Scheme({UP: "fc_in", DOWN: "fc_out"}),  # GPT-J, CodeGen
    _Scheme({UP: "fc1", DOWN: "fc2"}),  # Phi, CLIP, OPT, BART
    _Scheme({UP: "fc", DOWN: "proj"}),  # LitGPT
    _Scheme({UP: "intermediate.dense", DOWN: "output.dense"}),  # BERT, RoBERTa, ViT
    _Scheme({UP: "intermediate_dense", DOWN: "output_dense"}),  # wav2vec 2
    _Scheme({UP: "intermediate", DOWN: "output"}),  # ProphetNet
    _Scheme({UP: "dense1", DOWN: "dense2"}),  # Perceiver
    _Scheme({GATE: "proj_up_gate", UP: "proj_up", DOWN: "proj_down"}),  # xLSTM
    _Scheme({UP: "lin1", DOWN: "lin2"}),  # DistilBERT
    _Scheme({UP: "linear1", DOWN: "linear2"}),  # torch.nn.TransformerEncoder
    _Scheme({UP: "linear_1", DOWN: "linear_2"}),
    _Scheme({UP: "layer_1", DOWN: "layer_2"}),  # XLNet
    _Scheme({UP: "ffn", DOWN: "ffn_output"}),  # ALBERT
    _Scheme({GATE: "ffn_gate", UP: "ffn_up", DOWN: "ffn_down"}),  # llama.cpp
    _Scheme({FUSED: "ffn_up", DOWN: "ffn_down"}),  # llama.cpp, with or without a gate: the shape tells
)
_DIRECT = ("fc1", "fc2", "linear1", "linear2", "intermediate.dense", "output.dense", "ffn", "ffn_output")
_LEAVES = sorted({leaf for scheme in _SCHEMES for leaf in scheme.roles.values()}, key=len, reverse=True)
_BOX = (
    r"(?:mlp|mlp_block|ffn|ff|feed_forward|feedforward|block_sparse_moe|moe|mixer|layer\.\d+\.DenseReluDense|"
    r"layer\.\d+\.mlp)"
)
_SHARED_BOX = r"(?:shared_experts?|shared_mlp)"
_MLP_TAIL = re.compile(
    rf"(?:(?P<box>{_BOX}(?:\.experts(?:\.(?:expert_)?(?P<expert>\d{{1,9}}))?|\.{_SHARED_BOX})?|{_SHARED_BOX})\."
    rf"(?P<leaf>{'|'.join(map(re.escape, _LEAVES))})|(?P<direct>{'|'.join(map(re.escape, _DIRECT))}))(?:\.weight)?"
)
_SEQUENCE_TAIL = re.compile(rf"(?P<box>{_BOX}(?:\.net)?)\.(?P<at>\d{{1,3}})(?:\.proj)?\.weight")

_SELF_BOX = (
    r"self_attn|self_attention|attention\.self|attn\.attention|attention\.attention|attention\.attn|attention|attn1?|"
    r"layer\.\d+\.SelfAttention|temporal_block|mha|norm_attn_norm\.attn|mixer"
)
_CROSS_BOX = (
    r"encoder_attn|crossattention\.self|crossattention\.attention|crossattention|cross_attention|cross_attn|layer\.\d+\.EncDecAttention|"
    r"multihead_attn|attn2"
)
_PROJECTIONS = {
    "q_a": ("q_a_proj",),
    "q_b": ("q_b_proj",),
    "kv_a": ("kv_a_proj_with_mqa", "kv_a_proj"),
    "kv_b": ("kv_b_proj",),
    "qkv": ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "wqkv", "qkv", "linear_qkv", "in_proj_weight", "W_pack"),
    "q": ("q_proj", "query_proj", "query", "q_lin", "wq", "Wq", "to_q", "q"),
    "k": ("k_proj", "key_proj", "key", "k_lin", "wk", "Wk", "to_k", "k"),
    "v": ("v_proj", "value_proj", "value", "v_lin", "wv", "Wv", "to_v", "v"),
    "o": (
        "o_proj", "out_proj", "output_proj", "output.dense", "dense", "out_lin", "wo", "Wo", "c_proj", "linear_proj",
        "proj", "to_out.0", "to_out", "out", "o",
    ),
}  # fmt: skip
_PROJECTION_OF = {leaf: role for role, leaves in _PROJECTIONS.items() for leaf in leaves}
_MIXERS = ("mixer", "temporal_block")
_MIXER_LEAVES = ("q_proj", "k_proj", "v_proj", "o_proj")  # a mixer of another kind has an out_proj too
_ATTENTION_TAIL = re.compile(
    rf"(?:(?P<cross>{_CROSS_BOX})|(?P<self>{_SELF_BOX}))\."
    rf"(?P<leaf>{'|'.join(map(re.escape, sorted(_PROJECTION_OF, key=len, reverse=True)))})(?:\.weight)?"
)
# llama.cpp and OLMo's own code have no boxes: their names are read as if they had.
_WITHOUT_BOXES = {
    **{f"ffn_{leaf}.weight": f"mlp.ffn_{leaf}" for leaf in ("up", "gate", "down")},
    **{f"ffn_{leaf}_exps.weight": f"mlp.experts.ffn_{leaf}" for leaf in ("up", "gate", "down")},
    **{f"ffn_{leaf}_shexp.weight": f"mlp.shared_expert.ffn_{leaf}" for leaf in ("up", "gate", "down")},
    **{f"attn_{leaf}.weight": f"attn.{leaf}_proj" for leaf in ("q", "k", "v", "qkv", "q_a", "q_b", "kv_b")},
    "attn_kv_a_mqa.weight": "attn.kv_a_proj_with_mqa",
    "attn_output.weight": "attn.o_proj",
    "att_proj.weight": "attn.qkv_proj",
    "attn_out.weight": "attn.o_proj",
    **{f"{leaf}_proj.weight": f"attn.{leaf}_proj" for leaf in ("q", "k", "v")},
    **{f"{leaf}.weight": f"mlp.{leaf}" for leaf in ("ff_proj", "ff_out")},
}
# What wraps a module, and is no part of its own name: FSDP, checkpointing, torch.compile, adapters that are not merged.
_WRAPPERS = {
    "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_orig_mod", "module", "base_layer"
}  # fmt: skip
# Gate and up in the columns of stacked experts: only the architecture tells whether they are halves or alternate.
_COLUMN_HALVES = re.compile(r"(llama4|qwen3_vl_moe|aria|openai_privacy_filter).*")
_ALTERNATING = re.compile(r"gpt_oss")


def taken(names: Iterable[str], shape: Shape | None = None, model_type: str | None = None) -> list[Taken]:
    """What each tensor was taken for; tensors that are not taken are not listed.

    shape: needed for parts, experts that are stacked in one tensor, and gate and up in one matrix. Without it such
    tensors are named in full. model_type: what config.json calls the architecture.

    >>> [(found.group, found.layer) for found in taken(["h.3.mlp.c_fc.weight", "h.3.attn.c_attn.weight", "ln"])]
    [('attention_qkv', 'h.3'), ('mlp', 'h.3')]
    """
    names = list(names)
    return [*_attention(names), *_mlps(names, shape, model_type), *_sequences(names, shape)]


def is_number(word: str) -> bool:
    """Whether a word of a name counts something, as layers do. Nothing has 10^9 of them, and Python reads no number
    of 5,000 digits.

    >>> is_number("12"), is_number("x1"), is_number("1" * 5000)
    (True, False, False)
    """
    return len(word) <= 9 and word.isdecimal()


def layer_of(name: str) -> str | None:
    """The layer in which a tensor lies, if its name is a known one."""
    found = _read(name)
    return found[0] if found else None


def _read(name: str) -> tuple[str, re.Match[str]] | None:
    """The layer of a name and what its tail is known as; the layer ends at the first number with a known tail."""
    at = 0
    for word in name.split("."):
        at += len(word) + 1
        if is_number(word) and (found := _known_tail(name[at:])):
            return name[: at - 1], found
    return None


@lru_cache(maxsize=100_000)  # all layers have the same tails, and all checkpoints of a series
def _known_tail(tail: str) -> re.Match[str] | None:
    tail = ".".join(word for word in tail.split(".") if word not in _WRAPPERS)
    tail = _WITHOUT_BOXES.get(tail, tail)
    return _MLP_TAIL.fullmatch(tail) or _ATTENTION_TAIL.fullmatch(tail) or _SEQUENCE_TAIL.fullmatch(tail)


def _tails(names: Iterable[str], kind: re.Pattern[str]) -> Iterator[tuple[str, str, re.Match[str]]]:
    """(name, layer, tail) of the names whose tail is of one kind."""
    for name in names:
        if (found := _read(name)) and found[1].re is kind:
            yield name, *found


def _attention(names: Iterable[str]) -> Iterator[Taken]:
    for name, layer, found in _tails(names, _ATTENTION_TAIL):
        if found["self"] not in _MIXERS or found["leaf"] in _MIXER_LEAVES:
            kind = CROSS if found["cross"] else ATTENTION
            yield Taken(name, f"{kind}_{_PROJECTION_OF[found['leaf']]}", layer)


def _mlps(names: list[str], shape: Shape | None, model_type: str | None) -> Iterator[Taken]:
    boxes: dict[tuple[str, str, int | None], dict[str, str]] = {}
    for name, layer, found in _tails(names, _MLP_TAIL):
        expert = int(found["expert"]) if found["expert"] else None
        leaves = boxes.setdefault((layer, found["box"] or "", expert), {})
        leaves[found["leaf"] or found["direct"]] = name
    for (layer, box, expert), leaves in boxes.items():
        scheme = next((scheme for scheme in _SCHEMES if scheme.fits(leaves)), None)
        roles = {role: leaves[leaf] for role, leaf in scheme.roles.items() if leaf in leaves} if scheme else {}
        stacked = shape is not None and any(len(shape(name)) == 3 for name in roles.values())
        kind = EXPERTS if "experts" in box.split(".") or stacked else SHARED if "shared" in box else MLP
        for role, name, number in _parts(roles, shape, model_type or ""):
            yield Taken(name, kind + role, layer, expert if number is None else number)


def _parts(roles: Mapping[str, str], shape: Shape | None, model_type: str) -> Iterator[tuple[str, str, int | None]]:
    """(role, name, expert) of every matrix in the tensors of one box."""
    if shape is None:
        yield from ((FUSED if role == _UP_FIRST else role, name, None) for role, name in roles.items())
        return
    shapes = {role: shape(name) for role, name in roles.items()}
    for role, name in roles.items():
        experts = shapes[role][0] if len(shapes[role]) == 3 else None
        for expert in [None] if experts is None else range(experts):
            at = "" if expert is None else f"{expert}"
            for part_role, cut in _cuts(role, shapes, model_type):
                index = ",".join(filter(None, (at, cut)))
                yield part_role, f"{name}[{index}]" if index else name, expert


def _cuts(role: str, shapes: Mapping[str, tuple[int, ...]], model_type: str) -> list[tuple[str, str]]:
    """(role, index of the part) of one matrix: two parts where it holds gate and up and it is known how.

    Shapes tell whether it holds both: it is then twice as wide as what the projection back reads.
    """
    if role == _UP_FIRST:
        halves = _cuts(FUSED, {**shapes, FUSED: shapes[role]}, model_type)
        return halves if len(halves) == 1 else [(GATE, halves[1][1]), (UP, halves[0][1])]
    if role not in (UP, FUSED) or GATE in shapes or DOWN not in shapes or len(shapes[DOWN]) != len(shapes[role]):
        return [(role, "")]
    rows, columns = shapes[role][-2:]
    back_rows, back_columns = shapes[DOWN][-2:]
    in_rows = (rows, columns) == (2 * back_columns, back_rows)
    in_columns = (rows, columns) == (back_columns, 2 * back_rows)
    if role == UP:
        return [(FUSED if in_rows or in_columns else UP, "")]
    if (rows, columns) == (back_columns, back_rows):  # a plain MLP under a name that others use for both
        return [(UP, "")]
    lead = "" if in_rows else ":,"
    if (in_rows or in_columns) and _ALTERNATING.fullmatch(model_type):
        return [(GATE, f"{lead}0::2"), (UP, f"{lead}1::2")]
    if in_rows or (in_columns and _COLUMN_HALVES.fullmatch(model_type)):
        half = rows // 2 if in_rows else columns // 2
        return [(GATE, f"{lead}0:{half}"), (UP, f"{lead}{half}:{2 * half}")]
    return [(FUSED, "")]


def _sequences(names: Iterable[str], shape: Shape | None) -> Iterator[Taken]:
    """Lower and upper projection of an MLP that is a torch.nn.Sequential: its two matrices, whatever their numbers."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for name, layer, tail in _tails(names, _SEQUENCE_TAIL):
        if shape is None or len(shape(name)) == 2:
            found.setdefault((layer, tail["box"]), {})[int(tail["at"])] = name
    for (layer, _), numbered in found.items():
        if len(numbered) != 2:
            continue
        first, second = (numbered[at] for at in sorted(numbered))
        gated = shape is not None and shape(first)[0] == 2 * shape(second)[1]
        yield Taken(first, MLP + (FUSED if gated else UP), layer)
        yield Taken(second, MLP + DOWN, layer)
