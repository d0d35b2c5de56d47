"""The tables of results in the manual are printed by scripts from the kept records."""

import importlib
import json
import re
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from kept_records import RECORDS as RESULTS
from kept_records import needs_records
from page_blocks import ROOT, built, pages, text_of

from joma.optim import APOLLO, Fira, GaLore, Muon
from joma.runs import Run


@pytest.fixture
def script(monkeypatch):
    """A script of docs/ by name, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module


PRINTED = {
    "ablations": ["ablation_summary"],
    "figure6": ["figure6_table"],
    "index": ["verdict_table"],
    "reversal": ["reversal_table", "reversal_table"],
    "seeds": ["seeds_table"],
    "table1": ["table1_table"],
    "undecided": ["undecided_table"],
}
"""By page of results: the scripts that print its tables as the manual is built."""


@needs_records
@pytest.mark.parametrize("name", PRINTED)
def test_the_manual_has_the_tables_that_scripts_print(name):
    page = built(f"docs/results/{name}.md")
    assert "{printed}" not in page
    assert (
        re.findall(r"^\|.*\d.*\|\n\n`python docs/(\w+)\.py[^`]*` prints this\.$", page, re.MULTILINE) == PRINTED[name]
    )


def test_no_other_page_has_a_table_that_a_script_prints():
    assert [page for page in pages() if "```{printed}" in text_of(page)] == [f"docs/results/{n}.md" for n in PRINTED]


def with_half(value, interval, digits, space):
    return f"{value:.{digits}f}{space}±{space}{(interval[1] - interval[0]) / 2:.{digits}f}"


@needs_records
def test_printed_numbers_are_those_of_findings():
    """One row of the ablations and one of the reversal curse, by the JSON of their records alone."""
    found = {
        one["id"]: list(one["evidence"]["printed"]["effects"].values())
        for study in ("residual", "reversal-decoder")
        for one in json.loads((RESULTS / study / "findings.json").read_text(encoding="utf-8"))["findings"]
        if one["evidence"]
    }
    layers = found["residual/drop-needs-residual"]
    falls = [with_half(one["difference"], one["difference_interval"], 2, "\N{NO-BREAK SPACE}") for one in layers]
    assert f"| residual − no residual | {' | '.join(falls)} |" in built("docs/results/ablations.md")
    (one,) = found["reversal-decoder/reverse-no-better-than-uniform"]
    reverse = with_half(one["control_effect"], one["control_interval"], 4, " ")
    assert f"| 24 | as published | 1.000 | {reverse} |" in built("docs/results/reversal.md")


@needs_records
def test_what_is_undecided_has_its_price(script):
    table, printed = script("undecided_table"), built("docs/results/undecided.md")
    assert [row for _, row in table.rows()] == [line for line in printed.splitlines() if line.startswith("| `")]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*/findings.json"))]
    open_ones = [one for record in found for one in record["findings"] if one["verdict"] == "undecided"]
    kept, priced = sum(len(record["findings"]) for record in found), len(table.rows())
    said = f"**{len(open_ones)} of {kept} claims at paper scale are undecided. {priced} of them say"
    assert said in text_of("docs/results/undecided.md")
    assert f"| {len(open_ones)} claims are undecided:" in text_of("docs/results/index.md")
    (record,) = [one for one in found if one["study"] == "fig6"]
    assert f"| 3 | 5 | {record['seconds'] * 5 / 3 / 60:.0f} |" in printed


def test_what_the_sources_ask_has_claims_that_exist_or_says_what_is_missing(script):
    """Held against `joma list`: no row names a claim that is not, and none without a verdict is silent on why."""
    from joma.claims.rules import UNJUDGED
    from joma.studies import load, names

    table = script("seeds_table")
    every = [row for part in table.PARTS for row in table.rows()[part]]
    assert set(table.rows()) == set(table.PARTS)
    assert all(set(row) <= {"what", "claims", "missing"} for row in every)
    named = [claim for row in every for claim in row["claims"]]
    of = {study: {claim.name for claim in load(study).claims} for study in {name.split("/")[0] for name in named}}
    assert not [name for name in named if name.split("/")[1] not in of[name.split("/")[0]]]
    assert set(of) | set(table.beyond()) == set(names())
    found = table.verdicts()
    silent = [row["what"] for row in every if not row.get("missing") and
              all(verdict in ("–", *UNJUDGED) for name in row["claims"] for verdict in found[name])]  # fmt: skip
    assert not silent


@needs_records
def test_the_table_of_what_the_sources_ask_has_the_verdicts_of_the_records(script):
    table = script("seeds_table")
    kept = {
        scale: {one["id"]: one["verdict"] for one in json.loads((RESULTS / path).read_text())["findings"]}
        for scale, path in (("paper", "fig6/findings.json"),)
    }
    quick = json.loads((RESULTS / "quick.json").read_text())["findings"]
    for name, verdict in kept["paper"].items():
        assert table.verdicts()[name] == (quick[name]["verdict"], verdict)
    row = {"what": "W", "claims": ["a/b", "a/c"], "missing": "M"}
    found = {"a/b": ("holds", "holds"), "a/c": ("undecided", "fails")}
    assert table.line(row, found) == "| W | `a/b` holds; `a/c` undecided / fails | M |"


def test_the_gallery_has_a_card_per_study_with_a_figure_and_a_finding(script):
    from joma.studies import names, room

    assert {room(name) for name in names()} == set(script("make_gallery").SUBJECTS)

    cards = re.findall(r"\n### ([\w-]+)\n\n!\[.+\]\(\S+\.png\)\n\n(.+)\n(?=\n#|\Z)", text_of("docs/gallery.md"))
    assert [name for name, _ in cards] == list(names())
    assert all(len(finding) < 200 for _, finding in cards)


def test_the_table_of_verdicts_counts_all_of_a_record(script):
    table = script("verdict_table")
    kept = json.loads((RESULTS / "thm2/findings.json").read_text(encoding="utf-8"))["findings"]
    assert table.kept("thm2").total() == table.quick("thm2").total() == len(kept)


def test_the_picture_of_the_ablations_has_few_panels_and_names_every_line_in_each(script):
    from joma.figures.style import house_style

    summary = script("ablation_summary")
    with ExitStack() as stack:
        runs = {name: stack.enter_context(Run.open(RESULTS / name / f"{name}.sqlite")) for name in summary.SHOWN}
        with house_style():
            figure = summary.draw(runs)
            figure.draw_without_rendering()
    assert len(figure.axes) == 2
    for axis in figure.axes:
        (labels,) = [artist for artist in axis.artists if hasattr(artist, "leaders")]
        named = [text.get_text().replace("\n", " ") for text in labels.texts]
        assert sorted(named) == ["full network (ReLU)", "linear MLP", "no MLP", "no residual connection"]
        assert len(labels.lines) == len(axis.get_lines())
        broadest = max(axis.get_lines(), key=lambda line: line.get_linewidth())
        assert broadest.get_label() == "full network (ReLU)"  # so broad that no twin can hide it
        assert broadest.get_linewidth() >= 2 * sorted(line.get_linewidth() for line in axis.get_lines())[-2]


def test_the_front_pages_describe_the_picture_of_the_ablations():
    for page in ("README.md", "docs/index.md", "docs/results/ablations.md"):
        (shown,) = [line for line in text_of(page).splitlines() if "_static/ablations.png)" in line and line[0] == "!"]
        assert "linear MLP" in shown
        assert "residual" in shown
    assert "python docs/ablation_summary.py results docs/_static/ablations.png" in text_of("docs/how-to/write-docs.md")


@pytest.mark.long
def test_entropies_lie_above_their_floors_as_the_page_says(script, capsys):
    """Stories are drawn, so another machine's rounding may tell others: numbers are near, and not the same."""
    pytest.importorskip("transformers")
    from joma.studies.sparsity.kv_cache.stories import find_stories

    if find_stories() is None:
        pytest.skip("stories260K is not among the data")
    script("entropy_floor_table").main()
    rows = [row for line in capsys.readouterr().out.splitlines() if len(row := line.strip("| ").split(" | ")) == 7]
    found = {name.strip(): [float(each.replace(",", "")) for each in row] for name, *row in rows if "." in row[0]}
    said = r"entropy is (\S+) nats, of (\S+) possible. The floor by range is (\S+) nats, the floor by length (\S+?)\. "
    page = " ".join(text_of("docs/explanation/theory/attention.md").split())
    entropy, possible, *floors = map(float, re.search(rf"{said}The floor of Theorem 3.1 is ([\d.]+)", page).groups())
    assert found["all"][:5] == pytest.approx([possible, entropy, *floors], rel=0.2, abs=0.05)
    assert [row[1] > 5 * row[2] > 0 for row in found.values()] == [True] * 6  # the entropy and the nearest floor


@pytest.mark.parametrize(
    ("file", "first", "among"),
    [
        ("measure/intervals.py", "tests/measure/test_intervals.py", "tests/claims/test_contract.py"),
        ("studies/linear/thm2.py", "tests/studies/linear/test_thm2.py", None),
        ("probes/_parallel.py", "tests/monitor/test_distributed.py", None),
    ],
)
def test_the_tests_of_a_file_are_named(file, first, among, script):
    table = script("tests_table")
    found = [path.relative_to(ROOT).as_posix() for path in table.nearest(table.SOURCE / file)]
    assert found[0] == first
    assert among is None or among in found


def test_lines_that_a_commit_did_not_have_are_counted(script, monkeypatch):
    ages = script("record_ages")
    listed = "3\t1\tsrc/a.py\0" + "2\t0\t\0src/old.py\0src/new.py\0" + "-\t-\tsrc/picture.png\0"
    monkeypatch.setattr(ages, "git", lambda *words: listed)
    ages.changed.cache_clear()
    assert ages.changed("some commit") == {ROOT / "src/a.py": 3, ROOT / "src/new.py": 2}
    ages.changed.cache_clear()
    assert [ages.said(each) for each in (0.0, 0.01, 0.2, 0.6)] == [
        "none", "less than a tenth", "less than half", "more than half",
    ]  # fmt: skip


def test_a_benchmark_speaks_of_what_it_imports_and_of_its_room(script):
    ages = script("record_ages")
    (benchmark,) = ages.scripts_of("salience")
    found = {path.relative_to(ages.SOURCE).as_posix() for path in ages.spoken_of(benchmark)}
    assert "theory/salience.py" in found
    assert {name.partition("/")[0] for name in found} <= {"theory"}


CHOICES = {
    "AdamW": torch.optim.AdamW,
    "`Muon`": Muon,
    "`GaLore`": partial(GaLore, rank=4, skip=()),
    "`Fira`": partial(Fira, rank=4, skip=()),
    "`APOLLO`": partial(APOLLO, rank=4, skip=()),
    '`APOLLO`, `scaling="tensor"`, rank 1': partial(APOLLO, rank=1, scaling="tensor", skip=()),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_page_on_galore_counts_the_states_that_optimizers_keep(name):
    text = (ROOT / "docs/how-to/galore.md").read_text(encoding="utf-8")
    formula = re.findall(rf"^\| {re.escape(name)} \| ([^|]+) \|", text, re.MULTILINE)[0]
    weight = torch.nn.Parameter(torch.ones(24, 40))
    optimizer = CHOICES[name]([weight])
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    kept = sum(torch.as_tensor(value).numel() for value in optimizer.state[weight].values())
    said = eval(re.sub(r"(?<=[\w]) (?=[mnr])", "*", formula.strip()), {"m": 24, "n": 40, "r": 4})
    assert said <= kept <= said + 8  # energies of four directions, a norm, and what counts steps


@pytest.mark.parametrize("name", CHOICES)
def test_the_page_on_galore_has_what_was_measured_at_60_million_parameters(name):
    text = (ROOT / "docs/how-to/galore.md").read_text(encoding="utf-8")
    rows = json.loads((RESULTS / "bench_family.json").read_text())["rows"]
    ours = {
        row["part"]: row for row in rows if row["optimizer"] == name.replace("`", "").replace(', scaling="tensor"', "")
    }
    mebibytes, ratio = ours["steps"]["state_bytes"] / 2**20, ours["steps"]["over_adamw"]
    loss = sum(ours["losses"]["losses"]) / 3
    assert f"| {name} | {mebibytes:.1f} MiB | {ratio:.2f} | {loss:.2f} |" in text
    assert ours["losses"]["spread_of_seeds"] <= 0.03
    assert ours["losses"]["tokens"] == 8_388_608
    assert ours["losses"]["short"][f"{ours['losses']['rate']:g}"] == min(ours["losses"]["short"].values())
