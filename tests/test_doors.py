"""What the README names is there after `import joma`, and loads only when it is named."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import joma

ROOT = Path(__file__).parents[1]


def test_every_room_that_the_readme_names_is_reached():
    named = set(re.findall(r"\bjoma\.([a-z_]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    named &= {path.parent.name for path in (ROOT / "src" / "joma").glob("*/__init__.py")}
    assert {"optim", "probes", "theory"} <= named <= set(dir(joma))


def test_every_room_is_reached_but_the_command_line():
    rooms = {path.parent.name for path in (ROOT / "src" / "joma").glob("*/__init__.py")}
    assert set(dir(joma)) == rooms - {"cli"} | {"__version__"}


def test_a_room_loads_when_it_is_named():
    code = (
        "import joma, sys; assert not {'torch', 'joma.runs'} & {*sys.modules}; assert joma.runs.__name__ == 'joma.runs'"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    assert all(getattr(joma, part) for part in dir(joma))


@pytest.mark.long
def test_every_room_loads_in_a_fresh_process():
    code = "import joma; [getattr(joma, part) for part in dir(joma)]"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
