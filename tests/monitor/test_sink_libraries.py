"""What sinks write through other people's libraries, read back with those: the real ones, offline."""

import json
import math
import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from networks import PROBE, made, train
from patience import until
from wandb_file import records

from joma.host.errors import JomaError
from joma.monitor import LargestLogit, MLflow, Monitor, TensorBoard, Trackio, Wandb

NAMES = [f"{name}/h.{at}.attn/{what}" for name in ("entropy",) for at in range(2) for what in ("min", "mean", "max")]
HEADS = [f"entropy/h.{at}.attn/head{head}" for at in range(2) for head in range(2)]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path_factory):
    """Nothing leaves this machine; libraries that would count their users are told not to."""
    real = socket.socket.connect

    def connect(self, address):
        outside = self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost")
        assert not outside, f"a connection to {address}"
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    settings = {
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_DISABLE_GIT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "MLFLOW_ALLOW_FILE_STORE": "true",
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    if "trackio" not in sys.modules:  # which reads its folder once, when it is imported
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))


def wandb_sink(tmp_path):
    wandb = pytest.importorskip("wandb")
    quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True)
    return Wandb(mode="offline", dir=tmp_path, project="joma", settings=quiet)


def mlflow_sink(tmp_path):
    pytest.importorskip("mlflow")
    return MLflow(tracking_uri=(tmp_path / "mlruns").as_uri(), experiment="tests", name="one")


def trackio_sink(tmp_path):
    pytest.importorskip("trackio")
    return Trackio(tmp_path.name.replace("_", "-"), name="one")


def tensorboard_sink(tmp_path):
    pytest.importorskip("tensorboard")
    return TensorBoard(tmp_path)


def whole_run(tmp_path):
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    read = lambda: [(each.WhichOneof("record_type"), each) for each in records(path)]
    until(lambda: "exit" in [kind for kind, _ in read()])
    return read()


def of_wandb(sink, tmp_path):
    rows, alerts = {}, []
    for kind, record in whole_run(tmp_path):
        if kind == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            here = {name.removeprefix("joma/"): value for name, value in row.items() if name != "joma/step"}
            rows[row["joma/step"]] = {name: value for name, value in here.items() if name[0] != "_"}
        elif kind == "alert":
            alerts.append(record.alert.text)
    return rows, alerts


def of_mlflow(sink, tmp_path):
    from mlflow import MlflowClient

    client, rows = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri()), {}
    assert client.get_run(sink.run_id).info.status == "FINISHED"
    for name in client.get_run(sink.run_id).data.metrics:
        for each in client.get_metric_history(sink.run_id, name):
            rows.setdefault(each.step, {})[name] = each.value
            assert each.timestamp > client.get_run(sink.run_id).info.start_time / 2  # of the same unit
    return rows, None


def of_trackio(sink, tmp_path):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    project = tmp_path.name.replace("_", "-")
    (run,) = trackio.Api().runs(project)
    rows = {
        row["step"]: {name: value for name, value in row.items() if "/" in name}
        for row in SQLiteStorage.get_logs(project, run.name)
    }
    return rows, [each["text"] for each in reversed(run.alerts())]


def of_tensorboard(sink, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events, rows = EventAccumulator(str(tmp_path)).Reload(), {}
    for name in events.Tags()["scalars"]:
        for each in events.Scalars(name):
            rows.setdefault(each.step, {})[name] = each.value
    return rows, None


EACH = {
    "wandb": (wandb_sink, of_wandb),
    "mlflow": (mlflow_sink, of_mlflow),
    "trackio": (trackio_sink, of_trackio),
    "tensorboard": (tensorboard_sink, of_tensorboard),
}
every_library = pytest.mark.parametrize("kind", EACH)


@every_library
def test_a_library_reads_back_what_was_sent(kind, tmp_path, capsys):
    make, read_back = EACH[kind]
    sink, seen, model = make(tmp_path), {}, made()
    monitor = Monitor(
        model,
        probe=PROBE,
        every=2,
        measures={"entropy": None, "largest_logit": 100},
        alarms=[LargestLogit(1e-9)],
        on_alarm=lambda alert: None,
        sinks=[sink, seen.__setitem__],
        per="head" if kind == "mlflow" else "layer",
    )
    train(model, monitor, steps=4)
    rows, alerts = read_back(sink, tmp_path)
    assert sorted(rows) == [0, 2, 4]
    assert sorted(rows[4]) == sorted(NAMES + (HEADS if kind == "mlflow" else []))
    for step, values in seen.items():
        assert rows[step] == pytest.approx(values, rel=1e-6)
    if alerts is not None:
        assert alerts == [str(each) for each in monitor.alerts]
        assert alerts[0].startswith("step 0: largest_logit of h.0.attn, head 0, is ")


@every_library
def test_a_library_that_fails_is_told_once_and_training_goes_on(kind, tmp_path, log, capsys, monkeypatch):
    make, _ = EACH[kind]
    sink, seen, plain, model = make(tmp_path), [], made(), made()
    inner = {"wandb": "run", "mlflow": "_client", "trackio": "run", "tensorboard": "_writer"}[kind]
    name = {"wandb": "log", "mlflow": "log_batch", "trackio": "log", "tensorboard": "add_scalar"}[kind]

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(getattr(sink, inner), name, full)
        others = lambda step, values: seen.append(step)
        monitor = Monitor(model, probe=PROBE, every=2, measures=["entropy"], sinks=[sink, others])
        watched = train(model, monitor)
    sink.close()
    (line,) = log
    assert line.endswith("at step 0 and is dropped, training continues: OSError: [Errno 28] No space left on device")
    assert seen == [0, 2, 4, 6]
    assert all(torch.equal(each, watched[name]) for name, each in train(plain).items())


@every_library
def test_numbers_that_are_not_finite_do_not_break_a_library(kind, tmp_path, capsys):
    make, read_back = EACH[kind]
    sink = make(tmp_path)
    sink(3, {"entropy/a/mean": math.nan, "entropy/b/max": math.inf, "entropy/c/min": 1.5})
    sink.close()
    rows, _ = read_back(sink, tmp_path)
    assert rows[3]["entropy/c/min"] == 1.5


@pytest.mark.parametrize(
    ("make", "module", "sentence"),
    [
        (lambda: TensorBoard("."), "torch.utils.tensorboard", "TensorBoard is not installed: pip install tensorboard"),
        (Wandb, "wandb", "Weights & Biases is not installed: pip install wandb"),
        (MLflow, "mlflow", "MLflow is not installed: pip install mlflow-skinny"),
        (Trackio, "trackio", "Trackio is not installed: pip install trackio"),
    ],
)
def test_a_library_that_is_not_there_is_named(make, module, sentence, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JomaError) as error:
        make()
    assert str(error.value) == sentence


class Given:
    """A run that somebody else began."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args, **options: self.calls.append(name)


@pytest.mark.parametrize("make", [lambda run: Wandb(run), lambda run: Trackio(run=run)])
def test_a_run_that_is_given_is_not_ended(make):
    pytest.importorskip("wandb")
    pytest.importorskip("trackio")
    sink = make(run := Given())
    sink(0, {"a": 1.0})
    sink.close()
    assert "log" in run.calls
    assert "finish" not in run.calls


@pytest.mark.parametrize(
    ("library", "make"),
    [("wandb", lambda: Wandb(Given(), mode="offline")), ("trackio", lambda: Trackio(run=Given(), name="a"))],
)
def test_a_run_and_options_of_another_are_refused(library, make):
    pytest.importorskip(library)
    with pytest.raises(JomaError, match="takes a run or options of a new one, got both: "):
        make()


def test_mlflow_goes_on_in_a_run_and_takes_any_name(tmp_path, monkeypatch):
    sink = mlflow_sink(tmp_path)
    where = (tmp_path / "mlruns").as_uri()
    again = MLflow(sink.run_id, tracking_uri=where)
    sizes, send = [], again._client.log_batch
    monkeypatch.setattr("joma.monitor.sinks.mlflow.time", SimpleNamespace(time=lambda: 1234.5))
    monkeypatch.setattr(
        again._client, "log_batch", lambda run, metrics: (sizes.append(len(metrics)), send(run, metrics=metrics))
    )
    again(7, {"entropy/a[0]@b/mean": 1.0, **{f"n/{at}": at for at in range(1500)}})
    again.close()
    assert sizes == [1000, 501]  # a server takes no more than 1,000 at a time
    rows = sink._client.get_run(sink.run_id).data.metrics
    assert rows["entropy/a_0__b/mean"] == 1.0
    assert rows["n/1499"] == 1499
    assert sink._client.get_metric_history(sink.run_id, "n/1499")[0].timestamp == 1_234_500  # milliseconds
    assert sink._client.get_run(sink.run_id).info.status == "RUNNING"
    assert mlflow_sink(tmp_path).run_id != sink.run_id  # the experiment is there, the run is new
    sink.close()


@pytest.mark.parametrize(
    ("module", "make", "name"),
    [
        ("wandb", lambda file: Wandb(mode="nonsense", dir=file.parent), "Weights & Biases"),
        ("mlflow", lambda file: MLflow(tracking_uri="nonsense://a"), "MLflow"),
        ("trackio", lambda file: Trackio("a", server_url="nonsense"), "Trackio"),
        ("tensorboard", lambda file: TensorBoard(file / "folder"), "TensorBoard"),
    ],
)
def test_what_cannot_begin_is_refused_in_one_sentence(module, make, name, tmp_path, capsys):
    pytest.importorskip(module)
    (tmp_path / "file").write_text("")
    with pytest.raises(JomaError) as error:
        make(tmp_path / "file")
    assert str(error.value).startswith(f"sinks has {name}, which cannot begin: ")
    assert "\n" not in str(error.value)


def test_the_active_run_of_wandb_is_not_ended(monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setattr(wandb, "run", run := Given())
    sink = Wandb()
    sink(0, {"a": 1.0})
    sink.close()
    assert "log" in run.calls
    assert "finish" not in run.calls


def test_the_active_run_of_mlflow_is_not_ended(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    try:
        with mlflow.start_run() as active:
            sink = MLflow()
            sink(0, {"a": 1.0})
            sink.close()
            now = mlflow.get_run(active.info.run_id)
    finally:
        mlflow.set_tracking_uri(before)
    assert sink.run_id == active.info.run_id
    assert (now.info.status, now.data.metrics) == ("RUNNING", {"a": 1.0})
