"""Who may ask the live server, and what it answers: no other site, no other name, no token, nothing but reading."""

import asyncio
import http.client
import json
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from view.making import grid, heads
from view.serving import serving

from joma.runs import Run
from joma.view.feed import Feed


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live") / "runs"  # its parent is of this fixture alone, set up twice or not
    folder.mkdir()
    heads(folder / "a.joma", 20)
    heads(folder.parent / "outside.joma", 20)
    with serving(Feed([folder])) as (address, _):
        yield address


def asked(address, path="", *, method="GET", **headers):
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    connection.putrequest(method, parts.path + path if not path.startswith("/") else path, skip_host=True)
    for name, value in {"Host": parts.netloc, **headers}.items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    found = (answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
    connection.close()
    return found


def test_the_page_and_its_policy(live):
    status, headers, body = asked(live)
    assert status == 200
    assert b"<title>joma view</title>" in body
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    for part, kind in (("module.js", "text/javascript"), ("style.css", "text/css")):
        status, headers, body = asked(live, part)
        assert status == 200
        assert headers["content-type"].startswith(kind)


def test_numbers_come_as_bytes(live):
    status, _, body = asked(live, "series?run=a.joma&series=entropy")
    assert status == 200
    length = int.from_bytes(body[:8], "little")
    head = json.loads(body[8 : 8 + length])
    steps = np.frombuffer(body, "<f8", 20, 8 + length)
    values = np.frombuffer(body, "<f4", offset=8 + length + 160).reshape(head["shape"])
    np.testing.assert_array_equal(steps, np.arange(20))
    np.testing.assert_array_equal(values, np.stack([grid(step) for step in range(20)]))
    means = asked(live, "series?run=a.joma&series=entropy&means=head&means=layer&points=8")[2]
    head = json.loads(means[8 : 8 + int.from_bytes(means[:8], "little")])
    assert head["shape"] == [8]
    assert head["means"] == ["head", "layer"]
    body = asked(live, "after?run=a.joma&series=entropy&cursor=18&means=head")[2]
    length = int.from_bytes(body[:8], "little")
    values = np.frombuffer(body, "<f4", offset=8 + length + 16).reshape(2, 4)
    np.testing.assert_allclose(values, np.stack([grid(step).mean(1) for step in (18, 19)]))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Host": "evil.example"}, "its own address"),
        ({"Host": "evil.example:80"}, "its own address"),
        ({"Host": None}, ""),
        ({"Host": "127.0.0.1"}, "its own address"),
        ({"Origin": "https://evil.example"}, "its own page"),
        ({"Origin": "null"}, "its own page"),
        ({"Origin": "http://127.0.0.1:1"}, "its own page"),
        ({"Sec_Fetch_Site": "cross-site"}, "its own page"),
        ({"Sec_Fetch_Site": "same-site"}, "its own page"),
    ],
)
@pytest.mark.parametrize("path", ["", "events", "series?run=a.joma&series=entropy"])
def test_others_are_refused(live, headers, why, path):
    status, answered, body = asked(live, path, **headers)
    assert status in (400, 403)
    assert why.encode() in body
    assert b"a.joma" not in body
    assert status == 400 or "default-src 'none'" in answered["content-security-policy"]


OURS = "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ([], 200),
        ([("origin", f"http://{OURS}")], 200),
        ([("origin", f"http://{OURS}"), ("origin", "https://evil.example")], 403),
        ([("origin", "https://evil.example"), ("origin", f"http://{OURS}")], 403),
        ([("host", "evil.example")], 403),
        ([("host", OURS)], 403),
        ([("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], 403),
    ],
)
def test_a_header_that_is_given_twice_lets_nobody_in(given, status):
    """Some servers join them, some take the first and some the last. `given` comes behind our own Host."""
    pytest.importorskip("starlette")
    from starlette.responses import PlainTextResponse

    from joma.view.server import Guard

    told = []

    async def send(message):
        told.append(message)

    headers = [(name.encode(), value.encode()) for name, value in [("host", OURS), *given]]
    guard = Guard(PlainTextResponse("inside"), frozenset({OURS}))
    asyncio.run(guard({"type": "http", "method": "GET", "headers": headers}, None, send))
    assert told[0]["status"] == status
    assert (told[1]["body"] == b"inside") == (status == 200)


def test_it_listens_on_this_machine_alone_and_each_time_under_another_token(monkeypatch):
    uvicorn = pytest.importorskip("uvicorn")
    from joma.view.server import serve

    heard, told = [], []

    def run(server, sockets):
        for each in sockets:
            heard.append(each.getsockname())
            each.close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    for _ in range(2):
        serve(Feed([]), ready=told.append)
    assert [urlsplit(address).netloc for address in told] == [f"127.0.0.1:{port}" for _, port in heard]
    assert {host for host, _ in heard} == {"127.0.0.1"}
    tokens = {urlsplit(address).path.strip("/") for address in told}
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 32


def test_nobody_gets_more_points_at_a_time_than_there_may_be(live, monkeypatch):
    monkeypatch.setattr("joma.view.feed._MOST_POINTS", 8)
    body = asked(live, "series?run=a.joma&series=entropy&points=1000000")[2]
    head = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    assert head["shape"] == [8, 4, 3]
    assert head["thinned"]


def test_our_own_page_is_let_in(live):
    netloc = urlsplit(live).netloc
    origin = f"http://{netloc}"
    assert asked(live, "titles", Origin=origin, Sec_Fetch_Site="same-origin")[0] == 200
    assert asked(live, Sec_Fetch_Site="none")[0] == 200
    assert asked(live, Host=netloc.replace("127.0.0.1", "localhost"))[0] == 200


@pytest.mark.parametrize("path", ["/", "/secre/", "/secret2/", "/series?run=a.joma&series=entropy", "/module.js", "//"])
def test_without_the_token_there_is_nothing(live, path):
    status, _, body = asked(live, path)
    assert status == 404
    assert b"joma view" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_reads(live, method):
    assert asked(live, "series?run=a.joma&series=entropy", method=method)[0] == 403


@pytest.mark.parametrize(
    "run", ["../outside.joma", "..%2Foutside.joma", "/etc/passwd", "a.joma/../../outside.joma", "outside.joma", "%00"]
)
def test_paths_outside_of_the_folders_are_not_there(live, run):
    status, _, body = asked(live, f"series?run={quote(run)}&series=entropy")
    assert status == 404
    assert b"there is no run" in body
    for path in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "static/view.js"):
        assert asked(live, path)[0] == 404


@pytest.mark.parametrize(
    "words", ["", "run=a.joma", "run=a.joma&series=entropy&points=many", "run=a.joma&series=entropy&low=x"]
)
def test_nonsense_is_one_sentence(live, words):
    status, _, body = asked(live, f"series?{words}")
    assert status == 400
    assert json.loads(body) == {"fault": "this is not a question that the page asks"}


def test_events_tell_runs_once_and_then_what_changed(tmp_path):
    heads(tmp_path / "still.joma", 3)
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
        with serving(Feed([tmp_path]), every=0.02) as (address, _):
            parts = urlsplit(address)
            connection = http.client.HTTPConnection(parts.hostname, parts.port)
            connection.request("GET", f"{parts.path}events")
            answer = connection.getresponse()
            assert answer.getheader("content-type").startswith("text/event-stream")

            def event():
                assert answer.readline() == b"event: runs\n"
                data = json.loads(answer.readline().removeprefix(b"data: "))
                answer.readline()
                return data

            first = event()
            assert {one["id"] for one in first["runs"]} == {"still.joma", "a.joma"}
            run.append("loss", 1, 2.0)
            second = event()
            assert second["runs"] == []  # what was told is not told again
            (change,) = second["changes"]
            assert change["id"] == "a.joma"
            assert change["series"]["loss"]["last"] == 1
            assert set(change["now"]) <= {"written", "last"}
            assert set(second["order"]) == {"still.joma", "a.joma"}
            connection.close()


QUESTIONS = [
    f"after?run=a.joma&series=entropy&cursor={'9' * 30}", "after?run=a.joma&series=entropy&cursor=-1" + "0" * 30,
    f"after?run=a.joma&series=entropy&cursor={'9' * 5000}", "after?run=a.joma&series=entropy&cursor=x",
    f"series?run=a.joma&series=entropy&points={'9' * 30}", "series?run=a.joma&series=entropy&points=-7",
    "series?run=a.joma&series=entropy&points=0", "series?run=a.joma&series=entropy&low=nan&high=nan",
    "series?run=a.joma&series=entropy&low=inf&high=-inf", f"series?run=a.joma&series=entropy&low={'9' * 400}",
    "series?run=a.joma&series=%00&means=%ff", "figures", "figures?run=", "after", "series?run=a.joma",
]  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_is_a_fault_of_the_server(live, question):
    assert asked(live, question)[0] in (200, 400, 404)


@pytest.mark.parametrize("path", ["", "events", "series?run=a.joma&series=entropy"])
def test_a_request_for_a_websocket_is_none(live, path):
    upgrade = {"Upgrade": "websocket", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    headers = {name.replace("_", "-"): value for name, value in upgrade.items()}
    status, _, body = asked(live, path, Connection="Upgrade", Origin="https://evil.example", **headers)
    assert (status, b"its own page" in body) == (403, True)


def test_who_is_told_the_address_can_connect_at_once():
    """Before the server runs: the connection waits for it."""
    pytest.importorskip("uvicorn")
    import socket

    from joma.view.server import _bound

    with _bound(0) as bound, socket.create_connection(bound.getsockname(), timeout=600):
        pass


def test_a_link_out_of_the_folder_is_named_and_not_served(tmp_path):
    """Of a run, of a folder of runs, of findings; a link that stays inside is a run like others."""
    folder, outside = tmp_path / "runs", tmp_path / "runs-of-mine"
    folder.mkdir()
    heads(folder / "a.joma", 20)
    heads(outside / "secret.joma", 20)
    (outside / "findings.json").write_text('{"findings": "hush"}')
    (folder / "inside.joma").symlink_to("a.joma")
    (folder / "out.joma").symlink_to(outside / "secret.joma")
    (folder / "findings.json").symlink_to(outside / "findings.json")
    feed = Feed([folder])
    runs = {run["id"]: run.get("fault") for run in feed.index()["runs"]}
    assert (runs["a.joma"], runs["inside.joma"]) == (None, None)
    assert "leads out of" in runs["out.joma"]
    with serving(feed) as (address, _):
        for question in ("series?run=out.joma&series=entropy", "figures?run=out.joma", "claims"):
            answer = asked(address, question)[2]
            assert b"leads out of" in answer
            assert b"hush" not in answer
    (folder / "a.joma").unlink()  # a run that was fine a moment ago
    (folder / "a.joma").symlink_to(outside / "secret.joma")
    assert "leads out of" in {run["id"]: run.get("fault") for run in feed.index()["runs"]}["a.joma"]
    (folder / "kept").symlink_to(outside)
    for other in folder.glob("*.joma"):
        other.unlink()
    (only,) = feed.index()["runs"]
    assert (only["id"], "leads out of" in only["fault"]) == ("kept/secret.joma", True)
    assert "fault" not in Feed([outside / "secret.joma"]).index()["runs"][0]  # it was named itself
