"""Code that joma did not bring along. It runs where a user names it, and never because a file or an answer does.

`run_file` and `import_named` load what a user names on the command line, in a setting or as an installed package.
`function_named` is for the names of functions that joma's own code hands to its processes. tests/SAFETY.md
lists every way from data to code; no other module of joma imports what is named at run time.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from joma.host.errors import BadInput

_LONGEST = 300  # letters of what somebody else's error says


def one_line(error: BaseException) -> str:
    """The kind of an error and what it says, in one line; of others' errors even that may fail.

    >>> one_line(SystemExit(0))
    'SystemExit: 0'
    """
    kind = type(error).__name__
    try:
        words = " ".join(str(error).split())
    except BaseException:
        return kind
    return f"{kind}: {words}"[:_LONGEST] if words else kind


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Around the import of others' code: whatever it raises becomes one sentence, but for Ctrl-C.

    Also SystemExit: a file that ends the program would choose the exit status of the command.

    - what: what is loaded, in words
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BadInput(f"{what} cannot be loaded: {one_line(error)}") from error


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Around a call of others' code: an exit, or another error that is no Exception, is an error like any other.

    - what: what is called, in words

    >>> with contained("the study mine"):
    ...     raise SystemExit(0)
    Traceback (most recent call last):
        ...
    RuntimeError: the study mine raised SystemExit: 0
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"{what} raised {one_line(error)}") from error


def run_file(path: Path, prefix: str, holds: str) -> Any:
    """Run a Python file that a user named, and return its module."""
    if not path.is_file():
        raise BadInput(f"there is no file {path} that could hold {holds}")
    called = f"{prefix}_{path.stem}"
    spec = spec_from_file_location(called, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is no Python file")
    sys.modules[called] = module = module_from_spec(spec)
    try:
        with loading(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(called, None)
        raise
    return module


def import_named(module: str) -> Any:
    """Import a module that a user named.

    >>> import_named("json").__name__
    'json'
    """
    with loading(module):
        return import_module(module)


def function_named(name: str) -> Callable[..., Any]:
    """The function "module:name": how joma names what its processes call. Never a name out of a file.

    >>> function_named("joma.host.words:counted")(2, "run")
    '2 runs'
    """
    module, _, called = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), called)
    return found
