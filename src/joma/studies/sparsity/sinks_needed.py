"""Does a head that must average after a trigger, and else be silent, need a sink? With softmax, and without.

Ran-Milo (2603.11487) proves that softmax attention needs one for this task, and that ReLU attention does not. The
paper's abstract and opening were at hand, not its theorems: what counts as a sink here, and all sizes, are ours.

A sequence begins with a first token, a vector of zeros. All others are Gaussian, and one of them is marked as a
trigger. There the network must give the mean of all vectors that it sees, and zero at all others. Every kind of
attention can do so as exactly as one likes. ReLU attention and a sigmoid weigh each key by itself, divided by the
number of keys, so that they too average over any number of them.

Chosen on seeds that were then thrown away (9001 to 9005): rate, steps and length of quick scale, so that all kinds come
below an error of 0.05. There the first key had 0.99 of softmax's attention, and 0.97 with one more key. The claims
about that key are those of `sinks` and were not changed for it. In a first trial triggers were zeros as well: softmax
then shared its attention between the first token and them. Paper scale has had other sizes: with heads no wider than
the vectors, softmax with one head lost one of their numbers, an eighth of what is asked, on seeds 9001 to 9004 too.
Heads twice as wide, as at quick scale, and twice the rate learn it in 1,500 steps there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig, Values
from joma.claims.declare import Claims
from joma.claims.evidence import Test, at_least, at_most
from joma.claims.guards import at_paper_scale, hardest, mean_known, needs_device, no_more, of_learned
from joma.figures.bands import mean_and_band
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, PURPLE, RED, panels, step_axis
from joma.host.seeds import generator
from joma.host.words import counted
from joma.measure.intervals import Comparison, compare
from joma.models._attention import Attention, attend
from joma.recipes.grid import Grid, ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, train_all

KINDS: tuple[Attention, ...] = get_args(Attention)
TRIGGER, ALWAYS = "trigger", "always"
"""The task, and its control without a trigger, in which every token asks for the mean of what it sees."""
MARKS = 3  # inputs that say what a token is: the first, a trigger, any other


@dataclass(frozen=True)
class SinksNeededConfig(StudyConfig):
    """One layer of attention that reads vectors, with five kinds of attention."""

    heads: Annotated[tuple[int, ...], Values(1)] = (1,)
    """Heads of the layer; each number is trained by itself."""
    content: Annotated[int, Least(1, "to average")] = 4
    """Numbers of a token's vector."""
    width: Annotated[int, Least(1)] = 8
    """Of the queries, keys and values of a head."""
    length: Annotated[int, Least(6, "for queries that see several keys")] = 12
    """Tokens per sequence."""
    batch: Annotated[int, Least(1)] = 32
    steps: Annotated[int, Least(2)] = 400
    every: Annotated[int, Least(1)] = 100
    """Steps between two measuring points."""
    rate: float = 0.02
    valid: Annotated[int, Least(1)] = 256
    """Sequences that attention is measured on."""
    seeds: Annotated[int, Least(2, "for an interval")] = 5
    seed: int = 400
    device: str = "cpu"

    @property
    def variants(self) -> dict[str, tuple[Attention, int, str]]:
        tasks = [(kind, TRIGGER) for kind in KINDS] + [("softmax", ALWAYS)]
        return {name_of(kind, heads, task): (kind, heads, task) for heads in self.heads for kind, task in tasks}


def name_of(kind: str, heads: int, task: str = TRIGGER) -> str:
    """The ensemble of this kind, number of heads and task."""
    return f"{kind}, {counted(heads, 'head')}, {task}"


def sequences(config: SinksNeededConfig, task: str, count: int, place: int | str) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (count, length, content + MARKS), what to give (count, length, content), and where it is asked for."""
    source = generator(config.seed, "sequences", place)
    vectors = torch.randn(count, config.length, config.content, generator=source)
    at = torch.randint(2, config.length, (count,), generator=source)  # the token before may be any
    places = torch.arange(config.length)
    first, trigger = (places == 0).expand(count, -1), places == at[:, None]
    if task == ALWAYS:
        trigger = torch.zeros_like(trigger)
    marks = torch.stack([first, trigger, ~(first | trigger)], -1).float()
    vectors = vectors * ~first[..., None]
    asked = trigger if task == TRIGGER else ~first
    means = vectors.cumsum(1) / (places + 1)[:, None]
    tokens, device = torch.cat([vectors, marks], -1), config.device
    return tokens.to(device), (means * asked[..., None]).to(device), asked.to(device)


class Heads(nn.Module):
    """One layer of attention without norm, biases, positions or residual, of all members at once."""

    def __init__(self, config: SinksNeededConfig, kind: Attention, heads: int, seeds: Sequence[int]) -> None:
        super().__init__()
        self.kind, self.heads = kind, heads
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        read, inner = config.content + MARKS, heads * config.width
        self.read = nn.Parameter(_normal(sources, read, 3 * inner))
        self.write = nn.Parameter(_normal(sources, inner, config.content))
        if kind == "learned-sink":
            self.sink = nn.Parameter(torch.zeros(len(seeds), heads))
        self.register_buffer("seeds", torch.tensor([seed & 0x7FFFFFFF for seed in seeds], dtype=torch.int32))

    def forward(self, tokens: Tensor, see: Callable[[str, Tensor], None] | None = None) -> Tensor:
        """(members, batch, length, content) of tokens (batch, length, inputs), which all members read."""
        read = torch.einsum("bti,mio->mbto", tokens, self.read)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(2, 3) for part in read.chunk(3, -1))
        sink = self.sink if self.kind == "learned-sink" else None
        mixed = attend(query, key, value, kind=self.kind, causal=True, sink=sink, drop=lambda x: x, see=see)
        return mixed.transpose(2, 3).flatten(-2) @ self.write[:, None]


def _normal(sources: Sequence[torch.Generator], rows: int, columns: int) -> Tensor:
    return torch.stack([torch.randn(rows, columns, generator=source) for source in sources]) / sqrt(rows)


class Members:
    """All networks of one kind: they begin with the weights, and read the sequences, of those of any other kind."""

    def __init__(self, config: SinksNeededConfig, kind: Attention, heads: int, task: str) -> None:
        self.config, self.kind, self.heads, self.task = config, kind, heads, task
        self.grid = Grid((kind,), config.seeds, config.seed)
        self.valid = sequences(config, task, config.valid, "valid")

    def ensemble(self) -> Ensemble:
        return ensemble(
            self.config,
            len(self.grid),
            networks=self.networks,
            batch=lambda step, members: sequences(self.config, self.task, self.config.batch, step)[:2],
            loss=mean_square,
            optimizer=make_optimizer("adam", rate=self.config.rate),
            measures={"read": self.look},
            measure_at=tuple(range(0, self.config.steps + 1, self.config.every)),
        )

    def networks(self, members: Sequence[int]) -> Heads:
        return Heads(self.config, self.kind, self.heads, [self.grid.seed_of[m] for m in members])

    def look(self, networks: Heads, members: Sequence[int]) -> dict[str, Tensor]:
        """Errors as shares of that of a network that is always silent, and attention of late queries that are silent.

        missed (members,): the error where a mean is asked for. noise: the rest. first, second, total (members, heads):
        attention on the first key, the second and all; in the control without a trigger, of all late queries.
        """
        tokens, wanted, asked = self.valid
        found: dict[str, Tensor] = {}
        given = networks(tokens, see=found.__setitem__)
        square = (given - wanted).square().sum(-1)
        silent = (wanted.square().sum(-1) * asked).sum()
        late = torch.arange(self.config.length, device=asked.device) >= self.config.length // 2
        looked = late & (~asked if self.task == TRIGGER else asked)  # (batch, queries)
        total = found["attention"].sum(-1)
        shares = found["attention"] / total.clamp(min=1.0)[..., None]

        def mean(values: Tensor) -> Tensor:
            return (values * looked[:, None]).sum((1, 3)) / looked.sum()

        return {
            "missed": (square * asked).sum((1, 2)) / silent,
            "noise": (square * ~asked).sum((1, 2)) / silent,
            "first": mean(shares[..., 0]),
            "second": mean(shares[..., 1]),
            "total": mean(total),
        }


def mean_square(networks: Heads, batch: tuple[Tensor, ...], noise: Any = None) -> Tensor:
    """(members,)."""
    tokens, wanted = batch
    square: Tensor = (networks(tokens) - wanted).square()
    return square.sum(-1).mean((1, 2))


def run(config: SinksNeededConfig, run: Run, progress: Progress) -> None:
    """Train every kind of attention on the task, softmax on its control too, and look where attention goes."""
    needs_device(config.device, at_paper_scale("sinks-needed"))
    train_all({name: Members(config, *what).ensemble() for name, what in config.variants.items()}, run,
              progress=progress)  # fmt: skip


# ---- what is read from the record

LEARNED = 0.1  # error, as a share of that of a network that is always silent, up to which the task is learned
EQUAL = 0.05  # by which a kind's error may exceed softmax's, so that their attention can be compared
NEARLY = 0.9  # of the attention: so much is nearly all of it
REST = 0.05  # of the attention, beyond uniform attention: less is no sink. That of `sinks`


class Record:
    """Rows over seeds, of networks with one number of heads; those that did not learn their task are NaN."""

    def __init__(self, run: Run, heads: int) -> None:
        self.run, self.heads, length = run, heads, int(run.config["length"])
        self.uniform = float((1 / np.arange(length // 2 + 1, length + 1)).mean())

    def every(self, kind: str, what: str, task: str = TRIGGER) -> Any:
        found = self.run.array(f"{name_of(kind, self.heads, task)}/read/{what}")
        return found if found.ndim == 2 else found.mean(-1)

    def error(self, kind: str, task: str = TRIGGER) -> Any:
        return self.every(kind, "missed", task)[-1] + self.every(kind, "noise", task)[-1]

    def last(self, kind: str, what: str = "first", task: str = TRIGGER) -> Any:
        return np.where(self.error(kind, task) <= LEARNED, self.every(kind, what, task)[-1], np.nan)

    @property
    def controls(self) -> Mapping[str, Comparison]:
        mass = self.last("softmax")
        return {
            "the task without a trigger": compare(mass, self.last("softmax", task=ALWAYS)),
            "untrained": compare(mass, self.every("softmax", "first")[0]),
            "uniform attention": compare(mass, self.uniform),
            "the second key": compare(mass, self.last("softmax", "second")),
        }


def _records(run: Run) -> dict[str, Record]:
    return {counted(heads, "head"): Record(run, heads) for heads in run.config["heads"]}


COMMAND = at_paper_scale("sinks-needed")
CLAIMS = Claims(source="Ran-Milo p. 1", unit="%", matters=0.2)
NOT_LEARNED = "networks of a kind did not learn the task"


@CLAIMS.declare("softmax-needs-a-sink", ceiling=1.0)
def _needed(run: Run, claim: Claim) -> Finding:
    """Softmax attention that averages after a trigger and is silent elsewhere puts nearly all of its attention on the
    first token where it is silent.

    Expected: there the first key has at least {NEARLY:.0%}, and 20 % more than in the same task without a trigger, in
    the untrained network, with uniform attention, and than the second key.
    """
    found, size, details = {}, [], {}
    for name, record in _records(run).items():
        ((control, one),) = hardest(claim, record.controls).items()
        found[f"{name}, beside {control}"] = one
        size.append(at_least(f"lower end, {name}", one.low, NEARLY, "%"))
        details[name] = {"error": mean_known(record.error("softmax"))}
        details[name] |= {control: each.control for control, each in record.controls.items()}
    what = "attention of silent queries on the first key"
    return of_learned(claim, found, reason=NOT_LEARNED, command=COMMAND, fewest=2, what=what, size=size,
                      details=details)  # fmt: skip


def _against(run: Run, claim: Claim, kind: str, left: Callable[[str, Comparison], Test]) -> Finding:
    found, size, controls, details = {}, [], [], {}
    for name, record in _records(run).items():
        mass, error = record.last(kind), record.error(kind)
        found[name] = compare(record.last("softmax"), mass)
        size.append(left(f"beyond uniform with {kind}, {name}", compare(mass, record.uniform)))
        more = np.where(np.isfinite(mass), error - record.error("softmax"), np.nan)
        controls.append(at_most(f"error above softmax's, {name}", mean_known(more), EQUAL, "%"))
        details[name] = {"networks that did not learn": float((~np.isfinite(mass)).sum()),
                         "attention on all keys": mean_known(record.last(kind, "total"))}  # fmt: skip
    what = f"attention of silent queries on the first key with softmax (control: {kind})"
    return of_learned(claim, found, reason=NOT_LEARNED, command=COMMAND, fewest=2, what=what, size=size,
                      controls=controls, details=details)  # fmt: skip


def _none_left(what: str, found: Comparison) -> Test:
    return no_more(what, found, REST, "%")


def _some_left(what: str, found: Comparison) -> Test:
    return at_least(f"lower end {what}", found.difference_low, REST, "%")


NEEDED = ("sinks-needed/softmax-needs-a-sink",)


@CLAIMS.declare("relu-needs-none", uses=NEEDED)
def _relu(run: Run, claim: Claim) -> Finding:
    """ReLU attention does the same without a sink.

    Expected: at the same error, to {EQUAL:.0%}, softmax has 20 % more on the first key where it is silent; with ReLU
    less than {REST:.0%} beyond uniform attention is left.
    """
    return _against(run, claim, "relu", _none_left)


@CLAIMS.declare("sigmoid-needs-none", "StreamingLLM Sec. 3", uses=NEEDED)
def _sigmoid(run: Run, claim: Claim) -> Finding:
    """Attention whose weights need not sum to one, a sigmoid's, forms no sink.

    Expected: at the same error, to {EQUAL:.0%}, softmax has 20 % more on the first key where it is silent; with a
    sigmoid less than {REST:.0%} beyond uniform attention is left.
    """
    return _against(run, claim, "sigmoid", _none_left)


@CLAIMS.declare("learned-sink-takes-over", "StreamingLLM Sec. 3", uses=NEEDED)
def _learned_sink(run: Run, claim: Claim) -> Finding:
    """A learned sink takes the attention that has nowhere else to go, and the first token is no sink any more.

    Expected: at the same error, to {EQUAL:.0%}, softmax has 20 % more on the first key where it is silent; with a
    learned sink less than {REST:.0%} beyond uniform attention is left.
    """
    return _against(run, claim, "learned-sink", _none_left)


@CLAIMS.declare("zero-sink-is-not-enough", "StreamingLLM Sec. 3", uses=NEEDED)
def _zero_sink(run: Run, claim: Claim) -> Finding:
    """With one more key of logit 0 and value 0 the first token draws less attention, but it remains a sink.

    Expected: at the same error, to {EQUAL:.0%}, softmax has 20 % more on the first key where it is silent; off-by-one
    still has at least {REST:.0%} more than uniform attention.
    """
    return _against(run, claim, "off-by-one", _some_left)


COLOURS = dict(zip(KINDS, (BLUE, ORANGE, GREEN, PURPLE, RED), strict=True))


def draw(run: Run) -> list[Drawing]:
    """Attention on the first key over training, and at the end beside the error."""
    records = _records(run)
    figure, axes = panels(1 + len(records), width=4.0)
    caption = ""
    for axis, (name, record) in zip(axes, records.items(), strict=False):
        steps = run.steps(f"{name_of('softmax', record.heads)}/read/first")
        for kind in KINDS:
            mean_and_band(axis, steps, 100 * record.every(kind, "first"), color=COLOURS[kind], label=kind)
        control = 100 * record.every("softmax", "first", ALWAYS)
        mean_and_band(axis, steps, control, color=CONTROL, ls="--", label="softmax, no trigger")
        axis.set(title=f"Silent queries, {name}", ylabel="attention on the first key (%)", ylim=(0, 102))
        step_axis(axis)
        ends = [f"{kind} gives {number(float(record.every(kind, 'first')[-1].mean()), '%')}" for kind in KINDS]
        caption += f"Silent queries, {name}: to the first key {listing(ends)}. "
    axes[0].legend(fontsize=7.5, loc="center right")
    axis = axes[-1]
    for mark, (name, record) in zip("osv^", records.items(), strict=False):
        axis.plot([], [], mark, ms=4, color=CONTROL, label=name)
        for kind in KINDS:
            axis.plot(record.error(kind), 100 * record.every(kind, "first")[-1], mark, ms=4, color=COLOURS[kind])
    axis.axvline(LEARNED, color=CONTROL, ls=":", lw=1)
    axis.set(xscale="log", xlabel="error (1: always silent)", ylabel="attention on the first key (%)", ylim=(-2, 102))
    axis.set_title("The same task, the same error")
    axis.legend(fontsize=7.5, loc=(0.02, 0.6))
    caption += (
        f"Lines are means over {run.config['seeds']} networks; bands go from the lowest to the highest. Dashed: the "
        "control in which every token asks for a mean. Last panel: the end of training, one point per network; those "
        "right of the dotted line do not count."
    )
    return [Drawing("attention-where-silent", caption, figure)]


STUDY = Study(
    name="sinks-needed",
    title="Attention sinks: a task that needs one with softmax alone",
    version=1,
    claims=CLAIMS,
    quick=SinksNeededConfig(),
    paper=SinksNeededConfig(
        heads=(1, 4),
        content=8,
        width=16,
        length=32,
        steps=2000,
        every=200,
        valid=512,
        seeds=8,
        seed=520,
        device="cuda",
    ),
    run=run,
    draw=draw,
    about=(
        "One layer of attention reads vectors of Gaussian numbers after a first token of zeros. One of them is marked "
        "as a trigger. There the layer must give the mean of what it sees; everywhere else it must give zero. Five "
        "kinds of attention begin with the same weights and read the same sequences: softmax, softmax with one more "
        "key of logit 0 and value 0 (off-by-one), the same with a learned logit (learned sink), a sigmoid, and ReLU, "
        "the last two divided by the number of keys. Measured is how much attention late queries that must be silent "
        "give to the first key. Controls: the task in which every token asks for a mean, the untrained network, "
        "uniform attention and the second key. Kinds are compared at the same error."
    ),
)
