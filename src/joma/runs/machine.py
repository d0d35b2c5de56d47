"""Where numbers come from: the versions and the machine that a run notes down. No host name, no user name."""

import platform
import sqlite3
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import joma
from joma.host.threads import cores


def versions() -> dict[str, str]:
    """Versions of Python, joma, numpy, torch, sympy and SQLite, and joma's commit; nothing is imported for it.

    sympy's source is the text at quick scale.
    """
    ours = {"python": platform.python_version(), "joma": joma.__version__, "commit": _commit()}
    packages = {package: _installed(package) for package in ("numpy", "torch", "sympy")}
    return {**ours, **packages, "sqlite": sqlite3.sqlite_version}


def machine() -> dict[str, str | int | None]:
    """Platform, processor, cores this process may use, and the CUDA device, if torch is loaded and sees one."""
    cpu, torch = platform.processor() or platform.machine(), sys.modules.get("torch")
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    gpu = str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else None
    return {"platform": platform.platform(), "cpu": cpu, "cores": cores(), "gpu": gpu}


_version = cache(version)  # reading it takes half the time of making a run


def _installed(package: str) -> str:
    module = sys.modules.get(package)
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)  # what runs, also when it was not installed as a package
    try:
        return _version(package)
    except PackageNotFoundError:
        return "none"


def _commit() -> str:
    """The commit of the checkout that joma runs from, empty where it is installed without one. Runs no program."""
    git = Path(joma.__file__).parents[2] / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text(encoding="utf-8").strip()
        lines = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")
    except (OSError, UnicodeDecodeError):
        return ""
