"""What a run of `reversal-decoder` recorded, by condition."""

from __future__ import annotations

from typing import Any

from joma.runs import Run
from joma.studies.reversal._decoders import Record
from joma.studies.reversal.reversal_decoder.run import BASE, KINDS, RANKED, Condition, conditions


class Scores(Record[Condition]):
    """Numbers of `reversal-decoder`; networks that did not learn or diverged are NaN."""

    def __init__(self, run: Run) -> None:
        self.cured: list[int] = list(run.config["cured"])
        taught, entities = ("trained", "one way"), 2 * run.config["pairs"]
        super().__init__(run, conditions(run.config), KINDS, taught=taught, ranked=RANKED, entities=entities)

    def loss(self, condition: Condition) -> Any:
        """(seeds,) at the end: the mean of -log p over untrained reverses."""
        return -self.counting(condition, "facts/log")[-1][:, self.kinds.index("reverse")]

    @property
    def pictured(self) -> bool:
        """Whether logits between entities are recorded: there is a network of one layer."""
        return 1 in self.depths

    def matrix(self, what: str, point: int) -> Any:
        """(seeds, 2n, 2n): "logits" or "attention" of one layer at a measuring point."""
        return self.counting(self.named(BASE, 1), f"matrix/{what}")[point]


def excess(block: Any) -> Any:
    """(seeds,): how far the diagonal of blocks (seeds, n, n) lies above the rest of its rows."""
    count = block.shape[-1]
    own = block.diagonal(axis1=-2, axis2=-1)
    rest = (block.sum(-1) - own) / (count - 1)
    return (own - rest).mean(-1)


def blocks(matrix: Any) -> tuple[Any, Any]:
    """Trained direction and reverse: rows of subjects and columns of answers, and the other way round."""
    half = matrix.shape[-1] // 2
    return matrix[..., :half, half:], matrix[..., half:, :half]


def asymmetry(matrix: Any) -> Any:
    """(seeds,): 0 for a symmetric matrix, 0.5 for one of independent entries, 1 for an antisymmetric one.

    Of what is left without the means of rows and columns, which know nothing of pairs. With them (the first look)
    training made the matrix nearly symmetric, because an entity that many look at also looks at many.
    """
    rows, columns = matrix.mean(-1, keepdims=True), matrix.mean(-2, keepdims=True)
    left = matrix - rows - columns + matrix.mean((-2, -1), keepdims=True)
    turned = left.swapaxes(-1, -2)
    return ((left - turned) ** 2).sum((-2, -1)) / (4 * (left**2).sum((-2, -1)))
