"""Records of several networks of one study: where each stands, and which of them learned."""

from typing import Any

from joma.claims.guards import beats_guessing
from joma.runs import Run

LAST = 10  # steps over which the loss at the end is averaged
UNLEARNED = "no network learned to predict the next token"


def prefix(number: int) -> str:
    """Before the names of all series of a network; the first has none."""
    return f"seed {number}/" if number else ""


def learned(run: Run, losses: str) -> list[int]:
    """The networks whose loss went well below that of guessing."""

    def below(values: Any) -> bool:
        return not len(values) or bool(beats_guessing(values[-LAST:].mean(), run.config["vocabulary"]))

    found = []
    for number in range(run.config["seeds"]):
        name = prefix(number) + losses
        if name not in run or below(run.value(name)):
            found.append(number)
    return found


def left_out(run: Run, kept: list[int]) -> dict[str, dict[str, float]]:
    """The number of networks that are not judged, if there are any, as it stands beside a finding."""
    lost = run.config["seeds"] - len(kept)
    return {"left out because they did not learn": {"networks": float(lost)}} if lost else {}
