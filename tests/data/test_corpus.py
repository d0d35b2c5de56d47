"""WikiText in both layouts, other text, and how it is cut for training."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.data import _words, text
from joma.data.python_source import PythonTokens, python_tokens
from joma.data.text import (
    Corpus,
    CorpusError,
    basic_english,
    cut_vocabulary,
    find_corpus,
    python_corpus,
    streams,
    text_file,
    wikitext,
    windows,
)
from joma.host import limits

LINES = {
    "train": [" \n", " = Title = \n", " The cat ( and the dog ) sat . \n", " It 's <unk> , the end ; \n"],
    "valid": [" The bird sat ! \n"],
    "test": [" A cat : it 's \n"],
}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "small"
    made.mkdir()
    for split, lines in LINES.items():
        (made / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
    return made


@pytest.fixture
def parquet(tmp_path):
    return write_parquet(tmp_path / "wikitext-103")


def write_parquet(folder):
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    rows = {
        "train-00000-of-00002": LINES["train"][:2],
        "train-00001-of-00002": LINES["train"][2:],
        "validation-00000-of-00001": LINES["valid"],
        "test-00000-of-00001": LINES["test"],
    }
    for name, lines in rows.items():
        pyarrow.parquet.write_table(pyarrow.table({"text": lines}), folder / f"{name}.parquet")
    return folder


def words(corpus, split):
    return " ".join(corpus.vocabulary[token] for token in corpus.tokens[split])


# Words


def by_pattern(line):
    """The convention as a list of patterns applied one after another to one line."""
    patterns = [
        ("'", " '  "),
        ('"', ""),
        (r"\.", " . "),
        (r"<br \/>", " "),
        (",", " , "),
        (r"\(", " ( "),
        (r"\)", " ) "),
        (r"\!", " ! "),
        (r"\?", " ? "),
        (r"\;", " "),
        (r"\:", " "),
        (r"\s+", " "),
    ]
    line = line.lower()
    for pattern, replacement in patterns:
        line = re.sub(pattern, replacement, line)
    return line.split()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(alphabet="aBéΣİ'\".,()!?;:<br />\t\u00a0@-", max_size=30), max_size=4))
def test_words_agree_with_the_patterns_line_by_line(lines):
    assert basic_english("\n".join(lines)) == [word for line in lines for word in by_pattern(line)]


def test_order_of_the_vocabulary(folder):
    corpus = wikitext(folder)
    # the: 3; ' ( ) = . , and so on once or twice; ties in alphabetical order, <unk> first in any case
    assert corpus.vocabulary[:4] == ("<unk>", "the", "=", "'")
    assert corpus.vocabulary[3:] == tuple(sorted(corpus.vocabulary[3:]))
    assert words(corpus, "train").startswith("= title = the cat ( and the dog ) sat . it ' s <unk> , the end")
    assert words(corpus, "valid") == "the <unk> sat <unk>"
    assert words(corpus, "test") == "<unk> cat it ' s"
    assert corpus.name == "small"
    assert corpus.tokens["train"].dtype == torch.int32


def test_blocks_do_not_change_the_words(folder, monkeypatch, tmp_path):
    from joma.data import _words

    whole = wikitext(folder)
    monkeypatch.setattr(_words, "_BLOCK", 3)
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path / "other"))
    heard = []
    in_blocks = wikitext(folder, progress=lambda share, doing: heard.append((share, doing)))
    assert all(in_blocks.tokens[split].equal(whole.tokens[split]) for split in LINES)
    assert heard == sorted(heard)
    assert heard[-1] == (pytest.approx(1), "cutting test.txt into words")
    assert len(heard) > 20  # about a word each


def test_the_layout_of_the_hub_gives_the_same(folder, parquet):
    a, b = wikitext(folder), wikitext(parquet)
    assert a.vocabulary == b.vocabulary
    assert all(a.tokens[split].equal(b.tokens[split]) for split in LINES)


def test_it_is_remembered_by_content(folder, cache, monkeypatch):
    first = wikitext(folder)
    monkeypatch.setattr(text, "numbered", None)  # cutting again would call it
    again = wikitext(folder)
    assert again.vocabulary == first.vocabulary
    assert again.sha256 == first.sha256
    assert all(again.tokens[split].equal(first.tokens[split]) for split in LINES)
    assert not [path for path in cache.iterdir() if path.suffix != ".safetensors"]
    monkeypatch.undo()
    monkeypatch.setenv("JOMA_CACHE", str(cache))
    with (folder / "train.txt").open("a") as stream:
        stream.write(" more \n")
    assert wikitext(folder).sha256 != first.sha256
    assert len(wikitext(folder).tokens["train"]) == len(first.tokens["train"]) + 1


def test_one_flipped_bit_in_what_is_remembered_is_noticed(folder, cache):
    first = wikitext(folder)
    (kept,) = cache.iterdir()
    content = bytearray(kept.read_bytes())
    content[-3] ^= 4
    kept.write_bytes(content)
    again = wikitext(folder)
    assert again.vocabulary == first.vocabulary
    assert all(again.tokens[split].equal(first.tokens[split]) for split in LINES)
    assert kept.read_bytes() != bytes(content)  # mended for the next time


@pytest.mark.long
def test_wikitext_2_has_the_published_counts():
    folder = Path(os.environ.get("JOMA_DATA", "")) / "wikitext-2"
    if not os.environ.get("JOMA_DATA") or not folder.is_dir():
        pytest.skip("JOMA_DATA names no folder with wikitext-2")
    corpus = find_corpus()
    assert corpus.name == "wikitext-2"
    assert len(corpus.vocabulary) == 28_782
    assert {split: len(ids) for split, ids in corpus.tokens.items()} == {
        "train": 2_049_990,
        "valid": 214_417,
        "test": 241_859,
    }
    assert corpus.vocabulary[:5] == ("<unk>", "the", ",", ".", "of")
    assert windows(streams(corpus.tokens["train"], 20))[0].shape == (2928, 20, 35)
    assert (corpus.tokens["train"].bincount()[1:].diff() <= 0).all()


# Other sources


def test_any_text_file(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("\ufeff" + "one two three four five " * 20, encoding="utf-8")
    corpus = text_file(path)
    assert {split: len(ids) for split, ids in corpus.tokens.items()} == {"train": 90, "valid": 5, "test": 5}
    assert corpus.vocabulary == ("<unk>", "five", "four", "one", "three", "two")
    assert words(corpus, "valid") == "one two three four five"
    assert corpus.name == "book"


def test_words_that_only_the_end_of_a_file_has_are_unknown(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("a b " * 45 + "c " * 10)
    corpus = text_file(path)
    assert corpus.vocabulary == ("<unk>", "a", "b")
    assert words(corpus, "test") == " ".join(["<unk>"] * 5)


def test_python_source_is_a_corpus():
    corpus = python_corpus(200, tokens=60_000)
    sizes = {split: len(ids) for split, ids in corpus.tokens.items()}
    assert sum(sizes.values()) == 60_000
    assert 0.04 * 60_000 < sizes["valid"] <= 3000
    assert 0.04 * 60_000 < sizes["test"] <= 3000
    end = corpus.vocabulary.index("<end>")
    assert corpus.tokens["train"][-1] == end  # whole files; the very last one, which is cut, went to "valid"
    assert corpus.tokens["test"][-1] == end
    code = python_tokens(200, tokens=60_000)
    assert corpus.vocabulary == code.vocabulary
    assert torch.cat(list(corpus.tokens.values())).bincount().equal(code.tokens.bincount())
    assert len(corpus.vocabulary) == 200


def of_files(*sizes):
    starts = torch.tensor([0, *np.cumsum(sizes)])
    ids = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(torch.tensor(sizes))
    return PythonTokens(tuple("abcd"), ids, {}, {}, (), starts, 0, "sha", "source")


def test_two_files_that_can_be_held_out_are_shared(monkeypatch):
    """Validation takes what there is room for; a test split without a file of its own gets the last of them."""
    monkeypatch.setattr(text, "python_tokens", lambda *_, **__: of_files(95, 3, 2))
    found = {split: ids.tolist() for split, ids in python_corpus().tokens.items()}
    assert found == {"train": [0] * 95, "valid": [1] * 3, "test": [2] * 2}
    monkeypatch.setattr(text, "python_tokens", lambda *_, **__: of_files(96, 4))
    with pytest.raises(CorpusError, match="100 tokens are too few files to hold some out"):
        python_corpus()


def test_where_a_corpus_is_found(folder, tmp_path, cache, monkeypatch):
    monkeypatch.delenv("JOMA_DATA", raising=False)
    assert find_corpus() is None
    assert find_corpus(tmp_path) is None
    assert find_corpus(tmp_path, name="small").sha256 == wikitext(folder).sha256
    monkeypatch.setenv("JOMA_DATA", str(tmp_path))
    assert find_corpus(name="small").name == "small"
    folder.rename(cache / "wikitext-2")
    assert find_corpus().name == "wikitext-2"


# Cutting


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(2, 11), st.booleans())
def test_a_vocabulary_cut_to_size(ids, size, knows_unknown):
    vocabulary = ("<unk>" if knows_unknown else "z", *"abcdefghi")
    size = min(size, 10) if knows_unknown else size
    corpus = Corpus("x", vocabulary, {"train": torch.tensor(ids, dtype=torch.int32)}, "")
    cut = cut_vocabulary(corpus, size)
    assert len(cut.vocabulary) == len(set(cut.vocabulary)) == size
    assert cut.vocabulary[0] == "<unk>"
    for old, new in zip(words(corpus, "train").split(), words(cut, "train").split(), strict=True):
        assert new == (old if old in cut.vocabulary else "<unk>")
    counts = {word: ids.count(number) for number, word in enumerate(vocabulary)}
    left = [counts[word] for word in vocabulary if word not in cut.vocabulary]
    assert min(counts[word] for word in cut.vocabulary[1:]) >= max(left, default=0)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 200), st.integers(1, 7), st.integers(1, 9))
def test_streams_and_windows(count, batch, length):
    tokens = torch.arange(count)
    if count // batch < max(2, length + 1):
        with pytest.raises(CorpusError, match="need"):
            windows(streams(tokens, batch), length)
        return
    cut = streams(tokens, batch)
    assert cut.flatten().equal(tokens[: batch * (count // batch)])
    inputs, targets = windows(cut, length)
    assert inputs.shape == targets.shape == ((count // batch - 1) // length, batch, length)
    assert targets.equal(inputs + 1)
    for number in range(len(inputs)):
        assert inputs[number].equal(cut[:, number * length : (number + 1) * length])
    assert inputs.data_ptr() == tokens.data_ptr()


# Bad input


def emptied(folder):
    for path in folder.iterdir():
        path.write_bytes(b"")
    return wikitext(folder)


def spoiled(folder, name, content):
    (folder / name).write_bytes(content)
    return wikitext(folder)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (emptied, "the train split holds no words"),
        (lambda f: spoiled(f, "train.txt", b""), "the train split holds no words"),
        (lambda f: spoiled(f, "valid.txt", b' \n "" \n'), "the valid split holds no words"),
        (lambda f: spoiled(f, "train.txt", b"a b caf\xe9 d\n"), r"train.txt is not UTF-8 \(0xe9 at byte 7\); convert"),
        (lambda f: spoiled(f, "test.txt", "ab".encode("utf-16")), "test.txt is not UTF-8 .0xff at byte 0"),
        (lambda f: spoiled(f, "test.txt", "ab".encode("utf-16-le")), "null characters"),
        (lambda f: spoiled(f, "train.txt", b"a a a\n"), "has only one word, 'a'"),
        (
            lambda f: spoiled(f, "train.txt", b"a" * 9_000),
            r"only one word, 'a{40}'… \(9,000 characters\): there is nothing",
        ),
        (lambda f: ((f / "valid.txt").unlink(), wikitext(f)), "has no valid split: no valid.txt and no validation-"),
        (lambda f: wikitext(f / "none"), "is not a folder"),
        (lambda f: text_file(f / "none.txt"), "cannot be read: No such file"),
        (lambda f: text_file(f / "valid.txt"), "has 4 words, too few"),
        (lambda f: python_corpus(1), "vocabulary must be at least 10"),
        (lambda f: python_corpus(tokens=50), "50 tokens are too few files to hold some out"),
        (lambda f: cut_vocabulary(wikitext(f), 1), "size must lie between 2 .* got 1"),
        (lambda f: cut_vocabulary(wikitext(f), 1000), "and 16, the words there are, got 1000"),
        (lambda f: streams(torch.arange(5), 3), "3 streams need 6 tokens at least, the text has 5"),
        (lambda f: streams(torch.arange(5), 0), "batch must be at least 1"),
        (lambda f: streams(torch.ones(2, 2), 1), r"shape \(N,\), got \(2, 2\)"),
        (
            lambda f: windows(torch.ones(2, 35)),
            "sequences of 35 tokens need 36 per stream, there are 35",
        ),
        (lambda f: windows(torch.ones(2, 35), 0), "length must be at least 1"),
        (lambda f: windows(torch.ones(5)), r"shape \(batch, length\)"),
    ],
)
def test_bad_input_gets_one_sentence(call, sentence, folder):
    with pytest.raises(CorpusError, match=sentence) as error:
        call(folder)
    assert "\n" not in str(error.value)


def test_text_that_is_far_into_a_file(tmp_path, monkeypatch):
    from joma.data import _words

    monkeypatch.setattr(_words, "_BLOCK", 1000)
    path = tmp_path / "long.txt"
    path.write_bytes(b"word another\n" * 1000 + b"\xff")
    with pytest.raises(CorpusError, match="0xff at byte 13,000"):
        text_file(path)


def test_bad_parquet_gets_one_sentence(parquet, monkeypatch):
    import pyarrow
    import pyarrow.parquet

    valid = parquet / "validation-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"words": ["a"], "id": [1]}), valid)
    with pytest.raises(CorpusError, match="has no text column; its columns are words, id"):
        wikitext(parquet)
    pyarrow.parquet.write_table(pyarrow.table({"text": np.arange(3)}), valid)
    with pytest.raises(CorpusError, match="holds int64, not strings"):
        wikitext(parquet)
    valid.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(CorpusError, match=r"validation-00000-of-00001\.parquet is not a parquet file that can be read"):
        wikitext(parquet)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CorpusError, match=r"needs pyarrow: pip install -e '\.\[export\]'"):
        wikitext(parquet)


def test_a_missing_shard(parquet):
    (parquet / "train-00001-of-00002.parquet").rename(parquet / "train-00001-of-00003.parquet")
    with pytest.raises(CorpusError, match="shards of two downloads"):
        wikitext(parquet)
    (parquet / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(
        CorpusError, match=r"has no train-00001-of-00002\.parquet: a part of the train split is missing"
    ):
        wikitext(parquet)


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(["<br />", "<BR />", "<br", " ", "/>", "a", "é", "Σ", "\n", "\t", ".", "word", "\u3000"])),
    st.integers(1, 9),
)
def test_no_cut_changes_a_word(tmp_path_factory, parts, size):
    path = tmp_path_factory.mktemp("cut") / "a.txt"
    path.write_text("".join(parts), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_words, "_BLOCK", size)
        found = [word for block, _ in _words.blocks(path) for word in basic_english(block)]
    assert found == basic_english("".join(parts))


@pytest.mark.parametrize("ending", ["txt", "parquet"])
def test_one_long_line_is_read_in_pieces(tmp_path, monkeypatch, ending):
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setattr(_words, "_BLOCK", 10_000)
    line = "some words and " * 20_000
    path = tmp_path / f"a.{ending}"
    if ending == "txt":
        path.write_text(line)
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": [line, "", line]}), path)
    pieces = [block for block, _ in _words.blocks(path)]
    assert max(map(len, pieces)) <= 10_000
    assert [word for piece in pieces for word in piece.split()] == line.split() * (1 if ending == "txt" else 2)


def test_a_word_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_words, "_BLOCK", 1000)
    monkeypatch.setattr(limits, "WORD_BYTES", 5000)
    (tmp_path / "a.txt").write_text("a b " * 10 + "x" * 4000 + " c " * 10)
    text_file(tmp_path / "a.txt")  # long, but a word
    (tmp_path / "b.txt").write_text("a b " * 10 + "x" * 9000)
    with pytest.raises(CorpusError, match=r"b\.txt is not a text: it holds a word of more than 5,000 bytes"):
        text_file(tmp_path / "b.txt")


def test_a_text_column_that_is_not_utf_8(parquet):
    import pyarrow
    import pyarrow.parquet

    wrong = pyarrow.array([b"caf\xe9"]).cast(pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": wrong}), parquet / "validation-00000-of-00001.parquet")
    with pytest.raises(CorpusError, match=r"validation-00000-of-00001\.parquet is not UTF-8 \(0xe9 at byte 3\)"):
        wikitext(parquet)


def test_damaged_parquet_is_read_or_refused_in_one_sentence(parquet):
    valid = parquet / "validation-00000-of-00001.parquet"
    good, random, refused = valid.read_bytes(), np.random.default_rng(0), 0
    for _ in range(150):
        content = bytearray(good)
        for place in random.integers(0, len(good), random.integers(1, 4)):
            content[place] = random.integers(256)
        valid.write_bytes(content[: random.integers(1, len(good))] if random.random() < 0.2 else content)
        try:
            list(_words.blocks(valid))
        except CorpusError as error:
            refused += "\n" not in str(error)
    assert refused > 30  # every fifth is cut off
