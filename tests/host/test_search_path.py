"""Where modules are looked for: not in the working directory, and everywhere else as before."""

import os
import sys

import pytest

from joma.host.search_path import leave_out_working_directory


@pytest.mark.skipif(sys.flags.safe_path, reason="Python has put nothing first")
def test_the_working_directory_is_taken_away_where_it_stands_first_and_nothing_else(monkeypatch):
    here = os.getcwd()
    for before, after in (([here, "a", "b"], ["a", "b"]), (["a", here, "b"], ["a", here, "b"]), ([], [])):
        monkeypatch.setattr(sys, "path", before)
        leave_out_working_directory()
        assert sys.path == after
