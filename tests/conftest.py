"""What several tests share: the Triton interpreter, a small synthetic study that is right or wrong at will, a text."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

# What is imported stays. To look through it for garbage again and again is a tenth of the start; see below.
gc.disable()

# Where tests run on the CPU, neither they nor what they start sees a GPU: torch would put processes and wrappers on it
# unasked. Triton decides when a kernel is defined whether to interpret it. Both must be so before anything loads torch.
if os.environ.get("JOMA_TEST_DEVICE", "cpu") == "cpu":
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}

# Workers beside each other share the cores: with one thread per core in every worker they would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Prepared corpora are kept for the whole session, all workers and none beyond it; not in the user's own cache.
if "JOMA_CACHE" not in os.environ:
    os.environ["JOMA_CACHE"] = kept = tempfile.mkdtemp(prefix="joma-cache-")
    owner = os.getpid()  # a process that a test forks does not take it away
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(kept, ignore_errors=True))

from dataclasses import dataclass
from functools import cache

import hypothesis
import numpy as np
import pytest
import reading
from missing import pytest_make_collect_report, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from shuffle import shuffled

# What joma needs is loaded where it is used: the process that only hands out the tests need not wait for torch.

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile(
    "joma", max_examples=50, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("joma")


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in another order, one for each seed")


def pytest_configure(config):
    config.pluginmanager.register(reading)  # after this file: what is tried first is then before the shuffle


@pytest.hookimpl(tryfirst=True)  # pytest then puts together again what shares a costly parameter
def pytest_collection_modifyitems(config, items):
    seed = config.getoption("--shuffle")
    if seed is not None:
        items[:] = shuffled(items, seed, lambda item: item.path)


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # else some libraries tell at the end of what was never taken away


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip what Triton's interpreter cannot do: old ones (3.6) turn arrays of one number into a number, which numpy 2.5
    refuses. A GPU compiles, and is not concerned."""
    try:
        return (yield)
    except Exception as error:
        if type(error).__name__ == "InterpreterError" and "only 0-dimensional arrays" in str(error):
            pytest.skip("this Triton's interpreter does not work with this numpy")
        raise


@dataclass(frozen=True)
class Config:
    size: int = 3
    error: float = 0.0
    fail_at: str = ""


@pytest.fixture
def toy():
    """The study, and a list of what its `run` computed."""
    from joma.claims.verdicts import by_residual
    from joma.figures.style import panels
    from joma.studies import Claim, Drawing, NotRun, Study

    claim, computed = Claim("all-ones", "JoMA Thm 1", "Every entry is 1."), []

    def run(config, run, progress):
        def one(name):
            if config.fail_at == name:
                raise (
                    NotRun("it needs a GPU", "joma verify toy --device cuda") if name == "gpu" else RuntimeError("boom")
                )
            computed.append(name)
            return [1.0 + config.error] * config.size

        for name in ("first", "second", "gpu"):
            progress(0.5, name)
            run.keep(name, lambda name=name: one(name))

    def judge(run):
        worst = max(abs(run.value(name) - 1).max() for name in ("first", "second"))
        return by_residual(claim, printed=float(worst), tolerance=1e-6, expected="1 everywhere")

    def draw(run):
        figure, (axis,) = panels()
        axis.plot(run.value("first"))
        return [Drawing("toy", "Ones.", figure)]

    study = Study("toy", "A toy", 1, {claim: judge}, Config(), Config(size=30), run, draw)
    return study, computed


@pytest.fixture(scope="module")
def drawn_once():
    """Each study is drawn once for all tests of a file: to draw takes most of the time of a quick one."""
    from joma.claims import execute

    real, drawn = execute.draw, {}

    def draw(study, run):
        if study.name not in drawn:
            drawn[study.name] = real(study, run)
        return drawn[study.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "draw", draw)
        yield


@pytest.fixture(autouse=True)
def variables_as_before():
    """A test that names a study or a folder in the environment leaves none of it to the next."""
    before = _ours()
    yield
    now = _ours()
    if now != before:
        for name in now.keys() - before.keys():
            del os.environ[os.fsdecode(name)]
        os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in before.items()})


def _ours():
    """As the system has them: to decode all variables takes longer than most tests."""
    return {name: value for name, value in os.environ._data.items() if name.startswith(OURS)}


OURS = os.environ.encodekey("JOMA_")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_as_in_a_terminal():
    """What a shell starts in the background ignores Ctrl-C; tests that raise it must not depend on that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def installed_source_is_read_once():
    """The text that small networks read is the source of an installed package, which does not change meanwhile."""
    from joma.data import python_source

    read, digest, installed = python_source._sources, python_source._digest, cache(python_source.source_folder)
    kept = {}

    def read_once(root):
        if root != installed():
            return read(root)
        if "files" not in kept:
            kept["files"] = read(root)
        return kept["files"]

    def digest_once(sources):
        if sources is not kept.get("files"):
            return digest(sources)
        if "digest" not in kept:
            kept["digest"] = digest(sources)
        return kept["digest"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_source, "_sources", read_once)
        patch.setattr(python_source, "_digest", digest_once)
        yield


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    """A folder as users bring it: words that follow one another by a rule, with noise."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    (folder / "wikitext-2").mkdir()
    for split, count in (("train", 3000), ("valid", 400), ("test", 100)):
        ids = [0]
        for _ in range(count):
            ids.append((3 * ids[-1] + 1) % 50 if generator.random() < 0.8 else int(generator.integers(50)))
        (folder / "wikitext-2" / f"{split}.txt").write_text(" ".join(f"w{i}" for i in ids), encoding="utf-8")
    return folder


@pytest.fixture
def no_other_text(tmp_path_factory, monkeypatch):
    """As on a machine where nothing was downloaded and JOMA_DATA is not set: a test finds what it names alone."""
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("JOMA_DATA", raising=False)
