"""Every way from bytes to code stands in the table of tests/SAFETY.md, and nothing else in joma is one.

The table is the list: a call that runs, imports, unpickles or starts something outside of it fails here, and so does a
row whose call is gone.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import joma

HOUSE, ROOT = Path(joma.__file__).parent, Path(__file__).parents[1]
MODULES = (
    "cffi", "cloudpickle", "code", "codeop", "ctypes", "dill", "imp", "importlib", "jsonpickle", "joblib", "marshal",
    "multiprocessing", "pickle", "pkgutil", "pty", "runpy", "shelve", "subprocess", "webbrowser", "yaml",
    "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process", "sys.executable",
    "torch._C._import_ir_module", "torch._weights_only_unpickler", "torch.classes", "torch.export.load", "torch.hub",
    "torch.jit", "torch.load", "torch.ops.load_library", "torch.package", "torch.serialization",
    "torch.utils.cpp_extension", "numpy.fromfile", "numpy.lib.format", "numpy.load", "numpy.memmap", "ray.init",
)  # fmt: skip
"""What can make code of bytes, or start a program; and all that stands below it."""
BUILTINS = ("__import__", "compile", "eval", "exec")
SYSTEM = re.compile(r"os\.(system|popen|exec\w+|spawn\w+|posix_spawn\w*|fork\w*|startfile)")
METHODS = ("enable_load_extension", "exec_module", "from_config", "from_pretrained", "load_extension", "load_library",
           "load_module")  # fmt: skip
"""Of things whose class cannot be seen from the source: loaders, databases, classes of transformers."""
KEYWORDS = {"allow_pickle": False, "trust_remote_code": False, "weights_only": True}
"""What must stand there as it is, wherever it is named."""
HARMLESS = re.compile(
    r"importlib\.(resources|metadata\.(version|PackageNotFoundError|EntryPoint))\b.*|pkgutil\.iter_modules"
    r"|.*\.(\w+Error|TimeoutExpired|write_array|MAGIC_NUMBER|PROTOCOL_VERSION)|(pickle|subprocess)\.[A-Z]+"
)
"""Of these modules: what runs nothing, such as their errors and constants."""
OF_A_CONSTANT = ("importlib.import_module", "importlib.util.find_spec")
"""Harmless where the source itself holds the name."""
UNSHIELDED = "a process without child_command and child_environment"


def ways(source: str) -> Iterator[tuple[str, str]]:
    """(function or class at the top, what is named there) of every way that a file has."""
    tree = ast.parse(source)
    known = dict(_aliases(tree))
    for top in tree.body:
        if not isinstance(top, ast.Import | ast.ImportFrom):
            named = getattr(top, "name", "the module")
            yield from ((named, way) for way in _inside(top, known))


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What each name of an import stands for, wherever the import is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield each.asname or each.name.partition(".")[0], each.name if each.asname else each.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _inside(top: ast.AST, known: dict[str, str]) -> Iterator[str]:
    constant = {id(call.func) for call in ast.walk(top) if isinstance(call, ast.Call) and _of_a_constant(call)}
    # What only leads to a longer name, and types such as Popen[str].
    longer = {id(node.value) for node in ast.walk(top) if isinstance(node, ast.Attribute | ast.Subscript)}
    for node in ast.walk(top):
        if isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            value = node.value
            if not (isinstance(value, ast.Constant) and value.value is KEYWORDS[node.arg]):
                yield node.arg
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("from_pretrained", "from_config"):
            if "trust_remote_code" not in {one.arg for one in node.keywords}:  # else transformers asks
                yield "trust_remote_code"
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in longer:
            name = _dotted(node, known)
            if _is_a_way(name, node) and not (id(node) in constant and name in OF_A_CONSTANT):
                yield name.rpartition(".")[2].lstrip("?") if name.startswith("?") else name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ("-c", "-m"):
            yield f"python {node.value}"
        if (
            isinstance(node, ast.Call)
            and _dotted(node.func, known).startswith("subprocess.")
            and not _is_shielded(node)
        ):
            yield UNSHIELDED


def _is_shielded(call: ast.Call) -> bool:
    """Whether a process that is started runs joma's own module, and looks for none in the working directory."""
    first = call.args[0] if call.args else None
    environment = next((ast.unparse(word.value) for word in call.keywords if word.arg == "env"), "")
    by = getattr(getattr(first, "func", None), "id", "")
    return by == "child_command" and "child_environment()" in environment


def _of_a_constant(call: ast.Call) -> bool:
    return bool(call.args) and all(isinstance(one, ast.Constant) for one in call.args)


def _dotted(node: ast.AST, known: dict[str, str]) -> str:
    """`np.load` as "numpy.load"; what hangs on anything but a module begins with a question mark."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, known)}.{node.attr}"
    return known.get(node.id, f"?{node.id}") if isinstance(node, ast.Name) else "?"


def _is_a_way(name: str, node: ast.AST) -> bool:
    if isinstance(node, ast.Name) and name in {f"?{one}" for one in BUILTINS}:
        return True
    if name.rpartition(".")[2] in METHODS and "." in name:
        return True
    below = any(name == one or name.startswith(f"{one}.") for one in MODULES)
    return bool(SYSTEM.fullmatch(name) or (below and not HARMLESS.fullmatch(name)))


def found() -> dict[str, set[str]]:
    """By place, what joma has."""
    every: dict[str, set[str]] = {}
    for path in sorted(HOUSE.rglob("*.py")):
        for scope, way in ways(path.read_text(encoding="utf-8")):
            every.setdefault(f"{path.relative_to(HOUSE).as_posix()}: {scope}", set()).add(way)
    return every


def rows() -> list[list[str]]:
    page = (ROOT / "tests/SAFETY.md").read_text(encoding="utf-8")
    table = page.partition("| Place | Way | What decides | Guard | Test |\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()[1:]]


def test_the_page_lists_every_way_and_no_other():
    listed = {re.sub(r"`", "", row[0]): set(re.findall(r"`([^`]+)`", row[1])) for row in rows()}
    assert listed == found()


def test_every_row_says_what_decides_and_names_a_test_that_is_there():
    assert rows()
    for place, _, decides, guard, test in rows():
        assert decides, place
        assert guard, place
        assert [(ROOT / name).is_file() for name in re.findall(r"`([^`]+)`", test)] in ([True], [True, True]), place


@pytest.mark.parametrize(
    ("code", "way"),
    [
        ("exec(text)", "exec"),
        ("run = eval", "eval"),
        ("__import__(name)", "__import__"),
        ("import importlib\nimportlib.import_module(name)", "importlib.import_module"),
        ("from importlib import import_module as get\nget(name)", "importlib.import_module"),
        ("spec.loader.exec_module(module)", "exec_module"),
        ("def f():\n    from os import system\n    system(line)", "os.system"),
        ("import os\nos.execvp(file, words)", "os.execvp"),
        ("import subprocess as sp\nsp.run(words)", "subprocess.run"),
        ("from subprocess import run\nrun(words)", "subprocess.run"),
        ("import torch\ntorch.load(path)", "torch.load"),
        ("import torch\ntorch.load(path, weights_only=False)", "weights_only"),
        ("import numpy as np\nnp.load(path)", "numpy.load"),
        ("import numpy as np\nnp.load(path, allow_pickle=given)", "allow_pickle"),
        ("import pickle\npickle.loads(data)", "pickle.loads"),
        ("import ctypes\nctypes.CDLL(path)", "ctypes.CDLL"),
        ("database.enable_load_extension(True)", "enable_load_extension"),
        ("AutoModel.from_config(config)", "from_config"),
        ("load(name, trust_remote_code=wish)", "trust_remote_code"),
        ("AutoTokenizer.from_pretrained(folder)", "trust_remote_code"),
        ("words = [python, '-c', text]", "python -c"),
        ("import runpy\nrunpy.run_path(path)", "runpy.run_path"),
        ("import subprocess\nsubprocess.Popen(child_command('a'))", UNSHIELDED),
        ("from subprocess import run\nrun(['git', 'log'], env=child_environment())", UNSHIELDED),
        ("from sys import executable\nwords = [executable]", "sys.executable"),
        ("import multiprocessing.pool\nmultiprocessing.pool.Pool()", "multiprocessing.pool.Pool"),
        ("import concurrent.futures as f\nf.ProcessPoolExecutor()", "concurrent.futures.ProcessPoolExecutor"),
    ],
)
def test_a_way_would_be_seen(code, way):
    assert way in {each for _, each in ways(code)}


@pytest.mark.parametrize(
    "code",
    [
        "from importlib import import_module\nimport_module('json')",
        "from importlib.util import find_spec\nfind_spec('triton')",
        "from importlib.resources import files\nfiles('joma')",
        "import subprocess\ntry: f()\nexcept subprocess.TimeoutExpired: pass",
        "import subprocess\nChild = subprocess.Popen[str]",
        "model.eval()\nre.compile(x)\njson.loads(text)",
        "load(name, trust_remote_code=False, weights_only=True)",
    ],
)
def test_what_runs_nothing_is_none(code):
    assert list(ways(code)) == []
