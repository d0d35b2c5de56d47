"""How to get the parts of joma that are not installed. Said here alone: once joma is published, only this changes."""

from importlib.util import find_spec

from joma.host.errors import BadInput


def install_command(extra: str) -> str:
    """The command that brings an extra, given in the checkout of joma.

    >>> install_command("viz")
    "pip install -e '.[viz]'"
    """
    return f"pip install -e '.[{extra}]'"


def how_to_install(extra: str) -> str:
    """The same for a sentence.

    >>> how_to_install("viz")
    "pip install -e '.[viz]', in the checkout of joma"
    """
    return f"{install_command(extra)}, in the checkout of joma"


def needs_torch(command: str, otherwise: str) -> None:
    """Refuse a command where torch is not installed. otherwise: what works without it.

    >>> needs_torch("joma list", "")
    """
    try:
        found = find_spec("torch")
    except ImportError:  # somebody keeps it from loading
        found = None
    if found is None:
        install = "`pip install -e .` in the checkout of joma brings it and what else is missing"
        raise BadInput(f"{command} needs torch, which is not installed; {install}; {otherwise}")
