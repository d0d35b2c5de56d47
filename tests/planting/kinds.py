"""Which faults can be planted in a file: small changes of the kinds that engineers make, found in its syntax tree."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = (
    "off by one", "sign", "axis", "dropped control", "seed", "unit", "stale", "resume", "rank of a collective",
    "transposed", "wrong key kept", "mask", "accumulation", "check that never fires", "logic", "dropped clause",
    "wrong constant", "swapped arguments",
)  # fmt: skip

TURNED = {"at_least": "at_most", "at_most": "at_least", "above": "below", "below": "above"}
NOTHING = {"controls": "()", "size": "()", "control": "None", "corrected_size": "()"}
SWAPPED = {"argmax": "argmin", "argmin": "argmax", "amax": "amin", "amin": "amax", "max": "min", "min": "max"}
ALONG = {
    "sum", "mean", "max", "min", "argmax", "argmin", "cumsum", "softmax", "log_softmax", "logsumexp", "amax", "amin",
    "norm", "std", "var", "any", "all", "median", "sort", "argsort", "flip", "diff", "stack", "cat", "concatenate",
    "quantile", "prod",
}  # fmt: skip
OTHER_AXIS = {0: "1", 1: "0", 2: "1", -1: "-2", -2: "-1", -3: "-2"}
EITHER_WAY = {
    "max", "min", "maximum", "minimum", "hypot", "gcd", "lcm", "allclose", "isclose", "equal", "array_equal", "cat",
    "fmin", "fmax", "logaddexp", "union", "print", "zip", "isinstance",
}  # fmt: skip
"""To swap the arguments of these is no fault, or none that an engineer makes."""
UNITS = {2, 8, 60, 100, 1000, 1024, 3600, 10**6, 10**9}
COUNTS = {
    "step", "steps", "count", "n", "size", "depth", "layer", "layers", "index", "i", "k", "rank", "length", "seq_len",
    "done",
}  # fmt: skip
READS_BACK = ("load", "resume", "restore", "state", "checkpoint", "reopen", "read_back")
CHECKS = ("check", "must_be", "must_fit", "refuse", "require", "needs_", "usable_", "bound", "in_range")
DRAWS = {"axis", "axes", "figure"}


@dataclass(frozen=True)
class Change:
    """One replacement: where it stands (line from 1, column in bytes), in which function, of which kind."""

    line: int
    column: int
    scope: str
    kind: str
    before: str
    after: str
    on: str
    """The line it stands on, to tell one minus from another."""


def changes_of(text: str) -> Iterator[Change]:
    """Every fault that can be planted in this file. Messages, annotations and what is drawn are left alone."""
    tree, reader = ast.parse(text), _Reader(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            reader.keys.setdefault(node.name, set()).update(_keys_read(node))
    yield from reader.read(tree, ())


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = text.encode().splitlines(keepends=True)
        self.keys: dict[str, set[str]] = {}

    def read(self, node: ast.AST, scope: tuple[str, ...]) -> Iterator[Change]:
        """The changes of a node and of what is in it."""
        if _is_left_alone(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = (*scope, node.name)
            inside: list[ast.AST] = list(node.body)
        elif isinstance(node, ast.AnnAssign):
            inside = [node.value] if node.value is not None and "ClassDef" not in scope else []
        else:
            inside = list(ast.iter_child_nodes(node))
        for kind, (line, column, before), after in self.changes(node, scope):
            if before and before != after and not (kind == "stale" and scope[-1] in ("__init__", "__post_init__")):
                yield Change(line, column, ".".join(scope), kind, before, after, self.lines[line - 1].decode().strip())
        for each in inside:
            yield from self.read(each, scope)

    def source(self, node: ast.AST) -> str:
        """The text of a node. (ast.get_source_segment splits the whole file each time.)"""
        start = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        end = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
        return self.between(start, end)

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """The text from one place (line from 1, column in bytes) to another."""
        first, last = start[0] - 1, end[0] - 1
        if first == last:
            return self.lines[first][start[1] : end[1]].decode()
        parts = [self.lines[first][start[1] :], *self.lines[first + 1 : last], self.lines[last][: end[1]]]
        return b"".join(parts).decode()

    def all_of(self, node: ast.expr | ast.stmt) -> tuple[int, int, str]:
        """A node, as something to replace."""
        return node.lineno, node.col_offset, self.source(node)

    def gap(self, left: ast.expr, right: ast.expr) -> tuple[int, int, str]:
        """What stands between two operands: the operator, with brackets that may stand beside it."""
        start = left.end_lineno or 0, left.end_col_offset or 0
        return *start, self.between(start, (right.lineno, right.col_offset))

    def changes(self, node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """(kind, what is replaced, by what) for one node of the syntax tree."""
        if isinstance(node, ast.Call):
            yield from self.of_call(node)
            yield from self.of_arguments(node)
        elif isinstance(node, ast.BoolOp):
            yield from self.of_clauses(node)
        elif isinstance(node, ast.BinOp):
            yield from self.of_operator(node, scope)
        elif isinstance(node, ast.Compare):
            yield from self.of_comparison(node)
            yield from self.of_constants(node.comparators)
        elif isinstance(node, ast.Subscript):
            yield from self.of_subscript(node, scope)
        elif isinstance(node, ast.Attribute):
            yield from self.of_attribute(node)
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
                yield "sign", self.all_of(node), self.source(node)[1:].lstrip()
            if isinstance(node.op, ast.Invert):
                yield "mask", self.all_of(node), self.source(node)[1:].lstrip()
        elif isinstance(node, ast.If):
            if isinstance(node.body[0], ast.Raise):
                yield "check that never fires", self.all_of(node.test), "False"
            if "not_run(" in self.source(node.body[0]):
                yield "dropped control", self.all_of(node.test), "False"
        elif isinstance(node, ast.stmt):
            yield from self.of_statement(node, scope)

    def of_statement(self, node: ast.stmt, scope: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """A line left out, a sum begun anew at each turn."""
        reads_back = bool(scope) and any(word in scope[-1] for word in READS_BACK)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            gap = self.gap(node.target, node.value)
            yield "accumulation", gap, gap[2].replace("+=", "=", 1)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript) and len(scope):
            yield "resume" if reads_back else "stale", self.all_of(node.targets[0]), "_"
        if isinstance(node, ast.Delete):
            yield "stale", self.all_of(node), "pass"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = _name(node.value.func)
            if name.lstrip("_").startswith(CHECKS):
                yield "check that never fires", self.all_of(node), "pass"
            elif name in ("clear", "pop", "cache_clear", "zero_", "reset"):
                yield "stale", self.all_of(node), "pass"
            elif reads_back and name not in ("print", "progress"):
                yield "resume", self.all_of(node), "pass"

    def of_call(self, node: ast.Call) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """Controls, seeds, axes, ranks, ranges and reductions: what is called, and with what."""
        name, given = _name(node.func), {word.arg: word.value for word in node.keywords}
        args = [each for each in node.args if not isinstance(each, ast.Starred)]
        if isinstance(node.func, ast.Name):
            if name == "compare" and len(args) > 1 and not isinstance(args[1], ast.Constant):
                yield "dropped control", self.all_of(args[1]), "0.0"
            if name in TURNED:
                yield "sign", self.all_of(node.func), TURNED[name]
            if name in ("by_effect", "by_tests", "by_residual"):
                for word in NOTHING.keys() & given.keys():
                    yield "dropped control", self.all_of(given[word]), NOTHING[word]
            if name == "by_residual" and not isinstance(given.get("printed"), ast.Constant | None):
                yield "check that never fires", self.all_of(given["printed"]), "0.0"
            if name == "range" and args and not isinstance(args[-1], ast.Constant):
                yield "off by one", self.all_of(args[-1]), f"{self.source(args[-1])} - 1"
            if name in ("max", "min") and not isinstance(node.args[0], ast.Constant):
                yield "wrong key kept", self.all_of(node.func), SWAPPED[name]
        elif isinstance(node.func, ast.Attribute):
            owner = self.source(node.func.value)
            if name in SWAPPED:
                yield "wrong key kept", _tail(self.all_of(node.func), name), SWAPPED[name]
            if name in ("mean", "sum"):
                yield "accumulation", _tail(self.all_of(node.func), name), "sum" if name == "mean" else "mean"
            if name in ("tril", "triu"):
                yield "mask", _tail(self.all_of(node.func), name), "triu" if name == "tril" else "tril"
            if name == "where" and len(args) == 3:
                start, end = (
                    (args[1].lineno, args[1].col_offset),
                    (args[2].end_lineno or 0, args[2].end_col_offset or 0),
                )
                turned = f"{self.source(args[2])}, {self.source(args[1])}"
                yield "mask", (*start, self.between(start, end)), turned
            if name in ("transpose", "swapaxes") and "." + name in self.source(node):
                source = self.source(node)
                yield "transposed", self.all_of(node), source[: source.rindex("." + name)]
            at = 1 if owner in ("torch", "np") else 0
            if name in ALONG and len(args) > at and _integer(args[at]) in OTHER_AXIS:
                yield "axis", self.all_of(args[at]), OTHER_AXIS[_integer(args[at])]
            if name == "double" and not args:
                yield "accumulation", _tail(self.all_of(node.func), name), "float"
        if (name in ("default_rng", "manual_seed", "stream", "generator")) and args and _varies(args[0]):
            yield "seed", self.all_of(args[0]), "0"
        if name in ("stream", "generator") and len(args) > 1 and _varies(args[-1]):
            yield "seed", self.all_of(args[-1]), "0"
        for word, value in given.items():
            if word in ("dim", "axis") and _integer(value) in OTHER_AXIS:
                yield "axis", self.all_of(value), OTHER_AXIS[_integer(value)]
            if word == "seed" and _varies(value):
                yield "seed", self.all_of(value), "0"
            if word in ("src", "dst", "group_src") and not isinstance(value, ast.Constant):
                yield "rank of a collective", self.all_of(value), "0"
            if word == "group" and name.startswith(("all_", "broadcast", "get_", "gather", "scatter", "barrier")):
                yield "rank of a collective", self.all_of(value), "None"
        if name in ("get_rank", "get_world_size"):
            yield "rank of a collective", self.all_of(node), "0" if name == "get_rank" else "1"

    def of_arguments(self, node: ast.Call) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """Two arguments in the wrong order, a number that is another."""
        yield from self.of_constants([*node.args, *(word.value for word in node.keywords)])
        if len(node.args) < 2 or _name(node.func) in EITHER_WAY or any(map(_is_plain, node.args[:2])):
            return
        first, second = node.args[:2]
        end = second.end_lineno or 0, second.end_col_offset or 0
        both = first.lineno, first.col_offset, self.between((first.lineno, first.col_offset), end)
        if "\n" not in both[2]:
            yield "swapped arguments", both, f"{self.source(second)}, {self.source(first)}"

    def of_constants(self, nodes: list[ast.expr]) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """A number that is given or compared with; 0 and 1 have kinds of their own."""
        for node in nodes:
            value = node.value if isinstance(node, ast.Constant) else None
            if type(value) is int and value > 1:
                yield "wrong constant", self.all_of(node), str(value + 1)
            if type(value) is float and value >= 0.01 and value != 1.0:
                yield "wrong constant", self.all_of(node), repr(2 * value)

    def of_clauses(self, node: ast.BoolOp) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """`and` for `or`, and a clause that is left out."""
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            gap = self.gap(left, right)
            yield "logic", gap, re.sub(rf"\b{word}\b", other, gap[2], count=1)
            line, column, _ = gap
            clause = self.between((line, column), (right.end_lineno or 0, right.end_col_offset or 0))
            if clause.count("(") == clause.count(")"):
                yield "dropped clause", (line, column, clause), ""

    def of_operator(self, node: ast.BinOp, scope: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """Signs, ones, units, masks."""
        gap = self.gap(node.left, node.right)
        one = isinstance(node.right, ast.Constant) and node.right.value in (1, 1.0)
        if isinstance(node.op, ast.Sub):
            yield "off by one" if one else "sign", gap, gap[2].replace("-", "+", 1)
        numbers = (ast.BinOp, ast.UnaryOp, ast.Constant)
        if isinstance(node.op, ast.Add) and not _has_text(node):
            if one:
                yield "off by one", gap, gap[2].replace("+", "-", 1)
            elif isinstance(node.left, numbers) or isinstance(node.right, numbers):
                yield "sign", gap, gap[2].replace("+", "-", 1)
        constant = node.right.value if isinstance(node.right, ast.Constant) else None
        if isinstance(node.op, ast.Mult | ast.Div) and constant in UNITS and not _has_text(node):
            sign = "*" if isinstance(node.op, ast.Mult) else "/"
            yield "unit", gap, gap[2].replace(sign, "/" if sign == "*" else "*", 1)
        if isinstance(node.op, ast.BitAnd | ast.BitOr) and scope and not _has_types(node):
            sign = "&" if isinstance(node.op, ast.BitAnd) else "|"
            yield "mask", gap, gap[2].replace(sign, "|" if sign == "&" else "&", 1)

    def of_comparison(self, node: ast.Compare) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """Less for at most, where counts are compared: between real numbers the two are the same."""
        signs = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
        if type(node.ops[0]) in signs and (_counts(node.left) or _counts(node.comparators[0])):
            gap = self.gap(node.left, node.comparators[0])
            yield "off by one", gap, gap[2].replace(*signs[type(node.ops[0])], 1)

    def of_subscript(
        self, node: ast.Subscript, scope: tuple[str, ...]
    ) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """Borders of slices, first for last, another key that the same function reads."""
        part = node.slice
        if isinstance(part, ast.Slice):
            if part.lower is not None and (isinstance(part.lower, ast.Name) or _integer(part.lower) in range(1, 9)):
                yield "off by one", self.all_of(part.lower), f"{self.source(part.lower)} + 1"
            if isinstance(part.upper, ast.Name) or (part.upper is not None and _integer(part.upper) in range(-8, 0)):
                yield "off by one", self.all_of(part.upper), f"{self.source(part.upper)} - 1"
        elif _integer(part) in (0, -1) and not self.source(node.value).endswith(("shape", 'partition(" ")', "args")):
            yield "wrong key kept", self.all_of(part), "-1" if _integer(part) == 0 else "0"
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and isinstance(node.ctx, ast.Load):
            others = self.keys.get(scope[-1] if scope else "", set()) - {part.value}
            if others:
                yield "wrong key kept", self.all_of(part), repr(min(others))

    def of_attribute(self, node: ast.Attribute) -> Iterator[tuple[str, tuple[int, int, str], str]]:
        """Transposes, precision, what a collective does."""
        source, owner = self.source(node), self.source(node.value)
        if node.attr in ("mT", "T"):
            yield "transposed", self.all_of(node), source[: -len(node.attr) - 1]
        if node.attr == "float64" and owner in ("torch", "np"):
            yield "accumulation", self.all_of(node), f"{owner}.float32"
        if owner.endswith("ReduceOp"):
            yield "rank of a collective", self.all_of(node), owner + (".MIN" if node.attr == "MAX" else ".MAX")


def _keys_read(function: ast.FunctionDef) -> set[str]:
    """The names under which a function reads from tables."""
    parts = [one.slice for one in ast.walk(function) if isinstance(one, ast.Subscript)]
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def _is_left_alone(node: ast.AST) -> bool:
    """Messages, annotations and what is drawn."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.arguments):
        return True
    if isinstance(node, ast.FunctionDef):
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        names |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        return bool(DRAWS & names) or "svg" in node.name
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _tail(place: tuple[int, int, str], name: str) -> tuple[int, int, str]:
    """The last word of an attribute, where it stands."""
    line, column, source = place
    head = source[: -len(name)]
    if "\n" in head:
        return line + head.count("\n"), len(head.rpartition("\n")[2].encode()), name
    return line, column + len(head.encode()), name


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return value if type(value) is int else None


def _is_plain(node: ast.expr) -> bool:
    """Whether it would be seen at once in the wrong place: a text, a number, a star."""
    return isinstance(node, ast.Constant | ast.JoinedStr | ast.Starred | ast.Lambda)


def _varies(node: ast.expr) -> bool:
    return not isinstance(node, ast.Constant)


def _has_text(node: ast.BinOp) -> bool:
    """Whether an operand is a text, a list or a tuple: then `+` joins and `*` repeats."""
    joined = ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp
    return any(isinstance(each, joined) or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
               for each in ast.walk(node))  # fmt: skip


def _has_types(node: ast.BinOp) -> bool:
    """Whether `|` joins types, as in isinstance(x, A | B)."""
    sides = (node.left, node.right)
    return any(isinstance(each, ast.Constant) and each.value is None for each in sides) or all(
        _name(each)[:1].isupper()
        or isinstance(each, ast.BinOp)
        or _name(each) in ("int", "str", "float", "bytes", "list")
        for each in sides
    )


def _counts(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _name(node.func) in ("len", "numel")
    return _name(node) in COUNTS or type(_integer(node)) is int
