"""Every script beside the package is imported, and run at its smallest size by this file or by the one it names."""

import ast
import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from in_process import joma

from joma.scan.model.loading import tokenized

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "results", "docs", "examples")
SCRIPTS = {path.stem: path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))}
PROGRAMS = [name for name, path in SCRIPTS.items() if "__main__" in path.read_text(encoding="utf-8")]

SMALLEST = {  # the words of its command line, and constants that have no option
    "bench_alpha": ("", {}),
    "bench_alarms": (
        "",
        {
            "STEPS": 44,
            "INTERVALS": (2,),
            "SHAPES": {"1 x 8": {"layers": 1, "width": 8, "heads": 2}},
            "CHOSEN_ON": (100,),
            "JUDGED": (0,),
            "RATES": (1e-3,),
            "TOO_HIGH": (0.1,),
        },
    ),
    "bench_attention": ("", {}),
    "bench_batches": ("--studies cdag --seconds 0.01", {}),
    "bench_cache": ("", {"SHAPE": (1, 16, 2, 32, 100, 1), "KEEPS": (0.5,)}),
    "bench_ensemble": (
        "--shapes table1-4-float32,fig8-float32,fig6-float32",  # the last two are of a GPU, and at paper's size
        lambda module: {
            "FIG8": module.FIG8.with_(vocabulary=20, layers=1, width=4, mlp=4),
            "memory_speed": lambda: 1e9,
            "seconds": lambda work, device, **many: work(1) or 1.0,
        },
    ),
    "bench_entropy_cpu": ("", {"LENGTHS": {32: 1}, "LAYERS": 1}),
    "bench_family": ("--device cpu --rounds 1", {"RATES": (0.01,)}),
    "bench_galore": ("--device cpu --sizes tiny --rounds 1 --parts optimizer,memory,projector,finite", {}),
    "bench_galore_memory": (
        "",
        lambda module: {"SHAPE": replace(module.SHAPE, vocabulary=50, width=16, mlp=32, layers=1), "RANK": 4},
    ),
    "bench_monitor": ("--parts eager", {"CHUNK": 1, "ROUNDS": 1}),
    "bench_precision": ("--quick --steps 40 --precisions float32", {}),
    "bench_qkclip": ("--device cpu", {"CHUNK": 1, "ROUNDS": 2}),
    "bench_rules": ("", {"DRAWS": 9, "SEEDS": (5,)}),
    "bench_runs": ("", {}),
    "bench_salience": ("", {"COMPONENTS": 32, "HORIZON": 0.1, "STEP_LIMIT": 20, "compare": lambda *given: {}}),
    "bench_scale": ("", {"SIZES": (4, 8), "TASKS": 2, "CHECKPOINTS": 1, "REPEATS": 1, "places": lambda: ["local"]}),
    "bench_scan": ("--steps 1 --layers 1 --width 8 --jobs 1", {}),
    "bench_scan_many": (
        "--checkpoints 2 --layers 1 --width 4",
        {"subprocess": SimpleNamespace(run=lambda command, **_: joma(*command[3:]))},
    ),
    "bench_sparsity": ("", {}),
    "bench_leading": ("--widths 16 --seconds 0", {}),
    "bench_spectrum": ("--sizes 8x16 --cores 1", {"ROUNDS": 1}),
    "bench_spread": ("", {"CPU_SIZES": [(32, 16)], "other_masks": lambda length, width: []}),
    "bench_startup": ("", {"ROUNDS": 1, "COMMANDS": {"import torch": ["-V"], "import torch, joma": ["-V"]}}),
    "bench_store": ("--latency 0 --ranges 2 --size 16 --readers 1", {}),
    "bench_weightwatcher": ("", {}),
    "compare_apollo_fira": ("", {}),
    "compare_galore_torch": ("", {}),
    "cost_of_a_cache": ("--out {folder}", {}),
    "find_a_rebound": ("", {}),
    "measure_a_model": ("--length 16", {}),
    "rows_again": ("galore-table GaLore --out {folder}", {}),
    "scale_table": ("", {}),
    "scan_checkpoints": ("--out {folder}", {}),
    "train_an_ensemble": ("--steps 4 --out {folder}/run.sqlite", {}),
    "train_with_galore": ("--steps 2", {}),
    "verify_a_theorem": ("--out {folder}", {}),
}
HERE_TOO_LONG = {
    "bench_galore",
    "bench_monitor",
    "bench_precision",
    "bench_runs",
    "bench_scale",
}
"""They start processes that load torch, compile, train, or wait for the disk."""
ELSEWHERE = {
    "monitor_ddp": "docs/how-to/monitor-several-processes.md",
    "monitor_fsdp2": "tests/monitor/several_processes.py",
    "monitor_plain_loop": "tests/monitor/test_examples.py",
    "monitor_trainer": "tests/monitor/test_examples.py",
    "monitor_lightning": "tests/monitor/test_examples.py",
    "figure6_table": "tests/docs/test_tables.py",
    "findings_table": "tests/docs/test_headlines.py",
    "table1_table": "tests/docs/test_tables.py",
    "reversal_table": "tests/docs/test_tables.py",
    "seeds_table": "tests/docs/test_tables.py",
    "undecided_table": "tests/docs/test_tables.py",
    "tests_table": "tests/docs/test_tables.py",
    "record_ages": "tests/docs/test_tables.py",
    "view_titles": "tests/view/test_feed.py",
    "verdict_table": "tests/docs/test_tables.py",
    "ablation_summary": "tests/docs/test_tables.py",
    "entropy_floor_table": "tests/docs/test_tables.py",
    "keep": "tests/test_records.py",
    "quick": "tests/test_quick_verdicts.py",
}
NOT_RUN = {
    "profile_galore": "it needs a GPU",
    "make_gallery": "it needs the runs of all studies",
    "bench_verify": "it is `joma verify` of all studies, twice",
    "bench_view": "it needs a browser and TensorBoard",
    "report_picture": "it needs a browser",
    "view_picture": "it needs a browser",
    "seal": "it writes into the package; tests/studies/rebound/test_forecast.py seals runs",
    "seconds": "it writes into the package",
}
"""Why they are only imported, and what they take from elsewhere is looked for."""


@pytest.fixture
def script(monkeypatch):
    """A script by its name, as a module; what it imported from beside it is forgotten again."""

    def load(name):
        monkeypatch.syspath_prepend(str(SCRIPTS[name].parent))
        for known in SCRIPTS.keys() & sys.modules.keys():
            monkeypatch.delitem(sys.modules, known)
        return importlib.import_module(name)

    yield load
    for name in SCRIPTS.keys() & sys.modules.keys():
        del sys.modules[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_finds_what_it_takes(name, script):
    """What it imports, and what it takes of the modules that it imports."""
    module = script(name) if name != "conf" else None
    for node in ast.walk(ast.parse(SCRIPTS[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "joma":
            there = importlib.import_module(node.module)  # also inside of functions
            for each in node.names:
                assert hasattr(there, each.name) or importlib.import_module(f"{node.module}.{each.name}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            holder = getattr(module, node.value.id, None)
            if isinstance(holder, ModuleType):
                assert hasattr(holder, node.attr) or not holder.__name__.startswith("joma"), ast.unparse(node)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in HERE_TOO_LONG else name for name in SMALLEST]
)
def test_a_script_runs_at_its_smallest_size(name, script, monkeypatch, capsys, tmp_path):
    module, (words, constants) = script(name), SMALLEST[name]
    for constant, value in (constants(module) if callable(constants) else constants).items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr("joma.scan.model.text.token_ids", tokenized)  # in this process, to save the time of another
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name]), *words.format(folder=tmp_path).split()])
    if name.startswith("compare_"):
        with pytest.raises(SystemExit, match="is not here: give its folder with --peer"):
            module.main()
    else:
        module.main()
        assert capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("bench_*.json")), ids=lambda path: path.stem)
def test_a_record_names_its_commit_and_script(path):
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert re.fullmatch("[0-9a-f]{40}", kept["commit"])
    assert f"bench_{kept['benchmark']}" in SCRIPTS


def test_every_script_is_run_or_says_why_not():
    assert sorted([*SMALLEST, *ELSEWHERE, *NOT_RUN]) == sorted(PROGRAMS)
    assert not [name for name, place in ELSEWHERE.items() if name not in (ROOT / place).read_text(encoding="utf-8")]
