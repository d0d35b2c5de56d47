"""The parameters of a running model by what they do: the groups that a change is allocated to."""

import re
from collections.abc import Mapping
from math import inf
from typing import Any

from torch import Tensor, nn

from joma.scan.names.architecture import located
from joma.scan.names.roles import taken

QK, VALUES, FUSED, MLP, NORMS, OTHER = "QK", "value and output", "QKV", "MLP", "norms", "other"
EMBEDDINGS, OUTPUT, LAST_NORM = "embeddings", "output", "last norm"
KINDS = (EMBEDDINGS, QK, FUSED, VALUES, MLP, NORMS, OTHER, LAST_NORM, OUTPUT)
"""Of groups, in the order of a table; all but embeddings, last norm and output stand behind "layer N"."""
Part = str | tuple[str, tuple[Any, ...]]
"""A parameter, or with an index some entries of it, as `joma.measure.allocation.allocate` takes them."""
_ROLES = {
    **dict.fromkeys(("attention_q", "attention_k", "attention_q_a", "attention_q_b"), QK),
    **dict.fromkeys(("attention_v", "attention_o"), VALUES),
    **dict.fromkeys(("attention_qkv", "attention_kv_a", "attention_kv_b"), FUSED),
}
_QUERY_NORM = re.compile(r"(q|k|query|key)_?(layer_?)?norm|sinks")
_NORM = re.compile(r"norm|(^|\.)ln_?\w*(\.|$)", re.IGNORECASE)
_EMBEDDED = re.compile(r"embed|(^|\.)w[tp]e\.")


def parameter_groups(model: nn.Module) -> dict[str, list[Part]]:
    """Every parameter of a transformers model in one group: "embeddings", "layer 0 QK", ..., "output".

    Roles are found by name, as a scan finds its matrices; a bias goes with its weight. A matrix that holds queries,
    keys and values is taken apart where its order is known (GPT-NeoX, GPT-2, Phi-3), and is a group "QKV" elsewhere.
    Layers count from 0. Output weights that are tied to the embeddings are embeddings.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> list(parameter_groups(GPT2LMHeadModel(shape)))
    ['embeddings', 'layer 0 QK', 'layer 0 value and output', 'layer 0 MLP', 'layer 0 norms', 'last norm']
    """
    parameters = dict(model.named_parameters())
    found: dict[tuple[float, int], list[Part]] = {}
    for name, (layer, kind) in _places(model, parameters).items():
        parts = _split(model, name, parameters[name]) if kind == FUSED else {kind: name}
        for each, part in parts.items():
            at = -1.0 if each == EMBEDDINGS else inf if layer is None else layer
            found.setdefault((at, KINDS.index(each)), []).append(part)
    ordered = [(f"layer {at:.0f} " if 0 <= at < inf else "", KINDS[rank], parts)
               for (at, rank), parts in sorted(found.items(), key=lambda item: item[0])]  # fmt: skip
    return {f"{layer}{kind}": parts for layer, kind, parts in ordered}


def kind_of(group: str) -> tuple[int | None, str]:
    """Layer and kind of a group by its name."""
    found = re.fullmatch(r"layer (\d{1,18}) (.+)", group)
    return (int(found[1]), found[2]) if found else (None, group)


def _places(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, tuple[int | None, str]]:
    roles = {found.name: _ROLES.get(found.group, MLP) for found in taken([_weight(name) for name in parameters])}
    outputs = _ids(getattr(model, "get_output_embeddings", lambda: None)())
    inputs = _ids(getattr(model, "get_input_embeddings", lambda: None)())
    places: dict[str, tuple[int | None, str]] = {}
    for (name, parameter), row in zip(parameters.items(), located(map(_weight, parameters)), strict=True):
        if id(parameter) in inputs:
            places[name] = None, EMBEDDINGS
        elif id(parameter) in outputs:
            places[name] = None, OUTPUT
        elif row.layer is None:
            kind = LAST_NORM if _NORM.search(name) else EMBEDDINGS if _EMBEDDED.search(name) else OTHER
            places[name] = None, kind
        else:
            norm = QK if _QUERY_NORM.search(name) else NORMS if _NORM.search(name) else None
            places[name] = row.layer, roles.get(_weight(name)) or norm or (MLP if ".mlp." in name else OTHER)
    return places


def _weight(name: str) -> str:
    return re.sub(r"([._])bias$", r"\1weight", name)  # the matrix that a bias belongs to


def _ids(module: nn.Module | None) -> set[int]:
    return set() if module is None else {id(parameter) for parameter in module.parameters()}


def _split(model: nn.Module, name: str, parameter: Tensor) -> dict[str, Part]:
    """Queries and keys, and values, of a parameter that holds all three; all in one where its order is not known."""
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind == "gpt_neox":  # head by head its query, key and value
        own = 3 * config.hidden_size // config.num_attention_heads
        row = range(parameter.shape[0])
        return {QK: (name, ([at for at in row if at % own < 2 * own // 3],)),
                VALUES: (name, ([at for at in row if at % own >= 2 * own // 3],))}  # fmt: skip
    if kind == "gpt2":  # all queries, all keys, all values, in columns
        end = 2 * parameter.shape[-1] // 3
        return {QK: (name, (..., slice(0, end))), VALUES: (name, (..., slice(end, None)))}
    if kind == "phi3" and "qkv_proj" in name:  # the same in rows, with fewer keys and values than queries
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        values = parameter.shape[0] * config.num_key_value_heads // heads
        return {QK: (name, (slice(0, -values),)), VALUES: (name, (slice(-values, None),))}
    return {FUSED: name}
