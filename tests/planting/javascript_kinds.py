"""Which faults can be planted in a JavaScript file: by patterns, outside comments and texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planting.kinds import Change

PASSED_OVER = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'
      |(?:(?<=[(,=:\[!&|?{};>])|(?<=return))\ ?/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*""",
    re.VERBOSE | re.DOTALL,
)
VALUE, OPERAND = r"(?<=[\w)\]])", r"(?=[\w(!-])"
TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "===": "!==", "!==": "===", "+": "-", "-": "+", "*": "/",
          "/": "*", "&&": "||", "||": "&&", "+=": "=", "!": "", "0": "1", "1": "0", "min": "max", "max": "min",
          "every": "some", "some": "every", "floor": "ceil", "ceil": "floor"}  # fmt: skip
PATTERNS = {
    "off by one": rf"{VALUE} (?P<it>[<>]=?|[-+](?= 1\b)) {OPERAND}|\.(?P<that>floor|ceil)\(",
    "sign": rf"{VALUE} (?P<it>[-+])(?! 1\b) {OPERAND}",
    "unit": rf"{VALUE} (?P<it>[*/]) {OPERAND}",
    "mask": rf"{VALUE} (?P<it>[=!]==) |(?P<that>!)(?=[\w(])",
    "accumulation": rf" (?P<it>\+=) {OPERAND}",
    "logic": r" (?P<it>&&|\|\|) ",
    "dropped clause": r"(?P<it> (?:&&|\|\|) !?[\w.]+)(?=[;)])",
    "wrong key kept": rf"{VALUE}\[(?P<it>[01])\]|\.(?P<that>min|max|every|some)\(",
    "wrong constant": r"(?<=[(,*/<>] )(?P<it>\d+(?:\.\d+)?)(?=[,;) ])",
    "check that never fires": r"\bif \((?P<it>[^()\n]+(?:\([^()\n]*\)[^()\n]*)*)\) (?:return|continue)\b",
    "stale": r"(?:^|[;{}] ?)[ ]*(?P<it>this(?:\.\w+)+) = ",
    "swapped arguments": r"(?<=[\w\]])\((?P<it>[\w.]+, [\w.]+)(?=[,)])(?![^()\n]*\) (?:\{|=>))",
}
FUNCTION = re.compile(r"function\*? (\w+)|^ +(?:async )?(\w+)\([^;\n]*\) \{$|const (\w+) = [^;\n]*=>", re.MULTILINE)
DRAWN = re.compile(r"viewBox|transform|strokeRect|fillRect|fillText|textAlign|clearRect|\b(ctx|context|canvas)\.")
"""Where pixels are put: as in Python, what is drawn is left alone."""


def changes_of_javascript(code: str) -> Iterator[Change]:
    """Every fault of our kinds that can be planted in this code. Comments, texts and pixels are left alone."""
    bare, functions = without_texts(code), list(FUNCTION.finditer(code))
    for kind, pattern in PATTERNS.items():
        for match in re.finditer(pattern, bare, re.MULTILINE):
            start, end = match.span("it" if match["it"] else "that")
            before, head = code[start:end], code[:start]
            line = code[head.rfind("\n") + 1 : (code + "\n").index("\n", start)].strip()
            around = line if len(line) < 160 else code[max(start - 60, head.rfind("\n") + 1) : end + 40].split("\n")[0]
            after = _after(kind, before)
            if after != before and not DRAWN.search(around):
                names = (next(filter(None, one.groups())) for one in reversed(functions) if one.start() < start)
                column = len(head[head.rfind("\n") + 1 :].encode())
                yield Change(head.count("\n") + 1, column, next(names, ""), kind, before, after, around.strip())


def _after(kind: str, before: str) -> str:
    """What stands in its place."""
    match kind:
        case "swapped arguments":
            return ", ".join(reversed(before.split(", ")))
        case "wrong constant":
            return "1" if before == "0" else f"{2 * float(before):g}"
        case "dropped clause":
            return ""
        case "check that never fires":
            return "false"
        case "stale":
            return "globalThis._"
    return TURNED[before]


def without_texts(code: str) -> str:
    """The code with spaces in place of comments, patterns and texts; of templates, what stands in brackets stays."""
    found, at, depths = [], 0, list[int]()
    """depths: of each template that is open, how many braces are open inside its brackets."""
    while at < len(code):
        end = at + 1
        if code[at] == "`" or (code[at] == "}" and depths and depths[-1] == 0):
            if code[at] == "}":
                depths.pop()
            part = re.compile(r"[`}](?:\\.|\$(?!\{)|[^`\\$])*(`|\$\{)", re.DOTALL).match(code, at)
            if part is None:
                raise ValueError(f"a template has no end at {at}")
            depths += [0] if part[1] != "`" else []
            end = part.end()
        elif skipped := PASSED_OVER.match(code, at):
            end = skipped.end()
        else:
            if depths and code[at] in "{}":
                depths[-1] += 1 if code[at] == "{" else -1
            found.append(code[at])
            at = end
            continue
        found.append(re.sub(r"[^\n]", " ", code[at:end]))
        at = end
    return "".join(found)
