"""Imports go one way only: a package knows what stands below it, never what stands on it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import joma

HOUSE = Path(joma.__file__).parent
FLOORS = (
    ("interrupts",),
    ("exit_status", "output_files", "hub_client"),
    ("theory",),
    ("data", "measure", "runs"),
    ("models",),
    ("probes",),
    ("training", "scan"),
    ("studies",),
    ("report", "terminal", "study_options", "scan_command"),
    ("cli",),
    ("__main__",),
)
"""From the ground up. What stands on one floor does not know its neighbours either."""
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


def imported(code: str) -> Iterator[str]:
    """What of joma a module imports, at its head or inside a function, as 'studies' or '__version__'."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "joma":
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joma."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (each.name.split(".")[1] for each in node.names if each.name.startswith("joma."))


def test_every_module_has_a_floor():
    found = {path.stem for path in HOUSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert found - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("name", LEVEL)
def test_a_module_imports_only_from_floors_below(name):
    files = [HOUSE / f"{name}.py"] if (HOUSE / f"{name}.py").is_file() else sorted((HOUSE / name).rglob("*.py"))
    for path in files:
        known = set(imported(path.read_text(encoding="utf-8"))) - {name, "__version__"}
        wrong = {one for one in known if LEVEL[one] >= LEVEL[name]}
        assert not wrong, f"{path.relative_to(HOUSE)} imports {', '.join(sorted(wrong))}"


def test_an_import_the_wrong_way_would_be_seen():
    code = "import joma.report\ndef f():\n    from joma import studies, __version__\n    from joma.cli import main\n"
    assert set(imported(code)) == {"report", "studies", "__version__", "cli"}
