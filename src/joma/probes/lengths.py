"""How long the sequences are that a model reads while it is measured, and on how long ones it was trained.

What is measured beyond the length of training does not describe the trained model. And a table of positions has an end:
more tokens than rows cannot be read at all. Rotary positions have no end: a model with them reads on without a word.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from joma.host.errors import BadInput
from joma.host.words import brief

SEQ_LEN = 512
"""Tokens per sequence unless given; fewer where the model was trained on fewer."""
SHORTEST = 2
"""Tokens per sequence at least: one to read and one to predict."""
_ORIGINAL = "original_max_position_embeddings"
_FIELDS = ("n_positions", "max_position_embeddings", "max_seq_len", "n_ctx", "seq_length", _ORIGINAL)
"""Where configs say it. Of two that say the same, the first is named; a table of positions is as long as it says."""
_AFTER_PADDING = frozenset(
    ("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "longformer", "luke", "markuplm", "mpnet", "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod")
)  # fmt: skip
"""Models that count positions from behind that of the padding token, so the first rows of their table are not used."""


class Lengths(NamedTuple):
    """What a config says of lengths, in tokens; None where it says nothing.

    >>> lengths_of({"model_type": "gpt2", "n_positions": 1024})
    Lengths(trained=1024, field='n_positions', most=1024)
    """

    trained: int | None
    """The longest sequence of training, as far as the config tells."""
    field: str | None
    """The field that tells it."""
    most: int | None
    """The longest sequence that can be read; None: positions have no end."""

    def __repr__(self) -> str:
        return brief(self)


def lengths_of(config: Any) -> Lengths:
    """The lengths of a model by its config: one of transformers, or a mapping as config.json holds.

    Where positions were rescaled, the length before that counts. max_position_embeddings of a model with rotary
    positions is what its authors allow; whether it was trained on so many tokens is not known.
    """
    entries = _entries(config)
    found = [(value, name) for name in _FIELDS for value in _lengths_in(entries, name)]
    trained, field = min(found, key=lambda one: one[0], default=(None, None))
    # Positions may go on beyond what the config names: rotations do, and so does BLOOM's slope by distance.
    endless = entries.get("rope_parameters") or entries.get("alibi") or entries.get("model_type") == "bloom"
    if trained is None or endless:
        return Lengths(trained, field, None)
    most = found[0][0]
    if str(entries.get("model_type")) in _AFTER_PADDING:
        padding = entries.get("pad_token_id")
        most = max(1, most - 1 - (padding if isinstance(padding, int) and padding > 0 else 0))
    return Lengths(min(trained, most), field, most)


def default_seq_len(config: Any) -> int:
    """Tokens per sequence unless given: 512, or what the model was trained on where that is less."""
    return min(SEQ_LEN, lengths_of(config).trained or SEQ_LEN)


def must_take(config: Any, seq_len: object, *, least: int = SHORTEST) -> int:
    """Refuse a length that no model could read, or that this model's positions cannot take."""
    if not isinstance(seq_len, int) or isinstance(seq_len, bool) or seq_len < least:
        raise BadInput(f"seq_len must be a number of tokens, at least {least}, got {seq_len}")
    most = lengths_of(config).most
    if most is not None and seq_len > most:
        kind = _entries(config).get("model_type")
        where = f"this {kind} model" if kind else "this model"
        raise BadInput(f"seq_len must be at most {most}, where the positions of {where} end, got {seq_len}")
    return seq_len


def beyond_training(config: Any, seq_len: int) -> str | None:
    """The warning where sequences are longer than those of training, in one sentence; None where they are not."""
    known = lengths_of(config)
    if known.trained is None or seq_len <= known.trained:
        return None
    before = " before its positions were rescaled" if known.field == _ORIGINAL else ""
    return (
        f"sequences have {seq_len} tokens, and as far as the config says the model was trained on at most "
        f"{known.trained}{before} ({known.field}): numbers of later positions may not describe the trained model"
    )


def unknown_training(config: Any, seq_len: int) -> str | None:
    """The softer word where a config does not tell on what length the model was trained; None where it does."""
    if lengths_of(config).trained is not None:
        return None
    return (
        f"the config does not say how long the sequences of training were: if they had fewer than {seq_len} tokens, "
        "choose a smaller seq_len"
    )


def _entries(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    try:
        inside = config.get_text_config() if hasattr(config, "get_text_config") else config
    except ValueError:  # several texts, and none of them is the one
        inside = config
    names = (*_FIELDS, "model_type", "pad_token_id", "rope_parameters", "rope_scaling", "alibi")
    return {name: getattr(inside, name) for name in names if getattr(inside, name, None) is not None}


def _lengths_in(entries: Mapping[str, Any], name: str) -> Iterator[int]:
    value = entries.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:  # XLNet has no limit, and says -1
        yield value
    for inside in (value for key, value in entries.items() if key.startswith("rope_") or key.endswith("_attention")):
        if name == _ORIGINAL and isinstance(inside, Mapping):
            yield from _lengths_in(inside, name)
