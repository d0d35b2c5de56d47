"""Summaries reach every sink; one that fails is told once and dropped."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from networks import PROBE, made, train

from joma.host.errors import JomaError
from joma.monitor import JsonLines, LargestLogit, Monitor
from joma.monitor.sinks import Sinks
from joma.monitor.sinks.guard import beginning
from joma.monitor.tables import LOSS, Rows, Table, summary


def test_a_sink_that_raises_is_told_once_and_the_others_go_on(log):
    seen, model = [], made()

    def broken(step, values):
        if step >= 4:
            raise OSError("the network is down")

    good = lambda step, values: seen.append((step, sorted(values)))
    train(model, Monitor(model, probe=PROBE, every=2, measures=["entropy"], sinks=[broken, good]))
    assert [step for step, _ in seen] == [0, 2, 4, 6]
    assert seen[0][1] == ["entropy"]
    assert log == ["sink broken failed at step 4 and is dropped, training continues: OSError: the network is down"]


def test_sinks_get_every_head_and_matrix_where_that_is_asked_for(tmp_path):
    seen, model = {}, made()
    measures = ["entropy", "norm"]
    with Monitor(model, probe=PROBE, measures=measures, sinks=seen.__setitem__, per="head") as monitor:
        pass
    heads = monitor.latest["entropy"].values
    assert [
        [seen[0][f"entropy/h.{layer}.attn/head{head}"] for head in range(2)] for layer in range(2)
    ] == heads.tolist()
    assert seen[0]["entropy/h.1.attn/mean"] == pytest.approx(heads[1].mean())
    assert seen[0]["norm/h.1.mlp.2.weight/value"] == pytest.approx(float(model.h[1].mlp[2].weight.detach().norm()))
    with Monitor(model, probe=PROBE, measures=measures, sinks=seen.__setitem__, start=1, per="layer"):
        pass
    assert seen[1]
    assert all(name.endswith(("/min", "/mean", "/max")) for name in seen[1])


def test_a_series_is_one_number_of_the_whole_model_unless_asked_otherwise():
    heads, experts = Rows(("a", "b"), (1, 2), (8, 8)), Rows(("a",), (3,), kinds=("layer", "expert"))
    values, matrices = np.array([[1.0, np.nan], [2.0, 6.0]]), Rows(("h.0.up", "h.1.up"))
    tables = {name: Table(values, heads) for name in ("entropy", "largest_logit", "spread/shared")}
    tables |= {name: Table(np.array([3.0, 4.0]), matrices) for name in ("stable_rank", "norm", "gradient_norm")}
    tables |= {"router_load": Table(np.array([[0.2, 0.7, 0.1]]), experts), "loss": Table(np.array(2.5), LOSS)}
    numbers = {
        "entropy": 3.0, "largest_logit": 6.0, "spread/shared": 3.0, "stable_rank": 3.5, "norm": 5.0,
        "gradient_norm": 5.0, "router_load": 0.7, "loss": 2.5,
    }  # fmt: skip
    assert summary(tables, "model") == pytest.approx(numbers)
    assert {name for name in summary(tables, "layer") if name.count("/") < 2} == {"loss"}
    assert math.isnan(summary({"entropy": Table(np.array([[np.nan]]), Rows(("a",), (1,)))}, "model")["entropy"])


def test_heads_that_a_layer_does_not_have_are_not_sent():
    table = Table(np.array([[1.0, np.nan], [2.0, np.nan]]), Rows(("a", "b"), (1, 2), (8, 8)))
    every = [name for name in summary({"entropy": table}, "head") if "head" in name]
    assert every == ["entropy/a/head0", "entropy/b/head0", "entropy/b/head1"]


class Alerted:
    """A sink with a place for alarms."""

    def __init__(self, error=None):
        self.told, self.error = [], error

    def __call__(self, step, values):
        pass

    def alert(self, step, title, text):
        if self.error:
            raise self.error
        self.told.append((step, title, text))

    def __repr__(self):
        return "Alerted()"


def test_alarms_go_to_sinks_that_take_them_a_few_at_a_time(log):
    good, broken = Alerted(), Alerted(RuntimeError("no"))
    options = {"alarms": [LargestLogit(1e-9)], "on_alarm": lambda alert: None}
    with Monitor(made(), probe=PROBE, measures=["largest_logit"], sinks=[broken, good, print], **options) as monitor:
        pass
    assert good.told == [(0, "joma: largest_logit", str(each)) for each in monitor.alerts]
    assert len(good.told) == 4
    assert log == ["sink Alerted() failed at step 0 and is dropped, training continues: RuntimeError: no"]
    Sinks(good).alert([monitor.alerts[0]] * 9)
    assert good.told[-1] == (0, "joma: largest_logit", "step 0: 4 more alarms")
    assert len(good.told) == 4 + 6


def test_a_sink_cannot_change_what_another_gets():
    seen = []
    Sinks([lambda step, values: values.clear(), lambda step, values: seen.append(values)]).send(1, {"a": 1.0})
    assert seen == [{"a": 1.0}]


def test_lines_of_json_go_on_after_one_that_was_cut_off(tmp_path):
    path = tmp_path / "folder" / "run.jsonl"
    sink = JsonLines(path)
    sink(0, {"entropy": 1.5, "norm": math.nan})
    with path.open("a") as file:
        file.write('{"step": 1, "entr')
    sink = JsonLines(path)
    sink(2, {"entropy": math.inf})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 0, "entropy": 1.5, "norm": None}, {"step": 2, "entropy": None}]


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JomaError, match=r"sinks has JsonLines\(.*\), which cannot be written"):
        JsonLines(tmp_path / "file" / "a.jsonl")


def test_a_long_reason_and_a_long_path_are_cut(tmp_path):
    for length, end in ((200, "xxx'"), (201, "x...'")):
        with pytest.raises(JomaError, match=f"which cannot begin: OSError: .*{re.escape(end)}$"), beginning("a sink"):
            raise OSError("x" * length)
    sink, shown = JsonLines(tmp_path / "run.jsonl"), []
    for length in (99, 100):
        sink.path = Path("x" * length)
        shown.append(repr(sink))
    assert shown == [f"JsonLines({'x' * 99!r})", f"JsonLines(.../{'x' * 80})"]


@pytest.fixture
def small_disk():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_that_a_full_disk_cuts_are_told_once_and_the_whole_ones_stay(tmp_path, log, small_disk):
    path, model, seen = tmp_path / "a.jsonl", made(), []
    others = lambda step, values: seen.append(step)
    options = {"measures": ["entropy"], "sinks": [JsonLines(path), others], "per": "layer"}
    train(model, Monitor(model, probe=PROBE, every=1, **options), steps=20)
    (line,) = log
    assert line.startswith("sink JsonLines")
    assert "is dropped, training continues: OSError: [Errno 27]" in line
    assert seen == list(range(21))
    whole = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert [each["step"] for each in whole] == list(range(len(whole)))
    assert 3 < len(whole) < 20
    JsonLines(path)  # cuts off the line that did not fit
    assert path.read_text().count("\n") == len(whole)
    assert path.read_text().endswith("}\n")


def test_a_sink_that_cannot_be_closed_leaves_the_others_to_be_closed(log):
    class Closing:
        closed = False

        def __call__(self, step, values):
            pass

        def close(self):
            self.closed = True

    class Stubborn(Closing):
        def close(self):
            raise RuntimeError("no")

        def __repr__(self):
            return "Stubborn()"

    good = Closing()
    with Monitor(made(), probe=PROBE, measures=["norm"], sinks=[Stubborn(), good]):
        pass
    assert good.closed
    assert log == ["sink Stubborn() failed at the end and is dropped, training continues: RuntimeError: no"]
