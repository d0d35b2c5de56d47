"""Imports go one way only: a package knows what stands below it, never what stands on it."""

import ast
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest

import joma

HOUSE = Path(joma.__file__).parent
FLOORS = (
    ("host",),
    ("theory",),
    ("data", "measure", "runs"),
    ("scale",),
    ("models", "figures"),
    ("probes",),
    ("optim",),
    ("training", "scan", "monitor"),
    ("cache",),
    ("claims",),
    ("recipes",),
    ("studies",),
    ("view",),
    ("report",),
    ("cli",),
    ("__main__",),
)
"""From the ground up. What stands on one floor does not know its neighbours either."""
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}
BY_NAME = re.compile(r"""(?:import_module|__import__)\(\s*f?["']joma\.(\w+)""")
"""An import that is no statement; joma/__init__.py alone, which stands on all floors, may name what stands above."""


@cache
def import_nodes(code: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a module, at its head or inside anything: what is no statement cannot hold one."""
    found, ahead = [], [*ast.parse(code).body]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        inside = (ast.stmt, ast.excepthandler, ast.match_case)
        ahead += (each for each in ast.iter_child_nodes(node) if isinstance(each, inside))
    return tuple(found)


def names_imported(code: str) -> set[str]:
    """What a module imports, by its full name: modules, and what is taken from them."""
    found = set()
    for node in import_nodes(code):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def imported(code: str) -> set[str]:
    """What of joma a module imports, as 'studies' or '__version__'."""
    names = {name.split(".")[1] for name in names_imported(code) if name.startswith("joma.")}
    return names | set(BY_NAME.findall(code))


def test_every_module_has_a_floor():
    found = {path.stem for path in HOUSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert found - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("name", LEVEL)
def test_a_module_imports_only_from_floors_below(name):
    files = [HOUSE / f"{name}.py"] if (HOUSE / f"{name}.py").is_file() else sorted((HOUSE / name).rglob("*.py"))
    for path in files:
        known = imported(path.read_text(encoding="utf-8")) - {name, "__version__"}
        wrong = {one for one in known if LEVEL[one] >= LEVEL[name]}
        assert not wrong, f"{path.relative_to(HOUSE)} imports {', '.join(sorted(wrong))}"


def rooms() -> list[Path]:
    """The rooms of studies/, one per subject."""
    return sorted(path.parent for path in (HOUSE / "studies").glob("*/__init__.py"))


def other_rooms(code: str, room: str) -> set[str]:
    """The rooms of studies/ beside `room` that a module imports."""
    whole = {f"joma.studies.{each.name}" for each in rooms()} - {f"joma.studies.{room}"}
    named = names_imported(code)
    return {one for one in whole if any(name == one or name.startswith(f"{one}.") for name in named)}


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.name)
def test_no_subject_knows_another(room):
    for path in sorted(room.glob("*.py")):
        wrong = other_rooms(path.read_text(encoding="utf-8"), room.name)
        assert not wrong, f"{path.relative_to(HOUSE)} imports {', '.join(sorted(wrong))}"


def test_an_import_of_a_neighbour_would_be_seen():
    code = "from joma.studies import linear\ndef f():\n    from joma.studies.cdag._draws import x\n"
    assert other_rooms(code, "linear") == {"joma.studies.cdag"}
    assert other_rooms(code, "cdag") == {"joma.studies.linear"}


def test_an_import_the_wrong_way_would_be_seen():
    code = (
        "import joma.report\ndef f():\n    from joma import studies, __version__\n    from joma.cli.main import main\n"
        "    return import_module('joma.view.plotting')\n"
    )
    assert imported(code) == {"report", "studies", "__version__", "cli", "view"}


def modules() -> dict[str, Path]:
    """Every file of joma by the name that imports it."""
    paths = {path.relative_to(HOUSE.parent).with_suffix(""): path for path in HOUSE.rglob("*.py")}
    return {".".join(place.parts).removesuffix(".__init__"): path for place, path in paths.items()}


def files_imported(code: str, known: Collection[str]) -> set[str]:
    """The files that a file imports: at its head, inside a function, or only for types. All of them count."""
    found = set()
    for node in import_nodes(code):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {each.name: f"{node.module}.{each.name}" for each in node.names}
            found |= {place if place in known else node.module for place in inside.values()}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & set(known)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Files from each of which every other one of the circle is reached."""
    reached = {}
    for name in imports:
        reached[name], ahead = set(), [name]
        while ahead:
            new = imports[ahead.pop()] - reached[name]
            reached[name] |= new
            ahead += new
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return [set(circle) for circle in found if circle]


def test_no_files_import_each_other():
    known = modules()
    assert len(known) > 400
    found = circles({name: files_imported(path.read_text(encoding="utf-8"), known) for name, path in known.items()})
    assert not found, f"circles: {[sorted(circle) for circle in found]}"


def test_an_import_is_seen_inside_anything():
    heads = ("def f():", "class A:", "if a:", "if a: pass\nelse:", "while a:", "for a in b:", "with a:",
             "async def f():", "try: pass\nexcept A:", "try: pass\nfinally:")  # fmt: skip
    for code in (*(f"{head}\n import joma.cli" for head in heads), "match a:\n case 1:\n  import joma.cli"):
        assert imported(code) == {"cli"}, code
        inner = code.replace("\n", "\n ")
        assert imported(f"def g():\n {inner}") == {"cli"}, code


def test_a_circle_would_be_seen():
    code = "if TYPE_CHECKING:\n    from joma.a import b\ndef f():\n    import joma.c\n"
    assert files_imported(code, {"joma.a", "joma.a.b", "joma.c"}) == {"joma.a.b", "joma.c"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"a"}}) == [{"a"}]
