"""```{schema} NAME [PART]``` on a page becomes a table of keys, of a JSON Schema or of a part of it."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

from joma.host.schema import load

FENCE = re.compile(r"^```\{schema\} (\w+)(?: (\w+))?\n```$", re.MULTILINE)


def table(name: str, part: str | None) -> str:
    schema = load(name)
    form = schema["$defs"][part] if part else schema
    lacking = sorted(set(form["properties"]) - set(form["required"]))
    rows = [_row(key, key in lacking, one) for key, one in form["properties"].items()]
    rows += [
        _row(pattern.removeprefix("^") + "...", True, one) for pattern, one in form.get("patternProperties", {}).items()
    ]
    return "\n".join(["| Key | Value | Meaning |", "|---|---|---|", *rows])


def _row(key: str, optional: bool, form: dict[str, Any]) -> str:
    words = form.get("description", "").replace("|", r"\|")
    return f"| `{key}`{' (optional)' * optional} | {_kind(form)} | {words} |"


def _kind(form: dict[str, Any]) -> str:
    """What a key holds, in a word or two."""
    if "$ref" in form:
        return form["$ref"].rpartition("/")[2]
    if "anyOf" in form:
        return " or ".join(map(_kind, form["anyOf"]))
    if "const" in form or "enum" in form:
        return ", ".join(f"`{one}`" for one in (form.get("enum") or [form["const"]]))
    if form["type"] == "array":
        return f"list of {_kind(form['items'])}" if "items" in form else "list"
    if form["type"] == "object" and isinstance(form.get("additionalProperties"), dict):
        return f"{_kind(form['additionalProperties'])} by name"
    return form["type"] if isinstance(form["type"], str) else " or ".join(form["type"])


def _put(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = FENCE.sub(lambda found: table(found[1], found[2]), source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _put)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
