"""What `make dist` built installs into a clean environment with its declared dependencies alone, and runs there.

    python tests/check_dist.py dist        # a folder with one wheel

Not among the tests: pip takes minutes, and a package index may be out of reach. Ends with status 1 if
anything is wrong.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 2_200_000
"""Bytes of a wheel: a tenth more than its code and its kept findings need, so that no record slips in."""


class Wrong(Exception):
    """What was built is not what it should be."""


def must(so: object, else_say: str) -> None:
    if not so:
        raise Wrong(else_say)


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)


def check_content(wheel: Path) -> None:
    """It carries every file of the package, those that pages are made of too, and nothing else."""
    names = set(zipfile.ZipFile(wheel).namelist())
    own = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/joma").rglob("*") if path.is_file()}
    lacks = sorted(name for name in own - names if "__pycache__" not in name)
    must(not lacks, f"{wheel.name} lacks {', '.join(lacks[:3])}")
    must(wheel.stat().st_size < LARGEST, f"{wheel.name} has {wheel.stat().st_size:,} bytes")
    strange = sorted(name for name in names if not name.startswith("joma/") and ".dist-info/" not in name)
    must(not strange, f"{wheel.name} holds {strange[:3]}")


def installed(wheel: Path, folder: Path) -> Path:
    """The folder of the commands in a clean environment that has the wheel and what it asks for."""
    venv.create(folder / "env", with_pip=True)
    commands = folder / "env" / "bin"
    # The locks' versions without their hashes: constraints choose versions, they do not install anything.
    locks = "".join((ROOT / "requirements" / name).read_text() for name in ("run.txt", "test.txt"))
    pins = re.findall(r"^[\w.-]+==[^\s\\;]+(?: *;[^\\\n]*)?", locks, re.M)
    (folder / "pins.txt").write_text("\n".join(pins))
    torch = f"torch=={version('torch').split('+')[0]}"
    pip = (commands / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    done = run(*pip, torch, wheel.resolve(), "-c", folder / "pins.txt", cwd=folder)
    must(done.returncode == 0, f"pip: {done.stderr}")
    return commands


def check_runs(commands: Path, folder: Path) -> None:
    """Core dependencies only: no matplotlib, so a report without figures, and an export that says what it lacks."""
    save = "import safetensors.torch as s; s.save_file({'h.0.mlp.c_fc.weight': s.torch.eye(8)}, 'step1.safetensors')"
    table = ROOT / "examples/judge/fp8.csv"
    for program, *rest in (
        ("python", "-c", save),
        ("joma", "scan", "step1.safetensors", "--out", "out"),
        ("joma", "judge", table, "--claims", table.with_suffix(".toml")),
        ("joma", "verify", "thm2", "--out", "out"),
    ):
        done = run(commands / program, *rest, cwd=folder)
        must(done.returncode == 0, f"{program} {rest[0]}: {done.stderr}")
    must(done.stdout.rstrip().endswith("report: out/report.html"), f"joma verify ends with {done.stdout[-200:]!r}")
    must((folder / "out" / "report.html").stat().st_size > 5_000, "the report is empty")
    stored = next((folder / "out" / "runs").glob("*.sqlite"))
    refused = run(commands / "joma", "export", stored, "--to", "parquet", cwd=folder)
    must(refused.returncode == 2, f"joma export without pyarrow ends with status {refused.returncode}")
    must("pip install 'joma[export]'" in refused.stderr, f"joma export without pyarrow says {refused.stderr!r}")
    packages = run(commands / "python", "-m", "pip", "list", "--format=freeze", cwd=folder).stdout
    must("matplotlib" not in packages, "what is optional was installed")
    if "+cpu" in packages:  # where pip finds a CPU build of torch, nothing may pull CUDA in
        must("nvidia-" not in packages, "a CPU build of torch came with CUDA")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist", help="holds the wheel (default: dist)")
    wheels = list(parser.parse_args().folder.glob("*.whl"))
    try:
        must(len(wheels) == 1, f"one wheel is needed, got {len(wheels)}")
        check_content(wheels[0])
        with tempfile.TemporaryDirectory(prefix="joma-dist-") as folder:
            check_runs(installed(wheels[0], Path(folder)), Path(folder))
    except Wrong as error:
        print(f"check_dist: {error}", file=sys.stderr)
        return 1
    print(f"check_dist: {wheels[0].name} installs into a clean environment and runs there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
