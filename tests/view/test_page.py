"""A page with its data inside: its size, its policy, what it refuses; and the files that the module is made of."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from view.making import NASTY, heads, nasty

import joma.view
from joma.cli.main import main
from joma.host.errors import BadInput
from joma.runs import Run
from joma.view.feed import Feed
from joma.view.module import CHARTS, PARTS, module, static
from joma.view.page import write_page

STATIC = Path(joma.view.__file__).parent / "static"


def data_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="joma-data">(.*?)</script>', text, re.DOTALL)[1])


def numbers(answer, which=1):
    return np.frombuffer(
        base64.b64decode(answer["buffers"][which]), "<f4" if which and answer["kind"] == "f4" else "<f8"
    )


def test_all_numbers_are_inside_where_they_fit(tmp_path):
    heads(tmp_path / "a.joma", 30)
    sentence = write_page(Feed([tmp_path]), tmp_path / "page.html")
    assert sentence == "All numbers of 1 run are inside."
    data = data_of(tmp_path / "page.html")
    assert data["about"].startswith(sentence)
    found = data["series"]["a.joma"]["entropy"]
    with Run.open(tmp_path / "a.joma") as run:
        np.testing.assert_array_equal(numbers(found).reshape(found["shape"]), run.array("entropy"))
        np.testing.assert_array_equal(numbers(found, 0), run.steps("entropy"))


def test_a_page_is_thinned_to_its_size_says_so_and_keeps_a_spike(tmp_path):
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for step in range(1500):
            run.append("x", step, np.where(np.arange(100) == 7, 99.0 * (step == 777), 1.0), dims=("head",))
    sentence = write_page(Feed([tmp_path]), tmp_path / "page.html", megabytes=0.2)
    points = int(re.search(r"at most ([\d,]+) of up to 1,500 steps", sentence)[1])
    assert "so spikes stay" in sentence
    assert 300 < points < 400
    assert (tmp_path / "page.html").stat().st_size - len(module()) < 0.3e6
    found = data_of(tmp_path / "page.html")["series"]["a.joma"]["x"]
    assert numbers(found).max() == 99.0
    whole = found["whole"]
    steps = numbers(whole, 0)
    np.testing.assert_array_equal(numbers(whole).reshape(whole["shape"])[:, 7], 99.0 * (steps == 777))


@pytest.mark.parametrize("size", [200_000, 80_000])  # alone too large, or so large that curves would lose their course
def test_arrays_that_no_thinning_makes_small_are_left_out_by_name(tmp_path, size):
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.append("large", 0, np.zeros(size))
        run.append("small", 0, np.zeros(10))
        for step in range(250):
            run.append("curves", step, np.zeros(100))
    sentence = write_page(Feed([tmp_path]), tmp_path / "page.html", megabytes=0.5)
    assert sentence == "The numbers of 1 run are inside. 1 large array is left out."
    series = data_of(tmp_path / "page.html")["series"]["a.joma"]
    assert series["large"] == {"fault": "large is too large for this page; it is in the run"}
    assert series["small"]["shape"] == [1, 10]


def test_names_cannot_leave_the_data_and_only_our_script_may_run(tmp_path):
    nasty(tmp_path / "a.joma")
    write_page(Feed([tmp_path]), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src" not in text
    assert data_of(tmp_path / "page.html")["index"]["runs"][0]["study"] == NASTY
    script = re.search(r'<script type="module">(.*)</script>', text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text)


def test_what_cannot_be_shown_is_refused_before_anything_is_written(tmp_path, capsys):
    pytest.importorskip("uvicorn")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "page.html"
    with pytest.raises(BadInput, match="has no run and no findings to show"):
        write_page(Feed([tmp_path / "empty"]), out)
    heads(tmp_path / "a.joma", 3)
    (text := tmp_path / "notes.txt").write_text("no run at all", encoding="utf-8")
    with pytest.raises(BadInput, match="megabytes must be above 0"):
        write_page(Feed([tmp_path]), out, megabytes=float("nan"))
    for arguments, sentence in (
        ([str(tmp_path / "none")], f"there is no {tmp_path / 'none'}; joma view takes runs, and folders with runs"),
        ([str(text), "--export", str(out)], f"{text} is not a run; joma view takes runs, and folders with runs"),
        ([str(tmp_path), "--size", "3"], "--size goes with --export: a live page is sent what it shows"),
        ([str(tmp_path), "--export", str(out), "--size", "-1"], "megabytes must be above 0, got -1.0 (--size MB)"),
        (
            [str(tmp_path), "--export", str(tmp_path)],
            f"export must be a file, but {tmp_path} is a folder (--export FILE)",
        ),
        ([str(tmp_path), "--every", "0"], "--every takes seconds above 0, got 0"),
        ([str(tmp_path), "--port", "99999999"], "port 99999999 cannot be used: "),
    ):
        assert main(["view", *arguments]) == 2, arguments
        assert capsys.readouterr().err.startswith(f"joma: {sentence}")
    assert not out.exists()


def test_a_page_is_written_by_the_command(tmp_path, capsys):
    heads(tmp_path / "a.joma", 3)
    assert main(["view", str(tmp_path / "a.joma"), "--export", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"page: {tmp_path / 'page.html'}\nAll numbers of 1 run are inside.\n"


def test_without_the_extra_one_sentence_names_it(tmp_path, capsys, monkeypatch):
    import sys

    heads(tmp_path / "a.joma", 3)
    monkeypatch.setitem(sys.modules, "joma.view.server", None)
    monkeypatch.delitem(sys.modules, "joma.view.server")
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert main(["view", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("joma: a live page needs starlette and uvicorn: pip install -e '.[serve]'")
    assert said.count("\n") == 1


def test_what_others_wrote_is_what_they_published():
    sums = dict(reversed(line.split("  ")) for line in (STATIC / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {path.name for path in STATIC.glob("uPlot*")}
    for name, digest in sums.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert sums["uPlot.iife.min.js"] == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "MIT License" in static("uPlot-LICENSE.txt")
    assert "v1.6.32" in static("uPlot.iife.min.js")[:60]


def test_every_file_of_the_module_is_in_it():
    own = {path.name for path in STATIC.glob("*.js")} - {"uPlot.iife.min.js"}
    assert own == {*PARTS, *CHARTS, "file_host.js", "live_host.js"}


@pytest.mark.parametrize("name", [*PARTS, "file_host.js", "live_host.js"])
def test_our_javascript_sets_text_as_text(name):
    """No markup is made of strings, and no string is run."""
    code = static(name)
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "XMLHttp"):
        assert word not in code, word
    assert max(len(line) for line in code.splitlines()) < 600


@pytest.mark.skipif(shutil.which("node") is None, reason="no node is installed")
@pytest.mark.parametrize("host", ["file_host.js", "live_host.js"])
def test_the_module_is_javascript(tmp_path, host):
    path = tmp_path / "module.mjs"
    path.write_text(module(host), encoding="utf-8")
    found = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
