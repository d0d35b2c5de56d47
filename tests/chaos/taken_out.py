"""Take fixes out of a copy of joma, one at a time, and see which subject of the suite notices.

    python tests/chaos/taken_out.py             # prints the table
    python tests/chaos/taken_out.py --record    # and keeps it in results/chaos.json, which must be there

Ends with status 1 if a fix can be taken out and nobody notices. The checkout is not touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "chaos.json"


@dataclass(frozen=True)
class Fix:
    """What is taken out: pieces of one file, each with what stands there instead."""

    what: str
    file: str
    pieces: tuple[tuple[str, str], ...]
    subject: str
    kills: int
    """In all, as `run.py --kills` counts them."""


FIXES = (
    Fix(
        "the lock of a run: two processes may write it",
        "runs/lock.py",
        (("fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),),
        "lock",
        50,
    ),
    Fix(
        "one transaction per record",
        "runs/session.py",
        (('connection.execute("BEGIN IMMEDIATE")', "pass"), ('connection.execute("COMMIT")', "pass")),
        "writer",
        60,
    ),
    Fix(
        "files written beside and renamed: they are written in place",
        "host/files.py",
        (
            ('path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}-{secrets.token_hex(3)}.new")', "path"),
            ("            unfinished.unlink()", "            pass"),
        ),
        "export",
        60,
    ),
    Fix(
        "files written beside and renamed: they are written in place",
        "host/files.py",
        (
            ('path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}-{secrets.token_hex(3)}.new")', "path"),
            ("            unfinished.unlink()", "            pass"),
        ),
        "report",
        100,
    ),
    Fix(
        "one name per writer of a file: all writers share one",
        "host/files.py",
        ((".{os.getpid()}-{next(_NUMBERS)}-{secrets.token_hex(3)}.new", ".new"),),
        "report",
        25,
    ),
    Fix(
        "what killed writers left is removed later",
        "host/files.py",
        (("    _remove_orphans(path)\n    unfinished", "    unfinished"),),
        "export",
        60,
    ),
    Fix(
        "files of living processes are left alone",
        "host/files.py",
        (("if not _alive(writer) and ", "if "),),
        "clock",
        250,
    ),
    Fix(
        "the seal of training checkpoints",
        "host/sealed.py",
        (("if seal != str(_checksum(tensors, about)):", "if False:"),),
        "bits",
        150,
    ),
    Fix(
        "the sealed counts of a finished run",
        "runs/session.py",
        (("if name in self._sealed and steps != self._sealed[name]:", "if False:"),),
        "bits",
        25,
    ),
    Fix(
        "workers end with a command that nobody listens to yet",
        "scale/local.py",
        (
            ("    next(events)  # starts them at once: whoever", "    works.start()  # whoever"),
            ('            yield Going(Task("", {}), 0.0, "")\n', ""),
        ),
        "early",
        500,
    ),
    Fix(
        "a checkpoint is known again by a hash of pieces of its files",
        "scan/sources/folder.py",
        ((" {_samples(folder / name, at.st_size)}", ""),),
        "replaced",
        200,
    ),
    Fix(
        "steps of a run must increase",
        "runs/session.py",
        (("if any(later <= step for step, later in pairwise(steps)):", "if False:"),),
        "index",
        1000,
    ),
    Fix(
        "directions of GaLore must have length 1",
        "optim/_state.py",
        (("if not bool(((lengths - 1).abs() < _ROUNDING).all()):", "if False:"),),
        "galore",
        100,
    ),
    Fix(
        "a state of GaLore that is refused late leaves the one before",
        "optim/galore.py",
        (("            self._take_over(before_loading)\n", ""),),
        "galore",
        100,
    ),
    Fix(
        "patterns of adapters with many groups are refused",
        "scan/formats/adapter.py",
        (('if plain.count("(") > _MOST_GROUPS:', "if False:"),),
        "swelling",
        100,
    ),
    Fix(
        "chunks of distributed checkpoints are counted, also where they are shared",
        "scan/formats/dcp.py",
        (("if sum(len(each) for each in boxes if isinstance(each, list)) > limits.TENSORS:", "if False:"),),
        "swelling",
        100,
    ),
    Fix(
        "a bytearray in a torch file is never made",
        "scan/formats/pickles.py",
        (
            (
                "torch.serialization.safe_globals(_ALLOWED), _no_bytearrays():",
                "torch.serialization.safe_globals(_ALLOWED):",
            ),
        ),
        "swelling",
        100,
    ),
    Fix(
        "letters of names in a torch file are counted",
        "scan/formats/torch_file.py",
        (("if (letters := letters + len(name)) > _NAMES:", "if False:"),),
        "swelling",
        100,
    ),
    Fix(
        "matrices of layers that no group takes are told",
        "scan/sweep/plan.py",
        (("if _measures_of(MLP, measures) else {}", "if False else {}"),),
        "unknown",
        50,
    ),
)


def noticed(fix: Fix) -> dict[str, object]:
    """Run the subject on a copy without the fix; the row of the table."""
    with tempfile.TemporaryDirectory(prefix="joma-without-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        _take_out(fix, source / "joma" / fix.file)
        figures = Path(folder) / "figures.json"
        command = [sys.executable, str(ROOT / "tests" / "chaos" / "run.py"), "--only", fix.subject]
        command += ["--kills", str(fix.kills), "--json", str(figures)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
        if not figures.exists():
            raise RuntimeError(f"{fix.what}: the suite itself broke: {done.stderr[-500:]}")
        (score,) = json.loads(figures.read_text())
    row = {name: score[name] for name in ("disturbances", "lost", "wrong", "odd")}
    first = next((note for note in score["notes"] if not note.startswith("odd")), "")
    return (
        {"what": fix.what, "file": fix.file, "subject": fix.subject}
        | row
        | {
            "noticed": done.returncode == 1,
            "first": first[:200],
        }
    )


def _take_out(fix: Fix, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for before, after in fix.pieces:
        if text.count(before) != 1:
            raise ValueError(f"{fix.file} has {before!r} {text.count(before)} times, not once")
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def main() -> int:
    rows = []
    for fix in FIXES:
        rows.append(noticed(fix))
        print(json.dumps(rows[-1]), flush=True)
    if "--record" in sys.argv[1:]:
        content = json.loads(RECORD.read_text()) | {"taken out": rows}
        RECORD.write_text(json.dumps(content, indent=1) + "\n")
        print(f"recorded: results/{RECORD.name}")
    return 0 if all(row["noticed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
