"""A page with its data inside: one file that works offline, thinned to a size that is said on it."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from math import prod
from pathlib import Path
from string import Template
from typing import Any

import joma
from joma.host.errors import BadInput
from joma.host.file_kinds import PAGE
from joma.host.files import named_file, write_text
from joma.host.words import counted
from joma.runs import RunError
from joma.view.feed import POINTS, Feed
from joma.view.module import module, static, style

MEGABYTES = 16.0
"""Of numbers in a page, unless asked otherwise."""
_LEAST, _FAIR = 16, 200  # points of a curve that still show its course, and that show it well
_BYTES = 4 * 4 / 3  # of a number: four bytes, as letters


def write_page(feed: Feed, path: Path, *, megabytes: float = MEGABYTES, made: datetime | None = None) -> str:
    """Write a page, whole or not at all; returns a sentence on how far its curves were thinned.

    feed: what the page shows. megabytes: of numbers inside it, at most. made: the date it carries, else now.
    """
    if not megabytes > 0:
        raise BadInput(f"megabytes must be above 0, got {megabytes}", argument="size")
    index = feed.index()
    if not index["runs"] and not index["claims"]:
        raise BadInput(f"{', '.join(map(str, feed.paths))} has no run and no findings to show")
    size = _Size(index, megabytes * 1e6)
    when = made or datetime.now().astimezone()
    data = {
        "index": {"runs": [_as_copy(run) for run in index["runs"]], "claims": index["claims"]},
        "series": {run["id"]: dict(_series(feed, run, size)) for run in index["runs"]},
        "claims": feed.claims() if index["claims"] else [],
        "figures": dict(_figures(feed, index)) if index["claims"] else {},
        "titles": feed.titles(),
        "about": f"{size.sentence} Made by joma {joma.__version__} on {when.day} {when:%B %Y}.",
    }
    write_text(named_file(path), _page(data, ", ".join(each.name or str(each) for each in feed.paths)), PAGE)
    return size.sentence


class _Size:
    """How many points of each curve fit, which arrays are too large at any number of points, and how to say it."""

    def __init__(self, index: dict[str, Any], most: float) -> None:
        shapes = {
            (run["id"], each["name"]): (each["steps"], prod(dim["size"] for dim in each["dims"]))
            for run in index["runs"]
            for each in _listed(run)
        }
        self.left_out: set[tuple[str, str]] = set()
        while _bytes(shapes.values(), _FAIR) > most:  # arrays of one step cannot be thinned: the largest go
            fixed = [key for key, one in shapes.items() if one[0] <= _LEAST and _bytes([one], _LEAST) >= most / 100]
            if not fixed and _bytes(shapes.values(), _LEAST) <= most:
                break
            largest = max(fixed or shapes, key=lambda key: min(shapes[key][0], _LEAST) * shapes[key][1])
            self.left_out.add(largest)
            del shapes[largest]
        longest = max((steps for steps, _ in shapes.values()), default=0)
        self.points = max(min(longest, POINTS), _LEAST)
        while self.points > _LEAST and _bytes(shapes.values(), self.points) > most:
            self.points = max(int(self.points * 0.9), _LEAST)
        self.sentence = self._sentence(counted(len(index["runs"]), "run"), longest)

    def _sentence(self, runs: str, longest: int) -> str:
        gone = len(self.left_out)
        left = f" {counted(gone, 'large array')} {'is' if gone == 1 else 'are'} left out." if gone else ""
        if longest <= self.points:
            return f"{'All' if not gone else 'The'} numbers of {runs} are inside.{left}"
        kept = "of each stretch the smallest and the largest number, so spikes stay"
        return f"{runs}; curves are thinned to at most {self.points:,} of up to {longest:,} steps, {kept}.{left}"


def _bytes(shapes: Iterable[tuple[int, int]], points: int) -> float:
    return sum(min(steps, points) * curves for steps, curves in shapes) * _BYTES


def _listed(run: dict[str, Any]) -> list[dict[str, Any]]:
    return run.get("series", [])  # type: ignore[no-any-return]


def _as_copy(run: dict[str, Any]) -> dict[str, Any]:
    """A page is a copy: nobody writes it."""
    return {**run, "state": "was being written"} if run.get("state") == "being written" else run


def _series(feed: Feed, run: dict[str, Any], size: _Size) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in _listed(run):
        if (run["id"], each["name"]) in size.left_out:
            yield each["name"], {"fault": f"{each['name']} is too large for this page; it is in the run"}
            continue
        try:
            yield each["name"], _both(feed, run["id"], each["name"], size.points)
        except RunError as error:  # its steps have different shapes, or one is damaged
            yield each["name"], {"fault": str(error)}


def _figures(feed: Feed, index: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for run in index["runs"]:
        if run.get("status") == "finished":
            try:
                yield run["id"], {"figures": feed.figures(run["id"])}
            except RunError as error:
                yield run["id"], {"fault": str(error)}


def _both(feed: Feed, run: str, name: str, points: int) -> dict[str, Any]:
    """A series as it is; one that is thinned twice: the extremes of each curve, and whole steps."""
    found = feed.series(run, name, points=points)
    if not found.head["thinned"]:
        return found.as_text()
    half = max(points // 2, 4)
    whole = feed.series(run, name, points=half, whole=True)
    return {**feed.series(run, name, points=half).as_text(), "whole": whole.as_text()}


def _page(data: dict[str, Any], name: str) -> str:
    script = module("file_host.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    inside = json.dumps(data, allow_nan=False).replace("<", "\\u003c")  # no name can end the element
    title = f"joma view: {name}".replace("&", "&amp;").replace("<", "&lt;")
    return Template(static("page.html")).substitute(
        script_hash=digest, title=title, style=style(), data=inside, script=script
    )
