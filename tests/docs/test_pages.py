"""Every page of the manual is run from top to bottom, as a reader would paste it, and prints what it says."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest
from in_process import joma
from kept_records import RECORDS, WHY
from page_blocks import ELSEWHERE, REASONS, ROOT, Block, blocks, commands, pages
from patience import PATIENCE

from joma.scan.model.loading import tokenized

MOST_UNRUN = 49
"""More unrun blocks than this, of some 210, and the manual is no longer tested. Clusters and stores are far away."""
PAGES = [page for page in pages() if blocks(page)]
QUOTED = re.compile(r"'[^']*'|\"[^\"$`\\\\]*\"")
OF_THE_SHELL = re.compile(r"[|&;<>$`*?~]")
NUMBER = re.compile(r"[-−+]?\d+(?:,\d{3})*\.?\d*(?:e[-+]?\d+)?")  # a comma that ends a word is none of its digits


def same(shown, printed, *, loose=False):
    """Whether the lines agree; `...` stands for anything, and a loose number may differ by two of its last digits.

    A last line of `...` alone stands for all lines that follow: a record from a checkout ends with its commit.
    """
    shown, printed = _lines(shown), _lines(printed)
    if shown[-1:] == ["..."]:
        shown, printed = shown[:-1], printed[: len(shown) - 1]
    return len(shown) == len(printed) and all(_same_line(a, b, loose) for a, b in zip(shown, printed, strict=True))


def _lines(text):
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def _same_line(shown, printed, loose):
    pattern = ".*".join(re.escape(part) for part in shown.split("..."))
    if re.fullmatch(pattern, printed):
        return True
    if not loose or NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    return all(map(_near, NUMBER.findall(shown), NUMBER.findall(printed)))


def _near(shown, printed):
    mantissa, _, power = shown.replace(",", "").partition("e")
    unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    return abs(float(mantissa + "e" + (power or "0")) - float(printed.replace(",", ""))) <= 2.001 * unit


def runs_python(block, names):
    source = "\n" * (block.line - 1) + block.text + "\n"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, block.page, "exec"), names)
    return out.getvalue()


def runs_console(block):
    printed = ""
    for line in commands(block):
        assert not line.startswith(("cd ", "export ")), f"{block}: a shell that ends with its line forgets {line!r}"
        done = runs_line(line)
        assert done.returncode == 0, f"{block}: {done.stderr}"
        printed += done.stdout
    return printed


def runs_line(line):
    """A command of joma runs in this process, which has loaded torch; what needs a shell, in a shell."""
    command, tells, _ = line.partition(' || echo "status $?"')
    command, _, into = command.partition(" > ")
    words = shlex.split(command)
    if words[0] != "joma" or OF_THE_SHELL.search(QUOTED.sub("", command + into)):
        return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=PATIENCE)
    done = joma(*words[1:])
    if into:
        Path(into).write_text(done.stdout, encoding="utf-8")
        done.stdout = ""
    if tells and done.returncode:
        return subprocess.CompletedProcess(words, 0, f"{done.stdout}status {done.returncode}\n", done.stderr)
    return done


def runs(block, names):
    """Run the block, and compare what it prints with what the page shows."""
    if block.reason is not None:
        return
    out = runs_python(block, names) if block.language == "python" else runs_console(block)
    if block.expected is not None:
        assert same(block.expected, out, loose=block.loose), f"{block} prints\n{out}\nbut shows\n{block.expected}"


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with commands of this Python, which need not have been installed with it."""
    folder = tmp_path_factory.mktemp("installed")
    for name, module in (("joma", "joma"), ("torchrun", "torch.distributed.run")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def beside_the_checkout(tmp_path, monkeypatch, installed):
    """An empty folder as a reader has it, with the records and scripts of the checkout."""
    for name in ("docs", "results", "benchmarks", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    commands = [str(installed), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(commands))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if not entry_points(group="pytest11", name="joma.claims.pytest_plugin"):
        monkeypatch.setenv("PYTEST_PLUGINS", "joma.claims.pytest_plugin")  # as an installed joma gives it to pytest
    monkeypatch.delenv("JOMA_DATA", raising=False)
    monkeypatch.setattr("joma.scan.model.text.token_ids", tokenized)  # in this process, to save the time of another


LONG = (
    "docs/how-to/scan-checkpoints.md",
    "docs/how-to/run-on-a-gpu.md",
    "docs/how-to/train-an-ensemble.md",
    "docs/how-to/measure-a-model.md",
    "docs/how-to/monitor.md",
    "docs/how-to/monitor-several-processes.md",
    "docs/how-to/add-a-cache-policy.md",
    "docs/how-to/cache.md",
    "docs/how-to/galore.md",
    "docs/how-to/galore-options.md",
    "docs/how-to/read-a-verdict.md",
    "docs/explanation/many-claims.md",
    "docs/explanation/measures/allocation.md",
    "docs/explanation/measures/active.md",
    "docs/explanation/measures/sparsity.md",
    "docs/explanation/data/text.md",
    "docs/explanation/data/python_source.md",
)
"""They take about a second or more. The first that a reader pastes, README.md and the tutorial, are not among them."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long) if page in LONG else page for page in PAGES]
)
@pytest.mark.usefixtures("beside_the_checkout")
def test_the_page_runs_from_top_to_bottom(page, monkeypatch):
    """Files last for the page, names for one section: it can be pasted alone."""
    if not RECORDS.is_dir() and any("results/" in block.text for block in blocks(page)):
        pytest.skip(WHY)
    section, names = -1, {}
    for block in blocks(page):
        if block.section != section:
            section, module = block.section, ModuleType("pasted")
            monkeypatch.setitem(sys.modules, "pasted", module)  # where annotations are looked up
            names = vars(module)
        runs(block, names)


def test_what_is_not_run_says_why():
    unrun = [block for page in pages() for block in blocks(page) if block.reason is not None]
    assert all(block.reason in REASONS for block in unrun), [str(b) for b in unrun if b.reason not in REASONS]
    assert sum(block.reason != ELSEWHERE for block in unrun) <= MOST_UNRUN


def test_what_is_not_run_compiles():
    for block in (block for page in pages() for block in blocks(page)):
        if block.language == "python":
            compile(block.text, str(block), "exec")


def test_no_block_of_another_kind_hides_code():
    """Code in a fence called bash, sh, py or without a name would not be run."""
    for page in pages():
        for fence in re.findall(r"^ *```([^\n`]*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE):
            assert fence.strip() in {"", "python", "console", "text", "json", "toml", "bibtex"} or fence.startswith(
                "{"
            ), (
                page,
                fence,
            )


def test_a_block_that_prints_something_else_is_found():
    block = Block("page.md", 3, "python", "print(1 + 1)", expected="3")
    with pytest.raises(AssertionError, match="prints"):
        runs(block, {})
