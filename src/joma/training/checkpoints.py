"""What training writes next to the run: where it was when last written down, and states kept for branches."""

import glob
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from joma.host.sealed import about_sealed, load_sealed, save_sealed
from joma.host.words import counted
from joma.runs import Run, RunError


class Checkpoint:
    """The states of the groups of an ensemble. It belongs to one run: that of another, or another split, is ignored."""

    unreadable = False
    """Whether `load` found a file that is damaged."""

    def __init__(self, run: Run, name: str, together: int) -> None:
        self.path = _path_next_to(run, name, "checkpoint")
        self.together = together
        self.identity = f"{run.created} {name} {together}"
        self.kept: Sequence[int] | None = None  # the step of every group in the file; None: no file of this run

    def save(self, at: Sequence[int], states: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Write it, atomically. at: the step of every group."""
        tensors = {f"{group}/{key}": value for group, state in states.items() for key, value in state.items()}
        try:
            save_sealed(self.path, tensors, {"identity": self.identity, "at": json.dumps(list(at))})
            self.kept = list(at)
        except Exception as error:
            where = "from the start, as there is no earlier checkpoint"
            if self.kept is not None:  # the mean over groups, as progress tells it
                where = f"from the last checkpoint, at step {sum(self.kept) / len(self.kept):.0f}"
            rest = f"what was recorded is safe, but the same command continues {where}"
            raise RunError(f"no checkpoint could be written to {self.path} ({error}); {rest}") from error

    def load(self, groups: int, first: int = 0) -> tuple[list[int], dict[int, dict[str, Tensor]]]:
        """The step and the state of every group; the beginning, step `first`, if there is no checkpoint of this run."""
        states: dict[int, dict[str, Tensor]] = {}
        try:
            tensors, about = load_sealed(self.path)
            if about.get("identity") == self.identity:
                for key, tensor in tensors.items():
                    group, name = key.split("/", 1)
                    states.setdefault(int(group), {})[name] = tensor
                at: list[int] = json.loads(about["at"])
                self.kept = list(at)
                return at, states
        except FileNotFoundError:
            pass
        except (KeyError, ValueError):  # a DamagedError among them
            self.unreadable = True
        return [first] * groups, {}

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class KeptState:
    """The state of an ensemble after some step, for those that branch off there. It belongs to one run."""

    def __init__(self, run: Run, name: str, step: int) -> None:
        self.path = _path_next_to(run, name, f"step{step}.kept")
        self.name, self.step, self.identity = name, step, f"{run.created} {name} {step}"

    @property
    def there(self) -> bool:
        """Whether there is a file of this run; only its head is read."""
        try:
            return about_sealed(self.path).get("identity") == self.identity
        except (OSError, ValueError):
            return False

    def save(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Write the states of all groups as one: a branch may be split into other groups."""
        tensors = {key: torch.cat([state[key] for state in states]) for key in states[0]}
        try:
            save_sealed(self.path, tensors, {"identity": self.identity})
        except Exception as error:
            what = f"the state of {self.name} at step {self.step} could not be kept in {self.path} ({error})"
            rest = "what was recorded is safe, and the same command continues from the last checkpoint"
            raise RunError(f"{what}; {rest}") from error

    def load(self, members: Sequence[int], out_of: int) -> dict[str, Tensor]:
        """The state of these members of a branch that has so many in all."""
        what = f"the state of {self.name} at step {self.step}, from which a branch begins,"
        try:
            tensors, about = load_sealed(self.path)
        except FileNotFoundError as error:
            raise RunError(f"{what} is gone: there is no {self.path}; start anew (fresh)") from error
        except ValueError as error:
            raise RunError(f"{what} cannot be read: {error}; start anew (fresh)") from error
        if about.get("identity") != self.identity:
            raise RunError(f"{what} is of another run: {self.path}; start anew (fresh)")
        if (kept := len(tensors["diverged_at"])) != out_of:
            raise ValueError(f"{what} has {counted(kept, 'member')}, the branch has {out_of}: they must be the same")
        return {key: tensor[list(members)] for key, tensor in tensors.items()}


def _path_next_to(run: Run, name: str, what: str) -> Path:
    plain = name.replace("%", "%25").replace(".", "%2E").replace("/", ".")
    return run.path.with_name(f"{run.path.name}-{plain or 'ensemble'}.{what}")


def forget_kept(run: Run) -> None:
    """Remove all states that were kept for branches of this run: they are as large as the networks."""
    for path in run.path.parent.glob(f"{glob.escape(run.path.name)}-*.kept"):
        path.unlink(missing_ok=True)
