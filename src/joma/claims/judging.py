"""A claim judged by a table of numbers: the arm that it is about, beside its control, seed by seed.

What a claim is comes from a TOML file, from options, or from columns of the table that have these names: see `Wanted`.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from joma.claims.claim import Claim
from joma.claims.evidence import at_most
from joma.claims.finding import Finding, Provenance
from joma.claims.multiplicity import judged_together
from joma.claims.tables import SETTINGS, Curves, Table, Value, curves_of, read_table, values_of
from joma.claims.verdicts import by_effect
from joma.host import limits
from joma.host.errors import BadInput, as_bad_input
from joma.host.words import did_you_mean
from joma.measure.intervals import Comparison, compare

OWN_SOURCE = "this experiment, Table 1"
PERCENT = 20.0
"""Arms whose means are so many times apart, one within 0 to 1 and one beyond, are a share beside a percentage."""
LAST_PART = 0.25
"""Of the steps: what changes there by more than matters still moves."""


@dataclass(frozen=True)
class Wanted:
    """What is claimed of a table. All but `matters` may be left out.

    >>> Wanted("better", effect="muon", control="adam", matters=0.01).lower
    False
    """

    name: str
    effect: str = ""
    """The arm that the claim is about; needed where there are more than two."""
    control: str = ""
    """The arm beside it, or a number that is known, such as 0.5."""
    matters: float | None = None
    """The smallest difference that would matter. In files and options "2%" is a share of 0.02."""
    unit: str = ""
    """With % the numbers are shares from 0 to 1."""
    lower: bool = False
    """Whether less is better: then minus the number is judged."""
    paired: bool | None = None
    """Whether both arms have the same seeds. They must, unless this is false."""
    value: str = ""
    """The column of the numbers, where there are several."""
    says: str = ""
    source: str = OWN_SOURCE
    ceiling: float | None = None
    level: float | None = None
    """Of the intervals; 95 %, and 99 % of four seeds or fewer, unless it is given."""
    where: Mapping[str, Any] | None = None
    """Rows that count: those that have these values in these columns."""


@dataclass(frozen=True)
class Arms:
    """The numbers of one case at the last step, and the change over the last part of the steps."""

    effect: Mapping[str, float]
    control: Mapping[str, float]
    """By seed; empty where the control is a known number."""
    found: Comparison
    moved: float
    """How far effect - control changed, in its own direction; NaN where there are no curves."""


@dataclass(frozen=True)
class Judged:
    """A finding with the numbers that it was made from."""

    wanted: Wanted
    finding: Finding
    cases: Mapping[str, Arms]


def judge_tables(
    paths: Sequence[Path], *, claims: Path | None = None, columns: Mapping[str, str] | None = None, **given: Any
) -> list[Judged]:
    r"""The findings on tables of numbers, judged together.

    - paths: CSV, JSON or parquet; several files are one table
    - claims: a TOML file with a table [claims.NAME] for each claim, whose keys are the fields of `Wanted`
    - columns: as for `joma.claims.tables.values_of`
    - given: fields of `Wanted` for all claims; they go before the file's

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "results.csv"
    ...     _ = file.write_text("seed,new,old\n1,.9,.5\n2,.8,.5\n3,.9,.4\n4,.9,.5\n5,.8,.4\n")
    ...     judge_tables([file], effect="new", control="old", matters=0.1)[0].finding.full_verdict
    'holds (size shown)'
    """
    tables = [read_table(path) for path in paths]
    given = {name: value for name, value in given.items() if value not in (None, "")}
    named = {name: {"name": name, **keys, **given} for name, keys in (_toml(claims) if claims else {}).items()}
    judged = []
    with as_bad_input():
        for name, settings in named.items():
            rows = [one for one in _read(tables, settings, columns) if one.claim in ("", name)]
            if not rows:
                raise BadInput(
                    f"{claims} has a claim {name!r}, and the table none of that name in its column of claims"
                )
            judged.append(_judged(_wanted(settings, rows), rows))
        if not named:
            values = _read(tables, given, columns)
            for name in dict.fromkeys(one.claim for one in values):
                rows = [one for one in values if one.claim == name]
                judged.append(_judged(_wanted({"name": name or given.get("value") or "claim", **given}, rows), rows))
    study = "-".join(dict.fromkeys(path.stem for path in paths))[:60]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    made = datetime.now(UTC).isoformat(timespec="seconds")
    origin = Provenance(config_sha256=digest, created=made, record=", ".join(path.name for path in paths))
    findings = judged_together([replace(one.finding, study=study, provenance=origin) for one in judged])
    return [replace(one, finding=finding) for one, finding in zip(judged, findings, strict=True)]


def _toml(path: Path) -> dict[str, dict[str, Any]]:
    try:
        if path.stat().st_size > limits.CONFIG_BYTES:
            raise ValueError("it is too large")
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("claims")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as TOML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(one, dict) for one in found.values()):
        raise BadInput(f"{path} must have a table [claims.NAME] for every claim")
    return found


def _read(tables: Sequence[Table], settings: Mapping[str, Any], columns: Mapping[str, str] | None) -> list[Value]:
    where = settings.get("where") or {}
    values = values_of(tables, settings.get("value", ""), columns)
    found = [one for one in values if all(str(one.row.get(name)) == str(want) for name, want in where.items())]
    if not found:
        raise BadInput(f"{tables[0].path} has no numbers" + (f" where {dict(where)}" if where else ""))
    return found


_WORDS = ("effect", "control", "unit", "value", "says", "source")
_KINDS = {"matters": float, "ceiling": float, "level": float, "lower": bool, "paired": bool}


def _wanted(settings: Mapping[str, Any], rows: Sequence[Value]) -> Wanted:
    """What is claimed, from settings and, where they say nothing, from columns of the table."""
    known, name = [one.name for one in fields(Wanted)], settings["name"]
    for key in settings:
        if key not in known:
            raise BadInput(f"claim {name!r} has no setting {key!r}; {did_you_mean(key, known, ', '.join(known))}")
    found = dict(settings)
    for key in SETTINGS:
        said = list(dict.fromkeys(str(one.row[key]) for one in rows if one.row.get(key) not in (None, "")))
        if key in found or not said:
            continue
        if len(said) > 1:
            raise BadInput(
                f"claim {name!r}: column {key} must have one value for all rows, got {said[0]} and {said[1]}"
            )
        found[key] = said[0]
    for key, kind in _KINDS.items():
        if key in found:
            found[key] = typed(name, key, found[key], kind)
    words: dict[str, Any] = {key: str(one) if key in _WORDS else one for key, one in found.items()}
    return Wanted(**words)


def typed(name: str, key: str, value: Any, kind: type) -> Any:
    """A setting of a claim as a number, which may be in percent, or as yes or no.

    >>> typed("better", "matters", "2%", float)
    0.02
    """
    text = str(value).strip()
    if kind is bool and text.lower() in ("true", "false", "yes", "no"):
        return text.lower() in ("true", "yes")
    try:
        if kind is float and not isinstance(value, bool):
            return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        pass
    raise BadInput(f"claim {name!r}: {key} must be {'yes or no' if kind is bool else 'a number'}, got {text!r}")


def _judged(wanted: Wanted, rows: Sequence[Value]) -> Judged:
    about = f"claim {wanted.name!r}"
    if (matters := wanted.matters) is None:
        raise BadInput(f"{about}: state the smallest difference that would matter", argument="matters")
    every = curves_of(rows, about)
    effect, control = _named_arms(wanted, every, about)
    wanted = replace(wanted, effect=effect, control=control)
    cases = {case: _arms(wanted, rows, f"{about}, case {case!r}" if case else about) for case, rows in every.items()}
    _refuse_percent(wanted, cases, about)
    better = "less" if wanted.lower else "more"
    says = wanted.says or f"{effect} has {better} {wanted.value or 'of it'} than {control}."
    claim = Claim(wanted.name, wanted.source, says, matters=matters, unit=wanted.unit, ceiling=wanted.ceiling)
    horizon = [
        at_most(f"{f'{case}: ' * bool(case)}change over the last quarter of the steps", abs(one.moved), matters,
                wanted.unit) for case, one in cases.items() if isfinite(one.moved)
    ]  # fmt: skip
    what = f"{'minus ' * wanted.lower}{wanted.value or 'value'}"
    expected = f"{effect} {'below' if wanted.lower else 'above'} {control}, by what matters"
    found = {case: one.found for case, one in cases.items()}
    return Judged(wanted, by_effect(claim, found, what=what, expected=expected, horizon=horizon), cases)


def _named_arms(wanted: Wanted, every: Mapping[str, Curves], about: str) -> tuple[str, str]:
    """The names of effect and control; of two arms, where one is named, the other is its control."""
    arms = list(dict.fromkeys(arm for curves in every.values() for arm in curves))
    effect = wanted.effect or ("effect" if "effect" in arms else "")
    others = [arm for arm in arms if arm != effect]
    control = wanted.control or ("control" if "control" in arms else others[0] if len(others) == 1 else "")
    if not effect:
        rest = [arm for arm in arms if arm != control]
        effect = rest[0] if control and len(rest) == 1 else ""
    if not effect or not control:
        there = f"there are {', '.join(arms)}" if len(arms) > 1 else f"there is {arms[0]} alone"
        raise BadInput(f"{about}: name the arm that it is about, and its control; {there}", argument="effect")
    for arm, must in ((effect, True), (control, _constant(control) is None)):
        if must and arm not in arms:
            raise BadInput(
                f"{about}: there is no arm {arm!r}; {did_you_mean(arm, arms, 'there are ' + ', '.join(arms))}"
            )
    if effect == control:
        raise BadInput(f"{about}: an arm is not its own control, got {effect!r} for both")
    return effect, control


def _constant(control: str) -> float | None:
    try:
        return found if isfinite(found := float(control)) else None
    except ValueError:
        return None


def _arms(wanted: Wanted, curves: Curves, about: str) -> Arms:
    known = None if wanted.control in curves else _constant(wanted.control)
    named = [wanted.effect] if known is not None else [wanted.effect, wanted.control]
    for arm in named:
        if arm not in curves:
            raise BadInput(f"{about}: there is no arm {arm!r}; there are {', '.join(curves)}")
    chosen = {arm: curves[arm] for arm in named}
    if wanted.paired is not False and known is None:
        _must_have_the_same_seeds(chosen, about)
    end, before = _ends(chosen, about)
    at_end, at_before = ({arm: {seed: curve[step] for seed, curve in chosen[arm].items()} for arm in named}
                         if step == end else _latest(chosen, step) for step in (end, before))  # fmt: skip
    paired, sign = wanted.paired is not False, -1.0 if wanted.lower else 1.0
    order = list(at_end[wanted.effect])

    def row(at: Mapping[str, Mapping[str, float]], arm: str) -> list[float]:
        return [sign * at[arm][seed] for seed in (order if paired else at[arm])]

    control: float | list[float] = row(at_end, wanted.control) if known is None else sign * known
    found = compare(row(at_end, wanted.effect), control, paired=paired, level=wanted.level)
    moved = float("nan")
    if before < end:
        changes = [[now - old for now, old in zip(row(at_end, arm), row(at_before, arm), strict=True)] for arm in named]
        moved = compare(changes[0], changes[1] if known is None else 0.0, paired=paired).difference
    beside = at_end[wanted.control] if known is None else {}
    return Arms(at_end[wanted.effect], beside, found, moved)


def _must_have_the_same_seeds(chosen: Curves, about: str) -> None:
    every = set().union(*chosen.values())
    lacking = {arm: sorted(every - {*seeds}, key=lambda seed: (len(seed), seed)) for arm, seeds in chosen.items()}
    if any(lacking.values()):
        only = [f"{arm!r} lacks {', '.join(seeds[:5])}" for arm, seeds in lacking.items() if seeds]
        how = "write nan for a seed that failed, or say that the arms are not paired"
        raise BadInput(
            f"{about}: both arms must have the same seeds, but {' and '.join(only)}; {how}", argument="paired"
        )


def _ends(chosen: Curves, about: str) -> tuple[float, float]:
    """The last step of all curves, and the one from which on they must not move."""
    last = {(arm, seed): max(curve) for arm, seeds in chosen.items() for seed, curve in seeds.items()}
    end = max(last.values())
    for (arm, seed), step in last.items():
        if step < end:
            how = f"give all curves up to one step, or write nan at step {end:g} for a seed that failed"
            raise BadInput(f"{about}: seed {seed} of arm {arm!r} ends at step {step:g}, others at {end:g}; {how}")
    start = min(min(curve) for seeds in chosen.values() for curve in seeds.values())
    return end, end - LAST_PART * (end - start)


def _latest(chosen: Curves, step: float) -> dict[str, dict[str, float]]:
    """The values at a step, or the last ones before it; where there is none, the first."""
    return {arm: {seed: curve[max((one for one in curve if one <= step), default=min(curve))]
                  for seed, curve in seeds.items()} for arm, seeds in chosen.items()}  # fmt: skip


def _refuse_percent(wanted: Wanted, cases: Mapping[str, Arms], about: str) -> None:
    rows = [[abs(one) for one in arm.values() if isfinite(one)] for each in cases.values()
            for arm in (each.effect, each.control)]  # fmt: skip
    tops = [max(row) for row in rows if row]
    means = [sum(row) / len(row) for row in rows if row]
    matters, small, large = float(wanted.matters or 0), min(tops, default=0.0), max(means, default=0.0)
    alike = {"%": small <= 1 and large > 2, "": 0.2 < small <= 1 and large > 20}.get(wanted.unit, False)
    if alike and 0 < PERCENT * small < large <= 100:
        how = "write both alike; if they are meant so, name their unit"
        raise BadInput(
            f"{about}: one arm is at most {small:g} and another {large:g}, like a share and percent; {how}",
            argument="unit",
        )
    if wanted.unit == "%" and (matters >= 1 or min(means, default=0.0) > 1.5):
        got = f"matters is {matters:g}" if matters >= 1 else f"an arm has {large:g}"
        how = "write 0.02 for 2 %, or name another unit, such as points"
        raise BadInput(f"{about}: with the unit % numbers are shares from 0 to 1, but {got}; {how}")


COLUMNS = ("claim", "case", "arm", "seed", "value", *SETTINGS)
"""Of the table that `table_of` makes."""


def table_of(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The numbers per seed of empirical findings as the long table that `judge_tables` reads: one row per number.

    Only findings that were just judged have them: a record keeps means and intervals.

    >>> from joma.measure.intervals import compare
    >>> claim = Claim("better", "JoMA Thm 1", "It is better.", matters=0.1)
    >>> rows = table_of([by_effect(claim, compare([0.5, 0.6], 0.2))])
    >>> [(row["arm"], row["seed"], row["value"]) for row in rows]
    [('effect', 0, 0.5), ('effect', 1, 0.6), ('control', 0, 0.2), ('control', 1, 0.2)]
    """
    rows = []
    for finding in findings:
        for case, one in (finding.printed.effects if finding.printed else {}).items():
            about = {"matters": one.matters, "unit": one.unit, "ceiling": one.ceiling, "level": one.level,
                     "lower": "no", "paired": "yes" if one.paired else "no", "source": finding.claim.source,
                     "says": finding.claim.says}  # fmt: skip
            for arm, numbers in zip(("effect", "control"), one.numbers, strict=False):
                head = {"claim": finding.claim.name, "case": case, "arm": arm}
                rows += [head | {"seed": seed, "value": value} | about for seed, value in enumerate(numbers)]
    return rows
