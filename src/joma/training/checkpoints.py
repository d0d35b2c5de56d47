"""Where a training run was when it was last written down: one safetensors file beside the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from torch import Tensor

from joma.host.sealed import load_sealed, save_sealed
from joma.runs import Run, RunError


class Checkpoint:
    """The states of the groups of an ensemble. It belongs to one run: that of another, or another split, is ignored."""

    unreadable = False
    """Whether `load` found a file that is damaged."""

    def __init__(self, run: Run, name: str, together: int) -> None:
        self.path = run.path.with_name(f"{run.path.name}-{name.replace('/', '.') or 'ensemble'}.checkpoint")
        self.together = together
        self.identity = f"{run.created} {name} {together}"
        self.kept: Sequence[int] | None = None  # the step of every group in the file; None: no file of this run

    def save(self, at: Sequence[int], states: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Write it, whole or not at all. at: the step of every group."""
        tensors = {f"{group}/{key}": value for group, state in states.items() for key, value in state.items()}
        try:
            save_sealed(self.path, tensors, {"identity": self.identity, "at": json.dumps(list(at))})
            self.kept = list(at)
        except Exception as error:
            raise RunError(
                f"no checkpoint could be written to {self.path} ({error}); what was recorded is safe, but the same "
                f"command goes on {self._where()}"
            ) from error

    def _where(self) -> str:
        """Where training goes on if nothing more is written; the mean over groups, as progress tells it."""
        if self.kept is None:
            return "from the start, as there is no earlier checkpoint"
        return f"from the last checkpoint, at step {sum(self.kept) / len(self.kept):.0f}"

    def load(self, groups: int) -> tuple[list[int], dict[int, dict[str, Tensor]]]:
        """The step and the state of every group; the beginning if there is no checkpoint of this run."""
        states: dict[int, dict[str, Tensor]] = {}
        try:
            tensors, about = load_sealed(self.path)
            if about.get("identity") != self.identity:
                return [0] * groups, {}
            for key, tensor in tensors.items():
                group, name = key.split("/", 1)
                states.setdefault(int(group), {})[name] = tensor
            at: list[int] = json.loads(about["at"])
        except FileNotFoundError:
            return [0] * groups, {}
        except (KeyError, ValueError):  # a DamagedError among them
            self.unreadable = True
            return [0] * groups, {}
        self.kept = list(at)
        return at, states

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
