"""The page of public names: every stable name is there, and its docstring lists its parameters."""

import inspect
import re
from importlib import import_module

import pytest
from page_blocks import text_of

PAGE = text_of("docs/reference/public-names.md")
STABLE = re.findall(r"^\| `(joma\.[\w.]+)` \|", PAGE.split("## Stable")[1].split("## Provisional")[0], re.M)


def found(name):
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def test_the_list_is_short_and_names_each_thing_once():
    assert 20 <= len(STABLE) <= 40
    assert len(set(STABLE)) == len(STABLE)


@pytest.mark.parametrize("name", STABLE)
def test_a_stable_name_is_there_and_lists_its_parameters(name):
    thing = found(name)
    text = inspect.getdoc(thing) or ""
    assert text, name
    if inspect.isclass(thing) and (issubclass(thing, Exception) or hasattr(thing, "create")):
        return  # raised, or made by its own methods
    if inspect.isclass(thing):
        fields = "\n".join(line for line in inspect.getsource(thing).splitlines() if '"""' in line or ":" in line)
        text += fields
    wanted = [each for each in inspect.signature(thing).parameters if each not in ("self", "inner_options")]
    listed = r"^ *- .*?\b{0}\b.*?:|; {0}:" if inspect.isfunction(thing) else r"\b{0}\b"
    missing = [each for each in wanted if not re.search(listed.format(each), text, re.M)]
    assert not missing, f"{name} does not say what {', '.join(missing)} is"


def test_readme_opens_stable_doors_only():
    named = set(re.findall(r"from (joma\.[\w.]+) import ([\w, ]+)", text_of("README.md")))
    used = {f"{module}.{name.strip()}" for module, names in named for name in names.split(",")}
    modules = {name.rpartition(".")[0] for name in STABLE}
    assert used <= set(STABLE) | modules, used - set(STABLE) - modules
