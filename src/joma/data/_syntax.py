"""Python source as tokens, each with the syntax it stands in, read off the syntax tree.

A node covers the tokens between its first and its last character. At every level the innermost node wins, so the
nodes are painted over one another, outer ones first.
"""

import ast
import io
import keyword
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

CLASSES = ("<end>", "<newline>", "<indent>", "<dedent>", "<name>", "<number>", "<string>", "<keyword>", "<operator>")
"""Lexical classes: each is a token too, standing for itself or for a word that is not in the vocabulary."""
_, _NEWLINE, _INDENT, _, _NAME, _, _STRING, _KEYWORD, _OPERATOR = range(len(CLASSES))

# fmt: off
EXPRESSIONS = (
    "none", "BoolOp", "NamedExpr", "BinOp", "UnaryOp", "Lambda", "IfExp", "Dict", "Set", "ListComp", "SetComp",
    "DictComp", "GeneratorExp", "Await", "Yield", "YieldFrom", "Compare", "Call", "Attribute", "Subscript", "Starred",
    "List", "Tuple", "Slice",
)
"""Expressions with parts. A bare name or literal is none of its own: its token says what it is already."""
STATEMENTS = (
    "none", "FunctionDef", "ClassDef", "Return", "Delete", "Assign", "AugAssign", "AnnAssign", "For", "While", "If",
    "With", "Match", "Raise", "Try", "Assert", "Import", "ImportFrom", "Global", "Nonlocal", "Expr", "Pass", "Break",
    "Continue", "TypeAlias",
)
# fmt: on
BLOCKS = ("module", "class", "function", "if", "else", "for", "while", "with", "try", "except", "finally", "case")
DEFINITIONS = ("module", "class", "function", "method", "nested function")
LEVELS = {"expression": EXPRESSIONS, "statement": STATEMENTS, "block": BLOCKS, "definition": DEFINITIONS}

_LONGEST = 40  # characters; a string literal beyond that is prose and never a word of a vocabulary
_FORMATTED = ("f'", 'f"', "fr", "rf", "t'", 't"', "tr", "rt")  # how literals with expressions in them begin
_SAME = {"AsyncFunctionDef": "FunctionDef", "AsyncFor": "For", "AsyncWith": "With", "TryStar": "Try"}
_KINDS = ("ENDMARKER", "NEWLINE", "INDENT", "DEDENT", "NAME", "NUMBER", "STRING")  # in the order of the classes
_CLASS_OF = {**{getattr(tokenize, kind): number for number, kind in enumerate(_KINDS)}, tokenize.OP: _OPERATOR}
_OPENS = {number for number, name in tokenize.tok_name.items() if name.endswith("STRING_START")}
_CLOSES = {number for number, name in tokenize.tok_name.items() if name.endswith("STRING_END")}
_TREES = [kind for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.AST)]
_EXPRESSION = {kind: EXPRESSIONS.index(kind.__name__) for kind in _TREES if kind.__name__ in EXPRESSIONS}
# What lies inside a formatted string is one token here, so nothing below it has a place of its own.
_LEAVES = ("Name", "Constant", "JoinedStr", "TemplateStr")
_SUITES = ("body", "orelse", "finalbody", "handlers", "cases")
_PARTS = {
    kind: tuple(
        part
        for part in kind._fields
        if part not in ("ctx", "op", "ops") and not (part in _SUITES and not issubclass(kind, ast.expr))
    )
    for kind in _TREES
    if kind.__name__ not in _LEAVES
}
"""The fields of a node in which expressions may be; those that hold statements are walked for themselves."""


class NotParsed(Exception):
    """The source is not Python that this version reads."""


class Labelled(NamedTuple):
    """One file: its words, their lexical classes, and per level the label of every token (all of one length)."""

    words: list[str]
    classes: bytearray
    labels: dict[str, bytearray]


def labelled(source: bytes) -> Labelled:
    """The tokens of a file and their labels: `LEVELS` by name, and "depth", the number of blocks around.

    Comments and blank lines are left out. A formatted string is one token in every version of Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in other people's strings
            tree = ast.parse(source)
        return _Painter(*_lex(source)).painted(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise NotParsed(str(error)) from error


def _lex(source: bytes) -> tuple[list[str], bytearray, list[int]]:
    """Words, their classes, and where each begins: line and byte in one number, as the tree counts them."""
    words, classes, places = [], bytearray(), []
    wide: dict[int, str] = {}  # lines where a character is not a byte, by their number
    if not source.isascii():
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        lines = source.decode(encoding).split("\n")
        wide = {number: line for number, line in enumerate(lines, 1) if not line.isascii()}
    for kind, text, (line, column) in _joined(tokenize.tokenize(io.BytesIO(source).readline)):
        found = _CLASS_OF.get(kind)
        if found is None:
            continue
        if found == _NAME and keyword.iskeyword(text):
            found = _KEYWORD
        if found < _NAME or (found == _STRING and (len(text) > _LONGEST or text[:2].lower() in _FORMATTED)):
            text = CLASSES[found]
        words.append(text)
        classes.append(found)
        if line in wide:
            column = len(wide[line][:column].encode())
        places.append(line << 32 | column)
    return words, classes, places


def _joined(tokens: Iterator[tokenize.TokenInfo]) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Kind, text and place of every token; a formatted string as one, though since Python 3.12 it comes in pieces."""
    depth, start = 0, (0, 0)
    for token in tokens:
        if token.type in _OPENS:
            start = token.start if depth == 0 else start
            depth += 1
        elif token.type in _CLOSES:
            depth -= 1
            if depth == 0:
                yield tokenize.STRING, CLASSES[_STRING], start
        elif depth == 0:
            yield token.type, token.string, token.start


class _Painter:
    def __init__(self, words: list[str], classes: bytearray, places: list[int]) -> None:
        self.words, self.classes, self.places = words, classes, places
        self.labels = {level: bytearray(len(words)) for level in (*LEVELS, "depth")}
        self.layers: list[tuple[str, int, int, int]] = []  # level, label, first token and the one behind the last

    def painted(self, tree: ast.Module) -> Labelled:
        self.statements(tree.body, "module", 0)
        # A statement is known to end only after what is inside it was walked, yet is painted before it.
        for level, label, start, stop in reversed(self.layers):
            self.labels[level][start:stop] = bytes((label,)) * (stop - start)
        return Labelled(self.words, self.classes, self.labels)

    def first(self, node: ast.expr | ast.stmt) -> int:
        """The token at which a node begins. Dedents stand at the same place, before it."""
        return bisect_right(self.places, node.lineno << 32 | node.col_offset) - 1

    def after(self, node: ast.expr | ast.stmt) -> int:
        return bisect_left(self.places, (node.end_lineno or 0) << 32 | (node.end_col_offset or 0))

    def start(self, node: ast.stmt) -> int:
        decorators = getattr(node, "decorator_list", None)
        if not decorators:
            return self.first(node)
        start = self.first(decorators[0])
        while self.words[start] != "@":  # there may be brackets round the decorator
            start -= 1
        return start

    def statements(self, body: list[ast.stmt], definition: str, depth: int) -> int:
        """Walks statements that follow one another; returns the token behind the last."""
        stop = 0
        for node in body:
            stop = self.statement(node, definition, depth)
        return stop

    def statement(self, node: ast.stmt, definition: str, depth: int) -> int:
        name = type(node).__name__
        name = _SAME.get(name, name)
        start, defines = self.start(node), name in ("FunctionDef", "ClassDef")
        if defines:
            inside = {"module": "function", "class": "method"}.get(definition, "nested function")
            definition = "class" if name == "ClassDef" else inside
        self.expressions(node)
        stop = self.after(node)  # of a simple statement, and then what closes it
        stop += self.words[stop] == ";"
        stop += self.classes[stop] == _NEWLINE
        for block, body in self.suites(node, name):
            if not body:
                continue
            if block == "else" and self.words[self.start(body[0])] == "elif":
                stop = self.statements(body, definition, depth)  # beside the `if`, not inside an `else`
            else:
                stop = self.suite(block, body, definition, depth)
        stop += name == "Match"  # its cases are indented, though they are no block together
        self.layers.append(("statement", STATEMENTS.index(name), start, stop))
        if defines:
            self.layers.append(("definition", DEFINITIONS.index(definition), start, stop))
        return stop

    def suites(self, node: ast.stmt, name: str) -> Iterator[tuple[str, list[ast.stmt]]]:
        head = {"FunctionDef": "function", "ClassDef": "class"}.get(name, name.lower())
        yield head, getattr(node, "body", [])
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self.expressions(part)
            yield ("case" if name == "Match" else "except"), part.body
        yield "else", getattr(node, "orelse", [])
        yield "finally", getattr(node, "finalbody", [])

    def suite(self, block: str, body: list[ast.stmt], definition: str, depth: int) -> int:
        start = self.start(body[0])
        indented = self.classes[start - 1] == _INDENT
        stop = self.statements(body, definition, depth + 1) + indented
        labels = {"block": BLOCKS.index(block), "depth": depth + 1}
        self.layers += [(level, label, start - indented, stop) for level, label in labels.items()]
        return stop

    def expressions(self, root: ast.AST) -> None:
        """Paints every expression below a node; statements are not entered."""
        paint = self.labels["expression"]
        stack: list[ast.AST] = [root]
        while stack:
            node = stack.pop()
            kind = type(node)
            if (label := _EXPRESSION.get(kind)) and isinstance(node, ast.expr):
                start, stop = self.first(node), self.after(node)
                paint[start:stop] = bytes((label,)) * (stop - start)
            for field in _PARTS.get(kind, ()):  # of None and of strings: nothing
                value = getattr(node, field, None)
                if isinstance(value, list):
                    stack.extend(value)
                elif value is not None:
                    stack.append(value)
