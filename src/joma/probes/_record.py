"""What probes hand back: the statistics of every attention call, and their running means."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from joma.host.errors import JomaError
from joma.host.words import counted, short
from joma.measure.attention import AttentionStats
from joma.measure.spread import Spread, SpreadSums
from joma.probes._means import RunningMeans
from joma.probes._sparsity import AttentionSparsity

_Known = TypeVar("_Known")
MIXERS = frozenset({
    "BambaMixer", "FalconH1Mixer", "FalconMambaMixer", "GraniteMoeHybridMambaLayer", "JambaMambaMixer", "Mamba2Mixer",
    "MambaMixer", "NemotronHMamba2Mixer", "Zamba2MambaMixer",
})  # fmt: skip
"""transformers' state spaces, by class: they have no softmax. Each is tested against how its state really shrinks."""
STATE = "no softmax to read; joma.probes.state_decay reads how long their state keeps a token"
_COMPILED = "_orig_mod"  # what torch.compile calls the module inside the one it hands back


def inner(model: nn.Module) -> nn.Module:
    """The model inside torch.compile(model); any other is its own."""
    found: nn.Module = getattr(model, _COMPILED, model)
    return found


def uncompiled() -> AbstractContextManager[None]:
    """Compiled modules run as they are written, since nothing can look into a compiled graph."""
    # Nothing is compiled where dynamo is not loaded, and loading it takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class ProbeError(JomaError, ValueError):
    """A model that cannot be measured as it stands; the sentence names it and says why."""


def _named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What `named_modules` gives, in its order, in a third of its time: a probed pass begins with this."""
    found: dict[nn.Module, str] = {}
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if module not in found:
            found[module] = name
            prefix = f"{name}." if name else ""
            waiting += [(prefix + key, each) for key, each in reversed(module._modules.items()) if each is not None]
    return [(name, module) for module, name in found.items()]


def plain_name(name: str) -> str:
    """The name of a part of a model, whether or not something around it was compiled."""
    return ".".join(part for part in name.split(".") if part != _COMPILED) if _COMPILED in name else name


def must_be_keys(count: object) -> None:
    """Refuse what is no number of keys; None is none at all."""
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise ValueError(f"sparsity must be a number of keys, at least 1, or None, got {count!r}")


class Probe:
    """Attention statistics of a model, by the name of the module that attends.

    `stats[name]` lists one `AttentionStats` a call, each tensor (batch, heads, queries); it stays empty under
    keep=False. `mean` averages over everything seen so far. Padded queries and queries that see no key at all count
    in no mean. A module that several layers share appears once, with the calls of all of them. Where sparsity was asked
    for, `sparsity[name]` lists one `AttentionSparsity` per call, and `mean` knows its fields too. Where the spread of
    logits was asked for, `mean_spread` has it, and `spread[name]` the sums of all calls.

    >>> from joma.probes import collect_plain
    >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> with collect_plain(layer) as probe:
    ...     _ = layer(*[torch.zeros(1, 4, 8)] * 3)
    >>> probe.layers, probe.mean_entropy().shape
    (['MultiheadAttention'], torch.Size([1, 2]))
    """

    def __init__(
        self, model: nn.Module, *, keep: bool, sparsity: int | None = None, spread: bool = False,
        gradients: bool = False, names: dict[nn.Module, str] | None = None,
    ) -> None:  # fmt: skip
        """Not for callers: `collect` and `collect_plain` make probes.

        model: whose attention is watched. keep: whether the statistics of every call are kept, and not the means alone.
        sparsity: the number of keys of `top_keys`; None: it is not measured. spread: whether that of logits is, too.
        gradients: whether they stay in `stats`. names: those of the modules, where an earlier probe found them.
        """
        must_be_keys(sparsity)
        self.model_name = type(model).__name__
        self.names = names or {
            module: plain_name(name) or self.model_name
            for name, module in _named_modules(model)
            if _COMPILED not in module._modules  # a compiled part goes by the name of what is in it
        }
        self.top, self.with_spread, self.gradients = sparsity, spread, gradients
        self.single_pass = False
        self.running, self._keep = False, keep
        self.products: Callable[..., None] | None = None  # called with queries and keys, in place of their statistics
        self.again: Callable[..., bool] | None = None  # called before, with what a module was given; True: it took them
        self.adapted = 0  # modules at work whose queries and keys an adapter tells: what they call is not looked at
        self.forget()

    def forget(self) -> None:
        """Begin anew, as if nothing had been seen."""
        self.stats: dict[str, list[AttentionStats]] = {}
        self.sparsity: dict[str, list[AttentionSparsity]] = {}
        self.spread: dict[str, SpreadSums] = {}
        self.calls, self._calls_before = 0, 0  # in all, and before the forward pass under way
        self._means = RunningMeans(largest=AttentionStats._fields.index("max_logit"))
        self.queries: dict[str, int] = {}  # the most of one call

    def __repr__(self) -> str:
        seen = f"{counted(len(self.layers), 'layer')}, {counted(self.calls, 'attention call')}"
        return f"Probe({short(self.model_name)}: {seen})"

    @property
    def layers(self) -> list[str]:
        """Names of the modules that attended, in the model's own order."""
        return [name for name in self.names.values() if name in self._means.names]

    def mean(self, measure: str = "entropy") -> Tensor:
        """(layers, heads), float64, on the CPU: the mean of one statistic over queries and calls.

        `measure` is a field of `AttentionStats`, or of `AttentionSparsity` where that was asked for; layers are in the
        order of `layers`. Where layers differ in their number of heads, the heads that are not there are NaN.
        """
        return self._table(self.by_layer(measure))

    def by_layer(self, measure: str = "entropy") -> dict[str, Tensor]:
        """What `mean` puts together, each layer's (heads,) where the model runs: nothing is waited for.

        "largest_logit" is known here too. It is NaN in a head without any query that counts.
        """
        if measure == "largest_logit":
            return self._in_order(self._means.largest(empty=torch.nan))
        if measure in AttentionSparsity._fields and self.top is None:
            raise ValueError(f"{measure} was not measured: ask for it with collect(model, sparsity=16)")
        known = AttentionStats._fields + (AttentionSparsity._fields if self.top is not None else ())
        if measure not in known:
            raise ValueError(f"measure must be one of {', '.join(known)}, got {measure!r}")
        at = known.index(measure)
        return {name: each[at] for name, each in self._in_order(self._means.mean()).items()}

    def reduce(self) -> None:
        """Let go of what is known of every query, but for what is kept: the means remain."""
        self._means.reduce()

    def counted(self) -> dict[str, Tensor]:
        """(heads,) of each layer: how many queries its means are over."""
        return self._in_order(self._means.counted())

    def mean_entropy(self) -> Tensor:
        """(layers, heads): mean attention entropy in nats."""
        return self.mean("entropy")

    def mean_sparsity(self) -> AttentionSparsity:
        """Every field (layers, heads), where sparsity was asked for."""
        return AttentionSparsity(*(self.mean(name) for name in AttentionSparsity._fields))

    def mean_spread(self) -> Spread:
        """How far logits spread, and the parts of that, each (layers, heads), where it was asked for.

        The mean query of a head is that of all calls, so it does not matter how a text was cut into batches.
        """
        if not self.with_spread:
            raise ValueError("the spread of logits was not measured: ask for it with collect(model, spread=True)")
        each = {name: sums.spread for name, sums in self.spread.items()}
        tables = ({name: one[at] for name, one in each.items()} for at in range(len(Spread._fields)))
        return Spread(*map(self._table, tables))

    def largest_logit(self) -> Tensor:
        """(layers, heads), float64, on the CPU: the largest logit of all queries and calls.

        `mean("max_logit")` is the mean of each query's largest. Training that is about to diverge shows here first.
        """
        return self._table(self._means.largest())

    def _in_order(self, by_layer: dict[str, _Known]) -> dict[str, _Known]:
        return {name: by_layer[name] for name in self.layers}

    def _table(self, by_layer: dict[str, Tensor]) -> Tensor:
        """(layers, heads) in the order of `layers`, NaN where a layer has fewer heads."""
        if not by_layer:
            raise ProbeError(f"{self.model_name} was not called while the probe was attached")
        rows = [by_layer[name].double().cpu() for name in self.layers]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=torch.nan)

    def record(
        self, name: str, stats: AttentionStats, real: Tensor | None, sparsity: AttentionSparsity | None = None,
        spread: SpreadSums | None = None,
    ) -> None:  # fmt: skip
        """Add one call's statistics; `real` (batch, queries) is False for padded queries."""
        self.calls += 1
        self.queries[name] = max(self.queries.get(name, 0), stats.entropy.shape[2])
        plain = AttentionStats(*(each.detach() for each in stats)) if stats.entropy.requires_grad else stats
        if self._keep:
            self.stats.setdefault(name, []).append(stats if self.gradients else plain)
        if self._keep and sparsity is not None:
            self.sparsity.setdefault(name, []).append(sparsity)
        if spread is not None:
            self.spread[name] = self.spread[name].joined(spread) if name in self.spread else spread
        self._means.add(name, (*plain, *(sparsity or ())), real)

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Hooks on the whole model. Calls count only inside its forward pass: gradient checkpointing calls attention
        again in the backward pass. A forward pass without any call has bypassed the probe, and that is an error.
        """

        def before(module: nn.Module, inputs: Any) -> None:
            self.running, self._calls_before = True, self.calls

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            self.running = False
            self._means.reduce()
            if self.calls == self._calls_before:
                states = any(type(module).__name__ in MIXERS for module in self.names)
                why = f"its mixers have {STATE}" if states else "it cannot be measured"
                raise ProbeError(f"{self.model_name} made no attention call that can be seen: {why}")

        with model.register_forward_pre_hook(before), model.register_forward_hook(after):
            yield
