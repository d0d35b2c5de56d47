"""Finished files go to an object store whole, once, and without a word of credentials; against moto's S3 server."""

import hashlib
import json
import os
import sys
import urllib.request

import pytest
from in_process import joma

from joma.host import stores
from joma.host.stores import StoreError
from joma.runs import Run
from joma.scale.upload import _explained, must_be_reachable, upload

boto3, obstore = pytest.importorskip("boto3"), pytest.importorskip("obstore")
ThreadedMotoServer = pytest.importorskip("moto.server").ThreadedMotoServer
pytestmark = pytest.mark.usefixtures("drawn_once")
SECRETS = ("AKIAHUSHHUSHHUSH", "hush-the-secret", "hush-the-token")
FILES = {"report.html": b"<p>hello", "findings.json": b"{}", "runs/a.sqlite": b"a" * 1000, "runs/b.sqlite": b"b" * 2000}


@pytest.fixture(scope="module")
def server():
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """An empty bucket, and an environment that leads to it."""
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST")).close()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name, secret in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), SECRETS, strict=True):
        monkeypatch.setenv(name, secret)
    monkeypatch.setattr(stores, "TRIES", 2)
    monkeypatch.setattr(stores, "PAUSE", 0.01)
    urllib.request.urlopen(urllib.request.Request(f"{server}/bucket", method="PUT")).close()
    return "s3://bucket/runs/a"


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "out"


@pytest.fixture
def sent(monkeypatch):
    keys, put = [], obstore.put

    def counting(store, key, *arguments, **named):
        keys.append(key)
        return put(store, key, *arguments, **named)

    monkeypatch.setattr(obstore, "put", counting)
    return keys


def read(server, key: str) -> tuple[bytes, dict]:
    found = boto3.client("s3", endpoint_url=server).get_object(Bucket="bucket", Key=key)
    return found["Body"].read(), found["ResponseMetadata"]["HTTPHeaders"]


def test_every_file_is_there_as_it_is_here(server, bucket, folder):
    done = upload(folder, bucket)
    assert sorted(done.sent) == sorted(FILES)
    assert not done.there
    for name, content in FILES.items():
        found, head = read(server, f"runs/a/{name}")
        assert found == content
        assert head["x-amz-meta-sha256"] == hashlib.sha256(content).hexdigest()
    assert read(server, "runs/a/report.html")[1]["content-type"] == "text/html"


def test_what_speaks_of_runs_comes_after_them(bucket, folder, sent):
    upload(folder, bucket)
    assert sent == ["runs/a/runs/a.sqlite", "runs/a/runs/b.sqlite", "runs/a/findings.json", "runs/a/report.html"]


def test_what_is_there_is_not_sent_again_and_what_changed_is(server, bucket, folder, sent):
    upload(folder, bucket)
    sent.clear()
    done = upload(folder, bucket)
    assert not sent
    assert sorted(done.there) == sorted(FILES)
    assert str(done) == "0 files sent, 4 were there already"
    (folder / "runs" / "b.sqlite").write_bytes(b"c" * 2000)  # of the same size
    assert upload(folder, bucket).sent == ["runs/b.sqlite"]
    assert read(server, "runs/a/runs/b.sqlite")[0] == b"c" * 2000
    assert sent == ["runs/a/runs/b.sqlite"]


def test_an_object_of_somebody_else_is_replaced(server, bucket, folder):
    urllib.request.urlopen(
        urllib.request.Request(f"{server}/bucket/runs/a/findings.json", data=b"{}", method="PUT")
    ).close()  # the same content, but nobody says so
    assert "findings.json" in upload(folder, bucket).sent
    assert "findings.json" in upload(folder, bucket).there


def test_an_upload_that_was_cut_off_goes_on(bucket, folder, sent, monkeypatch):
    counting, count = obstore.put, 0

    def breaking(*arguments, **named):
        nonlocal count
        count += 1
        if count == 3:
            raise obstore.exceptions.GenericError(f"x-amz-security-token: {SECRETS[2]}")
        return counting(*arguments, **named)

    monkeypatch.setattr(obstore, "put", breaking)
    with pytest.raises(StoreError) as error:
        upload(folder, bucket)
    failed = "could not be written: the store or the connection failed (GenericError)"
    assert str(error.value) == f"s3://bucket/runs/a {failed}"
    assert len(sent) == 2
    done = upload(folder, bucket)
    assert (len(done.there), len(done.sent)) == (2, 2)


def test_a_large_file_goes_in_parts_and_is_known_again(server, bucket, tmp_path):
    content = os.urandom(2**20) * 12
    (tmp_path / "large.bin").write_bytes(content)
    assert upload(tmp_path, bucket).sent == ["large.bin"]
    found, head = read(server, "runs/a/large.bin")
    assert found == content
    assert "-" in head["etag"]  # it went in parts: its tag is no digest of its content
    assert upload(tmp_path, bucket).there == ["large.bin"]


def test_what_is_not_finished_is_not_sent(bucket, folder):
    for name in ("runs/.c.sqlite.1-0.new", "runs/c.sqlite.lock", "runs/c.sqlite-net.checkpoint", "runs/c.step1.kept",
                 "joma-downloads/o--m/model.safetensors", ".hidden/a"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "link.html").symlink_to("/etc/passwd")
    with Run.create(folder / "runs" / "d.sqlite", study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
        done = upload(folder, bucket)
        assert sorted(done.sent) == sorted(FILES)
        assert done.unfinished == ["runs/d.sqlite"]
        assert "runs/d.sqlite not, because a process still writes it" in str(done)
    assert upload(folder, bucket).sent == ["runs/d.sqlite"]


@pytest.mark.parametrize("beside", ["-wal", "-journal"])
def test_a_run_whose_process_was_killed_is_not_sent(bucket, folder, beside):
    """Its last rows are in the file beside it, and nobody has it open any more."""
    (folder / "runs" / f"a.sqlite{beside}").write_bytes(b"x")
    done = upload(folder, bucket)
    assert done.unfinished == ["runs/a.sqlite"]
    assert sorted(done.sent) == sorted(set(FILES) - {"runs/a.sqlite"})
    assert str(done).endswith("runs/a.sqlite not, because a process still writes it or was killed")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://nowhere/a", "there is no s3://nowhere"),
        ("https://host/a", "https:// is not a store that takes files"),
        ("ftp://host/a", "ftp:// is not a store"),
        (f"s3://{SECRETS[0]}:{SECRETS[1]}@bucket/a", "put credentials into the environment"),
        (f"s3://bucket/a?token={SECRETS[2]}", "put credentials into the environment"),
    ],
)
def test_a_wrong_address_is_refused_before_the_work(bucket, tmp_path, address, said):
    with pytest.raises(StoreError) as error:
        must_be_reachable(address)
    assert said in str(error.value)
    done = joma("verify", "thm5", "--out", address, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not any(secret in done.stderr + done.stdout for secret in SECRETS)
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_gone_is_one_sentence(bucket, folder, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="could not be written: the store or the connection failed"):
        upload(folder, bucket)


@pytest.mark.parametrize(("kind", "text", "words"), [
    ("NotFoundError", "", "cannot be written: there is no s3://bucket"),
    ("FileNotFoundError", "", "cannot be written: there is no s3://bucket"),
    ("GenericError", "status code: 404, hush", "cannot be written: there is no s3://bucket"),
    ("GenericError", "HTTP error: 404 Not Found, hush", "cannot be written: there is no s3://bucket"),
    ("PermissionDeniedError", "hush", "may not be written with the credentials of the environment"),
    ("UnauthenticatedError", "hush", "may not be written with the credentials of the environment"),
    ("GenericError", "500, hush", "could not be written: the store or the connection failed (GenericError)"),
])  # fmt: skip
def test_what_obstore_says_becomes_a_sentence_of_ours(kind, text, words):
    address = stores.read_address("s3://bucket/run")
    assert str(_explained(type(kind, (Exception,), {})(text), address)) == f"s3://bucket/run {words}"


def test_without_the_extra_what_is_missing_is_named(bucket, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    done = joma("verify", "thm5", "--out", bucket, cwd=tmp_path)
    assert done.returncode == 2
    assert "needs obstore: pip install" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_command_writes_here_and_sends_whole_files_there(server, bucket, tmp_path):
    done = joma("verify", "thm5", "--out", bucket, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (local,) = (tmp_path / "joma-out").iterdir()
    assert local.name.startswith("s3-bucket-runs-a-")
    names = sorted(path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file())
    assert {"findings.json", "report.html"} < set(names)
    for name in names:
        assert read(server, f"runs/a/{name}")[0] == (local / name).read_bytes()
    assert f"{bucket}: {len(names)} files sent" in done.stderr
    assert json.loads(read(server, "runs/a/findings.json")[0])["studies"][0]["name"] == "thm5"
    kept = b"".join((local / name).read_bytes() for name in names)
    assert not any(secret.encode() in kept for secret in SECRETS)
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)
    again = joma("run", "thm5", "--out", bucket, cwd=tmp_path)
    assert "cached" in again.stdout  # it went on in the same folder
    assert "there already" in again.stderr


def test_a_store_that_fails_at_the_end_costs_nothing(bucket, tmp_path, monkeypatch):
    def failing(*_, **__):
        raise obstore.exceptions.PermissionDeniedError("no")

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", failing)
        done = joma("verify", "thm5", "--out", bucket, cwd=tmp_path)
    assert done.returncode == 2
    assert "may not be written with the credentials of the environment; all of it is in joma-out/s3-" in done.stderr
    done = joma("verify", "thm5", "--out", bucket, cwd=tmp_path)
    assert done.returncode == 0
    assert "3 files sent" in done.stderr
