"""A record as an RO-Crate: the run, its findings and its figures in one archive that says what each file is.

RO-Crate (https://w3id.org/ro/crate) is a folder with `ro-crate-metadata.json`, JSON-LD in the words of schema.org, so
that archives and other people's tools can read what was run, with what, on what machine, and what came out.
"""

import zipfile
from pathlib import Path
from typing import Any

import joma
from joma.claims.execute import Result
from joma.claims.exports import croissant
from joma.claims.ledger import claims_csv, findings_json
from joma.host.file_kinds import CRATE, CRATE_MARK
from joma.host.files import as_json, atomically, named_file
from joma.runs import Run, RunError

_CONTEXT = "https://w3id.org/ro/crate/1.1/context"
_PROFILE = "https://w3id.org/ro/crate/1.1"
_LICENSE = "https://spdx.org/licenses/Apache-2.0"
_TYPES = {
    ".sqlite": "application/vnd.sqlite3",
    ".json": "application/json",
    ".csv": "text/csv",
    ".svg": "image/svg+xml",
}


def write_crate(result: Result, out: Path | None = None) -> Path:
    """Write a judged run with its findings and figures as a zip, whole or not at all. Default: beside the run."""
    if result.run is None:
        raise RunError(f"{result.study.name} was not run, so that there is no record to export")
    place = result.run.with_suffix(".crate.zip") if out is None else named_file(out)
    figures = {f"figures/{picture.name}.svg": _standalone(picture.svg) for picture in result.pictures}
    table = croissant(result.findings, name=result.study.name) | {"license": _LICENSE}
    tables = {"claims.csv": claims_csv(result.findings), "croissant.json": as_json(table)}
    content = {"findings.json": as_json(findings_json([result])), **tables, **figures}
    content["ro-crate-metadata.json"] = as_json(metadata(result))
    try:
        with atomically(place, CRATE) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.comment = CRATE_MARK
            archive.write(result.run, result.run.name)
            for name, text in content.items():
                archive.writestr(name, text)
    except OSError as error:
        raise RunError(f"{place} cannot be written: {error.strerror or error}") from error
    return place


def metadata(result: Result) -> dict[str, Any]:
    """The description of a record: what the archive holds and how it was made."""
    if result.run is None:
        raise RunError(f"{result.study.name} was not run, so that there is nothing to describe")
    with Run.open(result.run) as run:
        created, machine, versions = run.created, run.machine, run.versions
    record = result.run.name
    files = [
        _file(record, f"Record of the study {result.study.name}: configuration, machine, named arrays over steps"),
        _file("findings.json", "Findings: every claim with its verdict and the numbers that it follows from"),
        _file("claims.csv", "The same as a table, one row per claim"),
        _file("croissant.json", "Croissant metadata of that table: what each column is"),
        *(_file(f"figures/{picture.name}.svg", picture.caption) for picture in result.pictures),
    ]
    software = {
        "@id": "#joma",
        "@type": "SoftwareApplication",
        "name": "joma",
        "version": str(versions.get("joma", joma.__version__)),
        "softwareRequirements": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
    }
    action = {
        "@id": "#run",
        "@type": "CreateAction",
        "name": result.command,
        "instrument": {"@id": "#joma"},
        "startTime": created,
        "description": ", ".join(str(part) for part in machine.values() if part is not None),
        "result": [{"@id": file["@id"]} for file in files],
    }
    descriptor = {"@id": "ro-crate-metadata.json", "@type": "CreativeWork", "conformsTo": {"@id": _PROFILE},
                  "about": {"@id": "./"}}  # fmt: skip
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": result.study.title,
        "description": result.study.about or result.study.title,
        "datePublished": created,
        "license": {"@id": _LICENSE},
        "hasPart": [{"@id": file["@id"]} for file in files],
        "mentions": [{"@id": "#run"}],
    }
    license_ = {"@id": _LICENSE, "@type": "CreativeWork", "name": "Apache License 2.0"}
    return {"@context": _CONTEXT, "@graph": [descriptor, root, *files, action, software, license_]}


def _file(name: str, description: str) -> dict[str, Any]:
    return {"@id": name, "@type": "File", "description": description, "encodingFormat": _TYPES[Path(name).suffix]}


def _standalone(svg: str) -> str:
    """An inline SVG as a file of its own: with its name space, and ink where the page would have given the colour."""
    known = "" if 'xmlns="' in svg[: svg.index(">")] else ' xmlns="http://www.w3.org/2000/svg"'
    return svg.replace("<svg", f'<svg{known} style="color:#1a1a1a"', 1)
