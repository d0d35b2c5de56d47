import pytest

from joma.data.python_source import source_files, source_text


def test_it_is_the_library_and_nothing_installed():
    files = list(source_files())
    names = {path.name for path in files}
    assert {"dataclasses.py", "ast.py"} <= names
    assert not any("site-packages" in path.parts or "test" in path.parts for path in files)
    assert files == list(source_files())


def test_text_is_deterministic_and_cut():
    assert source_text(50_000) == source_text(50_000)
    assert len(source_text(50_000)) == 50_000
    assert source_text(50_000) == source_text(80_000)[:50_000]


def test_bad_length():
    with pytest.raises(ValueError, match="characters must be at least 1"):
        source_text(0)
