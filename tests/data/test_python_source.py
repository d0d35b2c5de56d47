"""The source of a package as a corpus, and its labels against a slow reading of the syntax tree."""

import ast
import hashlib
import io
import random
import tokenize
from keyword import iskeyword
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from joma.data import _syntax, python_source
from joma.data._syntax import CLASSES, LEVELS, labelled
from joma.data.errors import CorpusError
from joma.data.python_source import (
    REFERENCE,
    python_tokens,
    source_files,
    source_folder,
    source_release,
    source_text,
)

SAMPLE = '''\
"""Doc."""
import os; import sys
@dec
@(other(1))
class A(B):
    x: int = 3; y = 4
    @property
    def f(self, a=1 + 2, *b):
        é = "ü" + g(x for x in é)  # ü
        if a: return f"{a + 1}" "more"
        elif b == 2:
            pass
        else:

            def inner(): yield a.b[1:2]
        try:
            1
        except (X, Y) as e:
            raise
        else:
            2
        finally:
            3
async def z():
    async with a as b:
        pass
    match a:
        case [1, 2] if x > 2:
            pass
\f
for i in range(3):
    while not i: break
else:
    lambda q: q if q else 0
'''


def label(file, level, word, occurrence=0):
    places = [place for place, other in enumerate(file.words) if other == word]
    return LEVELS[level][file.labels[level][places[occurrence]]]


# Text


def test_it_is_the_package_without_its_tests():
    files = list(source_files())
    names = {path.relative_to(source_folder()).as_posix() for path in files}
    assert {"core/basic.py", "polys/rings.py"} <= names
    assert not any({"tests", "_antlr"} & set(name.split("/")) for name in names)
    assert files == list(source_files())


def test_the_order_is_that_of_a_hash_of_the_names(tmp_path):
    for name in ("b/x.py", "a.py", "c.py", "b/y.py", "b/tests/z.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)]
    expected = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("b/x.py", "a.py", "c.py", "b/y.py")}
    assert found == sorted(expected, key=expected.get)


INSTALLED = source_release()
reference = pytest.mark.skipif(
    INSTALLED.sha256 != REFERENCE.sha256,
    reason=f"sympy {INSTALLED.version} is installed, and the numbers below are of {REFERENCE.version}",
)


@reference
def test_every_version_of_python_makes_the_same_tokens():
    """The hash is that of the first 60,000 tokens with Python 3.11 and 3.12; all files were compared with 3.13."""
    code = python_tokens(4096, tokens=60_000)
    digest = hashlib.sha256("\0".join((*code.vocabulary, *code.files)).encode())
    for tensor in (code.tokens, *(code.labels[level] for level in sorted(code.labels)), code.starts):
        digest.update(tensor.to(torch.int64).numpy().astype("<i8").tobytes())
    assert digest.hexdigest() == "04f84b723a26bd71763710a4e4f1e3d5a7bdab551297a2bd4213ba8ce32a8995"


@reference
def test_the_hash_of_the_release_is_that_of_its_files():
    digest = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        digest.update(path.relative_to(source_folder()).as_posix().encode() + b"\0%d\0" % len(content) + content)
    assert digest.hexdigest() == REFERENCE.sha256 == python_tokens(20, tokens=500).source


def test_another_file_is_another_release(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(python_source, "source_folder", lambda: tmp_path)
    first = source_release()
    (tmp_path / "a.py").write_text("x = 2\n")
    assert first.sha256 != source_release().sha256
    assert python_tokens(20).source == source_release().sha256


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(python_source, "find_spec", lambda name: None)
    with pytest.raises(CorpusError, match=r"the source of sympy, which is not installed: pip install sympy==1\.14\.0"):
        source_text(10)


def test_of_a_package_in_several_places_the_first_is_read(monkeypatch):
    spec = SimpleNamespace(submodule_search_locations=["first", "second"])
    monkeypatch.setattr(python_source, "find_spec", lambda name: spec)
    assert source_folder() == Path("first")


def test_text_is_every_file_up_to_the_cut(tmp_path, monkeypatch):
    """The first in order is the longest, and one is not UTF-8: whoever counts wrongly stops too early or reads on."""
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    names = sorted(("a.py", "b.py", "c.py", "d.py"), key=lambda name: hashlib.sha256(name.encode()).digest())
    parts = [f"# {name} " + "." * length + "\n" for name, length in zip(names, (40, 3, 0, 11), strict=True)]
    for name, part in zip(names, parts, strict=True):
        (tmp_path / name).write_text(part)
    monkeypatch.setattr(python_source, "source_folder", lambda: tmp_path)
    whole = "".join(part + "\f" for part in parts)
    assert [source_text(n) for n in range(1, len(whole) + 3)] == [whole[:n] for n in range(1, len(whole) + 3)]
    assert source_text() == whole


# Labels


def test_words_are_those_of_the_lexer():
    file = labelled(b"x = 'a' + 12  # why\n\nif x:\n    pass\n")
    assert " ".join(file.words) == "x = 'a' + 12 <newline> if x : <newline> <indent> pass <newline> <dedent> <end>"
    assert " ".join(CLASSES[found] for found in file.classes).startswith(
        "<name> <operator> <string> <operator> <number>"
    )
    assert CLASSES[file.classes[file.words.index("if")]] == "<keyword>"


def test_strings_with_expressions_and_long_ones_are_one_token():
    file = labelled(b"f'{x + 1:{w}}'; rf'''{\ny\n}'''; 'short'; '" + b"long" * 20 + b"'\n")
    assert file.words[:-2] == ["<string>", ";", "<string>", ";", "'short'", ";", "<string>"]
    assert set(file.labels["expression"]) == {0}


@pytest.mark.parametrize(
    ("level", "word", "occurrence", "expected"),
    [
        ("expression", "g", 0, "Call"),
        ("expression", "for", 0, "GeneratorExp"),
        ("expression", "+", 1, "BinOp"),
        ("expression", '"ü"', 0, "BinOp"),
        ("expression", "==", 0, "Compare"),
        ("expression", ".", 0, "Attribute"),
        ("expression", "[", 0, "Subscript"),
        ("expression", "]", 0, "Subscript"),
        ("expression", "Y", 0, "Tuple"),
        ("expression", ">", 0, "Compare"),
        ("expression", "q", 2, "IfExp"),
        ("expression", "lambda", 0, "Lambda"),
        ("expression", "x", 0, "none"),
        ("statement", ";", 0, "Import"),
        ("statement", "@", 0, "ClassDef"),
        ("statement", "x", 0, "AnnAssign"),
        ("statement", "y", 0, "Assign"),
        ("statement", "elif", 0, "If"),
        ("statement", "except", 0, "Try"),
        ("statement", "case", 0, "Match"),
        ("statement", "async", 0, "FunctionDef"),
        ("statement", "async", 1, "With"),
        ("statement", "<end>", 0, "none"),
        ("block", "class", 0, "module"),
        ("block", "x", 0, "class"),
        ("block", "return", 0, "if"),
        ("block", "elif", 0, "function"),
        ("block", "inner", 0, "else"),
        ("block", "yield", 0, "function"),
        ("block", "raise", 0, "except"),
        ("block", "3", 1, "finally"),
        ("block", "break", 0, "while"),
        ("block", "while", 0, "for"),
        ("definition", "@", 0, "class"),
        ("definition", "property", 0, "method"),
        ("definition", "yield", 0, "nested function"),
        ("definition", "z", 0, "function"),
        ("definition", "range", 0, "module"),
    ],
)
def test_labels(level, word, occurrence, expected):
    assert label(labelled(SAMPLE.encode()), level, word, occurrence) == expected


def some_files(count, largest=30_000):
    files = [path for path in source_files() if 500 < path.stat().st_size < largest]
    return [SAMPLE.encode(), *(path.read_bytes() for path in random.Random(0).sample(files, count))]


def test_every_block_closes_as_it_opened():
    for source in some_files(30):
        file = labelled(source)
        opened = []
        levels = ("block", "statement", "definition", "depth")
        for place, word in enumerate(file.words):
            if word == "<indent>":
                opened.append([file.labels[level][place] for level in levels])
            elif word == "<dedent>":
                assert opened.pop() == [file.labels[level][place] for level in levels]
        assert not opened
        assert file.words[-1] == "<end>"
        assert file.labels["statement"].find(0) == len(file.words) - 1  # every other token is in a statement


def slow_expressions(source):
    """The innermost expression at every token, by looking at all of them."""
    lines = [line.encode() for line in source.decode().split("\n")]
    spans = []
    inside_strings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside_strings |= {id(part) for part in ast.walk(node)}
        if type(node).__name__ in LEVELS["expression"] and id(node) not in inside_strings:
            begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
            spans.append((begin, (-end[0], -end[1]), type(node).__name__))
    spans.sort()  # an inner one comes behind the outer one
    names = []
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type in _syntax._CLASS_OF:
            row, column = token.start
            at = (row, len(lines[row - 1].decode()[:column].encode())) if row <= len(lines) else token.start
            around = [name for begin, end, name in spans if begin <= at < (-end[0], -end[1])]
            zero = token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)
            names.append("none" if zero or not around else around[-1])
    return names


@pytest.mark.skipif(hasattr(tokenize, "FSTRING_START"), reason="this lexer cuts formatted strings into pieces")
def test_expressions_agree_with_looking_at_every_node():
    for source in some_files(12, largest=6000):
        fast = [LEVELS["expression"][found] for found in labelled(source).labels["expression"]]
        assert fast == slow_expressions(source)


# The corpus


def test_the_corpus_is_deterministic_and_remembered(cache, monkeypatch):
    first = python_tokens(300, tokens=20_000)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(python_source, "labelled", None)  # a second reading would call it
    again = python_tokens(300, tokens=20_000)
    assert again.tokens.equal(first.tokens)
    assert again.vocabulary == first.vocabulary
    assert all(again.labels[level].equal(first.labels[level]) for level in first.labels)
    assert again.files == first.files
    assert again.starts.equal(first.starts)
    smaller = python_tokens(20, tokens=20_000)
    assert smaller.vocabulary == first.vocabulary[:20]


def test_shapes_and_ranges():
    code = python_tokens(300, tokens=20_000)
    assert code.tokens.shape == (20_000,)
    assert code.tokens.dtype == torch.int32
    assert len(code.vocabulary) == len(set(code.vocabulary)) == 300
    assert code.vocabulary[:9] == CLASSES
    assert int(code.tokens.max()) < 300
    assert set(code.labels) == {"expression", "statement", "block", "definition", "depth"}
    for level, names in code.names.items():
        assert code.labels[level].dtype == torch.int16
        assert code.labels[level].shape == (20_000,)
        assert int(code.labels[level].max()) < len(names)
    assert code.starts[0] == 0
    assert code.starts[-1] == 20_000
    assert len(code.starts) == len(code.files) + 1
    assert (code.starts.diff() > 0).all()
    # every file but the last, which is cut, ends as files end
    assert (code.tokens[code.starts[1:-1] - 1] == CLASSES.index("<end>")).all()
    counts = code.tokens.bincount(minlength=300)[9:]
    assert (counts.diff() <= 0).all()


def test_a_word_outside_the_vocabulary_is_its_class():
    small, large = python_tokens(20, tokens=5000), python_tokens(100_000, tokens=5000)
    assert len(large.vocabulary) < 100_000
    keyword, name = CLASSES.index("<keyword>"), CLASSES.index("<name>")
    for few, word in zip(small.tokens.tolist(), (large.vocabulary[id] for id in large.tokens.tolist()), strict=True):
        if few == keyword:
            assert iskeyword(word)
        elif few == name:
            assert word.isidentifier()
            assert not iskeyword(word)
        elif few >= len(CLASSES):
            assert small.vocabulary[few] == word


def test_damage_and_a_folder_that_cannot_be_written(cache, monkeypatch, tmp_path):
    first = python_tokens(50, tokens=500)
    (path,) = cache.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    assert python_tokens(50, tokens=500).tokens.equal(first.tokens)
    (tmp_path / "file").touch()
    monkeypatch.setenv("JOMA_CACHE", str(tmp_path / "file" / "below"))
    assert python_tokens(50, tokens=500).tokens.equal(first.tokens)


def test_files_that_do_not_parse_are_counted(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "good.py").write_text("x = 1\n")
    (folder / "bad.py").write_text("x = = 1\n")
    (folder / "latin.py").write_bytes(b"x = '\xe9'\n")
    (folder / "null.py").write_bytes(b"x = '\0'\n")
    code = python_tokens(20, folder=folder)
    assert code.skipped == 3
    assert code.files == ("good.py",)
    assert [code.vocabulary[token] for token in code.tokens] == ["x", "=", "1", "<newline>", "<end>"]
    (folder / "good.py").write_text("x = (\n")
    with pytest.raises(CorpusError, match="none of the 4 files"):
        python_tokens(20, folder=folder)


def test_a_changed_file_is_read_again(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = python_tokens(20, folder=tmp_path)
    (tmp_path / "a.py").write_text("x = 1; y = 2\n")
    after = python_tokens(20, folder=tmp_path)
    assert len(after.tokens) > len(before.tokens)
    assert before.sha256 != after.sha256


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda path: python_tokens(1), "vocabulary must be at least 10 .* got 1"),
        (lambda path: python_tokens(20, tokens=0), "tokens must be at least 1, got 0"),
        (lambda path: python_tokens(20, folder=path / "none"), "holds no Python source"),
        (lambda path: source_text(0), "characters must be at least 1"),
    ],
)
def test_bad_input_gets_one_sentence(call, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        call(tmp_path)
