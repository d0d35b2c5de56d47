"""What tests of language models ask for by name: a text that is quickly learned, that there is no other, small runs."""

from functools import cache

import numpy as np
import pytest
from small_ablations import STUDIES, carry_out


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    """A folder as users bring it: words that follow one another by a rule, with noise."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    (folder / "wikitext-2").mkdir()
    for split, count in (("train", 3000), ("valid", 400), ("test", 100)):
        ids = [0]
        for _ in range(count):
            ids.append((3 * ids[-1] + 1) % 50 if generator.random() < 0.8 else int(generator.integers(50)))
        (folder / "wikitext-2" / f"{split}.txt").write_text(" ".join(f"w{i}" for i in ids), encoding="utf-8")
    return folder


@pytest.fixture
def no_other_text(tmp_path_factory, monkeypatch):
    """As on a machine where nothing was downloaded and JOMA_DATA is not set: a test finds what it names alone."""
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("JOMA_DATA", raising=False)


@pytest.fixture(scope="session")
def ablations(data_folder, tmp_path_factory):
    """The run of every study by its name, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("ablation-runs")
    return cache(lambda name: carry_out(STUDIES[name], data_folder, folder / f"{name}.sqlite"))
