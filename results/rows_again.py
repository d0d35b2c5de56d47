"""Begin a run at paper scale with what a record has, but for the methods that are to be trained again.

python results/rows_again.py galore-table GaLore "random projection" "GaLore, unscaled" --out joma-out

The command of the study then goes on where this ends: it trains what is missing. Options that the record lacks get the
values that the study has now; with other values of those that it has, it would be another run, and is refused. So is
what a record of another text is made of, by the study itself.
"""

import argparse
from pathlib import Path

from joma.claims.execute import plain_config, run_path
from joma.host.errors import BadInput
from joma.runs import Run
from joma.studies import load

RECORDS = Path(__file__).parent
TIME, SO_FAR = "seconds", "seconds so far"
"""What all processes took that worked on a record; those of before count too."""


def begin(record: Run, methods: list[str], out: Path) -> Run:
    """A run in `out` with all rows of the record but those of `methods`, whose series are named .../METHOD/..."""
    study = load(record.study)
    config = plain_config(study.paper)
    if other := [name for name, value in record.config.items() if config.get(name) != value]:
        raise BadInput(f"{record.path} was made with another {other[0]} than {study.name} has now: run all of it again")
    names = [name for name in record.names() if name not in (TIME, SO_FAR)]
    if missing := [method for method in methods if not any(method in name.split("/") for name in names)]:
        raise BadInput(f"methods must be rows of {record.path}, got {missing[0]!r}", argument="methods")
    run = Run.create(run_path(study, config, out), study=study.name, config=config, version=study.version)
    run.append(SO_FAR, 0, record.value(TIME))
    for name in names:
        if not set(name.split("/")) & set(methods):
            dims = None if "dim_0" in record.dims(name) else record.dims(name)
            for step in map(int, record.steps(name)):
                run.append(name, step, record.at(name, step), dims=dims)
    return run


def main() -> None:
    """Begin the run that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study")
    parser.add_argument("methods", nargs="*", help="whose rows are trained again; none: those that the record lacks")
    parser.add_argument("--out", type=Path, default=Path("joma-out"))
    options = parser.parse_args()
    kept = RECORDS / options.study / f"{options.study}.sqlite"
    with Run.open(kept) as record, begin(record, options.methods, options.out) as run:
        print(f"begun: {run.path}, {len(run.names())} of {len(record.names())} series")


if __name__ == "__main__":
    main()
