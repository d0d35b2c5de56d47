"""One word for one thing, in what joma says: a rebound is a rebound."""

import re
from pathlib import Path

import joma

SOURCE = Path(joma.__file__).parent


def test_a_rebound_is_called_nothing_else():
    told = {
        str(path.relative_to(SOURCE)): found
        for path in SOURCE.rglob("*")
        if path.suffix in (".py", ".html", ".js")
        if (found := re.findall(r"\bcomebacks?\b", path.read_text(encoding="utf-8")))
    }
    assert told == {}


def test_the_mean_curve_of_earlier_runs_has_one_name_on_the_front_page():
    from joma.report.claims.questions import QUESTIONS
    from joma.studies.rebound.forecast.record import CONTROLS

    (forecast,) = [one for one in QUESTIONS if one.claim == "forecast/theorem-1-foretells"]
    assert CONTROLS[-1] in forecast.text
