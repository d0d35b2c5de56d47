"""`pytest --joma-claims`: claims as tests. Their verdicts stand in the terminal and in the properties of each report.

A test asks for the fixture `judge_claim`. Two kinds of files are tests too: a TOML file of claims, as for `joma judge`,
that names its tables (`results = ["runs.csv"]`), and `findings.json`, whose verdicts are stated there.

    the claim holds                                       passed
    undecided, not run                                    skipped, with the seeds that would decide
    the verdict is another, and was stated beforehand     xfailed: the claim fails as published
    the verdict is another, or not the one stated         failed
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from joma.claims.finding import Finding

OPTION = "--joma-claims"
_CLAIM, _VERDICT, _P = "joma claim", "joma verdict", "joma p"
_HOLDS, _OPEN = ("holds", "holds as corrected"), ("undecided", "not run", "at paper scale")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--joma-claims`."""
    words = "judge claims: tests that ask for judge_claim, TOML files of claims with their results, findings.json"
    parser.getgroup("joma").addoption(OPTION, action="store_true", dest="joma_claims", help=words)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take files of claims and of findings."""
    if not parent.config.getoption("joma_claims"):
        return None
    if file_path.name == "findings.json" or (file_path.suffix == ".toml" and _results(file_path)):
        return ClaimFile.from_parent(parent, path=file_path)
    return None


def _results(path: Path) -> list[Path]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    named = content.get("results") if isinstance(content.get("claims"), dict) else None
    several = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return [path.parent / str(one) for one in several]


class ClaimFile(pytest.File):
    """The claims of one file; each is a test."""

    def collect(self) -> Iterator[ClaimItem]:
        """Judge them, all together."""
        from joma.host.errors import JomaError

        try:
            found = list(self._findings())
        except JomaError as error:
            raise self.CollectError(str(error)) from None
        for finding, stated in found:
            yield ClaimItem.from_parent(self, name=finding.claim.name, finding=finding, stated=stated)

    def _findings(self) -> Iterator[tuple[Finding, str]]:
        """Each with the verdict that was stated, or an empty word."""
        from joma.claims.judging import judge_tables
        from joma.claims.ledger import read_findings
        from joma.host.schema import read_json

        if self.path.suffix == ".json":
            findings, content = read_findings(self.path), read_json(self.path)
            written = [one for study in content.get("studies", [content]) for one in study["findings"]]
            yield from zip(findings, (one["verdict"] for one in written), strict=True)
            return
        stated = tomllib.loads(self.path.read_text(encoding="utf-8")).get("verdicts", {})
        judged = judge_tables(_results(self.path), claims=self.path)
        _must_be_known(stated, [one.wanted.name for one in judged], self.path)
        for one in judged:
            yield one.finding, stated.get(one.wanted.name, "")


def _must_be_known(stated: Any, claims: Sequence[str], path: Path) -> None:
    from joma.claims.rules import VERDICTS
    from joma.host.errors import BadInput
    from joma.host.words import did_you_mean

    if not isinstance(stated, dict):
        raise BadInput(f"{path}: verdicts must be a table, as in verdicts.NAME = 'fails'")
    for name, verdict in stated.items():
        if name not in claims:
            raise BadInput(
                f"{path} states a verdict of {name!r}; {did_you_mean(name, claims, 'there is no such claim')}"
            )
        if verdict not in VERDICTS:
            raise BadInput(f"{path}: the verdict of {name!r} must be one of {', '.join(VERDICTS)}, got {verdict!r}")


class ClaimItem(pytest.Item):
    """One claim as a test."""

    def __init__(self, *, finding: Finding, stated: str, **given: Any) -> None:
        """finding: what was found. stated: the verdict that was stated, or an empty word."""
        super().__init__(**given)
        self.finding, self.stated = finding, stated

    def runtest(self) -> None:
        """Pass, fail, skip or xfail by the verdict."""
        _settle(self, self.finding, self.stated)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """The finding in a line or two, without a traceback."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it stands."""
        return self.path, None, self.name


@pytest.fixture
def judge_claim(request: pytest.FixtureRequest) -> Any:
    """A function that judges one claim: numbers over seeds, beside their control, by what matters.

    judge_claim(effect, control, matters=0.02) passes, fails, skips or xfails the test, and gives the finding where it
    passes. The claim's sentence is the docstring of the test. Options: `says`, `source`, `unit`, `lower` (less is
    better), `paired` (whether both have the same seeds; default: yes), `verdict` (what is stated beforehand, such as
    "fails").
    """
    if not request.config.getoption("joma_claims"):
        pytest.skip(f"claims are judged with {OPTION}")

    def judge(
        effect: Iterable[float], control: Iterable[float] | float, *, matters: float, says: str = "", source: str = "",
        unit: str = "", lower: bool = False, paired: bool = True, verdict: str = "",
    ) -> Finding:  # fmt: skip
        from dataclasses import replace

        from joma.claims.claim import Claim
        from joma.claims.judging import OWN_SOURCE
        from joma.claims.verdicts import by_effect
        from joma.measure.intervals import compare

        sign = -1.0 if lower else 1.0
        beside = sign * control if isinstance(control, int | float) else [sign * one for one in control]
        name = request.node.name.removeprefix("test_").replace("_", "-")
        words = " ".join((says or getattr(request.function, "__doc__", "") or f"{name}.").split())
        _must_be_known({name: verdict} if verdict else {}, [name], request.path)
        claim = Claim(name, source or OWN_SOURCE, words, matters=matters, unit=unit)
        found = by_effect(claim, compare([sign * one for one in effect], beside, paired=paired))
        finding = replace(found, study=request.path.stem)
        _settle(request.node, finding, verdict)
        return finding

    return judge


def _settle(item: pytest.Item, finding: Finding, stated: str) -> None:
    item.user_properties += [(_CLAIM, finding.id), (_VERDICT, finding.full_verdict), (_P, finding.p)]
    words = f"{finding.full_verdict}: {finding.brief}"
    if stated and stated != finding.verdict:
        pytest.fail(f"{finding.claim.says} {words}; the verdict that was stated is {stated!r}", pytrace=False)
    if finding.verdict in _OPEN:
        seeds = finding.seeds_to_decide
        pytest.skip(words + (f"; {seeds} seeds would probably decide" if seeds else ""))
    if finding.verdict in _HOLDS:
        return
    if stated:
        pytest.xfail(f"fails as published, {words}")
    pytest.fail(f"{finding.claim.says} {words}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each claim, with its q among all of them where that is large."""
    from joma.claims.finding import MOST_FALSE
    from joma.claims.multiplicity import q_values

    reports = (one for several in terminalreporter.stats.values() for one in several if hasattr(one, "user_properties"))
    shown = {one.nodeid: dict(one.user_properties) for one in reports}
    shown = {name: found for name, found in shown.items() if _CLAIM in found}
    if not shown:
        return
    q = q_values({name: found[_P] for name, found in shown.items() if found[_P] is not None})
    terminalreporter.section("verdicts of claims")
    for name, found in shown.items():
        open_or_none = found[_VERDICT].startswith(("undecided", "not above its control"))
        doubtful = not open_or_none and q.get(name, 0.0) > MOST_FALSE
        more = f", q {q[name]:.2g} among all of these" if doubtful else ""
        terminalreporter.write_line(f"{found[_CLAIM]}: {found[_VERDICT]}{more}")
