"""The networks that the superposition study reads, and what it reads off them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joma.claims.contract import NotRun, Progress
from joma.data.python_source import source_text
from joma.host.devices import lacking
from joma.measure.superposition import peaks

_PIECE = re.compile(r"\n *| ?[A-Za-z_]+| ?\d+| ?[^\sA-Za-z_\d]|\s")
_DOWN = re.compile(
    r"\d+\.(mlp\.(dense_4h_to_h|c_proj|down_proj|fc_out|fc2)|feed_forward\.w2|fc2|output\.dense|ffn\.lin2|linear2)$"
)
_RATE = 3e-3
_KEYS = 16  # most attended positions kept for every query
_TRAINING_SHARE = 0.8  # of the text; the rest is what the networks are read on
_SKIPPED = 0.25  # of a text at its beginning: queries there have no context to speak of
COMMAND = "joma run fig10 --model FOLDER --text FILE"


@dataclass(frozen=True)
class Material:
    """Two networks that differ in training alone, and the texts to read them on."""

    trained: nn.Module
    untrained: nn.Module
    tokens: Tensor  # (texts, length)
    words: list[list[str]]  # (texts, length) as the text has them, also where the network's vocabulary does not
    losses: list[float]


@dataclass(frozen=True)
class Layer:
    """What one layer's neurons and attention did on every text."""

    height: Tensor  # (texts, neurons) largest activation
    position: Tensor  # (texts, neurons) and where
    keys: Tensor  # (texts, length, m) most attended positions of every query
    weights: Tensor  # (texts, length, m) and their attention, averaged over heads


def prepare(config: Any, progress: Progress) -> Material:
    """The model that the config names, or a small one trained on the spot."""
    try:
        import transformers
    except ImportError:
        raise NotRun("transformers is not installed", "pip install 'joma[hf]' && joma verify fig10") from None
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # progress is ours to show
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return _given(config) if config.model else _trained_here(config, progress)
    finally:
        transformers.logging.set_verbosity(verbosity)


def read(model: Any, tokens: Tensor, *, batch: int, progress: Callable[[float], None]) -> list[Layer]:
    """Run `model` on every text and keep the peaks of its MLP neurons and the strongest attention, layer by layer."""
    down = [module for name, module in model.named_modules() if _DOWN.search(name)]
    hidden: dict[nn.Module, Tensor] = {}
    hooks = [module.register_forward_pre_hook(lambda m, x: hidden.__setitem__(m, x[0])) for module in down]
    before = model.config._attn_implementation
    parts: list[list[tuple[Tensor, ...]]] = []
    at = next(model.parameters()).device
    try:
        model.set_attn_implementation("eager")
        model.eval()
        for start in range(0, len(tokens), batch):
            ids = tokens[start : start + batch]
            with torch.inference_mode():
                attentions = model(input_ids=ids.to(at), output_attentions=True, use_cache=False).attentions
            if len(attentions or ()) != len(down) or len(hidden) != len(down):
                raise ValueError(
                    f"{type(model).__name__} shows {len(attentions or ())} attentions for {len(down)} MLPs: "
                    "its neurons cannot be paired with what they attend to"
                )
            parts.append(
                [_layer(hidden[module], each, ids.shape) for module, each in zip(down, attentions, strict=True)]
            )
            progress((start + len(ids)) / len(tokens))
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(before)
    return [Layer(*(torch.cat(each) for each in zip(*layer, strict=True))) for layer in zip(*parts, strict=True)]


def _layer(hidden: Tensor, attention: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    skip = int(_SKIPPED * shape[1])
    height, position = peaks(hidden.float().view(*shape, -1)[:, skip:])
    strongest = attention.float().mean(1).topk(min(_KEYS, shape[1]), dim=-1)
    return height.cpu(), skip + position.cpu(), strongest.indices.cpu(), strongest.values.cpu()


def _trained_here(config: Any, progress: Progress) -> Material:
    """A GPT-NeoX of a few layers, trained on the first part of Python source and read on the rest."""
    import transformers

    words = _PIECE.findall(_text(config))
    common = [word for word, _ in Counter(words).most_common(config.vocabulary - 1)]
    number = {word: i + 1 for i, word in enumerate(common)}
    ids = torch.tensor([number.get(word, 0) for word in words])
    cut = int(len(ids) * _TRAINING_SHARE)
    layout = transformers.GPTNeoXConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=4,
        intermediate_size=4 * config.width,
        hidden_act="relu",
        max_position_embeddings=config.length,
        bos_token_id=None,
        eos_token_id=None,
    )
    untrained = transformers.GPTNeoXForCausalLM(layout)
    trained = transformers.GPTNeoXForCausalLM(layout)
    trained.load_state_dict(untrained.state_dict())
    _check_device(config.device)
    losses = _train(trained.to(config.device), ids[:cut], config, progress)
    at = cut + _spread(len(ids) - cut, config)
    shown = [[words[i] for i in row] for row in at.tolist()]
    return Material(trained, untrained.to(config.device), ids[at], shown, losses)


def _train(model: Any, ids: Tensor, config: Any, progress: Progress) -> list[float]:
    generator = torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.01)
    losses: list[float] = []
    model.train()
    for step in range(config.steps):
        starts = torch.randint(len(ids) - config.length, (config.batch, 1), generator=generator)
        batch = ids[starts + torch.arange(config.length)].to(config.device)
        for group in optimizer.param_groups:  # up over the first 20 steps, then down to nothing
            group["lr"] = _RATE * min((step + 1) / 20, 1 - step / config.steps)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0:
            progress(0.7 * step / config.steps, f"training, loss {losses[-1]:.2f}")
    return losses


def _given(config: Any) -> Material:
    """A model folder or hub name, beside the same architecture with random weights. Never runs code from there."""
    import transformers

    try:
        trained, info = transformers.AutoModelForCausalLM.from_pretrained(
            config.model, trust_remote_code=False, output_loading_info=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise NotRun(f"{config.model} could not be read ({str(error).splitlines()[0]})", COMMAND) from None
    if lost := sorted(info["missing_keys"]):  # transformers makes them up, at random
        raise NotRun(f"the weights of {config.model} lack {lost[0]}", COMMAND)
    untrained = type(trained)(trained.config).to(trained.dtype)
    ids = torch.tensor(tokenizer(_text(config), verbose=False)["input_ids"])
    tokens = ids[_spread(len(ids), config)]
    piece = {i: tokenizer.decode([i]) for i in tokens.unique().tolist()}
    words = [[piece[i] for i in row] for row in tokens.tolist()]
    _check_device(config.device)
    return Material(trained.to(config.device), untrained.to(config.device), tokens, words, [])


def _check_device(device: str) -> None:
    if lacks := lacking(device):
        raise NotRun(str(lacks), f"{COMMAND} --device cpu")


def _text(config: Any) -> str:
    if not config.text:
        return source_text(config.characters)
    try:
        return Path(config.text).read_text(encoding="utf-8")[: config.characters]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"text {config.text!r} could not be read as UTF-8: {error}") from None


def _spread(count: int, config: Any) -> Tensor:
    """(texts, length) indices of windows at equal distances; they must not overlap, or contexts would repeat."""
    step = count // config.texts
    if step < config.length:
        raise ValueError(
            f"{count} tokens do not hold {config.texts} texts of {config.length}: raise characters or lower texts"
        )
    windows: Tensor = (step * torch.arange(config.texts))[:, None] + torch.arange(config.length)
    return windows
