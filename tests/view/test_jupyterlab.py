"""JupyterLab, started for real: a run shows itself in a cell, and grows while another process writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from patience import until
from view.making import grid

from joma.runs import Run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="JupyterLab is not installed"),
    pytest.mark.skipif(find_spec("anywidget") is None, reason="anywidget is not installed"),
]
CELL = "from joma.runs import Run\nRun.open('a.joma')"


@contextmanager
def laboratory(folder: Path) -> Iterator[str]:
    """JupyterLab on a folder; gives its address."""
    import anywidget

    beside = Path(anywidget.__file__).parents[4] / "share" / "jupyter"  # its part of the page, wherever it is installed
    homes = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    path = os.pathsep.join([str(beside), os.environ.get("JUPYTER_PATH", "")])
    options = ("--no-browser", "--port=0", "--ServerApp.token=secret", "--ServerApp.port_retries=0", "--allow-root")
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={folder}"]
    env = {**os.environ, **homes, "JUPYTER_PATH": path}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: told_address(folder))
            yield told_address(folder)
        finally:
            process.terminate()


def told_address(folder: Path) -> str:
    for path in (folder / "RUNTIME").glob("jpserver-*.json"):
        with suppress(json.JSONDecodeError):
            address: str = json.loads(path.read_text())["url"]
            return address
    return ""


def notebook(path: Path) -> None:
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None, "source": CELL}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": [cell]}))


def test_a_run_draws_itself_and_grows(browser: Any, tmp_path: Path) -> None:
    notebook(tmp_path / "look.ipynb")
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run, laboratory(tmp_path) as address:
        for step in range(3):
            run.record(step, {"entropy": grid(step)}, dims={"entropy": ("layer", "head")})
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}lab/tree/look.ipynb?token=secret")
        page.locator(".jp-Cell .cm-content").first.click()
        page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for()
        page.keyboard.press("Shift+Enter")
        legend = page.locator(".jp-OutputArea .joma-view .legend li")
        legend.first.wait_for()
        assert legend.count() == 4
        assert legend.nth(3).locator("b").inner_text() == "312"  # the mean of three heads at step 2
        assert page.locator(".joma-view .u-over").is_visible()
        run.record(3, {"entropy": grid(3)})
        until(lambda: legend.nth(3).locator("b").inner_text() == "313")
        run.finish()
        until(lambda: page.locator(".joma-view .live").inner_text() == "")
        page.close()
