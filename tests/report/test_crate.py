"""What an RO-Crate says of a record, and what the page says of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joma.report.claims.study import _record
from joma.report.crate import _standalone, metadata, write_crate
from joma.runs import Run, RunError


@pytest.fixture
def result(tmp_path: Path) -> Any:
    with Run.create(tmp_path / "near-1.sqlite", study="near", config={"size": 3}) as run:
        run.append("x", 0, 1.0)
    pictures = [SimpleNamespace(name=name, caption=f"{name} is seen.", svg="<svg></svg>") for name in ("one", "two")]
    study = SimpleNamespace(name="near", title="Near", about="", version=7)
    return SimpleNamespace(
        study=study, run=run.path, pictures=pictures, command="joma verify near", cached=True, seconds=200.0,
        config={"size": 3, "label": "<a>", "rates": [0.5, 0.25]},
    )  # fmt: skip


def test_a_crate_says_what_each_file_is_and_how_it_was_made(result: Any) -> None:
    graph = {entry["@id"]: entry for entry in metadata(result)["@graph"]}
    files = ["near-1.sqlite", "findings.json", "claims.csv", "croissant.json", "figures/one.svg", "figures/two.svg"]
    assert list(graph) == ["ro-crate-metadata.json", "./", *files, "#run", "#joma", graph["./"]["license"]["@id"]]
    assert [graph[file]["encodingFormat"] for file in files] == [
        "application/vnd.sqlite3", "application/json", "text/csv", "application/json", "image/svg+xml", "image/svg+xml"
    ]  # fmt: skip
    assert [graph[file]["description"] for file in files[4:]] == ["one is seen.", "two is seen."]
    assert graph["./"]["hasPart"] == graph["#run"]["result"] == [{"@id": file} for file in files]
    with Run.open(result.run) as run:
        noted = run.created, run.machine, run.versions
    action = graph["#run"]
    assert (action["name"], action["startTime"], action["instrument"]) == (
        "joma verify near", noted[0], {"@id": "#joma"}
    )  # fmt: skip
    assert action["description"] == ", ".join(str(part) for part in noted[1].values() if part is not None)
    assert graph["#joma"]["version"] == noted[2]["joma"]
    assert f"python {noted[2]['python']}, joma {noted[2]['joma']}" in graph["#joma"]["softwareRequirements"]
    assert (graph["./"]["name"], graph["./"]["description"]) == ("Near", "Near")  # without more words its title


def test_what_was_not_run_cannot_be_told_of(result: Any) -> None:
    result.run = None
    with pytest.raises(RunError, match=r"^near was not run, so that there is nothing to describe$"):
        metadata(result)
    with pytest.raises(RunError, match=r"^near was not run, so that there is no record to export$"):
        write_crate(result)


def test_a_picture_alone_gets_its_name_space_and_ink() -> None:
    space = 'xmlns="http://www.w3.org/2000/svg"'
    assert _standalone("<svg a='1'><svg/></svg>") == f"<svg {space} style=\"color:#1a1a1a\" a='1'><svg/></svg>"
    assert _standalone(f"<svg {space}></svg>") == f'<svg style="color:#1a1a1a" {space}></svg>'


def test_the_page_tells_configuration_time_record_and_version(result: Any) -> None:
    opening = '<details class="record"><summary>Configuration and record</summary><dl>'

    def row(name: str, content: str) -> str:
        return f"<div><dt>{name}</dt><dd>{content}</dd></div>"

    config = row("size", "3") + row("label", "&lt;a&gt;") + row("rates", "[0.5, 0.25]")
    time = row("time", "3 min 20 s, when it ran") + row("record", "near-1.sqlite")
    assert _record(result) == f"{opening}{config}{time}{row('study version', '7')}</dl></details>"
    result.run = None
    assert _record(result) == f"{opening}{config}{row('study version', '7')}</dl></details>"
