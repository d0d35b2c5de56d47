"""Installed Python source and WikiText as byte pairs: each content once, no file on both sides, limits, refusals."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from joma.data import _subwords
from joma.data._subwords import installed_source, subwords
from joma.data.errors import CorpusError


@pytest.fixture
def folders(tmp_path):
    """Sixty modules, one of them twice, and what is left out: binary, empty, not Python."""
    package = tmp_path / "lib" / "package"
    package.mkdir(parents=True)
    for number in range(60):
        lines = [f"value_{number} = {number * line}" for line in range(20)]
        (package / f"module_{number:02}.py").write_text("\n".join(lines))
    (package / "copy.py").write_text((package / "module_07.py").read_text())
    (package / "binary.py").write_bytes(b"\xff\xfe\x00")
    (package / "empty.py").write_text("")
    (package / "readme.txt").write_text("not Python")
    return [tmp_path / "lib"]


@pytest.fixture
def wiki(tmp_path):
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for split, words in (("train", "the cat sat on the mat . "), ("valid", "the mat sat . "), ("test", "cat ")):
        (folder / f"{split}.txt").write_text(words * 40)
    return folder


def test_each_content_once_in_the_order_of_paths(folders):
    found = installed_source(10**6, folders)
    assert len(found) == 60
    assert [one.name for one in found] == sorted(one.name for one in found)
    assert {"package/copy.py", "package/module_07.py"} & {one.name for one in found} == {"package/copy.py"}


def test_a_limit_takes_a_sample_of_all(folders):
    whole, some = installed_source(10**6, folders), installed_source(10_000, folders)
    assert 10 < len(some) < 40
    assert sum(len(one.content) for one in some) <= 10_000
    assert {one.digest for one in some} < {one.digest for one in whole}
    assert some != whole[: len(some)]


def test_tokens_of_both_texts(folders, wiki, tmp_path, monkeypatch):
    found = subwords(wiki, 300, most=10**6, folders=folders)
    assert set(found.held_out) == {"WikiText-2", "Python"}
    assert (found.files, found.size) == (60, sum(len(one.content) for one in installed_source(10**6, folders)))
    ends = int((found.train == 0).sum())
    held_out = int((found.held_out["Python"] == 0).sum())
    assert held_out >= 1
    assert ends + held_out == 61  # sixty files and WikiText
    assert int(found.train.max()) < 300
    monkeypatch.setattr(_subwords, "_encoded", None)  # the cache answers
    again = subwords(wiki, 300, most=10**6, folders=folders)
    assert again.sha256 == found.sha256
    assert torch.equal(again.train, found.train)


def test_the_held_out_files_are_not_trained_on(folders, wiki, tmp_path, monkeypatch):
    seen = []
    real = _subwords._ids
    monkeypatch.setattr(_subwords, "_ids", lambda pairs, texts: seen.append(set(texts)) or real(pairs, texts))
    subwords(wiki, 300, most=10**6, folders=folders)
    wiki_train, python_train, wiki_valid, python_valid = seen
    assert not python_train & python_valid
    assert not wiki_train & wiki_valid
    assert len(python_train | python_valid) == 60


def test_long_texts_are_cut_without_loss():
    text = "a line\n" * 60_000
    pieces = _subwords._lines([text, "short"])
    assert len(pieces) > 3
    assert "".join(pieces) == text + _subwords.END + "short" + _subwords.END


def test_texts_that_are_encoded_in_several_calls_are_all_kept(monkeypatch):
    class Pairs:
        def encode_batch_fast(self, texts):
            return [SimpleNamespace(ids=list(text.removesuffix(_subwords.END).encode()) + [0]) for text in texts]

    monkeypatch.setattr(_subwords, "_TOGETHER", 2)
    assert (
        _subwords._ids(Pairs(), ["ab", "c", "d", "e", "fg"]).numpy().tobytes()
        == np.array(list(b"ab\0c\0d\0e\0fg\0"), np.int32).tobytes()
    )


def test_refusals(folders, wiki, tmp_path, monkeypatch):
    with pytest.raises(CorpusError, match="most must be at least 1 byte, got 0"):
        installed_source(0)
    with pytest.raises(CorpusError, match="byte pairs, 9,000 were asked for"):
        subwords(wiki, 9000, most=10**6, folders=folders)
    with pytest.raises(CorpusError, match="too few to hold one in 32 out"):
        subwords(wiki, 300, most=600, folders=folders)
