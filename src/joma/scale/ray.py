"""Work on a cluster of Ray, or on this machine through Ray (the extra `ray`).

A task is a task of Ray Core, in a process that Ray starts and keeps. Deaths are counted here and not by Ray, which
would also try again what ran out of memory. Words of progress come through one actor: all of them are in one place.
"""

import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import monotonic, sleep
from typing import Any

import joma
from joma.host import limits
from joma.host.children import environment_with
from joma.host.extras import how_to_install
from joma.host.interrupts import PATIENCE
from joma.host.named_code import function_named, one_line
from joma.host.progress import NowAndThen
from joma.host.threads import cores, environment
from joma.scale.task import RETRIES, Done, Event, Going, Lost, ScaleError, Task, begun_again
from joma.scale.worker import carried_out

EVERY = 0.5
"""Seconds between two words of progress of a task, and between two looks at them."""
REST = 2.0
"""Seconds before a task is begun again: at once, Ray may still give it to the process that just died."""
_ANSWER = 15.0  # seconds in which a cluster must answer
_STORE = 128 << 20  # bytes of shared memory for a cluster of our own: numbers are small
_LONGEST = 40  # letters of a folder for sockets: a path of one has at most 107, and Ray's own part takes 64
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning about how this will change
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # what Ray says of its processes: it would go to standard output
    # As on macOS and Windows: a cluster of one machine listens to that machine alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@dataclass(frozen=True)
class RayCluster:
    """An executor: tasks of Ray Core.

    - address: "auto", "HOST:6379" on a machine of the cluster, "ray://HOST:10001" from elsewhere; None: the cluster of
      RAY_ADDRESS, else one on this machine alone, which ends with the work
    - jobs: how many tasks at a time; None: as many as the cluster has capacity for
    - threads: cores per task, and threads of numerical libraries in each
    - silence: seconds without a word after which a task is given up
    - retries: how often a task is begun again whose process or machine died

    Where Ray is initialised already, that cluster is used, and left as it is.

    >>> RayCluster("ray://head:10001").retries
    3
    """

    address: str | None = None
    jobs: int | None = None
    threads: int = 1
    silence: float = 600.0
    retries: int = RETRIES

    def events(self, function: str, tasks: Sequence[Task]) -> Iterator[Event]:
        events = self._events(function, list(tasks))
        next(events)  # connects and begins at once, and says at once what is missing
        return events

    def _events(self, function: str, tasks: list[Task]) -> Iterator[Event]:
        ray = loaded()
        with _connected(ray, self) as own:
            # A cluster of our own has as many cores as tasks may be at work: what waits there begins without delay.
            works = _Works(ray, self, function, tasks, most=None if own else self.jobs)
            try:
                works.begin()
                yield Going(Task("", {}), 0.0, "")
                yield from works.events()
            finally:
                works.stop()


def loaded() -> Any:
    """Ray; a sentence where it is not installed."""
    try:
        with environment_with(_QUIET):  # some of these are read when it loads
            import ray
    except ImportError:
        raise ScaleError(f"ray is not installed: {how_to_install('ray')}") from None
    return ray


@contextmanager
def _connected(ray: Any, wish: RayCluster) -> Iterator[bool]:
    """Within, this process is a driver of the cluster. Yields whether the cluster was started for it alone."""
    if ray.is_initialized():
        yield False
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address := wish.address or os.environ.get("RAY_ADDRESS"):
        _must_listen(address)
    # Ray's processes would look for modules in the working directory, which may be that of a stranger's checkpoint.
    with TemporaryDirectory(prefix="joma-ray-", dir=_short_folder(), ignore_cleanup_errors=True) as folder:
        with _as_before(), chdir(folder), environment_with(_QUIET | ({} if address else _finding_joma())):
            try:
                if address:
                    ray.init(address=address, **quiet)
                else:
                    count = (wish.jobs or cores()) * wish.threads
                    ray.init(
                        address="local", num_cpus=count, include_dashboard=False, object_store_memory=_STORE,
                        _temp_dir=folder, **quiet,
                    )  # fmt: skip
            except Exception as error:  # whatever it is, of grpc say: there is no cluster
                where = f"at {address}" if address else "on this machine"
                raise ScaleError(f"no Ray cluster {where}: {one_line(error)}") from error
        try:
            yield not address
        finally:
            ray.shutdown()


def _must_listen(address: str) -> None:
    """Ray looks for minutes for a cluster that is not there, and complains all the while: ask first."""
    host, colon, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if not colon or not port.isdecimal():  # "auto", or a name that Ray may know
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ScaleError(f"no Ray cluster at {address}: nothing answers at {host}, port {port} ({error})") from None


def _short_folder() -> str:
    """Where sockets can lie: the folder for temporary files, unless its name is too long for them."""
    return gettempdir() if len(gettempdir()) + len("/joma-ray-12345678") <= _LONGEST else "/tmp"


def _finding_joma() -> dict[str, str]:
    """What the processes of a cluster of our own need to find this joma, where it is not installed."""
    folder = Path(joma.__file__).parents[1]
    if folder.name in ("site-packages", "dist-packages"):
        return {}
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {"PYTHONPATH": os.pathsep.join([str(folder), *named])}


@contextmanager
def _as_before() -> Iterator[None]:
    """On leaving, SIGTERM does what it did: Ray handles it in its own way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _Works:
    """Tasks that wait, those that Ray has, and what was heard of them."""

    ray: Any
    wish: RayCluster
    function: str
    waiting: list[Task]
    most: int | None = None
    """Tasks that Ray may have at a time; None: all of them."""
    given: dict[Any, Task] = field(default_factory=dict)
    """By the reference to what they will give."""
    begun: Counter[str] = field(default_factory=Counter)
    heard: dict[str, float] = field(default_factory=dict)
    """When there was a word of a task that has begun."""
    given_up: dict[str, str] = field(default_factory=dict)
    refused: list[Lost] = field(default_factory=list)
    resting: dict[str, float] = field(default_factory=dict)
    """When tasks that are begun again may be."""
    asked: Any = None
    asked_at: float = 0.0

    def begin(self) -> None:
        ours = {name: value for name, value in os.environ.items() if name.startswith("JOMA_")}
        around = {"env_vars": {**ours, **environment(self.wish.threads)}}
        self.call = self.ray.remote(carry_out)
        self.how: dict[str, Any] = {"num_cpus": self.wish.threads, "max_retries": 0, "runtime_env": around}
        # It needs no core of its own, and comes back if its machine dies.
        self.mailbox = self.ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1).remote()
        self.refuse_too_large([node["Resources"] for node in self.ray.nodes() if node["Alive"]])
        self.give()

    def give(self) -> None:
        """Hand tasks to Ray, as many as may be at work."""
        for task in [task for task in self.waiting if self.resting.get(task.name, 0.0) <= monotonic()]:
            if self.most is not None and len(self.given) >= self.most:
                break
            self.waiting.remove(task)
            needs: dict[str, Any] = {"num_gpus": task.gpus} if task.gpus else {}
            needs |= {"memory": task.memory} if task.memory else {}
            order = {"function": self.function, "task": task.name, "attempt": self.begun[task.name]}
            order |= {"version": joma.__version__, "arguments": dict(task.arguments)}
            call = self.call.options(name=f"joma {task.name}", **self.how, **needs)
            self.given[call.remote(order, self.mailbox)] = task

    def events(self) -> Iterator[Event]:
        yield from self.refused
        while self.waiting or self.given:
            self.give()
            if not self.given:  # all that is left rests
                sleep(EVERY)
                continue
            ready, _ = self.ray.wait(list(self.given), num_returns=1, timeout=EVERY)
            for reference in ready:
                yield self.ended(reference)
            yield from self.news()
            self.give_up()

    def refuse_too_large(self, machines: Sequence[Mapping[str, float]]) -> None:
        """What no machine of the cluster can hold would wait for ever."""
        for task in list(self.waiting):
            needs = {"CPU": self.wish.threads, "GPU": task.gpus, "memory": task.memory}
            if not any(all(has.get(what, 0) >= much for what, much in needs.items()) for has in machines):
                self.waiting.remove(task)
                self.refused.append(Lost(task, f"it needs {_in_words(needs)}, and no machine of the cluster has that"))

    def ended(self, reference: Any) -> Event:
        task = self.given.pop(reference)
        self.heard.pop(task.name, None)
        errors = self.ray.exceptions
        try:
            answer = self.ray.get(reference)
        except errors.OutOfMemoryError:
            return Lost(task, "its machine ran out of memory, and Ray ended its process")
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError) as error:
            what = "machine" if isinstance(error, errors.NodeDiedError) else "process"
            return self.once_more(task, f"its {what} died")
        except errors.RayTaskError as error:  # not of the function, whose errors are an answer: of the way to it
            return Lost(task, one_line(error.cause if getattr(error, "cause", None) else error))
        except errors.RayError as error:
            return Lost(task, self.given_up.pop(task.name, "") or one_line(error))
        return Lost(task, answer["failed"]) if "failed" in answer else Done(task, answer["value"], answer["memory"])

    def once_more(self, task: Task, died: str) -> Event:
        if task.name in self.given_up:
            return Lost(task, self.given_up.pop(task.name))
        self.begun[task.name] += 1
        if self.begun[task.name] > self.wish.retries:
            return Lost(task, f"{died}, {self.begun[task.name]} times")
        self.waiting.insert(0, task)
        self.resting[task.name] = monotonic() + REST
        return begun_again(task, died, self.begun[task.name], self.wish.retries)

    def news(self) -> Iterator[Event]:
        """What tasks have said since the last look. Words of an earlier attempt come late, and count for nothing."""
        if self.asked is None and monotonic() - self.asked_at >= EVERY:
            self.asked, self.asked_at = self.mailbox.heard.remote(), monotonic()
        if self.asked is None or not self.ray.wait([self.asked], timeout=0)[0]:
            return
        words: Mapping[str, tuple[int, float, str]] = {}
        with suppress(self.ray.exceptions.RayError):  # it dies with its machine, and comes back empty
            words = self.ray.get(self.asked)
        self.asked = None
        by_name = {task.name: task for task in self.given.values()}
        for name, (attempt, share, doing) in words.items():
            if name in by_name and attempt == self.begun[name]:
                self.heard[name] = monotonic()
                yield Going(by_name[name], share, doing)

    def give_up(self) -> None:
        """End what has begun and says nothing any more."""
        for reference, task in self.given.items():
            if monotonic() - self.heard.get(task.name, monotonic()) > self.wish.silence:
                self.given_up[task.name] = f"it said nothing for {self.wish.silence:.0f} s and was stopped"
                del self.heard[task.name]
                self.ray.cancel(reference, force=True)

    def stop(self) -> None:
        """End what is still at work, with the time to write a checkpoint."""
        if not self.given:
            return
        with suppress(self.ray.exceptions.RayError, ConnectionError):
            for reference in self.given:
                self.ray.cancel(reference)
            self.ray.wait(list(self.given), num_returns=len(self.given), timeout=PATIENCE)


def _in_words(needs: Mapping[str, float]) -> str:
    words = [f"{needs['CPU']} cores" if needs["CPU"] > 1 else "1 core"]
    words += [f"{needs['GPU']} GPU" + "s" * (needs["GPU"] > 1)] if needs["GPU"] else []
    words += [f"{needs['memory'] / 1e9:.1f} GB of memory"] if needs["memory"] else []
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


class Mailbox:
    """The last word of every task, until somebody asks; an actor."""

    def __init__(self) -> None:
        self.words: dict[str, tuple[int, float, str]] = {}

    def say(self, task: str, attempt: int, share: float, doing: str) -> None:
        """Remember it in place of what was said before."""
        self.words[task] = (attempt, share, doing)

    def heard(self) -> dict[str, tuple[int, float, str]]:
        """All that was said since the last time."""
        words, self.words = self.words, {}
        return words


def carry_out(order: Mapping[str, Any], mailbox: Any) -> dict[str, Any]:
    """Call the function of an order; in a process of Ray."""
    if order["version"] != joma.__version__:
        # Whoever reads this sits at another machine.
        here = f"the machine {socket.gethostname()} of the cluster has joma {joma.__version__}"
        raise ScaleError(f"{here}, and the work was sent by joma {order['version']}; both must be the same")

    def say(share: float, doing: str) -> None:
        with suppress(Exception):  # nobody is there to hear it: that is no reason to stop
            mailbox.say.remote(order["task"], order["attempt"], float(share), doing)

    words = NowAndThen(say, every=EVERY)
    words(0.0, "begun")
    limits.check()
    return carried_out(function_named(order["function"]), dict(order["arguments"]), words)
