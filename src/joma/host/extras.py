"""How to get the parts of joma that are not installed. Said here alone: once joma is published, only this changes."""


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
