"""The notebook host: runs, scans and results as widgets, in Jupyter, marimo and whatever else knows anywidget."""

from functools import cache
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

from joma.claims.execute import Result
from joma.host.errors import BadInput, JomaError
from joma.host.extras import how_to_install
from joma.runs import Run
from joma.scan.result.curves import Scan
from joma.view.claims import claim_of
from joma.view.feed import Feed
from joma.view.module import module, style

_MOST_FOLLOWED = 4  # series of one widget that grow by themselves


class _ResultFeed(Feed):
    """The run of a result, with its findings."""

    def __init__(self, result: Result) -> None:
        super().__init__([result.run] if result.run else [])
        self._result = result

    def claims(self) -> list[dict[str, Any]]:
        size = "paper" if self._result.command.endswith(" paper") else "quick"
        return [claim_of(finding, size) for finding in self._result.findings]


def feed_of(thing: Run | Scan | Result) -> Feed | None:
    """What a widget of it shows; None where it has no record."""
    if isinstance(thing, Result):
        return _ResultFeed(thing)
    path = thing.path if isinstance(thing, Run) else thing.run
    return None if path is None or not Path(path).exists() else Feed([Path(path)])


def widget(thing: Run | Scan | Result, *, every: float = 1.0) -> Any:
    """A widget of a run, a scan or a result; it needs anywidget, the extra `notebook`.

    thing: what it shows. every: seconds between two looks at a run that is being written. New steps come by
    themselves, also while a cell of the same notebook trains.
    """
    feed = feed_of(thing)
    if feed is None:
        raise BadInput("this scan has no run that a widget could read; plot() draws it")
    screen = "claims" if isinstance(thing, Result) else "curves"
    made = _widget_class()(feed, screen)
    if is_written(made.index):
        Thread(target=_follow, args=(made, every), daemon=True).start()
    return made


def is_written(index: dict[str, Any]) -> bool:
    """Whether any run of an index is being written."""
    return any(run.get("state") == "being written" for run in index["runs"])


def _follow(shown: Any, every: float) -> None:
    """Tell a widget what is new, until nobody writes or it is closed. In a thread: the kernel may be busy training, and
    answers no questions then.
    """
    going = True
    while going:
        sleep(every)
        going = shown.comm is not None and is_written(shown.look())


def bundle(thing: Any, **given: Any) -> Any:
    """What a notebook shows of it: a widget, or words where there can be none."""
    try:
        shown = widget(thing)
    except (ImportError, JomaError):
        return {"text/plain": repr(thing)}
    return shown._repr_mimebundle_(**given)


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise ImportError(f"a widget needs anywidget: {how_to_install('notebook')}") from None

    class Viewer(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
        _esm = module()
        _css = style()
        index = traitlets.Dict().tag(sync=True)
        screen = traitlets.Unicode().tag(sync=True)
        address = traitlets.Bool(False).tag(sync=True)  # the page's address is the notebook's, not ours

        def __init__(self, feed: Feed, screen: str) -> None:
            super().__init__(index=feed.index(), screen=screen)
            self._feed = feed
            self._shown: dict[tuple[Any, ...], int] = {}  # what the page was sent: its cursor
            self.on_msg(self._asked)

        def _asked(self, _: Any, question: dict[str, Any], __: Any) -> None:
            head, buffers = answered(self._feed, question)
            self._note(question, head)
            self.send({**head, "id": question.get("id")}, buffers)

        def _note(self, question: dict[str, Any], head: dict[str, Any]) -> None:
            if "cursor" in head and "low" not in question:
                key = (head["run"], head["series"], tuple(head["means"]))
                known = self._shown.pop(key, 0)
                self._shown[key] = max(head["cursor"], known)
                while len(self._shown) > _MOST_FOLLOWED:  # what was asked for last is what is seen
                    self._shown.pop(next(iter(self._shown)))

        def look(self) -> dict[str, Any]:
            """Look at the runs once, and tell the page what is new: rows first, so that it need not ask for them."""
            index = self._feed.index()
            if index != self.index:
                for (run, series, means), cursor in list(self._shown.items()):
                    question = {"ask": "after", "run": run, "series": series, "cursor": cursor, "means": means}
                    head, buffers = answered(self._feed, question)
                    if head.get("cursor", cursor) > cursor:
                        self._shown[run, series, means] = head["cursor"]
                        self.send({**head, "pushed": True}, buffers)
                self.index = index
            return index

    return Viewer


def answered(feed: Feed, question: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """What a widget gets for a question: words, and numbers beside them. What goes wrong is one sentence."""
    try:
        found = feed.answer(question.get("ask", "series"), question, question.get("means", ()))
    except (JomaError, OSError) as error:
        return {"fault": str(error)}, []
    except (KeyError, TypeError, ValueError):
        return {"fault": "this is not a question that the page asks"}, []
    return (found, []) if isinstance(found, dict) else (found.head, found.buffers)
