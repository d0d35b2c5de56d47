"""The files that pages are made of, and the head that they share: one content policy, one style, one script."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template


def filled(name: str, **parts: str) -> str:
    """A template with its parts in place; what is text must be escaped already."""
    return Template(_read(name)).substitute(parts)


def head(title: str) -> str:
    """Everything before the body. Only our own script may run: the policy names it by its hash."""
    style, script = _read("style.css"), _read("script.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return filled("head.html", title=escape(title), style=style, script=script, script_hash=digest)


def _read(name: str) -> str:
    return files("joma.report").joinpath("template", name).read_text(encoding="utf-8")
