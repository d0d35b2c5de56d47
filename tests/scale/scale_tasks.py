"""Functions that the tests of joma.scale give to processes."""

import os
import signal
import sys
import time
from pathlib import Path


def double(arguments, progress):
    progress(0.5, "doubling")
    return 2 * arguments["n"]


def threads(arguments, progress):
    return os.environ["OMP_NUM_THREADS"]


def limit(arguments, progress):
    from joma.host import limits

    return limits.LAYERS


def go_wrong(arguments, progress):
    if arguments["name"] != "bad":
        return "well"
    match arguments["how"]:
        case "raise":
            raise ValueError("no such thing")
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            os._exit(7)
    Path(arguments["file"]).touch()
    return time.sleep(3600)


def noisy(arguments, progress):
    print("NOISE")
    os.write(1, b"NOISE\n")
    sys.stdout.flush()
    return "quiet"


def save_at_the_end(arguments, progress):
    with open(arguments["file"] + ".pid", "w") as file:
        file.write(str(os.getpid()))
    try:
        while True:  # Ray interrupts between two steps of Python, as work has them, and not within a sleep
            time.sleep(0.01)
    except KeyboardInterrupt:
        with open(arguments["file"], "w") as file:
            file.write("saved")
        raise


def whoami(arguments, progress):
    return os.getpid()


def meet(arguments, progress):
    Path(arguments["mine"]).touch()
    while not Path(arguments["others"]).exists():
        progress(0.5, "waiting")
        time.sleep(0.01)
    return os.getpid()


def die_at_first(arguments, progress):
    log = Path(arguments["log"])
    with log.open("a") as file:
        file.write("begun\n")
    begun = len(log.read_text().split())
    if begun <= arguments["deaths"]:
        if arguments.get("how") == "raise":
            raise ValueError("no such thing")
        os.kill(os.getpid(), signal.SIGKILL)
    return begun


def gpu(arguments, progress):
    meet(arguments, progress)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def surroundings(arguments, progress):
    return {"path": sys.path, "threads": os.environ["OMP_NUM_THREADS"], "limits": os.environ.get("JOMA_LIMITS")}
