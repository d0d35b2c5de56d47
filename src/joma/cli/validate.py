"""`joma validate`: whether findings, scans and runs are whole, as their schemas say, and as their numbers say."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from joma.host.errors import BadInput
from joma.host.exit_status import OK
from joma.host.printing import clean, say
from joma.host.words import counted

INVALID = 1
_MOST = 20
"""Faults of one file that are printed."""
_EPILOG = """\
A file must be as its JSON Schema says (in the package, joma/host/schemas). Of findings each verdict must follow from
its own numbers; of a run every number must be as it was written."""


def add_parser(commands: Any) -> None:
    """Add `validate` to the subcommands of `joma`."""
    words = "check findings, scans and runs against their schemas and their own numbers"
    validate = commands.add_parser("validate", help=words, description=f"{words.capitalize()}.", epilog=_EPILOG)
    validate.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="findings.json, the JSON of a scan, or a run's .sqlite file"
    )
    validate.set_defaults(call=_validate)


def _validate(options: argparse.Namespace, _: list[str]) -> int:
    invalid = False
    for path in options.files:
        kind, found = checked(path)
        shown = list(islice(found, _MOST + 1))
        invalid |= bool(shown)
        for fault in shown[:_MOST]:
            say(clean(f"{path}: {fault}"), sys.stdout)
        if len(shown) > _MOST:
            say(f"{path}: and more", sys.stdout)
        if not shown:
            say(f"{path}: valid, {kind}", sys.stdout)
    return INVALID if invalid else OK


def checked(path: Path) -> tuple[str, Iterator[str]]:
    """What a file is, in words, and one sentence for each fault of it."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    with path.open("rb") as stream:
        is_run = stream.read(15) == b"SQLite format 3"
    return _run(path) if is_run else _json(path)


def _run(path: Path) -> tuple[str, Iterator[str]]:
    from joma.runs import RunError

    def until_it_cannot_be_read() -> Iterator[str]:
        try:
            yield from _of_run(path)
        except RunError as error:
            yield str(error)

    return "a run", until_it_cannot_be_read()


def _of_run(path: Path) -> Iterator[str]:
    from joma.host.schema import faults, load
    from joma.runs import Run, RunError

    with Run.open(path) as run:
        yield from faults(run.meta(), load("run"))
        for name in run.names():
            try:
                run.dims(name)
                for step in run.steps(name).tolist():
                    run.at(name, step)
            except RunError as error:
                yield str(error)


def _json(path: Path) -> tuple[str, Iterator[str]]:
    from joma.claims.ledger import contradictions
    from joma.host.schema import faults, load, names, read_json

    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        return "", iter([f"it cannot be read as JSON: {' '.join(str(error).split())[:160]}"])
    name = str(content.get("schema")).removeprefix("joma-") if isinstance(content, dict) else ""
    if name not in names() or name == "run":
        return "", iter(["it is neither findings nor a scan: its key 'schema' is neither joma-findings nor joma-scan"])
    version = content.get("version" if name == "findings" else "schema_version")
    if version != names()[name]:
        return "", iter([f"it is {content['schema']} of version {version}; the schema is of version {names()[name]}"])
    found = list(faults(content, load(name)))
    if found or name == "scan":
        return f"a scan, version {version}", iter(found)
    findings = [one for study in content.get("studies", [content]) for one in study["findings"]]
    words = f"{counted(len(findings), 'finding')}, version {version}"
    return words, (sentence for finding in findings for sentence in contradictions(finding))
