"""Commands whose standard streams are closed, as by `joma verify >&-`."""

import json
import os
import subprocess
import sys

import pytest

PRINTS = """
import sys
from joma.host.printing import reopen_closed
reopen_closed()
with open(sys.argv[1], "w") as file:
    file.write("mine")
    print("theirs")
    print("theirs", file=sys.stderr)
sys.exit(0 if sys.stdin.read() == "" and not sys.stdout.isatty() else 1)
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_does_not_end_in_a_file(tmp_path, closed):
    given = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": True}
    subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", PRINTS, str(tmp_path / "a")], **given)
    assert (tmp_path / "a").read_text() == "mine"


@pytest.mark.long
def test_a_command_without_an_error_stream_and_with_few_letters_writes_its_files(tmp_path):
    command = [sys.executable, "-m", "joma", "verify", "lemma6", "-v", "--out", str(tmp_path)]
    few = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, check=True, env=few)
    assert "sqrt" in done.stdout.decode("ascii")
    assert json.loads((tmp_path / "findings.json").read_text(encoding="utf-8"))["studies"]
    assert (tmp_path / "report.html").is_file()
