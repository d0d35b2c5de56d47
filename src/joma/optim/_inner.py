"""The inner optimizer: what it looks at, what it keeps in its groups, and how those follow ours.

Its compact parameters are zero before each step. So an optimizer that looks at parameters (a trust ratio, an average of
weights, a distance from the start) would see nothing of the matrix. A `Trial` finds that out on a tiny matrix: the
same gradients move it once from where it is and once from anywhere, and both moves must be the same.

An optimizer may count its steps, or keep what it has learnt, in its group. The trial finds those keys too. They are
state, not options: nothing of ours is handed over to them, and our group has them as `inner/ROLE/KEY`, so that they are
saved and loaded with it. torch's own optimizers do neither and are not tried.
"""

import copy
import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from joma.optim._groups import ORIGIN, Place, Role
from joma.optim._matrix import Pack, one_number

Make = Callable[..., torch.optim.Optimizer]
Group = dict[str, Any]
OWN = "inner/"
"""In our group before the role and the key of what the inner optimizer keeps in its group."""
_TRIED_STEPS = 12  # Lookahead compares with old weights every 5 or 6
_TRIED_SHAPE = (6, 9)
_TRIED = ((torch.float64, 1e-6), (torch.float32, 1e-3))  # precisions, and what is no rounding as a share of the move
_NOT_OPTIONS = ("params", "param_names", ORIGIN)
LABELS = "name group_name lr_scale initial_lr initial_momentum min_lr max_lr base_lr swa_lr base_momentum max_momentum"
"""Keys that schedulers and trainers put into groups: they are kept, and no optimizer reads them."""


class Trial(NamedTuple):
    """What an optimizer does with its group.

    - reads: the keys that it asks for; None if it could not be tried
    - writes: those that it makes or changes
    - everywhere: of these, those that are not in the first group alone
    - counts: those that go on changing
    """

    reads: frozenset[str] | None = frozenset()
    writes: frozenset[str] = frozenset()
    everywhere: frozenset[str] = frozenset()
    counts: frozenset[str] = frozenset()


class _Watched(Group):
    """A group that notes which keys are asked for."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.reads: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.reads.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.reads.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.reads.add(key)
        return super().get(key, default)


def is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is torch's or ours: its groups have options alone, and it sees gradients alone."""
    return type(optimizer).__module__.startswith(("torch.optim", "joma.optim"))


def try_inner(make: Make, made: torch.optim.Optimizer, group: Group) -> Trial:
    """What an inner optimizer does with its group; one that looks at parameters is refused."""
    if is_known(made):
        return Trial()
    name, looks = type(made).__name__, False
    for dtype, rounding in _TRIED:
        try:
            here, anywhere = (_Run(make, group, dtype, moved=moved) for moved in (False, True))
        except Exception:  # its first real step says what it lacks
            continue
        if bool((here.moves - anywhere.moves).abs().max() > rounding * here.moves.abs().max()):
            looks = True  # or it takes these numbers for others, as bitsandbytes does with float64
            continue
        if taken := sorted(here.trial.writes & {"lr", "weight_decay"}):
            raise ValueError(
                f"inner {name} changes {taken[0]} in its group, where a schedule of yours would too: take an "
                "optimizer that leaves it alone"
            )
        if not _resumes(make, group, dtype, here.moves):
            warnings.warn(
                f"inner {name} does not go on from its own state_dict() bit for bit, and so GaLore with it does not",
                stacklevel=4,
            )
        return here.trial
    if looks:
        raise ValueError(
            f"inner {name} looks at the matrix itself, and GaLore steps in a subspace, from zero: take an optimizer "
            "whose step depends on gradients alone, as AdamW"
        )
    return Trial(reads=None)


def _resumes(make: Make, group: Group, dtype: torch.dtype, moves: Tensor) -> bool:
    with suppress(Exception):
        return torch.equal(_Run(make, group, dtype, resumed=True).moves, moves)
    return False


class _Run:
    """Steps of two tiny matrices, each in a group, with gradients that are drawn.

    - moved: the matrices are anywhere before each step
    - resumed: half-way a new optimizer goes on from the state of the first
    """

    def __init__(
        self, make: Make, group: Group, dtype: torch.dtype, *, moved: bool = False, resumed: bool = False
    ) -> None:
        draw, elsewhere = (torch.Generator().manual_seed(seed) for seed in (1, 2))
        drawn = partial(torch.randn, *_TRIED_SHAPE, dtype=dtype)
        self.weights = [nn.Parameter(drawn(generator=draw)) for _ in range(2)]
        # A compiled step would take minutes for a tiny matrix; torch's compiler alone takes seconds to load.
        compiles = "torch._dynamo" in sys.modules
        eager: Any = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
        with torch.random.fork_rng(devices=[]), eager, torch.enable_grad():
            torch.manual_seed(0)
            self._start(make, group)
            before, early, moves = self._kept(), list[Group](), []
            for step in range(_TRIED_STEPS):
                if resumed and 2 * step == _TRIED_STEPS:
                    self._start(make, group, copy.deepcopy(self.optimizer.state_dict()))
                for weight in self.weights:
                    weight.grad = drawn(generator=draw)
                    if moved:
                        weight.data.copy_(drawn(generator=elsewhere))
                start = torch.stack([weight.detach() for weight in self.weights])
                self.optimizer.step()
                moves.append(torch.stack([weight.detach() for weight in self.weights]) - start)
                early = early or self._kept()
        self.moves = torch.stack(moves)
        written, counted = (list(map(_changed, kept, self._kept())) for kept in (before, early))
        reads = frozenset(self.groups[0].reads | self.groups[1].reads)
        self.trial = Trial(reads, written[0] | written[1], written[1], counted[0] | counted[1])

    def _start(self, make: Make, group: Group, state: Group | None = None) -> None:
        self.groups = [_Watched({**group, "params": [weight]}) for weight in self.weights]
        self.optimizer = make([*self.groups])
        if state is not None:
            self.optimizer.load_state_dict(state)
        for theirs in self.optimizer.param_groups:
            theirs.update({key: value for key, value in (("lr", 0.01), ("weight_decay", 0.0)) if key in [*theirs]})
        with suppress(AttributeError):  # ScheduleFree
            self.optimizer.train()  # type: ignore[attr-defined]

    def _kept(self) -> list[Group]:
        groups = (group.items() for group in self.optimizer.param_groups)  # a look at all is no reading of one
        return [{key: copy.deepcopy(value) for key, value in each if key not in _NOT_OPTIONS} for each in groups]


def _changed(before: Group, after: Group) -> frozenset[str]:
    return frozenset(key for key, value in after.items() if key not in before or repr(before[key]) != repr(value))


def check_keys(groups: list[Group], options: set[str], trials: Mapping[int, Trial]) -> None:
    """Refuse options of groups that nobody reads; the nearest one is named."""
    for group, (number, trial) in zip(groups, trials.items(), strict=True):
        known = {*options, *_NOT_OPTIONS, *LABELS.split(), *(trial.reads or ())}
        for key in group:
            if key in known or key.startswith((OWN, "galore_")):
                continue
            near = difflib.get_close_matches(key, sorted(options), 1)
            if near or trial.reads is not None:
                raise ValueError(
                    f"group {number} has an option {key!r} that nobody reads: "
                    + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(options))}")
                )


def check_misspelt(options: Iterable[str], ours: Iterable[str], accepted: Iterable[str]) -> None:
    """Refuse an option that is nearly one of ours and that the inner optimizer does not name."""
    for key in {*options} - {*accepted}:
        if near := difflib.get_close_matches(key, sorted(ours), 1, 0.75):
            raise ValueError(f"there is no option {key!r}: did you mean {near[0]!r}?")


def _is_own(key: str, ours: Group) -> bool:
    return key not in ours and key not in _NOT_OPTIONS


class Follower(NamedTuple):
    """A group of the inner optimizer, and ours whose options it follows."""

    ours: Group
    theirs: Group
    role: Role


def has_decoupled_decay(group: Group) -> bool:
    """Whether the inner optimizer's own decay is decoupled, as AdamW's: it then shrinks by rate times weight_decay."""
    return bool(group.get("decoupled_weight_decay"))


@contextmanager
def only(inner: torch.optim.Optimizer, some: list[tuple[Group, list[Tensor]]]) -> Iterator[None]:
    """Let the inner optimizer see some parameters of some of its groups, and no others."""
    groups, before = [*inner.param_groups], [group["params"] for group, _ in some]
    for group, parameters in some:
        group["params"] = parameters
    inner.param_groups[:] = [group for group, _ in some]  # in place: one that wraps another has the other's list
    try:
        yield
    finally:
        inner.param_groups[:] = groups
        for (group, _), parameters in zip(some, before, strict=True):
            group["params"] = parameters


class Following:
    """The inner optimizer as we see it: a group for each role of the parameters in each of our groups.

    What is in a group of the inner optimizer and not in ours is its own: what it counts, or has learnt.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        """Nothing follows before `link`."""
        self.inner = inner
        self.followers: dict[Place, Follower] = {}
        self.trials: dict[Place, Trial] = {}

    @property
    def counts(self) -> bool:
        """Whether a step for some parameters would be counted for all of a group."""
        return any(trial.counts for trial in self.trials.values())

    def link(self, groups: list[Group], new: list[Group], trials: Mapping[int, Trial]) -> None:
        """Let new groups of the inner optimizer follow ours, and give ours the options that they lack."""
        for one in new:
            number, role = one.pop(ORIGIN)
            self.trials[number, role] = trial = trials[number]
            for key, value in one.items():
                if key not in trial.writes:
                    groups[number].setdefault(key, value)
                    one[key] = value.clone() if isinstance(value, Tensor) else value  # several may share a tensor
            self.followers[number, role] = Follower(groups[number], one, role)
        self.show_own()

    def show_own(self) -> None:
        """In our groups what the inner optimizer keeps in its own: tools that pass a state on look there."""
        if is_known(self.inner):
            return
        for ours, theirs, role in self.followers.values():
            ours.update({f"{OWN}{role}/{key}": value for key, value in theirs.items() if _is_own(key, ours)})

    def take_own(self) -> None:
        """Let the inner optimizer have in its groups what ours say that it kept there, and nothing else of its own."""
        for ours, theirs, role in self.followers.values():
            prefix = f"{OWN}{role}/"
            for key in [key for key in theirs if _is_own(key, ours)]:
                del theirs[key]
            for key, value in ours.items():
                if key.startswith(prefix):
                    theirs[key.removeprefix(prefix)] = value.clone() if isinstance(value, Tensor) else value

    def missing_own(self, place: Place, saved: Mapping[str, Any]) -> list[str]:
        """Of a group that has stepped: what its inner group must have kept, and a saved group has not."""
        keys = (f"{OWN}{place[1]}/{key}" for key in self.trials[place].everywhere)
        return sorted(key for key in keys if key not in saved)

    def link_again(self) -> None:
        """Loading gives the inner optimizer new group dictionaries, in the old order."""
        pairs = zip(self.followers.items(), self.inner.param_groups, strict=True)
        self.followers = {place: one._replace(theirs=theirs) for (place, one), theirs in pairs}

    def list_packs(self, packs: list[Pack]) -> None:
        """Let the inner optimizer have the compact parameters of these packs and no others."""
        for (number, role), one in self.followers.items():
            if role == "compact":
                one.theirs["params"] = [pack.compact for pack in packs if pack.group == number]

    def options_of(self, number: int, role: Role, group: Group) -> Group:
        """What the group of a role gets of a group of ours; decay of matrices is not the inner optimizer's matter."""
        known = self.followers[number, role].theirs
        options = {key: group[key] for key in known if key in group and key not in _NOT_OPTIONS}
        if role == "scaled" and "lr" in options:
            options["lr"] = options["lr"] * group["scale"]
        if "weight_decay" in options and role != "passing":
            own = role == "scaled" and has_decoupled_decay(group)
            options["weight_decay"] = group["weight_decay"] / group["scale"] if own else 0.0
        return options

    def hand_over_options(self) -> None:
        """Hand on what a scheduler may have changed."""
        for (number, role), (ours, theirs, _) in self.followers.items():
            for key, value in self.options_of(number, role, ours).items():
                if (
                    isinstance(theirs[key], Tensor)
                    and theirs[key] is not value
                    and (key != "weight_decay" or role == "passing")
                ):
                    theirs[key].fill_(one_number(value))  # a rate that torchao keeps in a tensor stays in that tensor
                else:
                    theirs[key] = value

    def step(self, members: dict[Place, list[Tensor]]) -> None:
        with only(self.inner, [(self.followers[place].theirs, some) for place, some in members.items()]):
            self.inner.step()
        self.show_own()
