"""What `joma watch` draws: one line per run, and a table with sparklines for those that are followed.

All text goes through rich as text, never as markup, and is cleaned: names come from files.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from joma.cli.watched import Latest, Watched, latest_alarms
from joma.cli.wrapping import columns
from joma.host.printing import clean, say
from joma.host.words import counted

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-:=+*#"  # where the encoding has no bars
_NO_WIDTH = 100_000  # columns in a pipe or a file, where every line stays whole
_MOST_RUNS, _MOST_ROWS, _MOST_ALARMS, _MOST_TABLES = 12, 24, 5, 3
_SPARKS = 30  # columns of a history
Found = Sequence[Watched]


def print_once(found: Found) -> None:
    """To standard output, in a terminal or not."""
    if columns() is not None:
        _console().print(drawn(found, time()))
        return
    plain = Console(highlight=False, width=_NO_WIDTH, color_system=None, force_terminal=False)
    with plain.capture() as text:
        plain.print(drawn(found, time()))
    for line in text.get().splitlines():
        say(line.rstrip())


@contextmanager
def live() -> Iterator[Callable[[Found], None]]:
    """Inside, what is called draws over what it drew before."""
    with Live(console=_console(), auto_refresh=False) as place:
        yield lambda found: place.update(drawn(found, time()), refresh=True)


def drawn(found: Found, now: float) -> RenderableType:
    """The list of runs, and tables of those being written; where none is, of the one that was written last."""
    seen = [each for each in found if not each.fault]
    followed = [each for each in seen if each.state == "being written"][:_MOST_TABLES] or seen[:1]
    parts: list[RenderableType] = [Text(counted(len(found), "run"))] if len(found) != 1 else []
    parts += [_line(each, now) for each in found[:_MOST_RUNS]]
    if len(found) > _MOST_RUNS:
        parts.append(Text(f"and {len(found) - _MOST_RUNS} more"))
    for each in followed:
        parts += [Text(), *_details(each, titled=len(found) > 1)]
    return Group(*parts)


def _console() -> Console:
    return Console(highlight=False, width=columns())


def _line(run: Watched, now: float) -> Text:
    entry = run.entry
    if run.fault:
        return Text(f"{clean(entry['name'])}: cannot be read: {clean(run.fault)}", style="red")
    step = "no step yet" if entry["last"] is None else f"step {entry['last']:,}"
    rate = "" if run.rate is None else f", {run.rate:.3g} steps/s"
    age = f"last written {in_time(now - entry['written'])} ago"
    return Text(clean(f"{entry['name']}: {entry['study']}, {run.state}, {step}{rate}, {age}"))


def _details(run: Watched, *, titled: bool) -> Iterator[RenderableType]:
    if titled:
        yield Text(clean(run.entry["name"]), style="bold")
    rows = run.series
    if rows:
        yield _table({name: rows[name] for name in list(rows)[:_MOST_ROWS]})
    if len(rows) > _MOST_ROWS:
        yield Text(f"and {len(rows) - _MOST_ROWS} more series; --once --json has all")
    for why in run.unread:
        yield Text(clean(why), style="red")
    if (count := run.entry["alarm_count"]) > _MOST_ALARMS:
        yield Text(f"{count} alarms, the last {_MOST_ALARMS}:", style="bold red")
    for words in latest_alarms(run, _MOST_ALARMS):
        yield Text(f"alarm: {clean(words)}", style="red")


def _table(rows: dict[str, Latest]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    lost = any(each.numbers.finite < each.numbers.count for each in rows.values())
    table.add_column("series", overflow="fold")
    for name in ("step", "min", "mean", "max", *(["no number"] if lost else [])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("history of the mean", no_wrap=True)
    for name, each in rows.items():
        three = (each.numbers.min, each.numbers.mean, each.numbers.max)
        gone = [f"{each.numbers.count - each.numbers.finite} of {each.numbers.count}"] if lost else []
        shown = ["-" if value is None else f"{value:.4g}" for value in three]
        cells = [clean(name), str(each.step), *shown, *gone, sparks([mean for _, mean in each.past])]
        table.add_row(*map(Text, cells))
    return table


def sparks(values: Sequence[float | None], encoding: str | None = None) -> str:
    """A history as bars, the smallest to the largest; a gap where there is no number.

    >>> sparks([0.0, 1.0, None, 7.0], "utf-8"), sparks([2.0, 2.0], "ascii")
    ('▁▂ █', '__')
    """
    bars = _BARS if _has_bars(encoding or getattr(sys.stdout, "encoding", None) or "ascii") else _PLAIN_BARS
    kept = [values[at * (len(values) - 1) // max(_SPARKS - 1, 1)] for at in range(_SPARKS)]
    shown = kept if len(values) > _SPARKS else values
    real = [each for each in shown if each is not None]
    low, high = min(real, default=0.0), max(real, default=0.0)
    # Halves: the span of two large numbers may be beyond the largest float.
    span = high / 2 - low / 2 or 1.0
    return "".join(" " if each is None else bars[round((each / 2 - low / 2) / span * 7)] for each in shown)


def _has_bars(encoding: str) -> bool:
    try:
        _BARS.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def in_time(seconds: float) -> str:
    """A time in its largest unit.

    >>> in_time(3.2), in_time(600), in_time(7200), in_time(200000)
    ('3 s', '10 min', '2 h', '2 days')
    """
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{max(seconds, 0) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
