"""What networks read here, and their training: texts of one vocabulary, a text without its order, and two trees.

Depth of the hierarchy is what the trees differ in: a deep HBLT, and one with a single level that says as much about the
class. Both have the same classes, the same tokens, and the same loss of the best possible reader: the uncertainty ρ of
the flat tree is chosen for that.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log, prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.claims.contract import NotRun, Progress, silent
from joma.claims.guards import needs_device
from joma.claims.text_source import remember_source
from joma.data.hierarchy import HBLT
from joma.data.samples import streams
from joma.data.text import Corpus, CorpusError, windows
from joma.data.text import streams as streams_of
from joma.recipes.language import LanguageModelConfig, corpus
from joma.runs import Run
from joma.studies.depth_width.depth_width.networks import DepthWidthConfig, Family
from joma.training import Ensemble, train_all

PAPER = "JOMA_DATA=FOLDER joma verify depth-width --scale paper"
SHUFFLED = "shuffled"
"""The first text with the words of every sequence in random order: what depth gains there is not due to syntax."""


def find_texts(config: DepthWidthConfig, progress: Progress) -> dict[str, Corpus]:
    """The texts that are on this machine, by name. One that was not downloaded is left out."""
    found = {}
    for name in config.texts:
        wanted = LanguageModelConfig(
            corpus=name, data=config.data, tokens=config.tokens, vocabulary=config.vocabulary, length=config.length
        )
        try:
            found[name] = corpus(wanted, progress)
        except NotRun:
            continue
    return found


def remember_texts(texts: dict[str, Corpus], run: Run) -> None:
    """Keep sizes and digest of every text; refuse another one than the run began with."""
    for name, text in texts.items():
        if text.source:
            remember_source(run, text.source)
        sizes = [len(text.vocabulary), len(text.tokens["train"]), len(text.tokens["valid"])]
        run.keep(f"{name}/sizes", lambda sizes=sizes: np.array(sizes))  # type: ignore[misc]
        must_be(name, text, run.keep(f"{name}/sha256", lambda text=text: digest(text)), run)  # type: ignore[misc]


def digest(text: Corpus) -> np.ndarray:
    """The hash of its content, as numbers."""
    return np.frombuffer(bytes.fromhex(text.sha256), np.uint8)


def must_be(name: str, text: Corpus, recorded: np.ndarray, run: Run) -> None:
    """Refuse a text that is not the recorded one."""
    if not np.array_equal(recorded, digest(text)):
        raise CorpusError(f"{run.path} was made from another text: {name} has changed; start anew (fresh)")


def shuffled(text: Corpus, block: int) -> Corpus:
    """The same words, those of every block of the text in random order."""
    source = torch.Generator().manual_seed(0)
    return replace(text, tokens={split: _shuffled(ids, block, source) for split, ids in text.tokens.items()})


def _shuffled(ids: Tensor, block: int, source: torch.Generator) -> Tensor:
    blocks = ids[: len(ids) // block * block].view(-1, block)
    order = torch.rand(blocks.shape, generator=source).argsort(-1)
    return torch.cat([blocks.gather(-1, order).flatten(), ids[blocks.numel() :]])


class TextReader:
    """What the members of an ensemble read of several texts, each (text, seed) from a place of its own."""

    outputs = None

    def __init__(
        self, texts: Sequence[Corpus], *, seeds: int, batch: int, length: int, valid_sequences: int, device: str
    ) -> None:
        self.texts, self.seeds, self.length = texts, seeds, length
        self.vocabulary = max(len(text.vocabulary) for text in texts)
        self._read = [_full_sequences(text, batch, length).long().to(device) for text in texts]
        self._valid = [_halves(text, length, valid_sequences, device) for text in texts]

    @property
    def context(self) -> int:
        return self.length

    def epochs(self, text: int) -> int:
        """Sequences of one stream: after so many steps a text was read once."""
        return (self._read[text].shape[1] - 1) // self.length

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        taken = []
        for number, read in enumerate(self._read):
            epoch = self.epochs(number)
            for seed in range(self.seeds):
                first = (step + seed * epoch // self.seeds) % epoch * self.length
                taken.append(read[:, first : first + self.length + 1])
        both = torch.stack(taken)
        return both[..., :-1].contiguous(), both[..., 1:].contiguous()

    def halves(self) -> list[tuple[Tensor, Tensor]]:
        """To choose the rate on and to judge on: inputs and targets, (texts * seeds, sequences, length) each."""
        sides = []
        for side in range(2):
            parts = [self._valid[text][side] for text in range(len(self.texts)) for _ in range(self.seeds)]
            sides.append((torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])))
        return sides

    def known_without(self) -> np.ndarray:
        """Loss on the judging half of the words' frequencies in the training text, (texts,)."""
        return np.array([_frequency_loss(text, held[1][1]) for text, held in zip(self.texts, self._valid, strict=True)])


def _full_sequences(text: Corpus, batch: int, length: int) -> Tensor:
    """Streams of full sequences, so that a shuffled block is one sequence; and one token more."""
    tokens = text.tokens["train"]
    count = (len(tokens) - 1) // (batch * length)
    if count < 1:
        raise CorpusError(f"length must be below {len(tokens) // batch}, the tokens of a stream, got {length}")
    pieces = tokens[: batch * count * length].view(batch, -1)
    return torch.cat([pieces, torch.cat([pieces[1:, :1], tokens[batch * count * length :][:1, None]])], 1)


def _halves(text: Corpus, length: int, count: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Every other sequence of the validation text, and those between, (sequences, length) each."""
    inputs, targets = (part[:, 0].long().to(device) for part in windows(streams_of(text.tokens["valid"], 1), length))
    kept = min(len(inputs) // 2, count)
    if kept < 1:
        raise CorpusError(f"length must leave two sequences of the validation text, got {length}")
    spaced = torch.linspace(0, len(inputs) // 2 - 1, kept).long().to(device)
    return [(inputs[side::2][spaced], targets[side::2][spaced]) for side in range(2)]


def _frequency_loss(text: Corpus, targets: Tensor) -> float:
    counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).double() + 1
    return float(-(counts / counts.sum()).log()[targets.cpu()].mean())


HALVINGS = 12  # of the interval in which the flat tree's ρ is sought
SEARCH = 300  # steps of the logistic regression: its loss then moves by less than 1e-4 nats


class Tree:
    """Classes that each have a latent of their own, a branching below it, and one ρ for all edges."""

    def __init__(self, classes: int, branching: Sequence[int], rho: float) -> None:
        self.classes, self.branching, self.rho = classes, tuple(branching), rho
        self.hblt = HBLT.one_per_class(classes, self.branching, rho)

    @property
    def depth(self) -> int:
        return self.hblt.depth

    def log_posterior(self, on: Tensor) -> Tensor:
        """log P[class | tokens], (..., classes), by passing likelihoods up. on: (..., tokens), not permuted."""
        copies = (1 + self.rho) / 2
        edge = torch.tensor([[copies, 1 - copies], [1 - copies, copies]], dtype=torch.float64)
        likely = torch.stack([~on, on], -1).double().unflatten(-2, (self.classes, -1))  # P[below | node is 0, 1]
        for children in reversed(self.branching):
            likely = (likely @ edge).unflatten(-2, (-1, children)).prod(-2)
        off, own = (likely @ edge).squeeze(-2).log().unbind(-1)  # P[tokens of k | the class is not k, is k]
        known: Tensor = (off.sum(-1, keepdim=True) - off + own).log_softmax(-1)
        return known

    def uncertainty(self, samples: int) -> float:
        """Mean entropy of the class given the tokens, in nats: the lowest loss that any reader can have."""
        drawn = self.hblt.sample(samples, generator=streams(0, [0], step=-1)[0])
        known = self.log_posterior(drawn.on)
        return float(-(known.exp() * known).sum(-1).mean())

    def linear_loss(self, samples: int) -> float:
        """Loss on fresh samples of the best reader that adds up the tokens: logistic regression on as many."""
        one, other = (self.hblt.sample(samples, generator=streams(0, [0], step=step)[0]) for step in (-2, -3))
        weight = _regression(F.pad(one.on.double(), (0, 1), value=1.0), F.one_hot(one.labels, self.classes).double())
        return float(F.cross_entropy(F.pad(other.on.double(), (0, 1), value=1.0) @ weight, other.labels))


def _regression(seen: Tensor, wanted: Tensor) -> Tensor:
    """The weights of the most likely logistic regression, by steps with a bound of the curvature (Böhning 1992)."""
    bound = torch.linalg.cholesky(seen.mT @ seen + 1e-6 * torch.eye(seen.shape[-1], dtype=seen.dtype))
    weight = torch.zeros(seen.shape[-1], wanted.shape[-1], dtype=seen.dtype)
    for _ in range(SEARCH):
        weight += 2 * torch.cholesky_solve(seen.mT @ (wanted - (seen @ weight).softmax(-1)), bound)
    return weight


def flattened(tree: Tree, samples: int) -> Tree:
    """The tree of one level with as many tokens whose best reader has the same loss."""
    wanted, leaves = tree.uncertainty(samples), prod(tree.branching)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        less_certain = Tree(tree.classes, (leaves,), middle).uncertainty(samples) > wanted
        low, high = (middle, high) if less_certain else (low, middle)
    return Tree(tree.classes, (leaves,), (low + high) / 2)


class TreeReader:
    """What the members of an ensemble read of several trees, each (tree, seed) with its own order of tokens."""

    def __init__(
        self, trees: Sequence[Tree], *, seed: int, seeds: int, batch: int, valid_samples: int, device: str
    ) -> None:
        self.trees, self.seed, self.seeds, self.size = trees, seed, seeds, batch
        self.valid_samples, self.device = valid_samples, device
        own = range(seeds)
        self._permuted = [tree.hblt.permuted(streams(seed, own, step=-1)).to(device) for tree in trees]
        self.vocabulary, self.context = trees[0].hblt.vocabulary, trees[0].hblt.length
        self.outputs = trees[0].classes

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return self._draw(step, self.size)

    def _draw(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        drawn = [
            tree.sample((self.seeds, count), generator=streams(self.seed, range(self.seeds), step, device=self.device))
            for tree in self._permuted
        ]
        return torch.cat([sample.tokens for sample in drawn]), torch.cat([sample.labels for sample in drawn])

    def halves(self) -> list[tuple[Tensor, Tensor]]:
        """To choose the rate on and to judge on."""
        return [self._draw(step, self.valid_samples) for step in (-4, -5)]

    def known_without(self) -> np.ndarray:
        """The loss of a reader that knows nothing, (trees,)."""
        return np.full(len(self.trees), log(self.outputs))

    def ideal(self, samples: int) -> np.ndarray:
        return np.array([[tree.uncertainty(samples), tree.linear_loss(samples)] for tree in self.trees])


def run(config: DepthWidthConfig, run: Run, progress: Progress) -> None:
    """Train all shapes of both families, one after the other, so that the time of a step is theirs."""
    needs_device(config.device, PAPER)
    ensembles: dict[str, Ensemble] = {}
    for family in (_texts(config, run, progress), _trees(config, run)):
        run.keep(f"{family.name}/known without", family.reader.known_without)
        for name, facts in family.facts().items():
            run.keep(f"{name}/shape", lambda facts=facts: facts)  # type: ignore[misc]
        ensembles |= family.ensembles()
    train_all(ensembles, run, side_by_side=False, progress=progress)


def _trees(config: DepthWidthConfig, run: Run) -> Family:
    deep = Tree(config.classes, config.branching, config.rho)
    rho = run.keep("tree/rho of the flat one", lambda: flattened(deep, config.ideal_samples).rho)
    reader = TreeReader(
        [deep, Tree(config.classes, (int(np.prod(config.branching)),), float(rho))],
        seed=config.seed,
        seeds=config.seeds,
        batch=config.tree_batch,
        valid_samples=config.valid_samples,
        device=config.device,
    )
    run.keep("tree/ideal", lambda: reader.ideal(config.ideal_samples))
    return Family("tree", config, reader, kinds=2)


def _texts(config: DepthWidthConfig, run: Run, progress: Progress) -> Family:
    found = find_texts(config, progress)
    present = run.keep("text/present", lambda: np.array([name in found for name in config.texts]))
    if not present.any():
        raise NotRun(f"none of the texts {', '.join(config.texts)} is on this machine", PAPER)
    texts = {name: found[name] for name, there in zip(config.texts, present, strict=True) if there}
    remember_texts(texts, run)
    reader = TextReader(
        [*texts.values(), shuffled(next(iter(texts.values())), config.length)],
        seeds=config.seeds,
        batch=config.batch,
        length=config.length,
        valid_sequences=config.valid_sequences,
        device=config.device,
    )
    return Family("text", config, reader, kinds=len(texts) + 1)


def same_texts(config: DepthWidthConfig, run: Run) -> None:
    """The texts of a finished run are still those that are found, or none is found."""
    for name, text in find_texts(config, silent).items():
        if f"{name}/sha256" in run.names():
            must_be(name, text, run.value(f"{name}/sha256"), run)
