"""Whatever joma writes goes out by one door, and no file of somebody else is lost by it.

The first tests read the source: nothing is written but by the doors of `joma.host.files`, and every function that uses
one is tried below, or its files have names that joma made up.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from existing_files import OTHERS, Place

import joma
from joma.host.errors import JomaError
from joma.runs import Run, merge_runs
from joma.runs.export import export

HOUSE = Path(joma.__file__).parent
PARTS = {"Run.create", "Run.delete", "merge_runs"}
"""Of runs: doors of their own."""
DOORS = {"atomically", "continued", "ready_for_lines", "write_text", "write_json", "save_sealed", "open_lock"}
METHODS = {
    *("write_text", "write_bytes", "touch", "mkdir", "makedirs", "unlink", "rmdir", "rmtree", "rename", "renames"),
    *("truncate", "ftruncate", "symlink_to", "hardlink_to", "copyfile", "copy2", "copytree", "savefig", "fdopen"),
    *("save_pretrained", "save_file", "savez", "savez_compressed", "ParquetWriter", "tofile", "to_csv", "extractall"),
    *("mkfifo", "sendfile", "mkstemp", "mkdtemp", "FileIO", "chmod", "memmap", "NamedTemporaryFile"),
}
OF_MODULES = {
    *("os.replace", "os.remove", "os.link", "os.symlink", "os.open", "shutil.copy", "shutil.move", "sqlite3.connect"),
    *("torch.save", "np.save", "json.dump", "pickle.dump", "pq.write_table", "zipfile.ZipFile", "io.open"),
}
OUTSIDE = {
    "claims.execute:_run": "the folder of runs",
    "data._cache:remembered": "the cache folder",
    "data._wikitext_hub:_fetch": "a finished download, by its hash",
    "data._wikitext_hub:download_wikitext": "the folder of the hub's client, inside that of the download",
    "figures.style:to_svg": "memory",
    "host.files:*": "the doors",
    "host.store_listing:main": "standard streams",
    "host.printing:reopen_closed": "standard streams",
    "monitor.sinks.jsonl:JsonLines.__init__": "its folder",
    "runs.export:_write_npz": "a stream that export gives",
    "runs.export:_write_parquet": "a stream that export gives",
    "runs.file:_connect": "a run that is there, or the unfinished file of a door",
    "runs.file:create": "helper files of SQLite, beside a run whose lock is held",
    "runs.file:remove_leftovers": "helper files of SQLite, beside a run whose lock is held",
    "runs.lock:WriterLock.release": "its own lock file, while it is locked",
    "runs.lock:_locked": "its own lock file",
    "runs.store:Run.delete": "a run of ours, with its lock held",
    "runs.store:_remove_next_to": "files beside a run that is deleted, named after it",
    "scale.parts:Part.begin": "the folder of a shard",
    "scale.sharing:marked": "a random name, made and removed",
    "scale.worker:main": "standard streams",
    "scan.formats.tensor_file:_opened": "read only",
    "scan.model.loading:main": "standard streams",
    "scan.model.running:config_of": "a temporary folder",
    "scan.result.tidy:_parquet": "a stream that write_table gives",
    "scan.sources.downloads:*": "files of joma-downloads, each with a record of joma's",
    "studies.checkpoints.fig7:_one_network": "a folder named after a run",
    "studies.checkpoints.fig7:_train": "beside its run, named after it",
    "studies.sparsity.kv_cache.run:_train_and_measure": "a folder named after a run",
    "training.checkpoints:Checkpoint.remove": "named after its run",
    "training.checkpoints:forget_kept": "named after its run",
    "training.series:_train.save": "a folder that series.json says is ours",
}


@cache
def modules() -> dict[str, ast.Module]:
    names = {path: path.relative_to(HOUSE).with_suffix("").as_posix() for path in sorted(HOUSE.rglob("*.py"))}
    return {name.replace("/", "."): ast.parse(path.read_text(encoding="utf-8")) for path, name in names.items()}


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, list[ast.AST]]]:
    """Every function by its name, with the nodes that are its own; what is outside of all has an empty name."""
    own, inner = [], []
    stack = list(ast.iter_child_nodes(node))
    while stack:
        each = stack.pop()
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner.append(each)
        else:
            own.append(each)
            stack += ast.iter_child_nodes(each)
    yield name, own
    for each in inner:
        yield from functions(each, f"{name}.{each.name}".lstrip("."))


def called(call: ast.Call) -> str:
    """As in `os.replace`, `write_text`, or `.write_text` of something that has no name."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    if isinstance(call.func, ast.Attribute):
        of = call.func.value
        return f"{of.id if isinstance(of, ast.Name) else ''}.{call.func.attr}"
    return ""


def writes(call: ast.Call) -> bool:
    name = called(call)
    method = name.rpartition(".")[2]
    texts = [each.value for each in (*call.args[:2], *(k.value for k in call.keywords if k.arg == "mode"))
             if isinstance(each, ast.Constant) and isinstance(each.value, str)]  # fmt: skip
    if name == "zipfile.ZipFile":
        return "w" in texts
    if method == "open" and name not in ("os.open", "Run.open"):
        return any(set(text) <= set("rwaxbt+") and set(text) & set("wax+") for text in texts)
    if method == "replace" and "." in name:  # that of a string takes two
        return name == "os.replace" or (len(call.args) == 1 and not call.keywords)
    return name in OF_MODULES or (method in METHODS and name not in DOORS)


def root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def given_by_doors(nodes: list[ast.AST]) -> set[str]:
    """The names of what a door gave to write to, and of streams of these."""
    names: set[str] = set()
    for node in nodes:
        pairs = [(item.context_expr, item.optional_vars) for item in node.items] if isinstance(node, ast.With) else []
        if isinstance(node, ast.Assign):
            pairs = [(node.value, node.targets[0])]
        for value, name in pairs:
            doors = {called(each) for each in ast.walk(value) if isinstance(each, ast.Call)} & {
                "atomically",
                "continued",
            }
            if isinstance(name, ast.Name) and (doors or root(value) in names):
                names.add(name.id)
    return names


def test_nothing_is_written_but_by_the_doors():
    found = set()
    for module, tree in modules().items():
        for function, nodes in functions(tree):
            free = given_by_doors(nodes)
            for call in (node for node in nodes if isinstance(node, ast.Call) and writes(node)):
                if not {root(call.func), *map(root, call.args)} & free:
                    whole = f"{module}:*"
                    found.add(whole if whole in OUTSIDE else f"{module}:{function}")
    assert found == set(OUTSIDE)


def users() -> Iterator[str]:
    for module, tree in modules().items():
        imported = {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in ("joma.host.files", "joma.host.sealed")
            for name in node.names
        }
        for function, nodes in functions(tree):
            names = {called(node) for node in nodes if isinstance(node, ast.Call)}
            if names & ((DOORS & imported) | PARTS) and module != "host.files":
                yield f"{module}:{function}"


def test_whoever_uses_a_door_is_tried_or_has_names_of_its_own():
    found = set(users())
    assert found == {*(writer.partition(" ")[0] for writer in WRITERS), *OWN_NAMES, *COMMANDS}
    assert {"runs.export:export", "cli.outputs:give_json"} <= found


COMMANDS = {
    "cli.cache:_print": "DIR/cache-....json",
    "cli.export:_of_findings": "--out FILE, or beside the findings",
    "cli.export:_numbers_per_seed": "--out FILE, or beside its run, named after it",
    "cli.judge:_judge": "--csv FILE",
    "cli.report:_written": "DIR/findings.json",
    "cli.verify:write_and_print": "DIR/findings.json",
    "report.judged:write_judged": "--page FILE of `joma judge`",
    "studies.__main__:_carry_out": "DIR/findings.json",
}
"""Tried in tests/cli/test_outputs.py, as `joma` or `python -m joma.studies`."""
OWN_NAMES = {
    "cache.evaluation:_open_run": "a run with a hash in its name",
    "claims.execute:_run": "a run with a hash in its name",
    "claims.execute:execute": "a run with a hash in its name",
    "data._cache:remembered": "a hash, in the cache folder",
    "host.sealed:save_sealed": "its callers have names of their own",
    "runs.file:create": "Run.create is tried",
    "runs.merging:forget_steps": "a run that a scan opened before",
    "runs.lock:_locked": "a lock beside a run; Run.create is tried",
    "scan.scanning:_opened_run": "a run with a hash in its name",
    "scan.sources.downloads:DiskCache.file": "in joma-downloads, with a record",
    "scan.sources.downloads:MadeFiles.locked": "in joma-downloads",
    "scan.sources.downloads:_write_atomically": "in joma-downloads",
    "scan.sweep.parts:merge_scans": "a run with a hash in its name",
    "studies.checkpoints.fig7:_scanned_into": "beside its run, named after it",
    "studies.parts:merged_results": "a run with a hash in its name",
    "studies.rebound.forecast.kept_runs:_write": "a file of this package",
    "studies.rebound.forecast.kept_runs:seal": "a file of this package",
    "training.checkpoints:Checkpoint.save": "beside its run, named after it",
    "training.checkpoints:KeptState.save": "beside its run, named after it",
    "training.spread:_opened": "beside its run, named after it",
    "training.spread:_put_together": "beside its run, named after it",
}


def _finished(folder: Path, study: str = "demo") -> Path:
    folder.mkdir(exist_ok=True)
    if not (path := folder / "near-1.sqlite").exists():
        with Run.create(path, study=study, config={"size": 3}) as run:
            run.append("x", 0, 1.0)
    return path


def _exported(to: str, path: Path, folder: Path) -> None:
    export(_finished(folder), to, path)


def _crate(path: Path, folder: Path) -> None:
    from joma.report.crate import write_crate

    study = SimpleNamespace(name="near", title="Near", about="", version=7)
    more: Any = {
        "pictures": [],
        "command": "joma verify near",
        "config": {},
        "error": "",
        "findings": [],
        "seconds": 1.0,
    }
    shown = {"as_json": lambda: {"name": "near"}}
    write_crate(SimpleNamespace(study=study, run=_finished(folder), **more, **shown), path)  # type: ignore[arg-type]


def _report(path: Path, _: Path) -> None:
    from joma.report import write_report

    write_report([], path.parent, scale="quick", made=datetime(2026, 1, 1))


def _scan() -> Any:
    from joma.scan.names.architecture import Row
    from joma.scan.result.curves import Curve, Scan

    curve = Curve("alpha", "mlp", (Row(0, None, "x"),), ("alpha",), np.array([[[7.0]], [[8.0]]]))
    return Scan("a", [100, 200], [], {"alpha/mlp": curve}, {})


def _scan_page(path: Path, _: Path) -> None:
    from joma.report import write_scan_page
    from joma.report.scans.shown import ShownScan

    write_scan_page(ShownScan("a", "scan-a.sqlite", _scan()), path)


def _table(to: str, path: Path, _: Path) -> None:
    from joma.scan.result.tidy import write_table

    write_table([_scan()], to, path)


def _view(path: Path, folder: Path) -> None:
    from joma.view import Feed, write_page

    write_page(Feed([_finished(folder)]), path)


def _figure(path: Path, _: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    from joma.cache.costs import Cost, Costs
    from joma.cache.drawing import write_png
    from joma.cache.rules import rule

    costs = [Cost(rule("window", k, 64), k / 64, 3.2, 0.8 / k, 0.01, 3.2) for k in (4, 8)]
    write_png(Costs(64, 2, 3.0, 3.1, {"window": costs}), path)


def _json(path: Path, _: Path) -> None:
    from joma.cli.outputs import give_json

    give_json(path, {"schema": "joma-scan", "curves": {}})


def _lines(path: Path, _: Path) -> None:
    from joma.monitor import JsonLines

    JsonLines(path)(0, {"loss": 1.0})


def _shard(path: Path, _: Path) -> None:
    from joma.scale.parts import Part
    from joma.scale.shards import Shard

    Part(path.parent, "scan", Shard(1, 2), {"measures": "alpha"}, ["step0", "step10"], ["step0"])._write()


def _created(path: Path, _: Path) -> None:
    Run.create(path, study="demo", config={}).close()


def _merged(path: Path, folder: Path) -> None:
    with Run.open(_finished(folder)) as part:
        merge_runs(path, [part], [(0, 0)]).close()


def _monitored(path: Path, _: Path) -> None:
    from joma.monitor.delivery import Record

    Record.at(path, {"model": "m", "probe": "p"}).run.close()


def _series(path: Path, _: Path) -> None:
    from joma.training.series import SeriesConfig, train_series

    tiny = SeriesConfig(layers=1, width=16, heads=2, vocabulary=260, context=8, batch=2, steps=1)
    train_series(path.parent, "to be or not to be " * 50, tiny)


Writer = Callable[[Path, Path], None]
NAMED: dict[str, Writer] = {
    "cli.outputs:give_json": _json,
    "monitor.sinks.jsonl:JsonLines.__call__": _lines,
    "monitor.sinks.jsonl:JsonLines.__init__": lambda path, _: _lines(path, _),
    "report.crate:write_crate": _crate,
    **{f"runs.export:export {to}": partial(_exported, to) for to in ("csv", "parquet", "npz")},
    "view.page:write_page": _view,
}
"""Files that a user names: of a link, the file that it leads to is written."""
INSIDE: dict[str, Writer] = {
    "cache.drawing:write_png": _figure,
    "report.page:write_report report.html": _report,
    "report.scans.page:_write": _scan_page,
    "scale.parts:Part._write shard.json": _shard,
    "training.series:train_series series.json": _series,
    **{f"scan.result.tidy:write_table {to}": partial(_table, to) for to in ("csv", "parquet")},
}
"""Files in a folder that may be a stranger's: links stay, and are refused."""
ONCE: dict[str, Writer] = {
    "monitor.delivery:Record.at": _monitored,
    "runs.merging:merge_runs": _merged,
    "store:Run.create": _created,
}
"""Never replaced, nor is an empty file."""
WRITERS = {**NAMED, **INSIDE, **{name: writer for name, writer in ONCE.items() if "Run" not in name}}


def place_for(writer: str, folder: Path) -> Place:
    return Place(folder, writer.partition(" ")[2] if "." in writer.partition(" ")[2] else "target")


def pyarrow_where_needed(writer: str) -> None:
    if writer.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="parquet needs pyarrow")


@pytest.mark.parametrize("writer", list(WRITERS | ONCE))
def test_what_is_not_ours_stays_as_it_was(writer, tmp_path):
    pyarrow_where_needed(writer)
    for at, (target, put) in enumerate(OTHERS.items()):
        (folder := tmp_path / str(at)).mkdir()
        put(place := place_for(writer, folder))
        before = place.state()
        with pytest.raises(JomaError, match=r"^[^\n]{20,400}$") as refused:
            (WRITERS | ONCE)[writer](place.path, folder / "runs")
        assert not str(refused.value).endswith("."), target
        assert place.state() == before, target


@pytest.mark.parametrize("writer", [name for name in WRITERS if name.endswith("parquet")])
def test_a_parquet_file_that_speaks_of_joma_is_not_ours(writer, tmp_path):
    pa = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    from pyarrow import parquet

    place = place_for(writer, tmp_path)
    table = pa.table({"joma": [1.0]}).replace_schema_metadata({"made with": "joma"})
    parquet.write_table(table, place.path)
    before = place.state()
    with pytest.raises(JomaError, match=r"is not a (table|parquet file) that joma wrote"):
        WRITERS[writer](place.path, tmp_path / "runs")
    assert place.state() == before


@pytest.mark.parametrize("writer", [name for name in NAMED | INSIDE if "series" not in name])
def test_what_is_ours_or_empty_is_written_again_unless_it_is_read_only(writer, tmp_path):
    pyarrow_where_needed(writer)
    place, write = place_for(writer, tmp_path), WRITERS[writer]
    place.path.touch()
    for _ in range(2):
        write(place.path, tmp_path / "runs")
        assert place.path.stat().st_size > 0
    place.path.chmod(0o444)  # which root may write all the same
    before = place.state()
    with pytest.raises(JomaError, match="is read-only"):
        write(place.path, tmp_path / "runs")
    assert place.state() == before


@pytest.mark.parametrize("writer", [*NAMED, *INSIDE, *ONCE])
def test_a_link_that_leads_nowhere_is_followed_only_where_a_user_named_it(writer, tmp_path):
    pyarrow_where_needed(writer)
    place = place_for(writer, tmp_path)
    place.path.symlink_to(place.elsewhere / "new")
    if writer in NAMED:
        NAMED[writer](place.path, tmp_path / "runs")
        assert place.path.is_symlink()
        assert (place.elsewhere / "new").stat().st_size > 0
        return
    with pytest.raises(JomaError):
        (INSIDE | ONCE)[writer](place.path, tmp_path / "runs")
    assert not (place.elsewhere / "new").exists()


@pytest.mark.parametrize("target", [*OTHERS, "link to a run"])
def test_only_a_run_is_deleted(target, tmp_path):
    place = Place(tmp_path, "a.sqlite")
    if target == "link to a run":
        OTHERS["run"](place)
        place.path.rename(place.elsewhere / "a.sqlite")
        place.path.symlink_to(place.elsewhere / "a.sqlite")
    else:
        OTHERS[target](place)
    before = place.state()
    if target == "run":
        Run.delete(place.path)
        assert list(place.path.parent.iterdir()) == []
        return
    with pytest.raises(JomaError):
        Run.delete(place.path)
    assert place.state() == before


def test_a_lock_is_never_made_of_what_is_not_ours(tmp_path):
    place = Place(tmp_path, "a.sqlite.lock")
    for name in ("text", "link to a file", "pipe", "folder"):
        OTHERS[name](place)
        before = place.state()
        with pytest.raises(JomaError, match=r"beside it|is a link|is a pipe|is a folder"):
            Run.create(place.path.with_suffix(""), study="demo", config={})
        assert place.state() == before
        place.path.rename(place.elsewhere / name)


def test_of_a_long_file_only_the_end_is_read(tmp_path, monkeypatch):
    path, read = tmp_path / "a.jsonl", 0
    line = json.dumps({"step": 1, "loss": 1.0}).encode() + b"\n"
    path.write_bytes(line * 200_000 + b'{"step": 2, "lo')
    real = os.pread

    def counted(*arguments: int) -> bytes:
        nonlocal read
        found = real(*arguments)
        read += len(found)
        return found

    monkeypatch.setattr("joma.host.files.os.pread", counted)
    _lines(path, tmp_path)
    assert 0 < read < 10**5
    assert path.read_bytes() == line * 200_000 + b'{"step": 0, "loss": 1.0}\n'


LONG = '{"step": 3, "a": 1.0}\n{"step": 4, ' + ", ".join(f'"norm/h.{at}/max": 1.0' for at in range(5000)) + "}\n"
"""Lines of ours; the second is longer than what is read of a file at first."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"step": 3, "a": 1.0}\n{', '{"step": 3, "a": 1.0}\n'),
        ('{"step": 3, "a": 1.0}\n{"step": 4, "a', '{"step": 3, "a": 1.0}\n'),
        ('{"step": 4, "a', ""),
        (f'{LONG}{{"step": 5, "a', LONG),
        ("{", None),
        ('{"step": 3, "a": 1.0}\n{"loss": 1', None),
        ('{"step": 3, "a": 1.0}\nmy notes', None),
        ('{"step": 3, "a": 1.0}\n\n', None),
        ('{"step": "three"}\n', None),
        ('{"step": 3, "a": 1.0\n', None),
        ('{"step": ' + "[" * 100_000 + "]" * 100_000 + "}\n", None),
        ("\n", None),
        ("x" * 70_000, None),
        ("y\n" + "x" * 70_000 + "\n", None),
    ],
)
def test_only_a_line_of_ours_is_cut(before, after, tmp_path):
    from joma.monitor import JsonLines

    (path := tmp_path / "a.jsonl").write_text(before)
    if after is None:
        with pytest.raises(JomaError, match="does not end in a line that joma wrote"):
            JsonLines(path)
    else:
        JsonLines(path)
    assert path.read_text() == (before if after is None else after)
