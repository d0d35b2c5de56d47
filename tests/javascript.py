"""Calls functions of JavaScript files: in Node, else in a browser, else the test is skipped.

What touches no page needs no page: Node answers in a millisecond, so such tests belong to `make test`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from in_browser import CHROMIUM, launched

OLDEST = 18
CALL = """async ([name, text]) => {
  const given = JSON.parse(text, (_, value) => value === null ? NaN : value);
  const found = await (0, eval)(name)(...given);
  const endless = (value) => typeof value === "number" && Math.abs(value) === Infinity;
  const plain = (_, value) => ArrayBuffer.isView(value) ? [...value] : endless(value) ? `@${value}@` : value;
  return (JSON.stringify(found, plain) ?? "null").replace(/"@(-?Infinity)@"/g, "$1");
}"""
"""null is no number, both ways; JSON has no infinity, and Python's reader takes the word."""
ANSWER = f"""
const call = {CALL};
require("node:vm").runInThisContext(require("node:fs").readFileSync(process.argv[2], "utf8"));
require("node:readline").createInterface({{ input: process.stdin }}).on("line", async (line) => {{
  let answer;
  try {{ answer = {{ found: await call(JSON.parse(line)) }}; }} catch (error) {{ answer = {{ fault: error.stack }}; }}
  console.log(JSON.stringify(answer));
}});
"""

Call = Callable[..., Any]


@contextmanager
def running(code: str, folder: Path) -> Iterator[Call]:
    """`call(name, ...)` of what the code declares, with numbers, texts, lists and tables; promises are waited for."""
    if node() is not None:
        path = folder / "code.js"
        path.write_text(code, encoding="utf-8")
        with _in_node(path) as call:
            yield call
    elif CHROMIUM is not None:
        path = folder / "page.html"
        path.write_text(f"<script>{code}</script>", encoding="utf-8")
        with launched() as browser:
            page = browser.new_page()
            page.goto(path.as_uri())
            yield lambda name, *given: json.loads(page.evaluate(CALL, [name, _text(given)]))
    else:
        pytest.skip("neither node nor chromium is installed")


@cache
def node() -> str | None:
    """A Node that knows the language that browsers know."""
    path = shutil.which("node")
    if path is None:
        return None
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return path if version.startswith("v") and int(version[1:].split(".")[0]) >= OLDEST else None


@contextmanager
def _in_node(path: Path) -> Iterator[Call]:
    program = path.with_name("answer.cjs")
    program.write_text(ANSWER, encoding="utf-8")
    command = [str(node()), str(program), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answers = process.stdin, process.stdout

        def call(name: str, *given: Any) -> Any:
            ask.write(json.dumps([name, _text(given)]) + "\n")
            ask.flush()
            line = answers.readline()
            assert line, "the code cannot be loaded: node says why above"
            answer = json.loads(line)
            assert "fault" not in answer, answer["fault"]
            return json.loads(answer["found"])

        yield call
        ask.close()


def _text(given: tuple[Any, ...]) -> str:
    return json.dumps(given).replace("NaN", "null").replace("Infinity", "1e999")
