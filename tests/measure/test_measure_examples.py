"""Examples in the docs print what they say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_entropy_drops_and_rebounds_as_the_comment_says(page, capsys):
    (block,) = (block for block in blocks(page) if "salience.entropy_curve" in block)
    exec("import torch\n" + block, {})
    printed = [float(number) for number in re.findall(r"[\d.]+", capsys.readouterr().out.split("tensor([")[-1])[:4]]
    comment = re.search(r"entropy_curve\(.*\)\)  # (.*)", block)[1]
    said = [float(number) for number in re.findall(r"\d\.\d+", comment)]
    assert printed == pytest.approx(said, abs=0.006)
    assert printed[0] > printed[1] < printed[2] < printed[3]


def test_a_curve_is_read_from_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("docs/measure/rebound.md")
    exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    printed = [re.findall(r"tensor\(([\w.]+)", line) for line in lines]
    said = [re.findall(r"\d[\d.]*|True", comment) for comment in re.findall(r"print\(.*\)  # (.*)", block)]
    assert printed == said
