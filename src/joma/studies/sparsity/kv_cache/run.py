"""The networks of the study `kv-cache`: series of checkpoints trained here, and what each checkpoint is asked."""

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.cache import POLICIES, losses
from joma.claims.contract import Least, NotRun, OneOf, Progress, StudyConfig, Within
from joma.claims.guards import at_paper_scale, beats_guessing, needs_device, needs_transformers
from joma.claims.text_source import remember_source
from joma.data.python_source import source_text
from joma.runs import Run
from joma.studies.sparsity.kv_cache.stories import find_stories, load_stories, written
from joma.training.series import SeriesConfig, train_series

ZERO = 0.01  # H2O's zero: a weight below this share of the largest of its query
FREQUENT = 2000  # words from which those that are said twice are drawn
HEAVY = 0.1  # the share of the keys that count as heavy hitters


def answers(
    model: Any, tokens: Tensor, policies: Sequence[str], keeps: Sequence[float], sinks: int, *, seed: int
) -> dict[str, Tensor]:
    """All that is recorded of a checkpoint on tokens (sequences, length). Losses are those of the last quarter.

    loss (sequences,): with the full cache. permuted (sequences,): the same with the first half of the tokens in random
    order. cut (policies, keeps, sequences): with a cut cache.
    zero, effective, top, random zero (layers, heads), sink, overlap, chance: see `sparsity`.
    zero by sequence, effective by sequence (sequences,): means over layers and heads.
    """
    late = slice(3 * tokens.shape[1] // 4, None)

    def mean(ids: Tensor, policy: str = "full", keep: float = 1.0) -> Tensor:
        protected = None if policy in ("full", "window", "top-k") else sinks
        return losses(model, ids, policy, keep, sinks=protected, seed=seed)[:, late].double().mean(-1)

    return {
        "loss": mean(tokens),
        "permuted": mean(shuffled(tokens, seed)),
        "cut": torch.stack([torch.stack([mean(tokens, policy, keep) for keep in keeps]) for policy in policies]),
        **sparsity(model, tokens, seed),
    }


def shuffled(tokens: Tensor, seed: int) -> Tensor:
    """The first half of every sequence in random order: distant keys say the same words, in another order."""
    half = tokens.shape[1] // 2
    source = torch.Generator().manual_seed(seed)
    order = torch.rand(len(tokens), half, generator=source).argsort(-1).to(tokens.device)
    return torch.cat((tokens[:, :half].gather(1, order), tokens[:, half:]), 1)


def sparsity(model: Any, tokens: Tensor, seed: int) -> dict[str, Tensor]:
    """Of late queries, which see half of the keys or more, as means over them and over sequences.

    zero: the share of keys that H2O counts as zero. random zero: the same where a query's logits are replaced by
    Gaussian ones of the same spread. effective: e^entropy as a share of the keys. top: the mass on the heaviest tenth.
    sink: the mass on the first key. overlap, chance: of the heavy hitters of the third and of the last quarter of the
    queries, among the keys of the first half, and what chance gives.
    """
    found: dict[str, list[Tensor]] = {}
    source = torch.Generator(device=tokens.device).manual_seed(seed)
    for ids in tokens.split(4):  # the weights of a few sequences at a time
        with torch.inference_mode():
            weights = model(ids, output_attentions=True, use_cache=False).attentions
        for name, value in _of_weights(torch.stack(weights, 1).float(), source).items():
            found.setdefault(name, []).append(value.double().cpu())
    each = {name: torch.cat(parts) for name, parts in found.items()}  # (sequences, layers, heads)
    by_sequence = {f"{name} by sequence": each[name].mean((1, 2)) for name in ("zero", "effective")}
    return {name: value.mean(0) for name, value in each.items()} | by_sequence


def _of_weights(weights: Tensor, source: torch.Generator) -> dict[str, Tensor]:
    """(sequences, layers, heads) each, of weights (sequences, layers, heads, queries, keys)."""
    length = weights.shape[-1]
    half = length // 2
    seen = torch.arange(1, length + 1, device=weights.device)[half:]  # keys that each late query sees
    future = torch.ones(length, length, dtype=torch.bool, device=weights.device).triu(1)[half:]
    late = weights[..., half:, :]
    entropy = torch.special.entr(late).sum(-1)
    heaviest = late.sort(-1, descending=True).values.cumsum(-1)
    tenth = (HEAVY * seen).ceil().long() - 1
    logits = late.clamp(min=1e-30).log().masked_fill(future, 0.0)
    mean = logits.sum(-1, keepdim=True) / seen[:, None]
    spread = (((logits - mean) ** 2).masked_fill(future, 0.0).sum(-1, keepdim=True) / seen[:, None]).sqrt()
    noise = torch.randn(logits.shape, generator=source, device=logits.device) * spread
    overlap, chance = _overlap(weights)
    return {
        "zero": _zeros(late, future, seen).mean(-1),
        "random zero": _zeros(noise.masked_fill(future, -torch.inf).softmax(-1), future, seen).mean(-1),
        "effective": (entropy.exp() / seen).mean(-1),
        "top": heaviest.gather(-1, tenth[:, None].expand(*late.shape[:-1], 1))[..., 0].mean(-1),
        "sink": late[..., 0].mean(-1),
        "overlap": overlap,
        "chance": torch.full_like(overlap, chance),
    }


def _zeros(weights: Tensor, future: Tensor, seen: Tensor) -> Tensor:
    return ((weights <= ZERO * weights.amax(-1, keepdim=True)) & ~future).sum(-1) / seen


def _overlap(weights: Tensor) -> tuple[Tensor, float]:
    """Of the heavy hitters of two quarters of the queries, and what chance gives."""
    length = weights.shape[-1]
    half, kept = length // 2, ceil(HEAVY * (length // 2) - 1e-9)
    seen = torch.arange(1, length + 1, device=weights.device)[:, None]
    chosen = []
    for start, stop in ((half, half + (length - half) // 2), (half + (length - half) // 2, length)):
        score = (weights[..., start:stop, :half] * seen[start:stop]).mean(-2)
        chosen.append(torch.zeros_like(score).scatter_(-1, score.topk(kept).indices, 1.0))
    return (chosen[0] * chosen[1]).sum(-1) / kept, kept / half


COMMAND = at_paper_scale("kv-cache")
FAR = "far/"  # kind of the networks that read what is said twice
NEEDED = ("window", "sinks", "h2o", "random")  # policies that claims compare


@dataclass(frozen=True)
class KvCacheConfig(StudyConfig):
    """Series of checkpoints of a GPT-NeoX, and caches that keep a part. Quick scale: a tiny one, on Python source."""

    layers: int = 2
    width: int = 32
    heads: int = 2
    vocabulary: int = 320
    context: Annotated[int, Least(32, "tokens for a cache worth cutting")] = 64
    batch: int = 6
    steps: int = 60
    rate: float = 0.02
    checkpoints: tuple[int, ...] = (20,)
    """Steps at which a checkpoint is measured, besides the first and the last."""
    characters: int = 150_000
    """How much Python source to train on."""
    held_out: int = 8_000
    """Characters at the end of the text that are not trained on, and that everything is measured on."""
    wikitext: bool = False
    """Train on WikiText-2 as well, found through JOMA_DATA."""
    far: bool = False
    """Train other networks on random words, in lines that are said twice: they must look far back."""
    far_characters: int = 30_000_000
    line: int = 150
    """Words of such a line: as many lie between a word and where it was said before."""
    far_batch: int = 32
    far_vocabulary: int = 4096
    keeps: Annotated[tuple[float, ...], Within(0, 1, open=True)] = (0.1, 0.2, 0.5)
    """Shares of the cache that are kept; 0.2 is what is judged."""
    policies: Annotated[tuple[str, ...], OneOf(*POLICIES[1:])] = (*NEEDED, "top-k")
    sinks: int = 2
    """First tokens that are never evicted, the same in all policies but the window."""
    sequences: Annotated[int, Least(4, "to regress over them")] = 10
    """Of `context` tokens each, that a checkpoint is measured on."""
    stories: int = 6
    """Sequences that stories260K writes, and is then measured on."""
    stories_length: int = 128
    seeds: int = 3
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if lack := [one for one in NEEDED if one not in self.policies]:
            raise ValueError(f"policies must hold {', '.join(NEEDED)}, which are compared; {lack[0]!r} is missing")
        if 0.2 not in self.keeps:
            raise ValueError(f"keeps must hold 0.2, which is judged, got {self.keeps}")
        if any(step >= self.steps for step in self.checkpoints):
            raise ValueError(f"checkpoints must lie below {self.steps}, the last step, got {self.checkpoints}")
        for kind in ("", FAR):  # what cannot be trained is refused now
            self.series(0, kind)

    def series(self, number: int, kind: str = "") -> SeriesConfig:
        names = ("layers", "width", "heads", "vocabulary", "context", "batch", "steps", "rate")
        near = SeriesConfig(**{name: getattr(self, name) for name in names}, seed=self.seed + number, warmup=0.01)
        return replace(near, batch=self.far_batch, vocabulary=self.far_vocabulary) if kind else near

    @property
    def at(self) -> list[int]:
        return sorted({0, *self.checkpoints, self.steps})


def run(config: KvCacheConfig, run: Run, progress: Progress) -> None:
    """Train a series of checkpoints per seed and cut the cache of each; then that of stories260K."""
    needs_transformers("kv-cache")
    needs_device(config.device, COMMAND)
    text = _corpus(config)
    remember_source(run)
    texts = {"": text}
    if config.far:
        texts[FAR] = said_twice(text, config.line, config.far_characters, config.seed)
    networks = [(kind, number) for kind in texts for number in range(config.seeds)]
    for count, (kind, number) in enumerate(networks):

        def of_this(share: float, doing: str, count: int = count) -> None:
            progress(0.9 * (count + share) / len(networks), f"network {count + 1}: {doing}")

        _train_and_measure(config, number, kind, texts[kind], run, of_this)
    progress(0.9, "stories260K")
    path = find_stories()
    if path is not None and "stories/loss" not in run:
        model = load_stories(path)
        tokens = written(model, config.stories, config.stories_length, config.seed)
        run.record(0, {f"stories/{name}": value for name, value in _answers(config, model, tokens).items()})


def _answers(config: KvCacheConfig, model: Any, tokens: Tensor) -> dict[str, Tensor]:
    model, tokens = model.to(config.device), tokens.to(config.device)
    return answers(model, tokens, config.policies, config.keeps, config.sinks, seed=config.seed)


def prefix(number: int, kind: str = "") -> str:
    """Before the names of all that is recorded of a network; kind: nothing, or `FAR`."""
    return f"{kind}seed {number}/"


def said_twice(text: str, line: int, characters: int, seed: int) -> str:
    """Frequent words of the text, drawn at random: a line of so many words, the same line again, then a new one."""
    common = Counter(word for word in text.split() if word.isalpha()).most_common(FREQUENT)
    words = np.array([word for word, _ in common])
    lines = ceil(characters / (2 * line * (sum(map(len, words)) / len(words) + 1)))
    drawn = words[np.random.default_rng(seed).integers(len(words), size=(lines, line))]
    return "".join(2 * (" ".join(one) + "\n") for one in drawn)


def _train_and_measure(config: KvCacheConfig, number: int, kind: str, text: str, run: Run, progress: Progress) -> None:
    from joma.scan.model.loading import loaded_model

    place, folder = prefix(number, kind), run.path.with_suffix(f".{kind.strip('/')}series{number}")
    done = set(run.steps(f"{place}loss").tolist()) if f"{place}loss" in run else set()
    if not done >= set(config.at):
        losses = train_series(
            folder,
            text[: -config.held_out],
            config.series(number, kind),
            device=config.device,
            save_at=config.at,
            progress=lambda share, doing: progress(0.6 * share, doing),
        )
        run.keep(f"{place}train loss", lambda: np.array(losses))
        tokens = _held_out(folder / "step0", text[-config.held_out :], config)
        for count, step in enumerate(config.at):
            if step not in done:
                progress(0.6 + 0.4 * count / len(config.at), f"cutting the cache at step {step}")
                model = loaded_model(folder / f"step{step}", torch.device("cpu"), with_head=True)
                run.record(step, {place + name: value for name, value in _answers(config, model, tokens).items()})
    shutil.rmtree(folder, ignore_errors=True)


def _held_out(folder: Path, text: str, config: KvCacheConfig) -> Tensor:
    from joma.scan.model.loading import tokenized

    ids = torch.tensor(tokenized(folder, text, "the held-out text"))
    count = len(ids) // config.context
    if count < config.sequences:
        raise ValueError(
            f"held_out must give {config.sequences} sequences of {config.context} tokens, its {config.held_out} "
            f"characters give {count}: hold out more"
        )
    chosen = torch.linspace(0, count - 1, config.sequences).round().long()
    return ids[: count * config.context].view(count, config.context)[chosen]


def _corpus(config: KvCacheConfig) -> str:
    text = source_text(config.characters)
    if not config.wikitext:
        return text
    folder = Path(os.environ.get("JOMA_DATA", "")) / "wikitext-2"
    if not os.environ.get("JOMA_DATA") or not (folder / "train.txt").is_file():
        raise NotRun(f"WikiText-2 is not at {folder}", f"JOMA_DATA=FOLDER {COMMAND}")
    # Held out is the end: half of each, so that both kinds of text are measured.
    wiki, half = (folder / "train.txt").read_text(encoding="utf-8"), config.held_out // 2
    return wiki + text[:-half] + (folder / "valid.txt").read_text(encoding="utf-8")[:half] + text[-half:]


FIFTH = 0.2  # of the cache, as H2O says


class Series:
    """What a run recorded of the networks that learned, over checkpoints. kind: see `prefix`."""

    def __init__(self, run: Run, kind: str = "") -> None:
        self.run, self.kind, config = run, kind, run.config
        self.policies, self.keeps = list(config["policies"]), [float(keep) for keep in config["keeps"]]
        self.steps = run.steps(f"{prefix(0, kind)}loss")
        numbers = range(int(config["seeds"]))
        last = [run.array(f"{prefix(n, kind)}loss")[-1].mean() for n in numbers]
        words = config["far_vocabulary" if kind else "vocabulary"]
        self.kept = [n for n in numbers if beats_guessing(last[n], words)]
        lost = float(len(numbers) - len(self.kept))
        self.left_out = {"left out because they did not learn": {"networks": lost}} if lost else {}
        """For the reader; empty where all count."""

    def of(self, name: str) -> Any:
        return np.stack([self.run.array(f"{prefix(number, self.kind)}{name}") for number in self.kept])

    def mean(self, name: str, checkpoint: int = -1) -> Any:
        found = self.of(name)[:, checkpoint]
        return found.reshape(len(found), -1).mean(1)

    def costs(self, policy: str, keep: float = FIFTH) -> Any:
        return self.of("cut")[:, :, self.policies.index(policy), self.keeps.index(keep)] - self.of("loss")

    def cost(self, policy: str, keep: float = FIFTH, checkpoint: int = -1) -> Any:
        return self.costs(policy, keep)[:, checkpoint].mean(-1)
