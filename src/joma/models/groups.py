"""The parameters of a decoder by what they do: what can be frozen, and what a change can be allocated to."""

from types import EllipsisType
from typing import TypeAlias

from joma.models.decoder import DecoderConfig, block_parameters

Part: TypeAlias = str | tuple[str, tuple[slice | int | EllipsisType, ...]]
"""A parameter by its name, or with an index the part of it that the index picks; its first dimension is the member."""

_ALL = slice(None)


def parameter_groups(config: DecoderConfig, *, by_layer: bool = False) -> dict[str, list[Part]]:
    """Every parameter of such a decoder, in one group each; groups that would be empty are left out.

    - embeddings: of the words, and of the positions where they are learned. Tied ones are the output matrix too.
    - QK: what makes the queries and the keys
    - value and output: what makes the values and gates what is mixed of them, and attention's output matrix
    - MLP: both matrices with their biases
    - norms: scales and shifts, those of the last norm included
    - output: the output matrix with its bias

    by_layer: QK, value and output, MLP and norms of every layer apart, as in "layer 1 QK". The last norm is then a
    group of its own. `joma.measure.allocation.allocate` takes these as groups, `joma.training.branch` as what is frozen.

    >>> groups = parameter_groups(DecoderConfig(vocabulary=9, width=8, mlp=8, layers=2))
    >>> list(groups)
    ['embeddings', 'QK', 'value and output', 'MLP', 'norms', 'output']
    >>> parameter_groups(DecoderConfig(vocabulary=9, width=8, mlp=8, layers=2), by_layer=True)["layer 2 QK"]
    [('qkv', (slice(None, None, None), 1, Ellipsis, slice(0, 16, None))), ('qkv_bias', (slice(None, None, None), 1, Ellipsis, slice(0, 16, None)))]
    """  # noqa: E501 - the example's output is one line
    kinds = {"embedding": config.embeddings, "position": config.positions}
    last_norm: list[Part] = [*("last_scale", "last_shift")[: {"pre-rms": 1, "pre-layer": 2}.get(config.norm, 0)]]
    groups: dict[str, list[Part]] = {"embeddings": [name for name, kind in kinds.items() if kind == "learned"]}
    if by_layer:
        for layer in range(config.layers):
            groups |= {f"layer {layer + 1} {name}": parts for name, parts in _block(config, layer).items()}
        groups["last norm"] = last_norm
    else:
        groups |= _block(config, _ALL)
        groups["norms"] = [*groups["norms"], *last_norm]
    groups["output"] = [*([] if config.tied else ["out"]), "out_bias"]
    return {name: parts for name, parts in groups.items() if parts}


def _block(config: DecoderConfig, layer: int | slice) -> dict[str, list[Part]]:
    there, width = block_parameters(config), config.width

    def named(*starts: str) -> list[Part]:
        return [(name, (_ALL, layer)) for name in there if name.startswith(starts)]

    def columns(of: slice) -> list[Part]:
        return [(name, (_ALL, layer, ..., of)) for name in ("qkv", "qkv_bias")]

    return {
        "QK": [*columns(slice(0, 2 * width)), *named("sink", "query_s", "key_s")],
        "value and output": [*columns(slice(2 * width, 3 * width)), *named("projection", "value_s", "mixed_s", "gate")],
        "MLP": named("up", "down", "mlp_g"),
        "norms": named("attention_s", "mlp_s"),
    }
