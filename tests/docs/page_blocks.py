"""The pages of the manual and their code blocks: what runs, what does not and why, what is printed."""

import importlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
ELSEWHERE = "a test runs it in a copy of the checkout"
REASONS = (
    ELSEWHERE,
    "needs a GPU",
    "needs a cluster",
    "needs the network",
    "needs data",
    "needs your own files",
    "takes minutes",
    "changes the checkout",
    "an outline",
)
"""Why a block may stay unrun; it is still compiled, or its commands parsed."""
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
LAST_DIGITS = "<!-- last digits may differ -->"
GOES_ON = "<!-- goes on from above -->"


@dataclass(frozen=True)
class Block:
    """A code block, with what the page says of it."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None
    expected: str | None = None
    loose: bool = False
    section: int = 0

    def __str__(self):
        return f"{self.page}:{self.line}"


def pages():
    """README and every page of the manual, by path from the root."""
    written = (path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in written)]


def front_pages():
    """What lies beside README: for who contributes, reports a fault, or looks for what changed."""
    return sorted(path.name for path in ROOT.glob("*.md") if path.name != "README.md")


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def built(page):
    """The text with the tables that its scripts print, as the manual shows it."""
    with mock.patch.object(sys, "path", [str(ROOT / "docs" / "_ext"), *sys.path]):
        return importlib.import_module("printed").expanded(text_of(page))


def blocks(page):
    """The Python and console blocks of a page in order, each with the output that follows it."""
    found, section, lines = [], 0, text_of(page).splitlines()
    at = 0
    while at < len(lines):
        if re.match(r"#+ ", lines[at]) and GOES_ON not in _near(lines[at + 1 : at + 3]):
            section += 1
        fence = re.match(r"\s*(`{3,}|~{3,})(.*)", lines[at])
        if not fence:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip().startswith(fence[1]))
        above = _near(lines[max(0, at - 2) : at][::-1])
        body = "\n".join(lines[at + 1 : end])
        _take(found, Block(page, at + 2, fence[2].strip(), body, section=section), above, _only_space(lines, found, at))
        at = end + 1
        if found:
            found[-1] = (found[-1][0], end)
    return [block for block, _ in found if block.language in ("python", "console")]


def _near(lines):
    """The nearest line that is not empty."""
    return next((line.strip() for line in lines if line.strip()), "")


def _only_space(lines, found, at):
    """Whether nothing but space and comments stands between the last block and line `at`."""
    if not found:
        return False
    between = "\n".join(lines[found[-1][1] + 1 : at])
    return not re.sub(r"<!--.*?-->", "", between).strip()


def _take(found, block, above, follows):
    if block.language == "text" and follows:
        before, end = found[-1]
        found[-1] = (Block(**{**vars(before), "expected": block.text, "loose": above == LAST_DIGITS}), end)
        return
    reason = NOT_RUN.fullmatch(above)
    found.append((Block(**{**vars(block), "reason": reason[1] if reason else None}), 0))


def commands(block):
    """The commands of a console block: the lines after `$ `, with the lines that they go on to, without comments."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [re.sub(r"\s+# .*", "", line[2:]) for line in joined.splitlines() if line.startswith("$ ")]
