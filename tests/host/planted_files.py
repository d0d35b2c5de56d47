"""A folder whose files are named as modules that joma, Python or torch import, and tell when one is run."""

import os
import sys
from pathlib import Path

import joma

MODULES = (
    *("sitecustomize", "usercustomize", "json", "pickle", "argparse", "pathlib", "subprocess", "multiprocessing"),
    *("numpy", "torch", "scipy", "safetensors", "transformers", "tokenizers", "peft", "matplotlib", "rich", "triton"),
)
PACKAGE = "joma"
HOME = Path(joma.__file__).parents[1]


class Planted:
    """`folder` with files that write into `marks` when they are run."""

    def __init__(self, folder, marks, modules=(*MODULES, PACKAGE)):
        self.folder, self.marks = folder, marks
        folder.mkdir(parents=True, exist_ok=True)
        marks.mkdir()
        for name in modules:
            (folder / f"{name}.py").write_text(self._code(name))
        if PACKAGE in modules:
            (folder / PACKAGE).mkdir()
            (folder / PACKAGE / "__init__.py").write_text(self._code(PACKAGE))

    def _code(self, name):
        return f"import os\nopen({str(self.marks)!r} + '/{name}-%d' % os.getpid(), 'w').close()\n"

    @property
    def run(self):
        return sorted({mark.name.partition("-")[0] for mark in self.marks.iterdir()})


def plain_environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return {**kept, "PYTHONPATH": str(HOME), **more}


def installed_command(folder, *commands):
    folder.mkdir()
    script = folder / "joma"
    call = f"any(main([*words, *sys.argv[1:]]) for words in {commands!r})"
    script.write_text(f"import sys\nfrom joma.cli.main import main\nsys.exit({call})\n")
    return [sys.executable, str(script)]
