"""How the page shows verdicts (signs, words, counts, a table of all studies) and the effects that decide them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from joma.claims.contract import VERDICTS, Verdict
from joma.claims.evidence import Effect
from joma.claims.rules import UNJUDGED
from joma.claims.sentences import control_value, difference, value
from joma.report.claims.layout import Entry, Section, entries
from joma.report.markup import NOTHING, duration


@dataclass(frozen=True)
class VerdictText:
    """What the page writes for a verdict. The sign makes sure that colour is never the only one."""

    glyph: str
    one: str
    many: str
    answer: str  # to a question that the claim would answer with yes


TEXT: dict[Verdict, VerdictText] = {
    "holds": VerdictText("✓", "holds", "hold", "Yes."),
    "holds as corrected": VerdictText("†", "holds as corrected", "hold as corrected", "Yes, after a correction."),
    "only qualitative": VerdictText("≈", "is only qualitative", "are only qualitative", "Only in part."),
    "mixed": VerdictText("±", "is mixed", "are mixed", "In part; elsewhere the opposite."),
    "not above its control": VerdictText(
        "≤", "is not above its control", "are not above their controls", "No sign of it."
    ),
    "undecided": VerdictText("?", "is undecided", "are undecided", "Undecided."),
    "fails": VerdictText("✗", "fails", "fail", "No."),
    "at paper scale": VerdictText("↑", "is about paper scale", "are about paper scale", "Only at paper scale."),
    "not run": VerdictText("–", "was not run", "were not run", "Not run here."),
}
_MEANS: dict[Verdict, str] = {
    "holds": "True as the source states it, by the test and the tolerance written in the study.",
    "holds as corrected": "The printed form fails its test. The corrected form, given with the claim, passes.",
    "only qualitative": "Above its control, but smaller than what matters, of another form, or only in some cases.",
    "mixed": "Some cases are above their controls. In others the opposite was measured.",
    "not above its control": "The interval leaves no room for an effect that would matter, or a control shows as much.",
    "undecided": "The interval holds both no effect and one that would matter. More seeds or a larger run would tell.",
    "fails": "The opposite was measured, or no form of the claim passes its test.",
    "at paper scale": "About the paper's sizes. No smaller run can decide it; the kept verdict stands beside it.",
    "not run": "Nothing was measured or learned. The reason and the command are given.",
}
HOLDING: tuple[Verdict, ...] = ("holds", "holds as corrected")
_NOTABLE: tuple[Verdict, ...] = (
    "fails", "mixed", "not above its control", "only qualitative", "holds as corrected", "holds", "undecided",
    "not run", "at paper scale",
)  # fmt: skip


def notable(verdict: Verdict) -> int:
    """The smaller, the more a reader wants to know of it: what contradicts the source comes first."""
    return _NOTABLE.index(verdict)


def css(verdict: Verdict) -> str:
    """The class that gives an element the verdict's colour."""
    return "v-" + verdict.replace(" ", "-")


def mark(verdict: Verdict) -> str:
    """The verdict as the page shows it: sign and word, in its colour."""
    glyph = f'<span class="glyph" aria-hidden="true">{TEXT[verdict].glyph}</span>'
    return f'<span class="verdict {css(verdict)}">{glyph} <span class="word">{verdict}</span></span>'


def marks(verdicts: Iterable[Verdict]) -> str:
    """How many of which, in signs to look at and in words to hear."""
    shown = (
        f'<span class="{css(verdict)}" title="{verdict}"><span aria-hidden="true">{TEXT[verdict].glyph}</span>'
        f'{count}<span class="unseen"> {verdict}</span></span>'
        for verdict, count in _counts(verdicts)
    )
    return f'<span class="marks">{" ".join(shown)}</span>'


def verdict_bar(verdicts: Iterable[Verdict]) -> str:
    """The shares of verdicts as one coloured line, for the eye only."""
    parts = (
        f'<span class="{css(verdict)}" style="flex-grow:{count}" title="{count} {verdict}"></span>'
        for verdict, count in _counts(verdicts)
    )
    return f'<span class="bar" aria-hidden="true">{"".join(parts)}</span>'


def chips(verdicts: Iterable[Verdict]) -> str:
    """One button per verdict, with which a reader chooses what is shown."""
    return "\n".join(
        f'<button type="button" class="chip {css(verdict)}" data-verdict="{verdict}" aria-pressed="false">'
        f'<span aria-hidden="true">{TEXT[verdict].glyph}</span> {verdict} <span class="count">{count}</span></button>'
        for verdict, count in _counts(verdicts)
    )


def legend() -> str:
    """Signs and colours in one line, and what they mean folded under it."""
    signs = " ".join(mark(verdict) for verdict in VERDICTS)
    means = "\n".join(f"<div><dt>{mark(verdict)}</dt><dd>{_MEANS[verdict]}</dd></div>" for verdict in VERDICTS)
    return f'<details class="legend"><summary>Verdicts {signs}</summary>\n<dl>\n{means}\n</dl></details>'


def count_verdicts(verdicts: Iterable[Verdict]) -> str:
    """Verdicts counted, as part of a sentence."""
    return ", ".join(f"{n} {TEXT[verdict].one if n == 1 else TEXT[verdict].many}" for verdict, n in _counts(verdicts))


def count_claims(verdicts: Iterable[Verdict]) -> str:
    """How many claims, judged and not; those about paper scale are not counted, for no smaller run can judge them.

    >>> count_claims(["holds", "not run", "at paper scale"])
    '2 claims: 1 judged, 1 not run'
    >>> count_claims(["fails"])
    '1 claim, judged'
    """
    every = [verdict for verdict in verdicts if verdict != "at paper scale"]
    waiting = every.count("not run")
    claims = f"{len(every)} {'claim' if len(every) == 1 else 'claims'}"
    if not every or waiting == len(every):
        return f"{claims}, none judged"
    if not waiting:
        return f"{claims}, {'judged' if len(every) == 1 else 'all judged'}"
    return f"{claims}: {len(every) - waiting} judged, {waiting} not run"


def _counts(verdicts: Iterable[Verdict]) -> list[tuple[Verdict, int]]:
    counts = Counter(verdicts)
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]


def verdict_table(sections: Sequence[Section], scale: str) -> str:
    """The table, one row per study, and in words where the two scales disagree. One study alone needs no table."""
    differences = disagreement(list(entries(sections)))
    if len(sections) < 2:
        return differences
    paper = any(section.paper_verdicts for section in sections)
    here = {"quick": "Quick scale", "paper": "Paper scale"}.get(scale, "This page")
    columns = ["Study", here, *(["Paper scale, kept"] if paper else []), "Time"]
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    rows = "\n".join(_row(section, here, paper=paper) for section in sections)
    return (
        f"{differences}\n"
        f'<table class="verdict-table"><caption class="unseen">All studies and their verdicts</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    )


def disagreement(claims: Sequence[Entry]) -> str:
    """Where a kept run at paper scale came out differently: how many claims, which, and what to believe."""
    both = [one for one in claims if one.kept and not {one.kept.verdict, one.verdict} & {*UNJUDGED}]
    differ = [entry for entry in both if entry.differs]
    if not both:
        return ""
    if not differ:
        many = f"All {len(both)} claims" if len(both) > 1 else "The one claim"
        return f"<p>{many} that {'are' if len(both) > 1 else 'is'} kept at paper scale came out the same there.</p>"
    unsure = sum(entry.verdict == "undecided" for entry in differ)
    count = f"{len(differ)} of {len(both)} claims come" if len(both) > 1 else "the one claim that is kept comes"
    found = f"At paper scale {count} out differently."
    found += f" This run leaves {unsure} of these undecided." if unsure else ""
    items = "".join(
        f'<li><a href="#{entry.anchor}">{escape(entry.finding.id)}</a> here {mark(entry.verdict)}, '
        f"at paper scale {mark(entry.kept.verdict)}</li>"
        for entry in differ
        if entry.kept
    )
    return (
        f"<p>{found} The paper scale is the stronger evidence.</p>\n"
        f'<details class="differ"><summary>Which claims differ</summary><ul>{items}</ul></details>'
    )


def _row(section: Section, here: str, *, paper: bool) -> str:
    result, study = section.result, section.result.study
    title = f'<a href="#{section.anchor}">{escape(study.title)}</a> <span class="name">{escape(study.name)}</span>'
    found = '<span class="verdict v-fails">broke</span>' if result.error else marks(section.verdicts)
    cells = [f'<th scope="row">{title}</th>', f'<td data-label="{here}">{found}</td>']
    if paper:
        kept = marks(section.paper_verdicts) if section.paper_verdicts else NOTHING
        cells.append(f'<td data-label="Paper scale">{kept}</td>')
    cached = ' <span class="name">cached</span>' if result.cached else ""
    time = NOTHING if result.run is None else duration(result.seconds) + cached
    cells.append(f'<td class="time" data-label="Time">{time}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def effect_texts(effect: Effect) -> dict[str, str]:
    """The numbers of an effect for a sentence, each with its own interval."""
    low, high = effect.interval
    opposite = replace(effect, effect=-effect.effect, interval=(-high, -low), what="")  # without a name, no limits
    return {
        "effect": value(effect),
        "more": difference(effect),
        "opposite": value(opposite),
        "control": control_value(effect),
        "seeds": f"over {effect.seeds} seeds" if effect.seeds > 1 else "with one seed",
    }
