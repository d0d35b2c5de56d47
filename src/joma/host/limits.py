"""How much is believed of files that come from outside.

A limit is far above what honest files have and far below what hurts a machine. Whoever needs more sets the constant
before the call, or names it in the environment: JOMA_LIMITS="LAYERS=5000 WORD_BYTES=1e9".
"""

import math
import os
from typing import Any

from joma.host.errors import BadInput
from joma.host.words import short

JSON_DEPTH = 100
"""Lists and mappings inside one another."""
DIMENSIONS = 64
"""Of a tensor; torch itself has no more."""
TENSORS = 500_000
"""In one checkpoint, with all else that its dictionaries hold."""
PICKLE_BYTES = 256 * 2**20
"""Of what describes the tensors of a torch file, names and shapes; the numbers lie beside it."""
CONFIG_BYTES = 100 * 10**6
"""Of a config.json, or of the index of a checkpoint in parts."""
CONFIG_DEPTH = 20
"""Lists and mappings inside one another in a config.json: transformers copies the whole of it at every level."""
TABLE_BYTES = 2**28
"""Of a table of results that `joma judge` reads."""
LAYERS = 2_000
"""Of a model, and its experts: what a config says before anything is built."""
MODULES = 1_000_000
"""Of a model: its layers and the parts that they are made of."""
MODEL_NUMBERS = 10**8
"""That a model may have though its files hold fewer: tables of positions and masks are in no file."""
TOKENIZER_SECONDS = 300.0
"""That a checkpoint's tokenizer may take for a text, and one more for every 100,000 letters. Its process must start
first, which takes half a minute where a machine is busy."""
WORD_BYTES = 2**24
"""Of one word of a text. Languages without spaces have sentences for words; no language has this."""
LINE_BYTES = 2**24
"""Of the last line of a file that lines are added to."""
RUN_PATH_BYTES = 480
"""Of the full name of a run. SQLite opens none beyond 512, those of its helper files included."""
LISTING_BYTES = 64 * 2**20
"""Of one page of what a hub lists."""
LISTING_PAGES = 1_000
"""Of one listing."""
LISTING_SECONDS = 60.0
"""Until one page has come; a hub that lets its bytes drip is given up."""
REVISIONS = 50_000
"""Of one model."""
STORE_SECONDS = 120.0
"""Until one request to an object store is answered, its bytes included, or one of its folders is listed, all pages
together; a store that lets them drip is given up."""
STORE_OBJECTS = 200_000
"""Objects and folders that one folder of a store lists."""
WEB_FILES = 2_000
"""That an index on a web server names. Each takes a request; all may take STORE_SECONDS and a second for each."""
STORE_LISTING_BYTES = 512 * 2**20
"""Of memory that a listing may take while it is read, in a process of its own."""


def check(given: str | None = None) -> None:
    """Take what the environment, or `given`, says of limits; a `BadInput` where it names none or no positive number."""
    for word in (os.environ.get("JOMA_LIMITS", "") if given is None else given).replace(",", " ").split():
        name, _, number = word.partition("=")
        if name not in names():
            raise BadInput(f"JOMA_LIMITS names {name!r}; there are {', '.join(names())}")
        globals()[name] = _positive(word, number, type(globals()[name]))


def _positive(word: str, number: str, kind: type[int] | type[float]) -> int | float:
    """NaN must not pass: it is never too large, so it would take every limit away. Nor may less than 1 of a count."""
    try:
        value = kind(float(number))
        if 0 < value < math.inf:
            return value
    except (ValueError, OverflowError):
        pass
    raise BadInput(f"JOMA_LIMITS takes NAME=NUMBER, a positive one, as in LAYERS=5000, got {short(word)}")


def names() -> list[str]:
    """All limits."""
    return [name for name in globals() if name.isupper()]


def depth_of(value: Any, most: int) -> int:
    """How deep lists and mappings lie inside one another; counting stops beyond `most`.

    >>> depth_of({"a": [1, [2]]}, 10), depth_of(3, 10), depth_of([[[]]], 1)
    (3, 0, 2)
    """
    depth, level = 0, [value]
    while depth <= most:
        held = (each for each in level if isinstance(each, dict | list | tuple))
        inside = [list(each.values()) if isinstance(each, dict) else each for each in held]
        if not inside:
            break
        depth, level = depth + 1, [one for each in inside for one in each]
    return depth
