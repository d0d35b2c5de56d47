"""How to get the parts of joma that are not installed: a checkout is installed in place, a package by its name."""

from importlib.util import find_spec
from pathlib import Path

from joma.host.errors import BadInput


def is_checkout() -> bool:
    """Whether this code lies in a checkout: in its folder src, beside pyproject.toml."""
    source = Path(__file__).resolve().parents[2]
    return source.name == "src" and (source.parent / "pyproject.toml").is_file()


def install_command(extra: str = "") -> str:
    """The command that brings an extra, or without one what joma itself needs.

    >>> install_command("viz")
    "pip install -e '.[viz]'"
    """
    extras = f"[{extra}]" if extra else ""
    package, option = (f".{extras}", "-e ") if is_checkout() else (f"joma{extras}", "")
    return f"pip install {option}" + (f"'{package}'" if extra else package)


def how_to_install(extra: str = "") -> str:
    """The same for a sentence, with the folder where the command must be given."""
    return install_command(extra) + (", in the checkout of joma" if is_checkout() else "")


def needs_torch(command: str, otherwise: str) -> None:
    """Refuse a command where torch is not installed. otherwise: what works without it.

    >>> needs_torch("joma list", "")
    """
    try:
        found = find_spec("torch")
    except ImportError:  # somebody keeps it from loading
        found = None
    if found is None:
        raise BadInput(f"{command} needs torch, which is not installed: {how_to_install()}; {otherwise}")
