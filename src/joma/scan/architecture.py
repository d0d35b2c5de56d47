"""Where the matrices are that a measure needs: found by the names that architectures give them, or by pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from joma.scan.errors import CheckpointError, UnknownNames

MLP, GATE, EMBEDDING = "mlp", "mlp_gate", "embedding"

# The MLP's lower (input) projection. Its orientation does not matter to its singular values, so GPT-2's transposed
# Conv1D needs no care. The first pattern that fits a checkpoint decides.
_LOWER = (
    r"(layers|h)\.\d+\.mlp\.dense_h_to_4h",  # GPT-NeoX (Pythia), BLOOM, Falcon
    r"(layers|h)\.\d+\.mlp\.c_fc",  # GPT-2, GPT-Neo, nanoGPT, StarCoder2
    r"h\.\d+\.mlp\.fc_in",  # GPT-J, CodeGen
    r"layers\.\d+\.mlp\.up_proj",  # Llama, Mistral, Gemma, Qwen, OLMo
    r"layers\.\d+\.feed_forward\.w3",  # Llama in its original names
    r"layers\.\d+\.mlp\.fc1",  # Phi, CLIP, SigLIP
    r"layers\.\d+\.fc1",  # OPT, BART
    r"layer\.\d+\.intermediate\.dense",  # BERT, RoBERTa, ViT
    r"layer\.\d+\.ffn\.lin1",  # DistilBERT
    r"block\.\d+\.layer\.\d+\.DenseReluDense\.wi(_1)?",  # T5
    r"layers\.\d+\.linear1",  # torch.nn.TransformerEncoder
)
_GATE = (r"layers\.\d+\.mlp\.gate_proj", r"layers\.\d+\.feed_forward\.w1", r"DenseReluDense\.wi_0")
_EMBEDDING = (
    r"embed_in",
    r"wte",
    r"embed_tokens",
    r"word_embeddings",
    r"tok_embeddings",
    r"token_embedding",
    r"shared",
)
_KNOWN = {MLP: _LOWER, GATE: _GATE, EMBEDDING: _EMBEDDING}


def find_groups(names: Iterable[str], patterns: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The tensors of every group that can be found, by layer.

    Groups are "mlp", "mlp_gate" and "embedding", as far as the architecture's names are known, and those of
    `patterns`: regular expressions that must fit a whole tensor name, and that take precedence.

    >>> find_groups(["h.10.mlp.c_fc.weight", "h.2.mlp.c_fc.weight", "lnf"], {"norm": "ln."})
    {'mlp': ('h.2.mlp.c_fc.weight', 'h.10.mlp.c_fc.weight'), 'norm': ('lnf',)}
    """
    ordered = sorted(names, key=_natural)
    found = {group: _first_fit(ordered, known) for group, known in _KNOWN.items()}
    found |= {group: _matching(ordered, re.compile(pattern)) for group, pattern in patterns.items()}
    if MLP in patterns and GATE not in patterns:
        del found[GATE]
    return {group: fitting for group, fitting in found.items() if fitting}


def pick_groups(
    found: Mapping[str, tuple[str, ...]], wanted: Iterable[str], names: Iterable[str], model_type: str | None
) -> dict[str, tuple[str, ...]]:
    """The wanted groups among those found; the MLP brings its gate, where it has one."""
    chosen: dict[str, tuple[str, ...]] = {}
    for group in wanted:
        if group not in found:
            weights = [name for name in names if name.endswith("weight")] or list(names)
            example = weights[len(weights) // 2] if weights else "nothing: there are no tensors"
            known = f"{group} tensors are not known in this architecture ({model_type or 'without config.json'})"
            failed = known if group in _KNOWN else f"--pattern {group} fits no tensor"
            raise UnknownNames(f"{failed}; name them with --pattern '{group}=REGEX' (names look like {example})")
        chosen[group] = found[group]
        if group == MLP and GATE in found:
            chosen[GATE] = found[GATE]
    return chosen


def read_patterns(given: Iterable[str]) -> dict[str, str]:
    """NAME=REGEX options as a dictionary.

    >>> read_patterns(["mlp=h[.][0-9]+[.]up"])
    {'mlp': 'h[.][0-9]+[.]up'}
    """
    found: dict[str, str] = {}
    for option in given:
        name, equals, pattern = option.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w{0,40}", name) or not pattern:
            raise CheckpointError(f"--pattern takes NAME=REGEX, as in mlp='.*\\.up\\.weight', got {option!r}")
        if name in found:
            raise CheckpointError(f"--pattern names {name} twice")
        try:
            re.compile(pattern)
        except re.error as error:
            raise CheckpointError(f"--pattern {name} is no regular expression: {error}") from None
        found[name] = pattern
    return found


def _first_fit(names: list[str], patterns: Iterable[str]) -> tuple[str, ...]:
    for pattern in patterns:
        fitting = _matching(names, re.compile(rf"(?:.*\.)?{pattern}\.weight"))
        if fitting:
            return fitting
    return ()


def _matching(names: list[str], pattern: re.Pattern[str]) -> tuple[str, ...]:
    return tuple(name for name in names if pattern.fullmatch(name))


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers inside names count as numbers: layer 2 before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]
