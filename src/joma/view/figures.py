"""The figures of a study, drawn from its record when somebody asks. To load what draws them takes seconds."""

from collections.abc import Callable
from pathlib import Path

from joma.runs import Run, RunError
from joma.runs.following import read_patiently

Compact = Callable[[str], str]
"""From an SVG to the same picture in fewer bytes."""


def figures_of(path: Path, compact: Compact | None = None) -> list[dict[str, str]]:
    """Name, caption, alternative text and SVG of every figure; none of a run that no study draws.

    path: of the run, which is only read.
    """
    from joma.claims.execute import draw
    from joma.studies import is_trusted, load

    def drawn(run: Run, _: int | None) -> list[dict[str, str]]:
        if not is_trusted(run.study) or run.status != "finished":
            return []
        try:
            pictures = draw(load(run.study), run)
        except RunError:
            raise
        except Exception as error:  # whatever a record of another version holds, the page goes on
            raise RunError(f"the figures of {path.name} cannot be drawn: {type(error).__name__}: {error}") from error
        return [
            {"name": one.name, "caption": one.caption, "alt": one.alt, "svg": _alone((compact or str)(one.svg))}
            for one in pictures
        ]

    return read_patiently(path, drawn)


def _alone(svg: str) -> str:
    """An SVG that stands for itself: inside a page it needs neither the name of its language nor letters of its own."""
    opening = svg.partition(">")[0]
    more = "" if "xmlns=" in opening else ' xmlns="http://www.w3.org/2000/svg"'
    return svg.replace("<svg", f'<svg{more} font-family="DejaVu Sans, Verdana, sans-serif"', 1)
