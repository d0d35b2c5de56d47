"""The notebooks run from top to bottom, and what they show is right."""

import importlib.util
import math
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
TABLE = "seed,new,old\n1,3.31,3.35\n2,3.29,3.36\n3,3.33,3.34\n4,3.30,3.36\n5,3.31,3.37\n"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """What the cells of a notebook define, and what they show; other values may stand in for what a reader can move."""
    pytest.importorskip("marimo")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def cells(name, **moved):
        spec = importlib.util.spec_from_file_location(f"notebook_{name}", NOTEBOOKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        shown, defined = module.app.run(defs={key: SimpleNamespace(value=value) for key, value in moved.items()})
        text = " ".join(str(getattr(one, "text", "")) for one in shown)
        return SimpleNamespace(**defined), text

    yield cells
    import matplotlib.pyplot as plt

    plt.close("all")


def test_theory(run):
    found, text = run("theory")
    assert "Theory playground" in text
    assert found.winner == 1
    assert found.blow_up.tolist() == pytest.approx([math.sqrt(math.pi / 2), math.sqrt(math.pi / 2) / 0.8])
    assert found.weights.shape == (200, 2)
    assert found.entropy[0].item() == pytest.approx(math.log(3), abs=1e-3)
    assert found.recovered > 0.1
    assert found.expected[0].item() == pytest.approx(math.log(1024) - 0.005, abs=1e-4)


def test_what_a_reader_moves_in_the_theory_changes_what_follows(run):
    found, _ = run("theory", ratio=0.9, start=0.4, second=0.1, keys=16)
    assert found.winner == 2  # which began ahead
    assert found.expected[0].item() == pytest.approx(math.log(16) - 0.005 * 15 / 16, abs=1e-4)


def test_judge(run):
    found, text = run("judge")
    assert found.verdict == "holds (fragile)"
    assert (found.arms.found.difference, len(found.arms.effect)) == (pytest.approx(0.048), 5)
    assert found.deviation == pytest.approx(statistics.stdev([0.04, 0.07, 0.01, 0.06, 0.06]))
    assert "holds (fragile)" in text
    assert str(found.needed) in text


@pytest.mark.parametrize(("changes", "verdict"), [({"lower": False}, "fails"), ({"matters": 0.2}, "only qualitative")])
def test_what_a_reader_types_is_judged(run, changes, verdict):
    found, _ = run("judge", **{"table": TABLE, "matters": 0.02, "lower": True, **changes})
    assert found.verdict.startswith(verdict)


@pytest.mark.long
def test_monitor(run):
    found, text = run("monitor", rate=3e-3, steps=40)
    assert found.measured.tolist() == [0, 20, 40]
    assert found.entropy.shape == (3, 2, 2)
    assert (found.entropy <= math.log(16)).all()
    assert len(found.losses) == 40
    assert found.losses[-1] < found.losses[0]
    assert f"{found.losses[-1]:.2f}" in text
