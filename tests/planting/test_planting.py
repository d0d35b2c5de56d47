"""What plants faults: every kind is found where it can be made, and nowhere else; the draw covers all rooms."""

import ast
import json
import textwrap

import pytest
from plant_faults import outcomes
from planting.fault import Fault, draw, faults_of, lengths_of_rooms, named, sources
from planting.javascript_kinds import changes_of_javascript, without_texts
from planting.kinds import KINDS, changes_of
from planting.selection import SOURCE, Selection, gathered, nearness


def kinds_in(code):
    return {(one.kind, one.before.strip(), one.after.strip()) for one in changes_of(textwrap.dedent(code))}


@pytest.mark.parametrize(
    ("code", "kind", "before", "after"),
    [
        ("y = x[1:]", "off by one", "1", "1 + 1"),
        ("for i in range(n): pass", "off by one", "n", "n - 1"),
        ("if len(x) < 3: pass", "off by one", "<", "<="),
        ("y = a - b", "sign", "-", "+"),
        ("y = -a", "sign", "-a", "a"),
        ("y = at_least(a, b)", "sign", "at_least", "at_most"),
        ("y = x.mean(0)", "axis", "0", "1"),
        ("y = x.sum(dim=-1)", "axis", "-1", "-2"),
        ("y = torch.stack(x, 1)", "axis", "1", "0"),
        ("y = compare(a, b)", "dropped control", "b", "0.0"),
        ("y = torch.Generator().manual_seed(seed)", "seed", "seed", "0"),
        ("y = f(seed=seed + 1)", "seed", "seed + 1", "0"),
        ("y = x * 1024", "unit", "*", "/"),
        ("def f(self):\n    self.x = 1", "stale", "self.x", "_"),
        ("def load_state(self):\n    self.x = 1", "resume", "self.x", "_"),
        ("dist.all_reduce(x, op=dist.ReduceOp.MIN)", "rank of a collective", "dist.ReduceOp.MIN", "dist.ReduceOp.MAX"),
        ("y = x.mT", "transposed", "x.mT", "x"),
        ("y = x.argmax()", "wrong key kept", "argmax", "argmin"),
        ("def f(x):\n    return x['a'] + x['b']", "wrong key kept", "'a'", "'b'"),
        ("y = ~x", "mask", "~x", "x"),
        ("y = torch.where(a, b, c)", "mask", "b, c", "c, b"),
        ("y += x", "accumulation", "+=", "="),
        ("if x:\n    raise E('no')", "check that never fires", "x", "False"),
        ("y = a and b or c", "logic", "and", "or"),
        ("y = a or f(b) or c", "dropped clause", "or f(b)", ""),
        ("y = f(x, 4)", "wrong constant", "4", "5"),
        ("y = f(a, b.c, 4)", "swapped arguments", "a, b.c", "b.c, a"),
    ],
)
def test_every_kind_of_fault_is_found(code, kind, before, after):
    assert (kind, before, after) in kinds_in(code)


@pytest.mark.parametrize(
    "code",
    [
        'raise ValueError(f"{a - b}")',
        'y = f"{a - b}"',
        "def f(x: A | None) -> x[1:]: pass",
        'y = "a" + b + "c"',
        "def plot(axis, a):\n    axis.plot(a - 1)",
        "if TYPE_CHECKING:\n    y = a - b",
        "y = np.hypot(a, b)",
        "y = f('words', b)",
    ],
)
def test_messages_annotations_and_drawings_are_left_alone(code):
    assert not kinds_in(code)


@pytest.mark.parametrize(
    ("code", "kind", "before", "after"),
    [
        ("const y = x[0];", "wrong key kept", "0", "1"),
        ("for (let i = 0; i < n; i++) f();", "off by one", "<", "<="),
        ("const y = (a + b) - c;", "sign", "-", "+"),
        ("const y = n - 1;", "off by one", "-", "+"),
        ("const y = `${a} / ${b * `${c - d}`}`;", "sign", "-", "+"),
        ("const y = a / b / c;", "unit", "/", "*"),
        ("if (a && b || c) return;", "logic", "&&", "||"),
        ("const y = (a || b.c);", "dropped clause", "|| b.c", ""),
        ("f(() => a ?? 0 > 3);", "wrong constant", "3", "6"),
        ("const y = f(a, b.c);", "swapped arguments", "a, b.c", "b.c, a"),
        ("y = Math.max(a, 1);", "wrong key kept", "max", "min"),
        ("f(); if (a) return;", "check that never fires", "a", "false"),
        ("{ this.x = 1; }", "stale", "this.x", "globalThis._"),
        ("if (!a) f();", "mask", "!", ""),
        ("y += a * 2;", "accumulation", "+=", "="),
    ],
)
def test_every_kind_of_fault_is_found_in_javascript(code, kind, before, after):
    found = {(one.kind, one.before.strip(), one.after.strip()) for one in changes_of_javascript(code)}
    assert (kind, before, after) in found


@pytest.mark.parametrize(
    "code",
    [
        'const y = "a - b" + c; // x - y',
        "/* a < b */ const y = /a-b[/]+/.test(x);",
        "const y = `a - b > ${c} && d`;",
        "context.fillRect(a - b, c);",
        "f((a, b) => a);",
        "function f(a, b) {}",
    ],
)
def test_texts_patterns_and_pixels_are_left_alone(code):
    assert not list(changes_of_javascript(code))


@pytest.mark.parametrize("path", [path for path in sources() if path.suffix == ".js"], ids=lambda path: path.name)
def test_javascript_is_read_to_its_end(path):
    text = path.read_text(encoding="utf-8")
    bare = without_texts(text)
    assert [len(line) for line in bare.split("\n")] == [len(line) for line in text.split("\n")]
    assert all(bare.count(one) == bare.count(other) for one, other in ("()", "[]"))
    faults = list(faults_of(path))
    assert len({fault.key for fault in faults}) == len(faults) > 0
    assert all(fault.planted(text) != text for fault in faults)


def test_each_fault_stands_where_it_says_and_is_python():
    path = SOURCE / "measure" / "intervals.py"
    text = path.read_text(encoding="utf-8")
    faults = list(faults_of(path))
    assert len(faults) > 30
    assert len({fault.key for fault in faults}) == len(faults)
    before = ast.dump(ast.parse(text))
    for fault in faults:
        assert ast.dump(ast.parse(fault.planted(text))) != before, fault
    texts = {fault.file: (SOURCE / fault.file).read_text(encoding="utf-8") for fault in named()}
    assert all(fault.planted(texts[fault.file]) != texts[fault.file] for fault in named())


def test_the_draw_is_in_proportion_to_length_with_kinds_in_turn():
    rooms = {"host": 100, "scan": 300, "studies/linear": 200}
    faults = [Fault(f"{room}/x.py", line, 0, "f", kind, "a", "b", nth=line)
              for room in rooms for kind in KINDS for line in range(20)]  # fmt: skip
    chosen = draw(faults, rooms, 60, 0)
    assert {room: sum(fault.room == room for fault in chosen) for room in rooms} == {
        "host": 10,
        "scan": 30,
        "studies/linear": 20,
    }
    assert len({fault.kind for fault in chosen if fault.room == "scan"}) == len(KINDS)
    assert draw(faults, rooms, 60, 0) == chosen != draw(faults, rooms, 60, 1)
    assert sum(lengths_of_rooms().values()) == sum(path.stat().st_size for path in sources())
    assert {"view (JavaScript)", "report (JavaScript)"} < lengths_of_rooms().keys()


def test_what_was_watched_is_gathered_by_function(tmp_path):
    for worker, test, failed in (
        ("gw0", "tests/a.py::test_f[1]", []),
        ("gw1", "tests/a.py::test_f[2]", ["tests/a.py::g"]),
    ):
        part = {"functions": ["x.py f", f"x.py {worker}"], "tests": {test: [1.5, [1]]}, "files": {"tests/a.py": [0]}}
        (tmp_path / f"{worker}.json").write_text(json.dumps({**part, "failed": failed}), encoding="utf-8")
    content = gathered(tmp_path)
    assert content == {
        "functions": ["x.py f", "x.py gw0", "x.py gw1"],
        "tests": {"tests/a.py::test_f": [3.0, [0, 1, 2]]},
        "failed": ["tests/a.py::g"],
    }
    selection = Selection(content)
    assert selection.tests_for("x.py", "gw1") == ("tests/a.py::test_f",)
    assert selection.failed == ["tests/a.py::g"]
    assert "tests/view/test_numbers.py" in selection.tests_for("view/static/axes.js", "ticksOf")


def test_a_record_goes_on_with_what_waits(tmp_path):
    path = tmp_path / "planted.json"
    kept = {"faults": ["a", "b", "c", "d"], "survivors": {"b": "missed"}, "hung": ["c"], "waiting": ["d"]}
    path.write_text(json.dumps(kept), encoding="utf-8")
    assert outcomes(path) == {"a": "caught", "b": "missed", "c": "hung"}
    path.write_text(json.dumps({**kept, "waiting": []}), encoding="utf-8")
    assert outcomes(path) == outcomes(None) == {}  # a record that is whole is made anew


def test_tests_of_the_same_name_and_room_come_first():
    assert nearness("measure/_lanczos.py", "tests/measure/test_lanczos.py") == 0
    assert nearness("studies/linear/thm2/run.py", "tests/studies/linear/test_thm2.py") == 0
    assert nearness("studies/linear/thm2/run.py", "tests/studies/linear/test_other.py") == 1
    assert nearness("measure/_lanczos.py", "tests/scan/test_lanczos.py") == 2
