"""A study that is right or wrong at will, as the command line finds it."""

import pytest

from joma import studies
from joma.claims.execute import execute
from joma.cli.main import main


@pytest.fixture
def with_toy(toy, monkeypatch):
    study, _ = toy
    real = studies.load
    rooms = {**studies._rooms(), "toy": "toys"}
    monkeypatch.setattr(studies, "_rooms", lambda: rooms)
    monkeypatch.setattr(studies, "load", lambda name: study if name == "toy" else real(name))
    return study


@pytest.fixture
def stored_toy(with_toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(studies, "_rooms", lambda: {"toy": "toys"})
    monkeypatch.setattr("joma.studies.stored.load", studies.load)
    assert main(["verify", "toy", "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    return tmp_path / "out"


@pytest.fixture
def breaks(monkeypatch):
    """Makes one study raise an error, or all."""

    def make(error, name=None):
        def or_raise(study, *rest, **named):
            if name in (None, study.name):
                raise error
            return execute(study, *rest, **named)

        monkeypatch.setattr("joma.claims.execute.execute", or_raise)

    return make
