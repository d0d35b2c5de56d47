"""The protocol: each method finds its rate at a short horizon, then all are compared at a long one."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from joma.claims.contract import NotRun, Progress, silent
from joma.claims.guards import at_paper_scale, needs_device
from joma.claims.text_source import remember_source
from joma.data._subwords import subwords
from joma.data.errors import CorpusError
from joma.data.text import python_corpus
from joma.measure.intervals import Comparison, compare
from joma.models.llama import Llama
from joma.optim.memory import memory
from joma.runs import Run
from joma.studies.galore.galore_table import networks as nets
from joma.studies.galore.galore_table.networks import FULL, METHODS, PYTHON, RELORA, SCALED, GaloreTableConfig


class Text(NamedTuple):
    """Tokens, (N,) each, and what names them in the record."""

    train: Tensor
    held_out: dict[str, Tensor]
    sizes: tuple[int, int]  # Files and bytes of Python source; 0 where they are not counted
    sha256: str
    source: str = ""  # of `Corpus`: the sha256 of the files, where they come with one package


def read_text(config: GaloreTableConfig, progress: Progress) -> Text:
    """The text that the config names; `NotRun` where this machine lacks it."""
    if config.text == PYTHON:
        corpus = python_corpus(config.vocabulary, tokens=config.source, progress=lambda _, doing: progress(0.0, doing))
        return Text(corpus.tokens["train"], {"Python": corpus.tokens["valid"]}, (0, 0), corpus.sha256, corpus.source)
    folder = config.data or os.environ.get("JOMA_DATA")
    if not folder or not (Path(folder) / "wikitext-2").is_dir():
        place = f"{folder} has no folder wikitext-2" if folder else "neither --data nor JOMA_DATA names a folder"
        if config.data:
            raise CorpusError(f"data must be the folder that holds wikitext-2: {place}")
        raise NotRun(f"WikiText-2 is needed, and {place}", data="FOLDER")
    found = subwords(Path(folder) / "wikitext-2", config.vocabulary, most=config.source, progress=progress)
    return Text(found.train, found.held_out, (found.files, found.size), found.sha256)


class Reading:
    """Batches of the training text and the held-out sequences, on the device of the networks."""

    def __init__(self, config: GaloreTableConfig, text: Text) -> None:
        self.config, self.text = config, text
        self.train = text.train.to(config.device)
        self.windows = (len(text.train) - 1) // config.context
        if self.windows < config.batch:
            raise CorpusError(
                f"a batch of {config.batch} sequences needs a longer text than {len(text.train):,} tokens"
            )
        self.held_out = {name: self._spread(name, tokens) for name, tokens in text.held_out.items()}

    def batch(self, seed: int, step: int) -> Tensor:
        """(batch, context + 1), which depends on seed and step alone: every epoch is a new order of all windows."""
        epoch, place = divmod(step, self.windows // self.config.batch)
        if getattr(self, "_known", None) != (seed, epoch):
            source = torch.Generator().manual_seed(1000 * seed + epoch)
            self._orders = torch.randperm(self.windows, generator=source).to(self.config.device)
            self._known = (seed, epoch)
        places = self._orders[place * self.config.batch : (place + 1) * self.config.batch]
        offsets = torch.arange(self.config.context + 1, device=self.config.device)
        return self.train[places[:, None] * self.config.context + offsets].long()

    def _spread(self, name: str, tokens: Tensor) -> Tensor:
        """(held_out, context + 1) sequences, evenly spread over the held-out tokens of one source."""
        count, length = self.config.held_out, self.config.context
        windows = (len(tokens) - 1) // length
        if windows < count:
            raise CorpusError(f"{name}: {count} held-out sequences of {length} tokens are wanted, there are {windows}")
        cut = tokens[(torch.arange(count) * windows // count)[:, None] * length + torch.arange(length + 1)].long()
        return cut.to(self.config.device)

    @cached_property
    def by_frequency(self) -> dict[str, float]:
        counts = torch.bincount(self.text.train.long(), minlength=self.config.vocabulary).double() + 1
        cost = -(counts / counts.sum()).log()
        return {name: float(cost[tokens[:, 1:].cpu()].mean()) for name, tokens in self.held_out.items()}


def remember(reading: Reading, run: Run) -> None:
    """Keep the sizes and the digest of the text; refuse another one than the run began with."""
    text, names = reading.text, list(reading.held_out)
    run.keep("text/sha256", lambda: np.frombuffer(bytes.fromhex(text.sha256), np.uint8))
    _must_be(text, run)
    if text.source:
        remember_source(run, text.source)
    run.keep(
        "text/tokens", lambda: np.array([len(text.train), *text.sizes]), dims={"what": ["train", "files", "bytes"]}
    )
    run.keep("text/by frequency", lambda: np.array(list(reading.by_frequency.values())), dims={"source": names})


def same_text(config: GaloreTableConfig, run: Run) -> None:
    """A study's `check`: the text is still that of a finished run. All installed source would take too long to read."""
    if config.text == PYTHON:
        _must_be(read_text(config, silent), run)


def _must_be(text: Text, run: Run) -> None:
    if bytes(run.value("text/sha256")).hex() != text.sha256:
        raise CorpusError(f"{run.path} was made from another text, which has changed since; start again with fresh")


CLIP = 1.0  # of the gradient's norm, for every method
UNTIMED = 10  # steps at the beginning that are not timed: kernels are compiled and memory is found


class Trial(NamedTuple):
    """One training run. Losses, time per step and memory come out."""

    method: str
    rate: float
    seed: int
    steps: int


def run(config: GaloreTableConfig, run: Run, progress: Progress) -> None:
    """Find each method's rate at the short horizon, then compare at the long one. Every trial is kept when it ends."""
    needs_device(config.device, at_paper_scale("galore-table"))
    reading = Reading(config, read_text(config, progress))
    remember(reading, run)
    trainer = Trainer(config, reading)
    total = len(config.methods) * (len(config.rates) * config.sweep_steps + config.seeds * config.steps)
    total += max(config.close_seeds - config.seeds, 0) * len(config.close) * config.steps
    done = 0
    for horizon, trial in trials(config, run):
        name = place(horizon, trial.method, trial.rate, trial.seed)
        progress(min(done / total, 0.99), f"training {name}")
        if f"{name}/held out" not in run:
            run.record(0, {f"{name}/{key}": value for key, value in trainer.carry_out(trial).items()})
        done += trial.steps


def trials(config: GaloreTableConfig, run: Run) -> Iterator[tuple[str, Trial]]:
    """All trials, in an order in which later ones can depend on the record of earlier ones."""
    for method in config.methods:
        for rate in config.rates:
            yield SWEEP, Trial(method, rate, config.seed, config.sweep_steps)
    for method in config.methods:
        table = Table(run)
        best = table.best_of(SWEEP, method)
        if best is not None:
            yield LONG, Trial(method, best, config.seed, config.steps)
            lower = [rate for rate in table.rates if rate < best]
            if lower and method in config.neighbours:  # long runs often want less
                yield LONG, Trial(method, lower[-1], config.seed, config.steps)
    for method in config.methods:  # the first ones carry most claims: what is stopped early has them
        chosen = Table(run).rate(method)
        seeds = max(config.seeds, config.close_seeds) if method in config.close else config.seeds
        for seed in range(config.seed + 1, config.seed + seeds):
            if chosen is not None:
                yield LONG, Trial(method, chosen, seed, config.steps)


class Trainer:
    """Keeps one network of each kind and its compiled code; a trial begins by giving it new weights."""

    def __init__(self, config: GaloreTableConfig, reading: Reading) -> None:
        self.config, self.reading, self.on_gpu = config, reading, config.device != "cpu"
        self.networks: dict[str, Llama] = {}
        self.loss: Callable[[Llama, Tensor], Tensor] = _loss
        if self.on_gpu:
            torch.set_float32_matmul_precision("high")
            self.loss = torch.compile(_loss, dynamic=False)

    def carry_out(self, trial: Trial) -> dict[str, Any]:
        """What is recorded of a trial; the losses from where it diverged on are NaN."""
        kind = nets.KIND.get(trial.method, "plain")
        if kind not in self.networks:
            self.networks[kind] = nets.network_of(kind, self.config)
        network = self.networks[kind]
        nets.start(network, trial.seed)
        size, before = sum(weight.numel() * weight.element_size() for weight in network.parameters()), 0
        if self.on_gpu:  # the text and the other networks are no part of this trial
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() - size
        optimizers = nets.optimizers_of(trial.method, network, self.config, trial.rate, trial.seed)
        losses, held_out, seconds = self._train(network, optimizers, trial)
        kept = [memory(network, optimizer).total.measured for optimizer in optimizers]
        states = sum(one.states + one.projections for one in kept)  # between steps, bases of subspaces included
        peak = torch.cuda.max_memory_allocated() - before if self.on_gpu else 0
        for weight in network.parameters():
            weight.grad = None
        return {
            "losses": losses,
            "held out": held_out,
            "seconds per step": seconds,
            "bytes": np.array([size, 4 * sum(w.numel() for w in nets.trained(network)), states, peak]),
        }

    def _train(self, network: Llama, optimizers: list[Optimizer], trial: Trial) -> tuple[np.ndarray, np.ndarray, float]:
        """Losses by step, held-out losses by look and source, and seconds per step without those of the looks."""
        count = self.config.looks if trial.steps == self.config.steps else 1
        looks = [round(trial.steps * (i + 1) / count) for i in range(count)]  # the end is one of them
        found: list[list[float]] = []
        losses: list[Tensor] = []
        seconds, since, pieces = 0.0, 0.0, self.config.restarts
        restarts = nets.restarts_at(trial.steps, pieces) if trial.method == RELORA else set()
        for step in range(trial.steps):
            if step in restarts:
                nets.merge_and_restart(network, torch.Generator().manual_seed(1000 * trial.seed + step))
                for optimizer in optimizers:
                    optimizer.state.clear()
            if step == UNTIMED or step in looks:
                since = self._now()
            share = nets.rewarmed(step, trial.steps, pieces) if restarts else nets.rate_share(step, trial.steps)
            nets.set_rates(optimizers, trial.rate * share)
            losses.append(self._step(network, optimizers, trial, step))
            if step + 1 in looks:
                seconds += self._now() - since if step >= UNTIMED else 0.0
                found.append([self.held_out(network, tokens) for tokens in self.reading.held_out.values()])
                if not np.isfinite(found[-1]).all():
                    break
        timed = len(losses) - UNTIMED
        missing = [[np.nan] * len(found[0])] * (len(looks) - len(found))
        curve = torch.stack(losses).float().cpu().numpy()
        curve = np.pad(curve, (0, trial.steps - len(curve)), constant_values=np.nan)
        return curve, np.array(found + missing), seconds / timed if timed > 0 else np.nan

    def _now(self) -> float:
        if self.on_gpu:
            torch.cuda.synchronize()
        return perf_counter()

    def _step(self, network: Llama, optimizers: list[Optimizer], trial: Trial, step: int) -> Tensor:
        parts = self.reading.batch(trial.seed, step).split(self.config.at_once)
        total = torch.zeros((), device=self.config.device)
        for part in parts:
            with self._precision():
                loss = self.loss(network, part) / len(parts)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(nets.trained(network), CLIP)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return total

    def held_out(self, network: Llama, tokens: Tensor) -> float:
        """Mean loss per token. On a GPU with gradients allowed: the compiled code for training is then used again."""
        with torch.set_grad_enabled(self.on_gpu), self._precision():
            parts = tokens.split(self.config.at_once if self.on_gpu else len(tokens))
            losses = [self.loss(network, part).detach() for part in parts]
        return float(torch.stack(losses).double().mean())

    def _precision(self) -> AbstractContextManager[Any]:
        """bf16 products with float32 weights on a GPU, float32 elsewhere."""
        return torch.autocast("cuda", torch.bfloat16) if self.on_gpu else nullcontext()


def _loss(network: Llama, tokens: Tensor) -> Tensor:
    return F.cross_entropy(network(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


SWEEP, LONG = "sweep", "long"
BYTES = ("weights", "gradients", "states", "peak")


def place(horizon: str, method: str, rate: float, seed: int) -> str:
    """The beginning of the names of a trial's series."""
    return f"{horizon}/{method}/{rate:g}/seed {seed}"


class Table:
    """A run, read. Losses are nats per held-out token; a trial that diverged, or is not there, has NaN."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rates: list[float] = sorted(run.config["rates"])
        count = max(int(run.config["seeds"]), int(run.config["close_seeds"]))
        self.seeds = [int(run.config["seed"]) + seed for seed in range(count)]
        self.tried: list[str] = [method for method in METHODS if method in run.config["methods"]]
        self.tokens_per_step = int(run.config["batch"]) * int(run.config["context"])
        self._there = set(run.names())
        self.by_frequency = float(run.value("text/by frequency").mean())

    def end(self, horizon: str, method: str, rate: float, seed: int) -> float:
        """The last loss on held-out text, all sources together: as many tokens of each."""
        name = f"{place(horizon, method, rate, seed)}/held out"
        return float(self.run.value(name)[-1].mean()) if name in self._there else np.nan

    def ends(self, horizon: str, method: str) -> Any:
        """(rates,) the last losses of the first seed."""
        return np.array([self.end(horizon, method, rate, self.seeds[0]) for rate in self.rates])

    def best_of(self, horizon: str, method: str) -> float | None:
        """The rate with the lowest loss of the first seed; None where all diverged or none was tried."""
        ends = self.ends(horizon, method)
        return None if np.isnan(ends).all() else self.rates[int(np.nanargmin(ends))]

    def rate(self, method: str) -> float | None:
        return self.best_of(LONG, method)

    def final(self, method: str) -> Any:
        """(seeds,) losses at the long horizon; NaN for who diverged, did not learn, or was not trained."""
        rate = self.rate(method)
        if rate is None:
            return np.full(len(self.seeds), np.nan)
        ends = np.array([self.end(LONG, method, rate, seed) for seed in self.seeds])
        return np.where(ends < self.by_frequency, ends, np.nan)

    @property
    def tuned(self) -> str:
        """The better kind of full rank, by the first seed: one rate for all weights, or a smaller one in the blocks."""
        return min((FULL, SCALED), key=lambda method: np.nan_to_num(self.final(method)[0], nan=np.inf))

    def more(self, method: str, than: str) -> Comparison:
        """The loss of `method` beside that of `than`, over the seeds that both were trained with."""
        with_both = [one and other for one, other in zip(*map(self._trained, (method, than)), strict=True)]
        return compare(self.final(method)[with_both], self.final(than)[with_both])

    def _trained(self, method: str) -> list[bool]:
        return [any(f"/seed {seed}/" in f"{one}/" for one in self.long_trials(method)) for seed in self.seeds]

    def long_trials(self, method: str) -> list[str]:
        rate = self.rate(method)
        wanted = [] if rate is None else [place(LONG, method, rate, seed) for seed in self.seeds]
        return [one for one in wanted if f"{one}/held out" in self._there]

    def seconds(self, method: str) -> Any:
        """(seeds that were trained,) seconds per step at the long horizon."""
        return np.array([float(self.run.value(f"{one}/seconds per step")) for one in self.long_trials(method)])

    def bytes(self, method: str) -> dict[str, float]:
        trials = self.long_trials(method)
        found = self.run.value(f"{trials[0]}/bytes") if trials else np.full(len(BYTES), np.nan)
        return dict(zip(BYTES, map(float, found), strict=True))

    def curve(self, method: str) -> Any:
        trials = self.long_trials(method)
        return self.run.value(f"{trials[0]}/losses") if trials else np.empty(0)

    def methods(self) -> list[str]:
        ends = {method: np.nanmean(final) for method in self.tried if np.isfinite(final := self.final(method)).any()}
        return sorted(ends, key=lambda method: ends[method])
