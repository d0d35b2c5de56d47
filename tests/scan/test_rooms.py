"""The rooms of joma.scan import one way only."""

import ast
from pathlib import Path

import joma

SCAN = Path(joma.__file__).parent / "scan"
ORDER = ("errors", "formats", "names", "sources", "model", "result", "sweep", "scanning", "atlas", "__init__")


def imports() -> dict[str, set[str]]:
    found = {}
    for path in SCAN.rglob("*.py"):
        name = ".".join(("joma.scan", *path.relative_to(SCAN).with_suffix("").parts))
        named = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joma.scan"):
                named |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        found[name] = named
    return {name: {each for each in named if each in found} - {name} for name, named in found.items()}


def room(module: str) -> int:
    return ORDER.index(module.split(".")[2])


def test_a_room_knows_only_those_before_it():
    wrong = [f"{name} imports {one}" for name, named in imports().items() for one in named if room(one) > room(name)]
    assert not wrong
