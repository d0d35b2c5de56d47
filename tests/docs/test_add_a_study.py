"""The study and the test of docs/how-to/add-a-study.md, pasted where the page says, pass what every study passes."""

import os
import shutil
import subprocess
import sys

import pytest
from in_process import joma
from page_blocks import ELSEWHERE, ROOT, blocks, pages, text_of
from patience import PATIENCE

from joma.studies.foreign import VARIABLE

OUTSIDE = ("joma verify path/to/sparser.py", "joma run path/to/sparser.py --tokens 20")
STUDY, TEST = "src/joma/studies/linear/sparser.py", "tests/studies/linear/test_sparser.py"


def pasted():
    """The two files of the page, by the path at which it says to save them."""
    page = [block.text + "\n" for block in blocks("docs/how-to/add-a-study.md") if block.language == "python"]
    test = next(text for text in page if "import pytest" in text)
    return {STUDY: page[0], TEST: test}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """As much of the checkout as the two files need, with both in it."""
    folder = tmp_path_factory.mktemp("checkout")
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=leave)
    (folder / "tests").mkdir()
    shutil.copytree(ROOT / "tests/studies", folder / "tests/studies", ignore=leave)
    for path in (ROOT / "pyproject.toml", *(ROOT / "tests").glob("*.py")):  # what tests share lies beside them
        shutil.copy(path, folder / path.relative_to(ROOT))
    for path, text in pasted().items():
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def passes(folder, *command, cwd=None):
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd or folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_other_block_counts_on_this_test():
    found = [block for page in pages() for block in blocks(page) if block.reason == ELSEWHERE]
    assert [block.text + "\n" for block in found] == ["".join(f"$ {line}\n" for line in OUTSIDE), pasted()[TEST]]


def test_the_page_says_where_they_go():
    assert all(f"`{path}`" in text_of("docs/how-to/add-a-study.md") for path in pasted())


def test_both_files_pass_ruff(checkout):
    pytest.importorskip("ruff")
    passes(checkout, "ruff", "check", STUDY, TEST)
    passes(checkout, "ruff", "format", "--check", STUDY, TEST)


@pytest.mark.long
def test_the_study_passes_strict_types(checkout, tmp_path):
    """In the checkout itself, whose cache knows the types of everything else."""
    pytest.importorskip("mypy")
    alone = tmp_path / "sparser.py"
    alone.write_text(pasted()[STUDY], encoding="utf-8")
    passes(ROOT, "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(alone), cwd=ROOT)


QUESTIONS = ("findings_survive_json", "figures_are_labelled_and_described")
BOTH = """\
import sys
import pytest
failed = pytest.main(sys.argv[1:])  # before joma is there, so that pytest may load its plug-in
from joma.cli.main import main
sys.exit(failed or main(["verify", "sparser", "--out", "out"]))
"""


@pytest.mark.long
def test_its_own_test_passes_every_study_is_asked_of_it_and_joma_verifies_it(checkout):
    """In one process, which loads torch once."""
    (checkout / "both.py").write_text(BOTH)
    asked = [f"tests/studies/test_every_study.py::test_{question}[sparser]" for question in QUESTIONS]
    printed = passes(checkout, "both", "-q", "-p", "no:cacheprovider", TEST, *asked)
    assert "5 passed" in printed
    assert "1 holds" in printed


@pytest.mark.parametrize("command", OUTSIDE)
def test_it_runs_from_any_folder(tmp_path, command, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "path/to").mkdir(parents=True)
    (tmp_path / "path/to/sparser.py").write_text(pasted()[STUDY], encoding="utf-8")
    try:
        done = joma(*command.split()[1:], "--out", "out", cwd=tmp_path)
    finally:
        sys.modules.pop("joma_study_sparser", None)
    assert done.returncode == 0, done.stderr
    assert "1 holds" in done.stdout


def test_it_is_in_the_list(checkout):
    assert "Theorem 2: attention only becomes sparser" in passes(checkout, "joma", "list")
