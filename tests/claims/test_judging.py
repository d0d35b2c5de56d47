"""Tables of numbers, in every layout and with every fault, judged as the same numbers are in Python."""

import csv
import json
from math import isnan, nan

import pytest
from kept_records import RECORDS, needs_records
from scipy import stats

from joma.claims.claim import Claim
from joma.claims.judging import judge_tables
from joma.claims.ledger import claims_csv, ledger_of, read_findings
from joma.claims.tables import read_table, values_of
from joma.claims.verdicts import by_effect
from joma.cli.main import main
from joma.host import limits
from joma.host.errors import BadInput
from joma.measure.intervals import compare

NEW, OLD = [0.91, 0.87, 0.93, 0.89, 0.90], [0.71, 0.74, 0.69, 0.75, 0.70]


def table(place, rows, name="results.csv"):
    file = place / name
    if file.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    elif file.suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    else:
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0], delimiter="\t" if file.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return file


def long(new=NEW, old=OLD, **more):
    arms = {"new": new, "old": old}
    return [{"arm": arm, "seed": seed, "value": one, **more} for arm in arms for seed, one in enumerate(arms[arm])]


def judged(place, rows=None, name="results.csv", **given):
    file = table(place, long() if rows is None else rows, name)
    found = judge_tables([file], **{"effect": "new", "matters": 0.05, **given})
    return found[0].finding


def numbers(finding):
    one = finding.main
    return one.effect, *one.interval, one.control_effect, *one.difference_interval, one.seeds, one.level


EXPECTED = by_effect(Claim("c", "a table, Table 1", "It is.", matters=0.05), compare(NEW, OLD))


@pytest.mark.parametrize("name", ["r.csv", "r.tsv", "r.json", "r.jsonl", "r.parquet"])
def test_every_kind_of_file_gives_the_same_numbers(tmp_path, name):
    assert numbers(judged(tmp_path, name=name)) == numbers(EXPECTED)


def wide():
    return [{"seed": seed, "new": new, "old": old} for seed, (new, old) in enumerate(zip(NEW, OLD, strict=True))]


def trackio():
    return [{"run_name": f"{row['arm']}-seed{row['seed']}", "step": 5, "acc": row["value"]} for row in long()]


def chart():
    row = {"Step": 7}
    for one in long():
        run = f"{one['arm']}_s{one['seed']} - acc"
        row |= {run: one["value"], f"{run}__MIN": 9.0, f"{run}__MAX": 9.0}
    return [row]


def runs():
    about = {"Name": "hazy-sun-7", "State": "finished"}
    return [about | {"optimizer": row["arm"], "seed": row["seed"], "acc": row["value"]} for row in long()]


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        (wide(), {}),
        (list(reversed(long())), {}),
        (trackio(), {"value": "acc"}),
        (chart(), {}),
        (runs(), {"value": "acc", "columns": {"arm": "optimizer"}}),
    ],
)
def test_every_layout_gives_the_same_numbers(tmp_path, rows, given):
    assert numbers(judged(tmp_path, rows, **given)) == pytest.approx(numbers(EXPECTED))


def test_tensorboard_has_one_file_per_run(tmp_path):
    files = []
    for one in long():
        steps = [{"Wall time": 1.0, "Step": step, "Value": one["value"]} for step in (0, 50, 75, 100)]
        files.append(table(tmp_path, steps, f"run-{one['arm']}_seed{one['seed']}-tag-acc.csv"))
    finding = judge_tables(files, effect="new", matters=0.05)[0].finding
    assert numbers(finding) == numbers(EXPECTED)


def test_columns_of_a_json_file_are_rows_too(tmp_path):
    file = tmp_path / "r.json"
    file.write_text(json.dumps({"seed": list(range(5)), "new": NEW, "old": OLD}))
    assert numbers(judge_tables([file], effect="new", matters=0.05)[0].finding) == numbers(EXPECTED)


def test_less_is_better_turns_the_verdict(tmp_path):
    assert judged(tmp_path).verdict == "holds"
    assert judged(tmp_path, lower=True).verdict == "fails"
    assert judged(tmp_path, effect="old", lower=True).verdict == "holds"


def test_a_control_may_be_a_number(tmp_path):
    finding = judged(tmp_path, control="0.85", matters=0.01)
    assert finding.verdict == "holds"
    assert finding.main.interval == pytest.approx(stats.t.interval(0.95, 4, 0.9, stats.sem(NEW)))
    assert finding.main.control_effect == 0.85


def test_seeds_are_paired_by_their_name_and_not_by_their_place(tmp_path):
    rows = long([0.3, 0.4, 0.5, 0.6, 0.7], [0.2, 0.3, 0.4, 0.5, 0.6])
    rows[5:] = rows[5:][::-1]
    finding = judged(tmp_path, rows, matters=0.05)
    assert finding.main.half_width == pytest.approx(0.0, abs=1e-12)


def test_unpaired_seeds_get_the_interval_of_welch(tmp_path):
    rows = [row for row in long() if row["arm"] == "new" or row["seed"] < 4]
    finding = judged(tmp_path, rows, paired=False)
    known = stats.ttest_ind(NEW, OLD[:4], equal_var=False)
    assert finding.p == pytest.approx(2 * stats.t.sf(known.statistic, int(known.df)))  # joma rounds the degrees down
    assert finding.main.seeds == 4


def test_a_seed_that_failed_counts_as_the_worst(tmp_path):
    finding = judged(tmp_path, long([nan, *NEW[1:]]))
    assert (finding.verdict, finding.main.failed) == ("undecided", 1)


def test_what_is_claimed_comes_from_a_file_and_options_go_before_it(tmp_path):
    rows = [{"arm": row["arm"], "seed": row["seed"], "acc": row["value"], "loss": -row["value"]} for row in long()]
    other = {"arm": "new", "seed": 0, "acc": 5.0, "loss": 5.0, "task": "b"}
    file = table(tmp_path, [*(row | {"task": "a"} for row in rows), other])
    toml = tmp_path / "claims.toml"
    toml.write_text("""
[claims.better]
value = "acc"
effect = "new"
matters = "5%"
unit = "%"
says = "It is better."
where = {task = "a"}
[claims.worse]
value = "loss"
effect = "new"
control = "old"
matters = 0.05
lower = true
where = {task = "a"}
""")
    first, second = (one.finding for one in judge_tables([file], claims=toml))
    assert (first.claim.says, first.claim.matters, first.verdict) == ("It is better.", 0.05, "holds")
    assert second.verdict == "holds"
    assert first.q is not None
    assert judge_tables([file], claims=toml, matters=0.5)[1].finding.verdict == "only qualitative"


def test_a_table_may_say_what_is_claimed_itself(tmp_path):
    said = {
        "claim": "better",
        "case": "layer 1",
        "matters": 0.05,
        "unit": "nats",
        "says": "It is better.",
        "level": 0.99,
    }
    rows = [row | {"arm": {"new": "effect", "old": "control"}[row["arm"]]} for row in long(**said)]
    rows += [row | {"case": "layer 2", "value": 0.5} for row in rows]
    finding = judge_tables([table(tmp_path, rows)])[0].finding
    assert (finding.claim.name, finding.claim.unit, finding.claim.says) == ("better", "nats", "It is better.")
    assert {case: (one.seeds, one.level) for case, one in finding.printed.effects.items()} == {
        "layer 1": (5, 0.99), "layer 2": (5, 0.99)}  # fmt: skip
    assert finding.verdict == "only qualitative" or finding.verdict == "undecided"


def curves(late):
    """Of each seed a curve to step 100 that changes by `late` over its last quarter."""
    return [{**row, "step": step, "value": row["value"] - (late * (row["arm"] == "new") if step < 100 else 0)}
            for row in long() for step in (0, 50, 75, 100)]  # fmt: skip


@pytest.mark.parametrize(
    ("late", "verdict"), [(0.0, "holds"), (0.04, "holds"), (0.06, "undecided"), (-0.06, "undecided")]
)
def test_what_still_moves_at_the_end_is_undecided(tmp_path, late, verdict):
    finding = judged(tmp_path, curves(late))
    assert finding.verdict == verdict
    assert ("still moves" in str(finding.measured)) == (verdict == "undecided")
    assert numbers(finding)[0] == pytest.approx(numbers(EXPECTED)[0])


def test_a_claim_that_fails_is_undecided_too_while_it_moves(tmp_path):
    assert judged(tmp_path, curves(0.0), effect="old").verdict == "fails"
    assert judged(tmp_path, curves(0.3), effect="old").verdict == "undecided"


def without(rows, **gone):
    return [row for row in rows if not all(row[key] == value for key, value in gone.items())]


FAULTS = [
    (without(long(), arm="old", seed=2), {}, "both arms must have the same seeds, but 'old' lacks 2"),
    (long(["high", *NEW[1:]]), {}, "row 1: value must be a number, got 'high'"),
    ([{**row, "step": "late"} for row in long()], {}, "row 1: step must be a number, got 'late'"),
    (long(), {"control": "sgd"}, "there is no arm 'sgd'; there are new, old"),
    (long(), {"effect": "nwe", "control": "old"}, "there is no arm 'nwe'; did you mean 'new'?"),
    ([*long(), long()[0]], {}, "arm 'new' has two values for seed 0; keep one of them"),
    (long(old=[70.0, 71, 72, 73, 74]), {"unit": "%"}, "like a share and percent"),
    (long(old=[70.0, 71, 72, 73, 74]), {}, "like a share and percent"),
    (long([70.0, 71, 72, 73, 74], [60.0, 61, 62, 63, 64]), {"unit": "%"}, "shares from 0 to 1, but an arm has 72"),
    (long(), {"unit": "%", "matters": 5}, "shares from 0 to 1, but matters is 5; write 0.02 for 2 %"),
    (long(), {"matters": None}, "state the smallest difference that would matter"),
    (long(), {"matters": "much"}, "matters must be a number, got 'much'"),
    (long(), {"matters": -1}, "what matters must be above 0"),
    (long(), {"value": "loss"}, "has no value 'loss'"),
    (long(), {"columns": {"seed": "sede"}}, "has no column 'sede'; did you mean 'seed'?"),
    (long(), {"effect": "new", "control": "new"}, "an arm is not its own control"),
    (without(long(), arm="old"), {}, "name the arm that it is about, and its control; there is new alone"),
    ([{"a": 1, "b": 2}], {}, "has no column of arms, seeds or runs"),
    ([*trackio(), {"run_name": "adam", "step": 5, "acc": 1.0}], {"value": "acc"}, "'adam' must end with its seed"),
    ([{**row, "step": 9 + (row["seed"] > 0)} for row in long()], {}, "seed 0 of arm 'new' ends at step 9, others"),
    ([{**row, "seed": ""} for row in long()], {}, "row 1: the seed is missing"),
    ([{**row, "matters": 0.1 + row["seed"]} for row in long()], {"matters": None}, "must have one value for all rows"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "given", "sentence"), FAULTS, ids=[sentence[:40] for _, _, sentence in FAULTS])
def test_bad_input_is_one_sentence(tmp_path, rows, given, sentence):
    with pytest.raises(BadInput) as error:
        judged(tmp_path, rows, **given)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_beyond_100_nothing_is_percent(tmp_path):
    assert judged(tmp_path, long(old=[100.5] * 5)).main.control_effect == 100.5


@pytest.mark.parametrize(
    ("name", "text"),
    [("r.csv", ""), ("r.csv", "seed,a,a\n1,2,3\n"), ("r.csv", "seed,a\n1,2,3\n"), ("r.csv", "seed,a\n1\n"),
     ("r.json", "{"), ("r.json", "[1]"), ("r.json", '{"a": 3}'), ("r.parquet", "PAR1"), ("r.txt", "a"),
     ("r.csv", "a\0")],
)  # fmt: skip
def test_what_is_no_table_is_one_sentence(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=r"r\.") as error:
        judge_tables([tmp_path / name], effect="a", control="0", matters=1)
    assert "\n" not in str(error.value)


def test_a_table_that_is_too_large_is_refused(tmp_path, monkeypatch):
    file = table(tmp_path, long())
    monkeypatch.setattr(limits, "TABLE_BYTES", 10)
    with pytest.raises(BadInput, match="TABLE_BYTES"):
        read_table(file)


def test_arms_that_are_meant_to_be_far_apart_have_a_unit(tmp_path):
    assert judged(tmp_path, long(old=[70.0, 71, 72, 73, 74]), unit="nats").verdict == "fails"


def test_empty_cells_are_left_out(tmp_path):
    file = table(tmp_path, [{"Step": 0, "a1 - x": "", "b1 - x": 2.0}, {"Step": 1, "a1 - x": 3.0, "b1 - x": None}])
    assert [(one.arm, one.step, one.value) for one in values_of([read_table(file)])] == [("b", 0, 2.0), ("a", 1, 3.0)]


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    file = table(tmp_path, long())
    given = ["judge", str(file), "--effect", "new", "--matters", "0.05"]
    places = {name: str(tmp_path / f"found.{name}") for name in ("json", "csv", "html")}
    files = ["--json", places["json"], "--csv", places["csv"], "--page", places["html"]]
    for _ in range(2):  # what joma wrote itself is replaced
        assert main([*given, *files]) == 0
    assert "claim: holds (size shown)" in capsys.readouterr().out
    (finding,) = read_findings(tmp_path / "found.json")
    assert numbers(finding) == numbers(EXPECTED)
    assert finding.provenance.record == "results.csv"
    (row,) = csv.DictReader((tmp_path / "found.csv").read_text().splitlines())
    assert float(row["difference_interval_low"]) == finding.main.low
    page = (tmp_path / "found.html").read_text()
    assert page.count("<circle") == 10
    assert "matters from 0.768" in page
    assert "holds" in page
    assert main([*given, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "joma-findings"


def test_names_from_a_table_are_escaped_on_the_page(tmp_path):
    rows = [row | {"arm": f"<b>{row['arm']}"} for row in long()]
    assert main(["judge", str(table(tmp_path, rows)), "--effect", "<b>new", "--matters", "0.05",
                 "--page", str(tmp_path / "p.html")]) == 0  # fmt: skip
    assert "<b>new" not in (tmp_path / "p.html").read_text()
    assert claims_csv([judged(tmp_path, value="value")]).count("\n") == 2


HEADLINES = {
    "fig6": "fig6-one-layer", "nonlinearity": "linear-mlp-stays-sparse", "dilution": "logits-shrink",
    "table1": "lowest-latents-align", "galore-table": "full-rank-is-best", "reversal-decoder": "text-read-backwards",
    "shallow-first": "bottom-up", "kv-cache": None,
}  # fmt: skip
"""The headlines of the README that rest on numbers over seeds."""


@needs_records
@pytest.mark.parametrize("study", HEADLINES)
def test_headlines_come_out_alike_from_the_numbers_alone(tmp_path, study, capsys):
    seeds = tmp_path / "seeds.csv"
    assert main(["export", str(RECORDS / study / f"{study}.sqlite"), "--to", "seeds", "--out", str(seeds)]) == 0
    assert main(["judge", str(seeds), "--json", str(tmp_path / "f.json")]) == 0
    again = {one.claim.name: one for one in read_findings(tmp_path / "f.json")}
    kept = {one.claim.name: one for one in read_findings(RECORDS / study / "findings.json")}
    for name in [HEADLINES[study]] if HEADLINES[study] else again:
        assert again[name].verdict == kept[name].verdict, name
        effects = {case: one.as_json() for case, one in kept[name].printed.effects.items()}
        for case, one in again[name].printed.effects.items():
            known = effects[case]
            for key in ("effect", "difference", "sign_p", "level", "failed", "matters"):
                assert one.as_json()[key] == pytest.approx(known[key], rel=1e-9, nan_ok=True), (name, case, key)
            assert one.difference_interval == pytest.approx(tuple(known["difference_interval"]), rel=1e-6, abs=1e-12)


def test_the_public_example_has_the_numbers_of_its_source():
    """The source gives Welch's p for time and loss, and a one-sided p for the target."""
    examples = RECORDS.parent / "examples" / "judge"
    found = {one.wanted.name: one.finding for one in judge_tables([examples / "fp8.csv"], claims=examples / "fp8.toml")}
    assert found["faster"].main.difference == pytest.approx(1.043692, abs=1e-6)
    assert found["faster"].p == pytest.approx(4.9e-12, rel=0.02)
    assert found["costs-loss"].p == pytest.approx(0.8587465, abs=1e-3)
    assert found["below-the-target"].p == pytest.approx(2 * 0.0006690604, rel=1e-6)
    assert found["below-the-target"].main.effect == pytest.approx(-3.2783692308, abs=1e-9)


def test_the_ledger_of_a_table_is_read_like_any_other(tmp_path):
    (tmp_path / "f.json").write_text(json.dumps(ledger_of([judged(tmp_path)])))
    assert read_findings(tmp_path / "f.json")[0].verdict == "holds"
    assert not isnan(judged(tmp_path).main.low)
