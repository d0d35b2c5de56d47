"""Two small studies that show everything a page can: all verdicts, nasty text, alike figures, one that cannot run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from joma.runs import Run
from joma.studies.contract import Claim, Drawing, Finding, NotRun, Progress, Study
from joma.studies.drawing import panels
from joma.studies.execute import Result, execute

NASTY = "<script>alert('x')</script> & \"quotes\""


@dataclass(frozen=True)
class Config:
    """A size that is recorded and nothing else."""

    size: int = 3
    label: str = NASTY


CLAIMS = {
    "ten": Claim("ten", "JoMA Thm 10", "Ten comes after two."),
    "two": Claim("two", "JoMA Thm 2", "erf(v/2)/Δ is the same at all tokens.", "erf(v/√2)/Δ is."),
    "eq58": Claim("eq58", "JoMA eq. 58", f"Markup stays text: {NASTY}."),
    "eq6": Claim("eq6", "JoMA eq. 6", "Attention becomes sparse, then dense.", empirical=True),
    "fig4": Claim("fig4", "JoMA Fig. 4", "The effect is large.", empirical=True),
}


def _run(config: Config, run: Run, progress: Progress) -> None:
    run.keep("size", lambda: config.size)


def _judge(run: Run) -> list[Finding]:
    residuals = {"printed": 0.2648, "corrected": 1.7e-12}
    words = "printed off by 0.2648, corrected off by 1.7e-12"
    return [
        Finding(CLAIMS["ten"], "zero", 4e-14, 1e-10, "holds"),
        Finding(CLAIMS["two"], "no spread", words, 1e-10, "holds as corrected", residuals=residuals),
        Finding(CLAIMS["eq58"], "text", float("inf"), 0.01, "fails"),
        Finding(CLAIMS["eq6"], "a dip", 0.5, 0.1, "only qualitative", control=0.25),
        Finding(CLAIMS["fig4"], "above", 0.125, 0.1, "not above its control", control="0.12 ± 0.02"),
    ]


def _draw(run: Run) -> list[Drawing]:
    drawings = []
    for name in ("alike", "alike too"):  # the same picture twice: the ids of the two SVGs are equal
        figure, (axes,) = panels()
        axes.plot([0, 1], [0, 1], marker="o")
        drawings.append(Drawing(name, f"A line, {name}, {NASTY}", figure))
    return drawings


def _cannot(config: Config, run: Run, progress: Progress) -> None:
    raise NotRun("no GPU here", "joma verify far --scale paper")


def make_study(name: str, title: str, claims: tuple[Claim, ...], run: object = _run) -> Study:
    return Study(name, title, 1, claims, Config(), Config(size=9), run, _judge, _draw, f"About {NASTY}")  # type: ignore[arg-type]


NEAR = make_study("near", "Near: a study <that> runs", tuple(CLAIMS.values()))
FAR = make_study("far", "Far: a study that cannot run", (Claim("far", "JoMA Fig. 7", "Needs a GPU."),), _cannot)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Both studies, carried out: six claims, one for each verdict."""
    folder: Path = tmp_path_factory.mktemp("runs")
    return [execute(study, study.quick, folder) for study in (NEAR, FAR)]
