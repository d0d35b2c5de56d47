"""What makes attention entropy come back: logits that shrink, or only the preference that all queries share?

Twins of Figure 6's language models go on from the valley with one of these sizes held as it was there, and controls
with a push of the same size elsewhere (`Sizes`). What a twin lacks of its base's rise, from the valley to the end, is
what the held thing makes.

What was fixed when: everything, before any run at paper scale. A sketch on other seeds (0, 1, 3 to 7) had rescaled
logits of finished networks, and found 79 to 121 % of the rise gone with both sizes, 31 to 89 % with the shared one
alone; no twin had been trained. The valley, step 2,000, is that of `rebound-cause`. The seeds here, 60 to 64, had not
been looked at. "Makes the rebound" needs 60 % of the rise removed and less than 20 % by the control. The kept record
has two more twins, words and mean, from when this study held them too. They could not be held by a push every 50 steps
(off by 112 and 11 %), and are asked anew in `word-logits` and `reading`.

Queries become q = a m + b (q - m), with the mean query m. The control has the same pushes of queries, turned by a
random rotation. To hold sizes at their current value would push nothing, and one layer has no other layer to take sizes
from.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from joma.claims.contract import Study
from joma.figures.style import BLUE, GREY, ORANGE
from joma.measure.spread import spread_sums
from joma.models.change import Change
from joma.models.decoder import DecoderConfig
from joma.recipes.language import PAPER, QUICK, same_text
from joma.studies.rebound._held import Hold, Tensors
from joma.studies.rebound._twin_claims import draw_twins, judge_hold, twin_claim
from joma.studies.rebound._twins import Twins, TwinsConfig

MOST = 10.0  # the largest factor by which queries are scaled, and one over it the smallest


class Scaled(Change):
    """Asks for q + more x q + shift: (members, heads) and (members, heads, head width)."""

    def __init__(self, more: Tensor, shift: Tensor) -> None:
        self.more, self.shift = more, shift

    def ask(self, query: Tensor) -> Tensor:
        return query * (1 + self.more)[:, None, :, None, None] + self.shift[:, None, :, None]


class Turned(Change):
    """Asks for q + matrix q + shift: (members, heads, head width, head width) and (members, heads, head width)."""

    def __init__(self, matrix: Tensor, shift: Tensor) -> None:
        self.matrix, self.shift = matrix, shift

    def ask(self, query: Tensor) -> Tensor:
        return query + query @ self.matrix[:, None].mT + self.shift[:, None, :, None]


@dataclass(frozen=True)
class Sizes(Hold):
    """The variance of logits over keys that goes through the mean query, or through the rest of queries, or both."""

    parts: tuple[str, ...] = ("shared", "specific")

    def draw(self, config: DecoderConfig, tokens: Tensor, draws: torch.Generator) -> Tensor:
        side = config.width // config.heads
        rotations: Tensor = torch.linalg.qr(torch.randn(config.heads, side, side, generator=draws)).Q
        return rotations

    def measure(self, seen: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Both variances, (members, heads), and the mean query."""
        query, key = (seen[name] for name in ("query", "key"))  # (members, batch, heads, length, head width)
        flat = [part.transpose(0, 1).flatten(1, 2) for part in (query, key)]
        found = spread_sums(flat[0], flat[1], causal=True, finite=False).spread
        sizes = {part: getattr(found, part).to(query.dtype).view(len(query), -1) for part in ("shared", "specific")}
        return {**sizes, "query": query.mean((1, 3))}

    def push(self, valley: Tensors, now: Tensors, drawn: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """q = a m + b (q - m), with the mean query m of the batch; turned, q plus the rotated difference to that."""
        a, b = (self._factor(valley[part], now[part], part) for part in ("shared", "specific"))
        shift = (a - b)[..., None] * now["query"]
        if not self.elsewhere:
            return {"more": b - 1, "shift": shift}
        return {"matrix": (b - 1)[..., None, None] * drawn, "shift": (drawn @ shift[..., None]).squeeze(-1)}

    def _factor(self, valley: Tensor, now: Tensor, part: str) -> Tensor:
        if part not in self.parts:
            return torch.ones_like(now)
        return torch.where(valley == now, 1.0, valley / now).sqrt().clamp(1 / MOST, MOST)

    def change(self, push: Tensors) -> Change:
        return Turned(push["matrix"], push["shift"]) if self.elsewhere else Scaled(push["more"], push["shift"])

    def miss(self, valley: Tensors, now: Tensors, tokens: Tensor) -> Tensor:
        """Of the root of the variance, in the part and head where it is largest."""
        off = torch.stack([(now[part] / valley[part]).sqrt() - 1 for part in self.parts])
        return off.abs().amax((0, 2))


SHARED, SPECIFIC, BOTH = "shared size", "specific size", "both sizes"
TWINS = Twins(
    {BOTH: Sizes(), SHARED: Sizes(parts=("shared",)), SPECIFIC: Sizes(parts=("specific",))}, uncontrolled=(SPECIFIC,)
)
COLOURS = {BOTH: BLUE, SHARED: ORANGE, SPECIFIC: GREY}
PAPER_SEED = 60

LOGITS = twin_claim(
    "logits-shrink",
    "because its logits shrink. With the size of their shared and of their specific part held, it does not.",
)
PREFERENCE = twin_claim(
    "shared-preference-shrinks",
    "because the preference for keys that all queries share shrinks. With the size of this part held, it does not.",
)

STUDY = Study(
    name="dilution",
    title="What makes the rebound: branches that hold the sizes of their logits",
    version=1,
    claims={
        LOGITS: partial(judge_hold, TWINS, LOGITS, BOTH),
        PREFERENCE: partial(judge_hold, TWINS, PREFERENCE, SHARED),
    },
    # The share that is gone was 0.96, with a spread of 0.5 over 24 seeds from 6000 on. Later than step 400, or with a
    # push every 10 steps, the sizes were off by more than a tenth: their logits grow too fast. To measure them on four
    # batches took two thirds as long as training; on one, seeds 6100 to 6104 came to the same verdicts.
    quick=TwinsConfig(
        **QUICK | {"width": 32, "mlp": 32, "streams": 64, "steps": 360}, seeds=5, valley=140, refresh=5, batches=1
    ),
    paper=TwinsConfig(
        **PAPER | {"valid_sequences": 40, "steps": 10_000, "every": 250, "seeds": 5, "seed": PAPER_SEED}, dropout=0.2,
        length=35, layers=(1, 2), rate=1e-4, valley=2_000, batches=10, refresh=50,
    ),
    run=TWINS.run,
    draw=lambda run: [draw_twins(TWINS, COLOURS, BOTH, run)],
    check=same_text,
    about=(
        "Figure 6's language models are trained. From the minimum on, branches hold something in all layers as it was "
        "there: the size of logits through the mean query (shared), through the rest of queries (specific), or "
        "both. What is held is measured on a fixed batch of training text every few steps, and pushed back. Controls "
        "are pushed as far elsewhere: queries along a random rotation. Compared is the share of the rise of entropy, "
        "from the minimum to the end, that a branch does not have, in one layer and in the second of two. Quick "
        "scale trains small models of one layer on Python source."
    ),
)  # fmt: skip
