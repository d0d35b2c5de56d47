"""Commands whose standard streams are closed, as by `joma verify >&-`."""

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
def test_a_command_without_an_output_writes_its_files(tmp_path):
    command = [sys.executable, "-m", "joma", "verify", "thm5", "--out", str(tmp_path)]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False)
    lines = done.stderr.splitlines()  # a slow machine may say how far it is
    assert (done.returncode, [one for one in lines if not one.startswith("  thm5  ")]) == (0, [])
    assert (tmp_path / "findings.json").is_file()
    assert (tmp_path / "report.html").is_file()
