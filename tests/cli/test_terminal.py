"""What `joma verify` prints when its studies are done: one line per study, and at most forty more."""

import io
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from joma import studies
from joma.claims.claim import Claim
from joma.claims.finding import Finding
from joma.claims.rules import VERDICTS
from joma.claims.verdicts import at_most, by_effect, by_tests, not_run
from joma.cli import terminal, verify, wrapping
from joma.cli.terminal import Screen
from joma.measure.intervals import compare

COMMAND = "joma verify fig6 --scale paper"


@dataclass
class Named:
    name: str


@dataclass
class Done:
    """As much of a result as a screen reads."""

    study: Named
    findings: list[Finding]
    error: str = ""
    cached: bool = True
    seconds: float = 1.0
    pictures: list[str] = field(default_factory=lambda: ["one"])
    run: Path | None = None


def failing(at: int) -> Finding:
    claim = Claim(f"fails-{at}", "JoMA Thm 1", "It is small.")
    return by_tests(claim, expected="small", printed=[at_most("size", 2.0, 1.0)])


def undecided(at: int) -> Finding:
    claim = Claim(f"open-{at}", "JoMA Fig. 6", "It comes back.", matters=0.05, unit="nats")
    return by_effect(claim, compare([0.31, 0.29, 0.30], [0.28, 0.29, 0.30]), expected="a rebound")


def left_alone(at: int) -> Finding:
    return not_run(Claim(f"gone-{at}", "JoMA Thm 1", "It is far."), "far", f"reason {at}", COMMAND)


def results(*, fails: int, opens: int, gone: int) -> list[Done]:
    found = [*map(failing, range(fails)), *map(undecided, range(opens)), *map(left_alone, range(gone))]
    done = [Done(Named(name), []) for name in studies.names()]
    for at, finding in enumerate(found):
        one = done[at % len(done)]
        one.findings.append(replace(finding, study=one.study.name))
    return done


def printed(done: list[Done], capsys, **wish) -> list[str]:
    screen = Screen([one.study.name for one in done])
    for one in done:
        screen.finished(one)
    asked = verify.Wish(Path("joma-out"), None, "quick", **wish)
    unlisted = verify._print_claims(done, asked, screen)
    more = verify._how_to_see(done, asked) if unlisted else ()
    screen.summary(done, Path("joma-out/report.html"), more=more)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [None, 80, 200])
@pytest.mark.parametrize(("fails", "opens", "gone"), [(8, 181, 18), (90, 181, 90), (0, 0, 0), (3, 4, 2)])
def test_one_line_per_study_and_at_most_forty_more(columns, fails, opens, gone, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "columns", lambda _: columns)
    lines = printed(results(fails=fails, opens=opens, gone=gone), capsys)
    of_studies = [line for line in lines if re.match(r" ?\d+/\d+  ", line)]
    every = len(studies.names())
    digits = len(str(every))
    assert [line.partition("  ")[0] if digits == 1 else line[: 2 * digits + 1] for line in of_studies] == [
        f"{at:>{digits}}/{every}" for at in range(1, every + 1)
    ]
    assert len(lines) <= len(of_studies) + 40
    assert lines[-1] == "report: joma-out/report.html"
    listed = sum(bool(re.match(r"  \S+/(fails|open|gone)-\d+", line)) for line in lines)
    said = "\n".join(lines)
    assert bool(listed < fails + opens + gone) == ("joma verify -v" in said)
    assert listed == fails or re.search(rf"^{fails} .*not listed here", said, re.M)


def test_the_last_lines_are_the_headlines_then_fails_then_counts_then_the_report(capsys):
    """Headlines that this run decides come before those that it does not."""
    found = {"fig6/fig6-one-layer": (0.31, 0.29, 0.30), "dilution/logits-shrink": (0.3, -0.3, 0.1)}
    done = results(fails=2, opens=181, gone=1)
    for one in done:
        for id, seeds in found.items():
            study, _, name = id.partition("/")
            if study == one.study.name:
                claim = Claim(name, "JoMA Fig. 6", "It comes back.", matters=0.05, unit="nats")
                one.findings.append(replace(by_effect(claim, compare(seeds, 0.0), expected="more"), study=study))
    lines = printed(done, capsys)
    at = lines.index("What this run found")
    assert lines[at + 1 : at + 5] == [
        "  ≈ None of 2 mathematical claims hold.",
        "  ✓ Attention entropy falls and then recovers, by 0.30 nats [0.24, 0.36] at 99 %.",
        "  ? Does holding the size of the logits fixed remove the recovery? Undecided. 0.0 nats [-1.7, 1.8] at 99 %; "
        "control the constant 0 nats.",
        "",
    ]
    assert lines[at + 5] == "2 fail"
    assert re.match(r"  block/fails-0 +size 2 \(needed: at most 1\)", lines[at + 6])
    assert lines[at + 9].startswith("186 claims in ")
    assert not any("open-" in line for line in lines)
    assert lines[-1] == "report: joma-out/report.html"


def test_of_too_many_that_fail_the_first_are_listed(capsys):
    lines = printed(results(fails=90, opens=0, gone=0), capsys)
    shown = sum("/fails-" in line for line in lines)
    assert 15 <= shown < 30
    assert f"90 fail, {90 - shown} of them not listed here" in lines


def test_a_reason_stands_below_its_claims_six_columns_in(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "columns", lambda _: 60)
    monkeypatch.setitem(
        globals(), "left_alone", lambda at: not_run(Claim("far", "JoMA Thm 1", "x"), "far", "word " * 30, COMMAND)
    )
    lines = printed(results(fails=0, opens=0, gone=1), capsys, verdicts=("not run",))
    first = next(at for at, line in enumerate(lines) if line.startswith("  ") and line.endswith("/far"))
    assert {line.index("word") for line in lines[first + 1 : first + 4]} == {6}


def test_what_is_asked_for_is_listed_to_the_end(capsys):
    done = results(fails=2, opens=181, gone=1)
    lines = printed(done, capsys, verdicts=("undecided",))
    assert sum("/open-" in line for line in lines) == 181
    assert not any("not listed here" in line or "to see" in line for line in lines)


def test_in_a_pipe_no_line_is_wrapped_and_progress_breaks_silence_only(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    now = [0.0]
    monkeypatch.setattr(terminal, "monotonic", lambda: now[0])
    screen = Screen(["fig6", "thm2"])
    for second in range(600):
        now[0] = float(second)
        screen.progress("fig6", second / 600, "training")
        screen.progress("thm2", second / 600, "training")
    said = capsys.readouterr()
    assert 10 <= len(said.err.splitlines()) <= 40
    assert not said.out  # what goes into the pipe does not depend on the speed of the machine
    everything = [by(0) for by in (failing, undecided, left_alone)]
    screen.finished(Done(Named("fig6"), [replace(one, study="fig6") for one in everything * 9]))
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line) > 40


def test_a_window_is_as_wide_as_it_says_and_a_tiny_one_is_not_believed(monkeypatch):
    class Window:
        def isatty(self):
            return True

    for told, width in (("120", 120), ("60", 60), ("7", 40)):
        monkeypatch.setenv("COLUMNS", told)
        assert wrapping.columns(Window()) == width
    assert wrapping.columns(io.StringIO()) is None


def test_the_numbers_of_one_list_begin_in_one_column(capsys):
    lines = printed(results(fails=20, opens=0, gone=0), capsys)
    listed = [line for line in lines if "/fails-" in line]
    assert len({len(line.split()[0]) for line in listed}) > 2
    assert {line.index("size 2") for line in listed} == {max(len(line.split()[0]) for line in listed) + 4}


def test_what_is_not_listed_of_any_verdict_is_given_back(capsys):
    done = results(fails=90, opens=181, gone=18)
    unlisted = Screen([]).attention(done, VERDICTS)
    listed = re.findall(r"^  (\S+/\S+-\d+)", capsys.readouterr().out, re.M)
    everything = [finding.id for one in done for finding in one.findings]
    assert len(everything) == 90 + 181 + 18
    assert sorted([*listed, *(one.id for one in unlisted)]) == sorted(everything)


def test_every_claim_is_printed_with_its_numbers_wrapped_or_whole(capsys, monkeypatch):
    study = SimpleNamespace(name="near", title="Near by")
    found = [replace(failing(1), study="near"), replace(left_alone(2), study="near")]
    done = [Done(study, found), Done(SimpleNamespace(name="far", title="Far"), [])]
    whole = [
        "",
        "near: Near by",
        "  near/fails-1: fails",
        "      It is small. (JoMA Thm 1)",
        "      size 2 (needed: at most 1)",
        "  near/gone-2: not run",
        "      It is far. (JoMA Thm 1)",
        "      reason 2",
    ]
    for columns, expected in (
        (None, whole),
        (
            30,
            [
                *whole[:3],
                "      It is small. (JoMA Thm",
                "      1)",
                "      size 2 (needed: at most",
                "      1)",
                *whole[5:],
            ],
        ),
    ):
        monkeypatch.setattr(terminal, "columns", lambda _, columns=columns: columns)
        Screen(["near"]).all(done, ("fails", "not run"))
        assert capsys.readouterr().out.splitlines() == expected
    Screen(["near"]).all(done, ("fails",))
    assert "gone-2" not in capsys.readouterr().out


def test_a_study_that_broke_or_ran_is_one_line(capsys, monkeypatch):
    screen = Screen(["near", "a-far-one", "x"])
    screen.finished(
        Done(SimpleNamespace(name="near"), [failing(0), failing(1), undecided(0)], cached=False, seconds=61.26)
    )
    screen.finished(Done(SimpleNamespace(name="a-far-one"), [failing(0)]))
    screen.finished(Done(SimpleNamespace(name="x"), [], error="RuntimeError: boom"))
    assert capsys.readouterr().out.splitlines() == [
        "1/3  near         61.3 s  1 undecided, 2 fail",
        "2/3  a-far-one    cached  1 fails",
        "3/3  x                    broke: RuntimeError: boom",
    ]


def test_the_last_lines_say_where_to_look(capsys, tmp_path, monkeypatch):
    def last(*done, report=tmp_path / "my out" / "report.html"):
        Screen([]).summary(done, report, more=["to see more: x"])
        return capsys.readouterr().out.replace(str(tmp_path), "T").splitlines()

    fine = Done(SimpleNamespace(name="thm2"), [failing(0)], run=Path("a"))
    broken = Done(SimpleNamespace(name="near"), [], error="boom", pictures=[])
    head = "1 claim in 0 s: all judged. 1 fails."
    monkeypatch.setattr(terminal, "monotonic", lambda: 7.0)
    end = "report: T/my out/report.html"
    assert last(fine) == ["", head, "to see more: x", end]
    assert last(fine, broken, broken) == ["", head, "to see more: x", "broken: near, near", end]
    fine.pictures = []
    none = last(fine)
    assert none[:3] == ["", head, "to see more: x"]
    assert re.match(r"the report has no figures: .* brings matplotlib$", none[3])
    assert last(broken, report=None) == [
        "", "to see more: x", "broken: near", "nothing could be judged, so no report was written"
    ]  # fmt: skip
    (tmp_path / "my out" / "runs").mkdir(parents=True)
    (tmp_path / "my out" / "runs" / "scan-model-0123456789.sqlite").touch()  # a scan is no study
    assert not any("other studies" in line for line in last(broken))
    (tmp_path / "my out" / "runs" / "thm2-1a.sqlite").touch()
    assert last(broken)[-1] != last(broken)[-2]
    assert last(broken)[-2] == ("runs of other studies are in this folder, too; a page of all: joma report 'T/my out'")
    assert not any("other studies" in line for line in last(fine))


class Window(io.StringIO):
    def isatty(self):
        return True


def test_in_a_window_every_study_at_work_has_a_bar(monkeypatch):
    monkeypatch.setattr("sys.stdout", Window())
    monkeypatch.setattr(terminal, "columns", lambda _: 80)
    screen = Screen(["near", "a-far-one"])
    for name, share, doing in (("near", 0.1, "a"), ("a-far-one", 0.2, "b"), ("near", 0.75, "c\x1b[2J")):
        screen.progress(name, share, doing)

    def bars():
        tasks = screen._progress.tasks
        return [(task.description, task.completed, task.total, task.fields["doing"]) for task in tasks]

    other = ("a-far-one", 0.2, 1.0, "b")
    assert bars() == [("near     ", 0.75, 1.0, "c\\u001b[2J"), other]
    screen.finished(Done(SimpleNamespace(name="near"), []))
    assert bars() == [other]
