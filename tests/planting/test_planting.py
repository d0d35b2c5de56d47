"""What plants faults: every kind is found where it can be made, and nowhere else; the draw covers all rooms."""

import ast
import textwrap

import pytest
from planting.fault import Fault, draw, faults_of, lines_of_rooms, named
from planting.kinds import KINDS, changes_of
from planting.selection import SOURCE, nearness


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
    ],
)
def test_messages_annotations_and_drawings_are_left_alone(code):
    assert not kinds_in(code)


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


def test_the_draw_is_in_proportion_to_lines_with_kinds_in_turn():
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
    assert sum(lines_of_rooms().values()) == sum(path.read_text("utf-8").count("\n") for path in SOURCE.rglob("*.py"))


def test_tests_of_the_same_name_and_room_come_first():
    assert nearness("measure/_lanczos.py", "tests/measure/test_lanczos.py") == 0
    assert nearness("studies/linear/thm2/run.py", "tests/studies/linear/test_thm2.py") == 0
    assert nearness("studies/linear/thm2/run.py", "tests/studies/linear/test_other.py") == 1
    assert nearness("measure/_lanczos.py", "tests/scan/test_lanczos.py") == 2
