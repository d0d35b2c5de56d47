"""Keep a run as a record: results/STUDY/ gets the run itself, its findings with where they come from, its figures.

python results/keep.py joma-out/runs/table1-*.sqlite [--commit HASH]

A record that is kept again, results/STUDY/STUDY.sqlite, is judged and drawn anew and keeps its commit.
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path

from joma.runs import Run
from joma.studies import load
from joma.studies.drawing import house_style
from joma.studies.execute import command_line, judge

ROOT = Path(__file__).parents[1]


def keep(path: Path, commit: str | None) -> None:
    """Judge and draw the run at `path`, and copy it."""
    with Run.open(path) as run:
        study = load(run.study)
        folder = ROOT / "results" / study.name
        folder.mkdir(exist_ok=True)
        again = path.resolve() == (folder / f"{study.name}.sqlite").resolve()
        record = {
            "study": study.name,
            "command": command_line(study, run.config),
            "commit": commit or (json.loads((folder / "findings.json").read_text())["commit"] if again else head()),
            "seconds": round(float(run.value("seconds")), 1),
            "config": run.config,
            "machine": run.machine,
            "versions": run.versions,
            "findings": [finding.as_json() for finding in judge(study, run)],
        }
        (folder / "findings.json").write_text(json.dumps(record, indent=1) + "\n")
        with house_style():
            for drawing in study.draw(run):
                drawing.figure.savefig(folder / f"{drawing.name}.png", dpi=130, facecolor="white")
    if not again:
        shutil.copy(path, folder / f"{study.name}.sqlite")
    print(f"kept: {folder.relative_to(ROOT)}")


def head() -> str:
    """The present commit."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Keep the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--commit", help="the commit that the run was made at; else the present one, or a record's own")
    options = parser.parse_args()
    for path in options.runs:
        keep(path, options.commit)


if __name__ == "__main__":
    main()
