"""Install into the environment of the Python that runs this: with uv in seconds, or else with pip in minutes.

    .venv/bin/python requirements/install.py "--no-deps --require-hashes -r requirements/run.txt" "torch==2.13.0"

Each argument is one installation: what follows `pip install`, in one string. Needs the standard library and pip alone.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

PIP = (sys.executable, "-m", "pip")
PIP_INSTALL = (*PIP, "install", "--quiet", "--disable-pip-version-check")
LOCK_OF_UV = Path(__file__).with_name("uv.txt")
IN_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""Options of pip and the variables of uv with the same meaning. Not uv's options: an address may hold a password, which
everybody on the machine could read in the list of processes."""


def pip_options() -> dict[str, str]:
    """What pip is configured to do, by its files and by variables. As in pip, the later of three sections decides."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name] = ast.literal_eval(value)
    return sections["global"] | sections["install"] | sections[":env:"]


def variables_for_uv(options: Mapping[str, str]) -> dict[str, str]:
    """The variables with which uv finds what pip would find: uv reads nothing that was written for pip.

    Without them a torch for the CPU in a folder of wheels would be passed over for the one with CUDA, of 5 GB.
    """
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip does: the best version that any index has
    if ssl.get_default_verify_paths().cafile:
        found["UV_SYSTEM_CERTS"] = "1"
    for name, variable in IN_UV.items():
        if name in options:
            between = "," if variable == "UV_FIND_LINKS" else " "
            found[variable] = between.join(os.path.expanduser(each) for each in options[name].split())
    return found


def find_uv() -> str | None:
    """The command uv, of the machine or of this environment; if there is none, pip brings it by its hash."""
    beside = Path(sys.executable).with_name("uv")
    if not (shutil.which("uv") or beside.is_file()):
        subprocess.run([*PIP_INSTALL, "--no-deps", "--require-hashes", "-r", str(LOCK_OF_UV)])
    return shutil.which("uv") or (str(beside) if beside.is_file() else None)


def install(requirements: list[str], uv: list[str], environment: Mapping[str, str]) -> int:
    """The exit status of one installation: with `uv`, the beginning of its command, if that is there and succeeds."""
    if uv:
        if subprocess.run([*uv, *requirements], env=environment).returncode == 0:
            return 0
        print("setup: uv could not; now with pip", file=sys.stderr)
    return subprocess.run([*PIP_INSTALL, *requirements]).returncode


def main(installations: list[str]) -> int:
    """Carry out one installation after another and say how long each took; stop at the first that fails."""
    started = time.perf_counter()
    found, options = find_uv(), pip_options()
    offline = ["--no-index"] if options.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
    uv = [found, "pip", "install", "--quiet", "--python", sys.executable, *offline] if found else []
    environment = variables_for_uv(options) | os.environ  # what the user has set for uv stays
    print(f"setup: {found or 'pip'} installs ({time.perf_counter() - started:.1f} s)", flush=True)
    for each in installations:
        started = time.perf_counter()
        if status := install(shlex.split(each), uv, environment):
            return status
        print(f"setup: {each} ({time.perf_counter() - started:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
