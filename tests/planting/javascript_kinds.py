"""Which faults can be planted in a JavaScript file: read token by token, since Python has no syntax tree of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from planting.kinds import EITHER_WAY, Change

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<number>0[xb][\da-fA-F]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)
      | (?P<word>\#?[A-Za-z_$][\w$]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<sign>=>|\.\.\.|\?\?=|&&=|\|\|=|\*\*=|[=!]==|<=|>=|[=!]=|&&|\|\||\?\?|\?\.(?!\d)|\+\+|--|\*\*|[-+*/%]=|.)""",
    re.VERBOSE | re.DOTALL,
)
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
STATEMENTS = {
    "if", "for", "while", "switch", "catch", "return", "function", "typeof", "await", "new", "of", "in", "case",
}  # fmt: skip
OPENING, CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
ENDS = {",", ";", "?", ":", "=>", "||", "??", "&&", "`}"}
DRAWN = {"viewBox", "transform", "strokeRect", "fillRect", "fillText", "textAlign", "clearRect"}
LAYOUT = re.compile(r"\b(ctx|context|canvas)\.")
"""Where pixels are put: as in Python, what is drawn is left alone."""


@dataclass(frozen=True)
class Token:
    """A piece of the code: what kind, its text, its place."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def ends_a_value(self) -> bool:
        """Whether a sign behind it has a left operand."""
        return self.kind in ("number", "text", "regex", "template") or self.text in (")", "]", "}") or (
            self.kind == "word" and self.text not in STATEMENTS
        )  # fmt: skip


def tokens_of(code: str) -> list[Token]:
    """The tokens without spaces and comments; a template gives its texts, and what stands in its brackets."""
    found: list[Token] = []
    depth: list[int] = []
    """Of each template that is open: how many braces are open inside its brackets."""
    at = 0
    while at < len(code):
        if code[at] == "`" or (code[at] == "}" and depth and depth[-1] == 0):
            if code[at] == "}":
                depth.pop()
            part = re.compile(r"[`}](?:\\.|\$(?!\{)|[^`\\$])*(`|\$\{)", re.DOTALL).match(code, at)
            if part is None:
                raise ValueError(f"a template has no end at {at}")
            found.append(Token("template" if part[1] == "`" else "opened", part[0], at))
            if part[1] != "`":
                depth.append(0)
            at = part.end()
            continue
        if code[at] == "/" and code[at + 1 : at + 2] not in ("/", "*") and not (found and found[-1].ends_a_value):
            regex = REGEX.match(code, at)
            if regex is not None:
                found.append(Token("regex", regex[0], at))
                at = regex.end()
                continue
        piece = TOKEN.match(code, at)
        assert piece is not None
        if piece.lastgroup != "space":
            found.append(Token(str(piece.lastgroup), piece[0], at))
            if depth and piece[0] in "{}":
                depth[-1] += 1 if piece[0] == "{" else -1
        at = piece.end()
    return found


def changes_of_javascript(code: str) -> Iterator[Change]:
    """Every fault of our kinds that can be planted in this code. Types in comments, texts and pixels are left alone."""
    tokens = tokens_of(code)
    scopes = _scopes(tokens)
    for at in range(len(tokens)):
        for kind, first, last, after in _changes(tokens, at):
            start, end = tokens[first].start, tokens[last].end
            before = code[start:end]
            head = code[:start]
            line = code[head.rfind("\n") + 1 : (code + "\n").index("\n", start)].strip()
            parts = [after] if isinstance(after, str) else after
            replaced = "".join(one if isinstance(one, str) else _between(code, tokens, *one) for one in parts)
            if len(line) < 160:
                around = line
            else:
                around = code[max(start - 60, head.rfind("\n") + 1) : end + 40].split("\n")[0].strip()
            if LAYOUT.search(around) or any(word in around for word in DRAWN) or replaced == before:
                continue
            column = len(head[head.rfind("\n") + 1 :].encode())
            yield Change(head.count("\n") + 1, column, scopes[at], kind, before, replaced, around)


Replacement = str | list[tuple[int, int] | str]
"""A text, or what stands from one token to another, and texts between."""


def _between(code: str, tokens: list[Token], first: int, last: int) -> str:
    return code[tokens[first].start : tokens[last].end]


def _changes(tokens: list[Token], at: int) -> Iterator[tuple[str, int, int, Replacement]]:
    """(kind, first and last token that are replaced, by what) for one token."""
    token = tokens[at]
    before, behind = (tokens[at - 1] if at else None), (tokens[at + 1] if at + 1 < len(tokens) else None)
    if before is None or behind is None:
        return
    if token.kind == "sign":
        yield from _of_sign(tokens, at, before, behind)
    elif token.kind == "number" and before.text not in ("===", "!==", "-", "+") and not before.text.endswith("."):
        value = float(token.text.replace("_", "")) if "x" not in token.text else None
        if value is not None and behind.text not in (".",):
            index = before.text == "[" and behind.text == "]" and at > 1 and tokens[at - 2].ends_a_value
            if index and value in (0, 1):
                yield "wrong key kept", at, at, "1" if value == 0 else "0"
            elif before.text not in ("[", "return") and not index:
                yield "wrong constant", at, at, "1" if value == 0 else f"{2 * value:g}"
    elif token.kind == "word":
        yield from _of_word(tokens, at, before, behind)


def _of_sign(tokens: list[Token], at: int, before: Token, behind: Token) -> Iterator[tuple[str, int, int, Replacement]]:
    """Operators between two values, brackets of calls, and what a clause adds."""
    sign, texts = tokens[at].text, {"text", "template", "opened"}
    turned = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "===": "!==", "!==": "==="}
    if sign in turned and before.ends_a_value:
        yield ("off by one" if len(sign) < 3 else "mask"), at, at, turned[sign]
    if sign in ("+", "-") and before.ends_a_value and before.kind not in texts and behind.kind not in texts:
        yield ("off by one" if behind.text == "1" else "sign"), at, at, "-" if sign == "+" else "+"
    if sign in ("*", "/") and before.ends_a_value:
        yield "unit", at, at, "/" if sign == "*" else "*"
    if sign == "+=" and behind.kind not in texts:
        yield "accumulation", at, at, "="
    if sign in ("&&", "||"):
        yield "logic", at, at, "||" if sign == "&&" else "&&"
        last = _end_of_operand(tokens, at + 1)
        if last is not None:
            yield "dropped clause", at, last, ""
    if sign == "!" and not before.ends_a_value and behind.kind != "sign":
        yield "mask", at, at, ""
    called = before.kind == "word" and before.text not in STATEMENTS | EITHER_WAY
    if sign == "(" and called and tokens[at - 2].text != "function":
        arguments = _arguments(tokens, at)
        if len(arguments) >= 2 and tokens[arguments[-1][1] + 2].text not in ("{", "=>"):
            (a, b), (c, d) = arguments[:2]
            yield "swapped arguments", a, d, [(c, d), ", ", (a, b)]


def _of_word(tokens: list[Token], at: int, before: Token, behind: Token) -> Iterator[tuple[str, int, int, Replacement]]:
    """Smallest for largest, rounding, conditions that never hold, what is not kept."""
    word = tokens[at].text
    other = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "every": "some", "some": "every"}
    if before.text == "." and behind.text == "(" and word in other:
        yield ("off by one" if word in ("floor", "ceil") else "wrong key kept"), at, at, other[word]
    if word == "if" and behind.text == "(":
        last = _closing(tokens, at + 1)
        if last is not None and tokens[last + 1].text in ("return", "continue") and last > at + 2:
            yield "check that never fires", at + 2, last - 1, "false"
    if before.text in (";", "{", "}") and behind.text == "." and word not in STATEMENTS:
        last = at
        while tokens[last + 1].text == "." and tokens[last + 2].kind == "word":
            last += 2
        if tokens[last + 1].text == "=":
            yield "stale", at, last, "globalThis._"


def _closing(tokens: list[Token], opening: int) -> int | None:
    """Where a bracket closes."""
    depth = 0
    for at in range(opening, len(tokens)):
        text = tokens[at].text
        if tokens[at].kind == "sign":
            depth += (text in OPENING) - (text in CLOSING)
            if depth == 0:
                return at
    return None


def _end_of_operand(tokens: list[Token], start: int) -> int | None:
    """The last token of what stands behind a sign, up to the next of the same kind."""
    depth = 0
    for at in range(start, len(tokens)):
        token = tokens[at]
        if token.kind == "template" and token.text.startswith("}") and depth == 0:
            return at - 1
        if token.kind == "sign":
            if depth == 0 and (token.text in CLOSING or token.text in ENDS):
                return at - 1 if at > start else None
            depth += (token.text in OPENING) - (token.text in CLOSING)
        elif token.kind == "opened" and not token.text.startswith("}"):
            depth += 1
        elif token.kind == "template" and token.text.startswith("}"):
            depth -= 1
    return None


def _arguments(tokens: list[Token], opening: int) -> list[tuple[int, int]]:
    """First and last token of each argument; none where one of them is a function or is spread."""
    last = _closing(tokens, opening)
    if last is None or last == opening + 1:
        return []
    found, depth, start = [], 0, opening + 1
    for at in range(opening + 1, last + 1):
        text, sign = tokens[at].text, tokens[at].kind == "sign"
        if text in ("=>", "...", "`") or tokens[at].kind in ("opened", "template"):
            return []
        if sign and depth == 0 and (text == "," or at == last):
            found.append((start, at - 1))
            start = at + 1
        if sign:
            depth += (text in OPENING) - (text in CLOSING)
    return found


def _scopes(tokens: list[Token]) -> list[str]:
    """The named function or method around each token, the innermost."""
    found, open_ = [], list[str]()
    pending = ""
    for at, token in enumerate(tokens):
        found.append(next((name for name in reversed(open_) if name), ""))
        if token.kind == "word" and token.text not in STATEMENTS and tokens[at + 1 : at + 2]:
            closing = _closing(tokens, at + 1) if tokens[at + 1].text == "(" else None
            if (closing is not None and tokens[closing + 1 : closing + 2] and tokens[closing + 1].text == "{") or (
                at and tokens[at - 1].text == "class"
            ):
                pending = token.text
        if token.kind == "sign" and token.text == "{":
            open_.append(pending if (at and tokens[at - 1].text == ")") or tokens[at - 2].text == "class" else "")
            pending = pending if not open_[-1] else ""
        elif token.kind == "sign" and token.text == "}" and open_:
            open_.pop()
    return found
