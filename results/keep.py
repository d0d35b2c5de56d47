"""Keep a run as a record: results/STUDY/ gets the run itself, its findings with where they come from, and the
figures that pages show.

python results/keep.py joma-out/runs/table1-*.sqlite [--commit HASH]

A record that is kept again, results/STUDY/STUDY.sqlite, is judged and drawn anew and keeps its commit; without a run
all records are. That is needed when the sentence of a claim changes: a report shows a kept verdict only beside the
sentence that it was given on. A run of more than half a megabyte that its command makes again in two minutes is not
copied. In the end two files in src/joma/report/claims are written. kept.json comes from all records: a quick report
shows it with its own verdicts, and `joma show ID --scale paper` prints it. panels.json has the curves that the cards of
a report draw, from the runs that were judged.
"""

import argparse
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from joma.claims.execute import command_line, judge
from joma.claims.finding import Finding, Provenance
from joma.claims.ledger import SCHEMA, VERSION
from joma.claims.multiplicity import judged_together
from joma.figures.style import house_style
from joma.host.file_kinds import OWN
from joma.host.files import write_json
from joma.report.claims.panel_readers import READERS, panel_of
from joma.runs import Run
from joma.studies import load

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results"
KEPT = ROOT / "src" / "joma" / "report" / "claims" / "kept.json"
PANELS = KEPT.with_name("panels.json")
LARGE, SOON = 500_000, 120.0
"""Bytes and seconds: what is larger and made again sooner is not worth its place in the repository."""


def keep(path: Path, commit: str | None) -> dict:
    """Judge and draw the run at `path`, and copy it. Returns the panels of cards that it gives, by claim."""
    with Run.open(path) as run:
        study = load(run.study)
        folder = RECORDS / study.name
        folder.mkdir(exist_ok=True)
        again = path.resolve() == (folder / f"{study.name}.sqlite").resolve()
        made_at = commit or (json.loads((folder / "findings.json").read_text())["commit"] if again else head())
        found = judge(study, run)
        copied = again or path.stat().st_size <= LARGE or float(run.value("seconds")) > SOON
        name = f"{study.name}.sqlite" if copied else f"{path.name}, not copied: its command makes it again"
        origin = replace(found[0].provenance, commit=made_at, record=name)
        record = {
            "schema": SCHEMA,
            "version": VERSION,
            "study": study.name,
            "command": command_line(study, run.config),
            "commit": made_at,
            "seconds": round(float(run.value("seconds")), 1),
            "config": run.config,
            "machine": run.machine,
            "versions": run.versions,
            "findings": [replace(finding, provenance=origin).as_json() for finding in found],
        }
        write_json(folder / "findings.json", record, OWN)
        with house_style():
            shown = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
            for at, drawing in enumerate(study.draw(run)):
                if at and copied and f"{study.name}/{drawing.name}.png" not in shown:
                    continue  # no page shows it, and `joma report` draws it again from the run
                drawing.figure.savefig(folder / f"{drawing.name}.png", dpi=130, facecolor="white")
        panels = panels_of(run)
    if copied and not again:
        shutil.copy(path, folder / f"{study.name}.sqlite")
    print(f"kept: {folder.relative_to(ROOT)}")
    return panels


def judge_again(path: Path) -> None:
    """Judge a record whose run was not copied, from the numbers of its findings."""
    record = json.loads(path.read_text(encoding="utf-8"))
    record["findings"] = [Finding.from_json(finding).as_json() for finding in record["findings"]]
    write_json(path, record, OWN)


def panels_of(run: Run) -> dict:
    """What cards draw of a run, by claim."""
    found = {claim: panel_of(claim, run) for claim in READERS if claim.startswith(f"{run.study}/")}
    return {claim: panel.as_json() for claim, panel in found.items() if panel}


def kept() -> dict:
    """What is kept of all records: of every study where its run comes from, of every finding what is shown of it."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*/findings.json"))]
    every = judged_together([Finding.from_json(one) for record in records for one in record["findings"]])
    together = {finding.id: finding for finding in every}
    return {
        "studies": {record["study"]: origin(record) for record in records},
        "findings": {
            one["id"]: short(together[one["id"]], one, record["command"])
            for record in records
            for one in record["findings"]
        },
    }


def origin(record: dict) -> dict:
    """The command that made a record, and where all of its findings come from."""
    known = record["findings"][0]["provenance"]
    return {"command": record["command"]} | {
        name: known[name] for name in Provenance.__dataclass_fields__ if name in known
    }


def short(again: Finding, finding: dict, command: str) -> dict:
    """What is shown of a kept finding, and its q among all; what it has not, and the record's command, is left out."""
    names = ("verdict", "expected", "control", "tolerance", "command")
    numbers = ("effect", "interval", "control_effect", "control_interval", "difference_interval", "unit", "seeds")
    found = {name: finding[name] for name in (*names, *numbers)} | {
        "measured": again.measured if isinstance(again.measured, str) else finding["measured"],
        "control": again.control,
        "shares_control": list(again.shares),
        "remarks": again.remarks,
        "q": again.q,
        "level": again.main.level if again.main and again.main.level != 0.95 else None,
        "claim_sha256": finding["provenance"]["claim_sha256"],
        "brief": again.brief,
        "what": again.main.what if again.main and any(end is not None for end in again.main.limits) else None,
    }
    found["command"] = None if found["command"] == command else found["command"]
    # An empty command is kept: without one, the record's would be shown.
    return {
        name: value for name, value in found.items() if value not in (None, "", []) or (name, value) == ("command", "")
    }


def head() -> str:
    """The present commit."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Keep the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="runs to keep (default: all records, once more)")
    parser.add_argument("--commit", help="the commit that the run was made at; else the present one, or a record's own")
    options = parser.parse_args()
    panels = json.loads(PANELS.read_text(encoding="utf-8"))  # a record that is not copied keeps the panel it had
    for path in options.runs or sorted(RECORDS.glob("*/*.sqlite")):
        panels |= keep(path, options.commit)
    for path in () if options.runs else sorted(RECORDS.glob("*/findings.json")):
        if not any(path.parent.glob("*.sqlite")):
            judge_again(path)
    write_json(KEPT, kept(), OWN)
    write_json(PANELS, {claim: panels[claim] for claim in READERS if claim in panels}, OWN)


if __name__ == "__main__":
    main()
