"""Commands that promise to open no connection, in a process where opening one is a failure."""

import socket

import pytest
from in_process import joma

pytestmark = pytest.mark.usefixtures("drawn_once")


class Opened(BaseException):
    """Not caught by anything that expects a network to fail."""


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise Opened(arguments)

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_fixture_catches_a_connection(no_network):
    with pytest.raises(Opened):
        socket.create_connection(("127.0.0.1", 9))
    with socket.socket() as one, pytest.raises(Opened):
        one.connect(("127.0.0.1", 9))


@pytest.mark.long
def test_commands_without_a_name_on_the_hub_open_none(no_network, tmp_path):
    assert joma("verify", "thm5", "--threads", "1", "--out", tmp_path).returncode == 0
    (run,) = tmp_path.glob("runs/*.sqlite")
    commands = (
        ("report", tmp_path),
        ("show", "thm5"),
        ("watch", tmp_path, "--once"),
        ("export", run, "--to", "csv"),
        ("view", tmp_path, "--export", tmp_path / "page.html"),
    )
    for words in commands:
        done = joma(*words)
        assert done.returncode == 0, (words, done.stderr)
