"""Reading from the hub: what is asked for, and how long a connection that breaks is given."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from joma.host import hub, limits


class Broken(Exception):
    """The connection broke."""


@pytest.fixture
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr(hub, "time", SimpleNamespace(sleep=slept.append))  # its own: other threads sleep as ever
    monkeypatch.setattr(hub, "transport_errors", lambda: (Broken,))
    return slept


def read(size, *come):
    """Read `size` bytes that come so many at a time; None: the connection breaks before any."""
    have, left = [0], list(come)

    def read_on():
        more = left.pop(0)
        have[0] += more or 0
        if more is None:
            raise Broken(f"{len(left)} are left")

    hub.read_all(size, lambda: have[0], read_on)
    return have[0], left


def test_a_broken_connection_goes_on_and_waits_longer_each_time_without_a_byte(pauses):
    assert read(10, 10, 99) == (10, [99])
    assert pauses == []
    assert read(10, 4, None, None, 1, None, 5, 99) == (10, [99])
    assert pauses == [hub.PAUSE * times for times in (1, 2, 4, 1, 2)]  # a byte, and it counts anew


def test_after_five_times_in_a_row_without_a_byte_it_is_given_up(pauses):
    assert hub.TRIES == 5
    with pytest.raises(Broken, match=r"^0 are left$"):
        read(10, None, None, None, None, 3, *[None] * 5)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    with pytest.raises(ConnectionError, match=r"^the hub sent nothing$"):
        read(10, *[0] * 5)


class Hub:
    """Pages by address: (content, the next address or None)."""

    def __init__(self, **pages):
        self.pages, self.asked = {f"https://a/{name}": page for name, page in pages.items()}, []

    def hf_raise_for_status(self, response):
        assert response.fine

    @contextmanager
    def http_stream_backoff(self, method, url, *, headers, timeout, **how):
        self.asked.append((method, url, headers, how))
        content, after = self.pages.get(url, (b"", None))
        pieces = [content[at : at + 4] for at in range(0, len(content), 4)]
        links = {"next": {"url": after}} if after else {}
        yield SimpleNamespace(fine=True, links=links, iter_bytes=lambda: iter(pieces))


@pytest.fixture
def served(monkeypatch):
    def served(**pages):
        there = Hub(**pages)
        monkeypatch.setattr(hub, "client", lambda: there)
        return there

    return served


def pages_of(there, name="1"):
    return list(hub.listing(f"https://a/{name}", {"token": "t"}))


def test_pages_follow_one_another_on_one_host(served, monkeypatch):
    first, second = json.dumps([1, 2, 3]).encode(), json.dumps({"b": "é漢"}).encode()
    there = served(**{"1": (first, "https://a/2"), "2": (second, "https://a/1")})
    assert pages_of(there) == [[1, 2, 3], {"b": "é漢"}]  # and no page twice
    assert [(url, headers) for _, url, headers, _ in there.asked] == [
        ("https://a/1", {"token": "t"}), ("https://a/2", {"token": "t"})
    ]  # fmt: skip
    monkeypatch.setattr(limits, "LISTING_PAGES", 2)
    assert len(pages_of(there)) == 2
    for elsewhere in ("https://b/2", "http://a/2"):
        there = served(**{"1": (first, elsewhere)})
        with pytest.raises(hub.StrangeAnswer, match=r"^the hub leads from a to '[ab]', which is not followed$"):
            pages_of(there)
        assert len(there.asked) == 1


def test_listings_have_limits(served, monkeypatch):
    there = served(**{"1": (b"[1, 2]", "https://a/2"), "2": (b"[3]", "https://a/3"), "3": (b"{", None)})
    with pytest.raises(hub.StrangeAnswer, match=r"^the hub answered something that is no JSON$"):
        pages_of(there, "3")
    monkeypatch.setattr(limits, "LISTING_BYTES", 6)
    assert next(hub.listing("https://a/1", {})) == [1, 2]
    monkeypatch.setattr(limits, "LISTING_BYTES", 5)
    with pytest.raises(hub.StrangeAnswer, match=r"^the hub lists more than 5 bytes on one page$"):
        pages_of(there)
    monkeypatch.setattr(limits, "LISTING_BYTES", 100)
    monkeypatch.setattr(limits, "LISTING_PAGES", 2)
    with pytest.raises(hub.StrangeAnswer, match=r"^the hub lists more than 2 pages$"):
        pages_of(there)
    now = [50.0]
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: now.append(now[-1] + 10) or now[-1]))
    monkeypatch.setattr(limits, "LISTING_SECONDS", 20.0)
    assert next(hub.listing("https://a/1", {})) == [1, 2]  # two pieces, 20 seconds after the beginning
    monkeypatch.setattr(limits, "LISTING_SECONDS", 19.0)
    with pytest.raises(hub.StrangeAnswer, match=r"^the hub took more than 19 s for one page$"):
        pages_of(there)


def test_a_range_of_bytes_is_asked_for_as_it_lies_in_the_file(served):
    there = served()
    for stop, asked in ((20, "bytes=7-19"), (None, "bytes=7-")):
        with hub.byte_range("https://a/x", {"token": "t"}, 7, stop):
            pass
        method, url, headers, how = there.asked.pop()
        assert (method, url) == ("GET", "https://a/x")
        assert headers == {"token": "t", "accept-encoding": "identity", "range": asked}
        assert how == {"base_wait_time": hub.PAUSE, "retry_on_exceptions": ()}
