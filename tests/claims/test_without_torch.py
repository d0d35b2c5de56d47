"""What judges needs numpy and scipy alone: a verdict can be worked out where torch is not installed."""

import subprocess
import sys

import pytest

BLOCKED = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "sympy", "matplotlib", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
"""
JUDGING = """
before = set(sys.modules)  # site hooks of the interpreter load what they like
import joma.claims.declare, joma.claims.guards, joma.claims.ledger
from joma.claims.claim import Claim
from joma.claims.finding import Finding
from joma.claims.verdicts import by_effect
from joma.measure.intervals import compare
third = {name.partition(".")[0] for name in sys.modules.keys() - before} - set(sys.stdlib_module_names)
assert third <= {"joma", "numpy"}, third
import joma.claims
claim = Claim("better", "a table, Table 1", "It is better.", matters=0.1, unit="%")
for paired in (True, False):
    found = by_effect(claim, compare([0.3, 0.4, 0.5, 0.2, 0.3], [0.31, 0.2, 0.3, 0.35, 0.1], paired=paired))
    assert found.verdict == "undecided" and found.seeds_to_decide > 5
    assert Finding.from_json(found.as_json()) == found
assert "torch" not in sys.modules
"""


def python(code):
    return subprocess.run([sys.executable, "-P", "-c", BLOCKED + code], capture_output=True, text=True, check=False)


def test_claims_are_judged_without_torch():
    done = python(JUDGING)
    assert done.returncode == 0, done.stderr


def test_what_judges_stays_a_small_part_of_joma():
    done = python(
        "import joma.claims.verdicts, joma.claims.ledger\nprint(*(m for m in sys.modules if m[:4] == 'joma'))"
    )
    assert len(done.stdout.split()) <= 25, done.stdout


@pytest.mark.parametrize("command", [["verify", "thm2"], ["list"], ["scan", "x"]])
def test_other_commands_say_what_to_install(command):
    done = python(f"from joma.cli.main import main\nsys.exit(main({command}))")
    assert done.returncode == 2
    assert done.stderr.startswith(f"joma: joma {command[0]} needs torch, which is not installed: pip install -e .")
    assert len(done.stderr.splitlines()) == 1


def test_commands_for_numbers_of_others_work(tmp_path):
    rows = "".join(f"{seed},0.9{seed},0.7{seed}\n" for seed in range(5))
    (tmp_path / "r.csv").write_text(f"seed,new,old\n{rows}")
    table, found = str(tmp_path / "r.csv"), str(tmp_path / "f.json")
    page = str(tmp_path / "p.html")
    commands = [
        ["judge", table, "--effect", "new", "--matters", "0.05", "--json", found, "--page", page],
        ["plan", "--matters", "0.05", "--sd", "0.03", "--seeds", "5"],
        ["validate", found],
        ["export", found, "--to", "claims"],
    ]
    done = python(f"from joma.cli.main import main\nassert [main(one) for one in {commands}] == [0] * 4")
    assert done.returncode == 0, done.stderr
    assert "claim: holds" in done.stdout
    assert "5 seeds: " in done.stdout
    assert f"{found}: valid, 1 finding" in done.stdout


def test_with_torch_a_command_is_carried_out():
    code = "from joma.cli.main import main; raise SystemExit(main(['list']))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "thm2" in done.stdout
