"""What is fuzzed of what joma wrote itself: runs, findings, sealed files."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from mutations import spoiled, spoiled_json
from target import Target, written

from joma.host.errors import BadInput
from joma.host.sealed import DamagedError, load_sealed, save_sealed
from joma.runs import Run, RunError, export
from joma.runs.values import checksum_of

# runs


def _run_seeds(folder: Path) -> list[bytes]:
    path = folder / "seed.sqlite"
    with Run.create(path, study="thm2", config={"sizes": [1, 2], "rate": 0.1, "name": "x"}, seed=3) as run:
        for step in range(5):
            run.append("loss", step, 1.0 / (1 + step))
            run.append("rank", step, np.ones((2, 3), np.float32), dims={"layer": ["up", "down"], "head": None})
        run.keep("seconds", lambda: 1.5)
        run.finish()
    content = path.read_bytes()
    Run.delete(path)
    return [content]


def _spoiled_run(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """Half of the time its rows, with checksums that are right again."""
    if random.random() < 0.4:
        return spoiled(content, random, pool)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as file:
        try:
            file.deserialize(content)
            for _ in range(random.choice((1, 1, 2))):
                _change_a_row(file, random)
            return file.serialize()
        except (sqlite3.Error, ValueError, ArithmeticError, MemoryError, AttributeError, TypeError, IndexError):
            return spoiled(content, random, pool)


def _change_a_row(file: sqlite3.Connection, random: Random) -> None:
    if random.random() < 0.5:
        key, value = random.choice(file.execute("SELECT key, value FROM meta").fetchall())
        value = spoiled_json(value.encode(), random, [b"{}"]).decode("utf-8", "replace")
        file.execute("UPDATE meta SET value = ?, checksum = ? WHERE key = ?", (value, checksum_of(key, value), key))
        return
    if random.random() < 0.2:
        file.execute(random.choice(_STATEMENTS))
        return
    query = "SELECT name, series, step, dtype, shape, data FROM entries JOIN series ON id = series"
    name, series, step, dtype, shape, data = random.choice(file.execute(query).fetchall())
    place = random.randrange(3)
    if place == 0:
        dtype = random.choice(("object", "float128", "int8", "", "str", "complex128", "float64\0", ">f8"))
    elif place == 1:
        shape = random.choice(("", "-1", "0", "9" * 5000, ",".join("1" * 70), "1e3", "2,3", "3,2", "x", "99999999999"))
    else:
        data = spoiled(data, random, [data])
    total = checksum_of(name, step, dtype, shape, data=data)
    row = (dtype, shape, data, total, series, step)
    file.execute("UPDATE entries SET dtype = ?, shape = ?, data = ?, checksum = ? WHERE series = ? AND step = ?", row)


_STATEMENTS = (
    "UPDATE series SET name = '../../x' WHERE id = 1",
    "UPDATE series SET name = '=1+1' WHERE id = 1",
    "UPDATE series SET name = x'ff00' WHERE id = 2",
    "UPDATE series SET name = '' WHERE id = 1",
    "DELETE FROM series WHERE id = 1",
    "DELETE FROM entries WHERE step = 2",
    "DELETE FROM meta WHERE key = 'config'",
    "UPDATE entries SET step = -5 WHERE step = 1",
    "UPDATE entries SET data = 'text' WHERE step = 1",
    "UPDATE entries SET data = zeroblob(100000) WHERE step = 1",
    "UPDATE entries SET dtype = 7, shape = x'00' WHERE step = 3",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT 1; END",
    "ALTER TABLE entries RENAME TO others",
    "DROP TABLE meta",
    "PRAGMA user_version = 7",
)


def _read_run(content: bytes, folder: Path) -> None:
    from joma.claims.execute import provenance, seconds_of

    path = written(content, folder, "a.sqlite")
    try:
        with Run.open(path) as run:
            repr(run), run.reason, run.trace, provenance(run)
            for name in run.names():
                run.dims(name), run.steps(name), run.array(name)
            seconds_of(run)
            for to in ("csv", "npz"):
                export(run, to, folder / f"a.{to}")
    finally:
        for ending in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + ending).unlink(missing_ok=True)


# findings


def _finding_seeds(_: Path) -> list[bytes]:
    from joma.claims.execute import judge
    from joma.claims.ledger import findings_json
    from joma.studies import load

    found = []
    for name in ("lemma1", "norm", "thm1-coherence"):
        with Run.open(Path(__file__).parents[2] / "results" / name / f"{name}.sqlite") as run:
            findings = [finding.as_json() for finding in judge(load(name), run)[:4]]
        study = {"name": name, "title": name, "seconds": 1.0, "findings": findings}
        found.append(json.dumps({**findings_json([]), "studies": [study]}).encode())
    return found


def _read_findings(content: bytes, folder: Path) -> None:
    from joma.claims.ledger import read_findings
    from joma.cli.show import text

    for finding in read_findings(written(content, folder, "findings.json")):
        text(finding), json.dumps(finding.as_json())


def _sealed_seeds(folder: Path) -> list[bytes]:
    save_sealed(folder / "seed", {"x": torch.arange(5), "y": torch.eye(2)}, {"step": "3"})
    return [(folder / "seed").read_bytes()]


def _read_sealed(content: bytes, folder: Path) -> None:
    tensors, about = load_sealed(written(content, folder, "a.sealed"))
    assert torch.equal(tensors["x"], torch.arange(5))  # the same, or refused
    assert torch.equal(tensors["y"], torch.eye(2))
    assert about == {"step": "3"}


# shards


def _verify_shard_seeds(folder: Path) -> list[bytes]:
    """One study of joma's own with its run, and one of which only words and findings are known."""
    from joma.claims.execute import attempt
    from joma.scale.parts import FILE
    from joma.scale.shards import Shard
    from joma.studies import load
    from joma.studies.foreign import described
    from joma.studies.parts import finish, part_of

    names, part = ["thm5", "somebodys"], folder / "part"
    own = attempt(load("thm5"), load("thm5").quick, part, alone=True)
    theirs = [replace(finding, study="somebodys") for finding in own.findings[:2]]
    about = described("somebodys", title="Of somebody", version=2, about="What it does.", file="/somewhere/else.py")
    other = replace(own, study=about, run=None, findings=theirs)
    found = []
    for most in (2, 0):  # without findings, what is spoiled is all the rest
        results = [replace(one, findings=one.findings[:most], pictures=one.pictures[:most]) for one in (own, other)]
        finish(part_of(names, Shard(1, 1), part, scale="quick", threads=1), results)
        found.append((part / FILE).read_bytes())
    return found


def _scan_shard_seeds(folder: Path) -> list[bytes]:
    """Two checkpoints of one matrix."""
    from safetensors.torch import save_file

    series = folder / "series"
    series.mkdir()
    for step in range(2):
        weights = {"model.layers.0.mlp.up_proj.weight": torch.eye(4) + step}
        save_file(weights, series / f"step{step}.safetensors")
    _joma("scan", series, "--measures", "stable_rank", "--out", folder, "--shard", "1/1")
    (folder / "shard-1-of-1").rename(folder / "part")
    return [(folder / "part" / "shard.json").read_bytes()]


def _merged(content: bytes, folder: Path) -> None:
    written(content, folder / "part", "shard.json")
    _joma("merge", folder / "part", "--out", folder / "out", "--json", folder / "out.json", "--fresh")
    json.loads((folder / "out.json").read_text(encoding="utf-8"), parse_constant=_no_number)


def _no_number(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


def _joma(*words: object) -> None:
    """A command of joma; what it refuses is raised as its sentence, and its own faults as what they are."""
    from joma.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(list(map(str, words)))
    said = err.getvalue().strip()
    assert "a fault of joma" not in said, said
    if status == 2:
        raise BadInput(said)
    assert status in (0, 1, 3), said


RECORDS: dict[str, Target] = {
    "run": Target(_run_seeds, _spoiled_run, _read_run, (RunError,)),
    "findings": Target(_finding_seeds, spoiled_json, _read_findings, (BadInput,)),
    "shard": Target(_verify_shard_seeds, spoiled_json, _merged, (BadInput,)),
    "scan-shard": Target(_scan_shard_seeds, spoiled_json, _merged, (BadInput,)),
    "sealed": Target(_sealed_seeds, spoiled, _read_sealed, (DamagedError,)),
}
