"""Two small studies that show everything a page can (all verdicts, nasty text, alike figures, one that cannot run), and
a browser to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from in_browser import launched

from joma.claims.contract import Claim, Drawing, NotRun, Progress, Study
from joma.claims.execute import Result, execute
from joma.claims.verdicts import by_effect, by_residual, only_at_paper_scale
from joma.figures.style import panels
from joma.measure.intervals import compare
from joma.report import write_report
from joma.runs import Run

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
    "eq6": Claim("eq6", "JoMA eq. 6", "Attention becomes sparse, then dense.", matters=0.1),
    "fig5": Claim("fig5", "JoMA Fig. 5", "The effect can be seen.", matters=0.1),
    "fig4": Claim("fig4", "JoMA Fig. 4", "The effect is large.", matters=0.1, uses=("near/eq6",)),
    "both": Claim("both", "JoMA Fig. 8", "In both layers the effect is large.", matters=0.1),
    "large": Claim("large", "JoMA Fig. 9", "Ten layers do it better.", matters=0.1),
}


def _run(config: Config, run: Run, progress: Progress) -> None:
    run.keep("size", lambda: config.size)


_EXACT: Any = {"tolerance": 1e-10, "expected": "zero"}
JUDGED = {
    finding.claim: finding
    for finding in (
        by_residual(CLAIMS["ten"], printed=4e-14, **_EXACT),
        by_residual(CLAIMS["two"], printed=0.2648, corrected=1.7e-12, **_EXACT),
        by_residual(CLAIMS["eq58"], printed=float("inf"), tolerance=0.01, expected="text"),
        by_effect(CLAIMS["eq6"], compare([0.34, 0.32, 0.33], 0.25), expected="a dip"),
        by_effect(CLAIMS["fig5"], compare([0.9, -0.8, 0.1], 0.0), expected="above"),
        by_effect(CLAIMS["fig4"], compare([0.125, 0.13, 0.12], 0.12), expected="above"),
        by_effect(
            CLAIMS["both"],
            {sign: compare([float(f"{sign}0.9"), float(f"{sign}0.91")]) for sign in "+-"},
            expected="above",
        ),
        only_at_paper_scale(CLAIMS["large"], "more", "ten layers are needed", "joma verify near --scale paper"),
    )
}


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
    judged = {claim: lambda run, claim=claim: JUDGED[claim] for claim in claims}
    return Study(name, title, 1, judged, Config(), Config(size=9), run, _draw, f"About {NASTY}")  # type: ignore[arg-type]


NEAR = make_study("near", "Near: a study <that> runs", tuple(CLAIMS.values()))
FAR = make_study("far", "Far: a study that cannot run", (Claim("far", "JoMA Fig. 7", "Needs a GPU."),), _cannot)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    folder: Path = tmp_path_factory.mktemp("runs")
    return [execute(study, study.quick, folder) for study in (NEAR, FAR)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(results, tmp_path_factory.mktemp("page"), scale="quick").as_uri()


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield context
    context.close()


@pytest.fixture
def page(context: Any, address: str) -> Iterator[Any]:
    """The page at 1280 px. A console error, an exception or a request for anything but the file fails the test."""
    page = context.new_page()
    troubles: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: request.url.split("#")[0] != address and troubles.append(request.url))
    page.goto(address)
    yield page
    page.evaluate("localStorage.clear()")
    page.close()
    assert troubles == []
