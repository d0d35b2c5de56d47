"""What a training run says of itself while it goes on: how far it is, its loss, and the time left."""

import math
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from joma.host.progress import Progress
from joma.host.words import counted
from joma.training.ensemble import Ensemble

ANEW = "checkpoint unreadable, training begins anew"


class Teller:
    """Tells the progress of all ensembles, with an estimate of the time left."""

    def __init__(self, ensembles: Mapping[str, Ensemble], progress: Progress) -> None:
        self.ensembles, self.progress = ensembles, progress
        work = dict.fromkeys(ensembles, 1.0)
        for name, one in ensembles.items() if len(ensembles) > 1 else ():  # what training takes, in some unit
            weights = sum(p.numel() for p in one.networks([0]).parameters())
            work[name] = float((one.steps - one.first) * one.members * weights * one.batch(0, [0])[0].numel())
        self.part = {name: some / sum(work.values()) for name, some in work.items()}
        self.step = {name: float(ensemble.first) for name, ensemble in ensembles.items()}
        self.found = dict(self.step)
        self.began: tuple[float, float] | None = None  # when, and at what share
        self.anew: list[str] = []
        self.last = monotonic()

    @property
    def share(self) -> float:
        """Of all the work. Parts may add up to a rounding more than all."""
        done = {name: (self.step[name] - one.first) / (one.steps - one.first) for name, one in self.ensembles.items()}
        return min(1.0, sum(self.part[name] * done[name] for name in done))

    def begin(self, name: str, step: float, *, anew: bool = False) -> None:
        self.step[name] = self.found[name] = step
        self.began = None
        if anew:
            self.anew.append(name)
            self.progress(self.share, f"{name}: {ANEW}" if name else ANEW)

    def start_clock(self) -> None:
        """All have had a turn: what comes before steps, as compiling, is over, and their pace tells the time left."""
        self.began = self.began or (monotonic(), self.share)

    def tell(self, name: str, going: Sequence[str], loss: Callable[[], float]) -> None:
        """Say how far `name` is, one of those that are `going` on."""
        one = self.ensembles[name]
        if self.step[name] <= self.found[name]:
            if one.device.startswith("cuda") and self.step[name] < one.steps:
                self.progress(self.share, f"{name}: compiling" if name else "compiling")
            return
        now, share = monotonic(), self.share
        if now - self.last < 0.2:
            return
        self.last = now
        who = ", ".join(going) + ": " if any(going) else ""
        members = sum(self.ensembles[each].members for each in going)
        at = f"step {self.step[name]:.0f} of {one.steps}"
        shown = f", loss {mean:.3f}" if math.isfinite(mean := loss()) else ""
        wait = ""
        if self.began is not None and share > self.began[1]:
            left = (now - self.began[0]) * (1 - share) / (share - self.began[1])
            wait = f", {left:.0f} s left" if left < 100 else f", {left / 60:.0f} min left"
        # At every line: who looks at a log, or now and then at a bar, misses what is said once.
        names = [name for name in going if name in self.anew]
        anew = f" ({', '.join(filter(None, names)) + ': ' if any(names) else ''}{ANEW})" if names else ""
        self.progress(share, f"{who}{counted(members, 'network')}, {at}{shown}{wait}{anew}")
