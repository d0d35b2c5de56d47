"""A series of checkpoints of our own: a small GPT-NeoX trained from scratch, saved on Pythia's schedule.

Public series are downloads of many gigabytes; this one is made in minutes (on a GPU) or seconds (tiny, on a CPU) and
is laid out as transformers lays it out, one folder per step, so that a program that reads the one reads the other.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joma.host.errors import BadInput
from joma.host.files import make_folder, write_json
from joma.host.progress import Progress, silent
from joma.host.words import brief_repr
from joma.training.descent import descend


@brief_repr
@dataclass(frozen=True)
class SeriesConfig:
    """Shape of the model and of its training. The learning rate warms up and falls along a cosine, as Pythia's does.

    - layers: number of blocks
    - width: of the residual stream
    - heads: attention heads per block
    - vocabulary: tokens of the tokenizer that is made from the text
    - context: tokens per sequence
    - batch: sequences per step
    - steps: number of training steps
    - rate: the largest learning rate
    - warmup: the share of the steps over which the rate rises
    - seed: of the initial weights and the order of the text

    >>> SeriesConfig(layers=2, steps=100).width
    64
    """

    layers: int = 3
    width: int = 64
    heads: int = 4
    vocabulary: int = 512
    context: int = 64
    batch: int = 16
    steps: int = 300
    rate: float = 3e-3
    warmup: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        least = dict.fromkeys(("layers", "width", "heads", "context", "batch", "steps"), 1) | {"seed": 0}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared by {self.heads} heads")
        if self.width < 4 * self.heads:  # transformers would build it all the same, and nothing would have a position
            got = f"width {self.width} over {self.heads} heads is {self.width // self.heads}"
            raise ValueError(f"positions turn a quarter of each head, which must be 4 wide at least: {got}")
        if self.vocabulary < 260:
            raise ValueError(f"vocabulary must be at least 260 (all bytes and a few merges), got {self.vocabulary}")
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise ValueError(f"rate must be finite and not negative, got {self.rate}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup is a share of the steps, from 0 to 1, got {self.warmup}")


def checkpoint_steps(steps: int) -> list[int]:
    """Pythia's schedule up to `steps`: 0, the powers of two up to 512, every thousandth, and the last.

    >>> checkpoint_steps(2500)
    [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 2500]
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    wanted = {0, steps, *(2**i for i in range(10)), *range(1000, steps + 1, 1000)}
    return sorted(step for step in wanted if step <= steps)


def train_series(
    folder: Path,
    text: str,
    config: SeriesConfig,
    *,
    device: str = "cpu",
    progress: Progress = silent,
    save_at: list[int] | None = None,
) -> list[float]:
    """Train on `text`, saving folder/step0, folder/step1, ...; returns the loss at every step.

    A tokenizer is made from the text and saved with every checkpoint. No position is seen more than once per epoch;
    batches run through the text in a fixed shuffled order. float32 weights; bf16 arithmetic on a GPU.
    A folder that already holds all of the series of this config and text is left as it is.

    >>> import tempfile
    >>> config = SeriesConfig(layers=1, width=16, heads=2, vocabulary=260, context=8, batch=2, steps=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     losses = train_series(Path(folder), "to be or not to be " * 50, config)
    ...     len(losses), sorted(path.name for path in Path(folder).iterdir())
    (2, ['series.json', 'step0', 'step1', 'step2'])
    """
    at = checkpoint_steps(config.steps) if save_at is None else save_at
    identity = {"config": asdict(config), "text": hash_of(text), "save_at": at}
    begun = {"schema": "joma-series", "identity": identity}
    done = folder / "series.json"
    try:  # a file that cannot be read is none
        stored = json.loads(done.read_text(encoding="utf-8")) if done.is_file() else {}  # a device never ends
        if stored["identity"] == identity and "losses" in stored:
            losses: list[float] = stored["losses"]
            return losses
    except (OSError, ValueError, KeyError, TypeError):
        pass
    make_folder(folder)
    there = [] if done.exists() else [name for step in at if (folder / (name := f"step{step}")).exists()]
    if there:
        raise BadInput(f"{folder} holds {there[0]} of another training; name another folder", argument="folder")
    write_json(done, begun)  # from now on what is in the folder is ours
    progress(0.0, "making the tokenizer")
    lines = text.splitlines(keepends=True)
    tokenizer = _tokenizer(lines, config.vocabulary)
    # many pieces at a time: one string of megabytes would go through one core
    pieces = ["".join(lines[i : i + 500]) for i in range(0, len(lines), 500)]
    tokens = torch.tensor([token for piece in tokenizer(pieces)["input_ids"] for token in piece])
    losses = _train(folder, tokens, tokenizer, config, device, progress, set(at))
    write_json(done, begun | {"losses": losses})
    return losses


def hash_of(text: str) -> str:
    """A short name for a text.

    >>> hash_of("to be or not to be")
    '2e9d72a733ae5a6c'
    """
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:16]


def _train(
    folder: Path, tokens: Tensor, tokenizer: Any, config: SeriesConfig, device: str, progress: Progress, at: set[int]
) -> list[float]:
    from transformers.utils import logging

    model = _model(config).to(device)
    length = config.context + 1
    windows = tokens[: len(tokens) // length * length].view(-1, length).to(device)
    if len(windows) < config.batch:
        raise ValueError(f"the text gives {len(windows)} windows of {config.context} tokens, fewer than one batch")
    order = torch.Generator().manual_seed(config.seed)
    queue: list[Tensor] = []

    def loss(step: int) -> Tensor:
        if not queue:
            parts = torch.randperm(len(windows), generator=order).split(config.batch)
            queue.extend(part for part in parts if len(part) == config.batch)
        batch = windows[queue.pop(0).to(device)]
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device != "cpu"):
            logits = model(batch[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    def save(step: int) -> None:
        if step in at:
            model.save_pretrained(folder / f"step{step}")
            tokenizer.save_pretrained(folder / f"step{step}")

    logging.disable_progress_bar()  # ours speaks for all of it
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    warm = max(1, round(config.warmup * config.steps))

    def share(step: int) -> float:
        """Of the rate: it rises, and then falls along a cosine."""
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, config.steps - warm)))

    losses: list[Tensor] = []
    save(0)
    for step, found in descend(optimizer, loss, config.steps, share=share, clip=1.0):
        losses.append(found)
        if step % 50 == 0:
            progress(step / config.steps, f"training, step {step}, loss {found.item():.2f}")
        save(step + 1)
    return [float(loss) for loss in losses]


def _model(config: SeriesConfig) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(config.seed)
    shape = GPTNeoXConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        max_position_embeddings=config.context,
        rotary_pct=0.25,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    return GPTNeoXForCausalLM(shape)


def _tokenizer(lines: list[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
