"""No secret of a store is recorded, shown or said; and what is said without credentials or the extra `cloud`."""

import sqlite3
import sys

import pytest
from checkpoint_series import scan
from hostile_store import hostile_server
from object_server import KEY, SECRET, environment
from stored_weights import uploaded

from joma.scan import CheckpointError, open_series


def test_no_secret_is_recorded_shown_or_said(s3, traffic, series, tmp_path, capsys, monkeypatch):
    from joma.cli.main import main

    address = uploaded(s3, series, "run")
    out = tmp_path / "out"
    out.mkdir()
    assert main(["scan", address, "--out", str(out), "--json", str(out / "curves.json")]) == 0
    traffic.busy = 10**9
    main(["scan", address, "--out", str(tmp_path / "other"), "--no-page"])
    said = "".join(capsys.readouterr())
    assert "status 503" in said
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert address.encode() in written
    for secret in (KEY, SECRET):
        assert secret not in said
        assert secret.encode() not in written
    (run,) = (out / "runs").glob("*.sqlite")
    with sqlite3.connect(run) as connection:
        rows = "".join(map(str, connection.iterdump()))
    connection.close()
    assert SECRET not in rows


def test_an_address_with_a_secret_is_never_repeated(tmp_path, capsys):
    from joma.cli.main import main

    for address in ("s3://key:hush@bucket/run", "https://host/m.safetensors?token=hush"):
        assert main(["scan", address, "--out", str(tmp_path)]) == 2
        said = "".join(capsys.readouterr())
        assert "put credentials into the environment" in said
        assert "hush" not in said
    assert not list(tmp_path.rglob("*"))


def test_without_credentials_it_is_said_which_there_could_be(monkeypatch, tmp_path):
    def denied(handler, number):
        handler.whole(403, f"<Error><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>".encode())

    with hostile_server(denied) as (address, _):
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(CheckpointError, match="may not be read: it needs AWS_ACCESS_KEY_ID and") as caught:
            open_series("s3://bucket/run", downloads=tmp_path)
    assert KEY not in str(caught.value)


def test_without_the_extra_it_is_named_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    for address in ("s3://bucket/run", "https://host/m.safetensors"):
        with pytest.raises(CheckpointError, match=r"needs obstore: pip install -e '\.\[cloud\]'"):
            open_series(address, downloads=tmp_path)


def test_a_folder_is_scanned_without_the_extra(monkeypatch, pristine, scanned, tmp_path):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert scan(pristine, out=tmp_path)[1]["curves"] == scanned["curves"]
