"""An atlas against a hub that really answers: three seeds of one model, with names and revisions as Pythia has them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_series import LAYERS, LOWER, path_of_training
from hub_server import Repository, serving
from in_process import joma
from safetensors.torch import load, save

from joma.host import hub as hub_client
from joma.host.errors import BadInput
from joma.measure.intervals import t_quantile
from joma.scan import Scan, atlas
from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve

NAMES = ("EleutherAI/pythia-14m", "EleutherAI/pythia-14m-seed1", "EleutherAI/pythia-14m-seed2")
REVISIONS = (0, 1, 2, 512, 1000, 143000)
MANIFEST = """
[[series]]
name = "pythia-14m"
runs = ["EleutherAI/pythia-14m", "EleutherAI/pythia-14m-seed1", "EleutherAI/pythia-14m-seed2"]
"""


@pytest.fixture(scope="module")
def weights(neox, tmp_path_factory):
    """Of every seed and revision, its files as the hub has them."""
    folder = tmp_path_factory.mktemp("neox")
    neox.save_pretrained(folder)
    config = (folder / "config.json").read_bytes()
    every = {}
    for seed, name in enumerate(NAMES):
        every[name] = {
            f"step{step}": {"config.json": config, "model.safetensors": save(tensors, metadata={"format": "pt"})}
            for step, tensors in path_of_training(neox, REVISIONS, seed=seed + 1)
        }
        every[name]["main"] = every[name]["step143000"]
    return every


@pytest.fixture
def hub(weights, monkeypatch, tmp_path):
    monkeypatch.setattr(hub_client, "PAUSE", 0.01)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    repositories = {
        name: Repository(name, {step: dict(files) for step, files in weights[name].items()}) for name in NAMES
    }
    with serving(*repositories.values()) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield repositories


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MANIFEST, encoding="utf-8")
    return path


def tensors_read(repository, since):
    stored = [(path.split("/")[-2], part) for _, path, part in repository.requests[since:] if "/store/" in path]
    return [(revision, part) for revision, part in stored if not part.startswith("bytes=0-")]


def slow_stable_ranks(files):
    tensors = load(files["model.safetensors"])
    sizes = [torch.linalg.svdvals(tensors[LOWER.format(layer)].double()) for layer in range(LAYERS)]
    return [float((size**2).sum() / size[0] ** 2) for size in sizes]


def test_every_revision_of_every_seed_is_read_in_part_and_has_an_interval(hub, weights, manifest, tmp_path):
    out = tmp_path / "out"
    said = joma("atlas", manifest, "--out", out)
    assert said.returncode == 0, said
    assert "run 3 of 3: EleutherAI/pythia-14m-seed2" in said.stdout
    assert "3 of 3 runs usable" in said.stdout
    page = (out / "atlas-mine.html").read_text(encoding="utf-8")
    for repository in hub.values():
        whole = sum(len(files["model.safetensors"]) for name, files in repository.revisions.items() if name != "main")
        lower = 4 * 32 * 128 * LAYERS * len(REVISIONS)
        assert lower < repository.served < whole
        assert not [path for _, path, _ in repository.requests if "/main/" in path]
    ranks = np.array([[slow_stable_ranks(weights[name][f"step{step}"]) for step in REVISIONS] for name in NAMES])
    last = ranks.mean(-1)[:, -1]
    half = t_quantile(0.95, 2) * last.std(ddof=1) / np.sqrt(3)
    cell = re.search(r"mean over layers</th><td>[^<]*</td><td>([\d.]+) \[([\d.]+), ([\d.]+)\]</td>", page)
    assert [float(each) for each in cell.groups()] == pytest.approx(
        [last.mean(), last.mean() - half, last.mean() + half], rel=0.006
    )
    assert "step 143,000" in page
    assert page.count("<svg") == 1


def test_it_goes_on_where_it_was_broken_off_and_reads_nothing_twice(hub, manifest, tmp_path):
    out = tmp_path / "out"
    broken = {("step512", "model.safetensors")}
    hub[NAMES[1]].broken = broken
    hub[NAMES[2]].token = "unknown"
    first = joma("atlas", manifest, "--out", out)
    assert first.returncode == 3
    assert "2 of 3 runs usable" in first.stdout
    page = (out / "atlas-mine.html").read_text(encoding="utf-8")
    assert "EleutherAI/pythia-14m-seed1: 1 step left out or incomplete" in page
    assert "EleutherAI/pythia-14m-seed2: " in page
    assert "Steps that one of the runs lacks are left out." in page
    before = {name: len(one.requests) for name, one in hub.items()}
    hub[NAMES[1]].broken, hub[NAMES[2]].token = set(), None
    assert joma("atlas", manifest, "--out", out).returncode == 0
    read = [{place[0] for place in tensors_read(hub[name], before[name])} for name in NAMES]
    assert read == [set(), {"step512"}, {f"step{step}" for step in REVISIONS}]


def test_shards_share_the_runs_out_and_the_page_comes_from_all_their_records(hub, manifest, tmp_path):
    out = tmp_path / "out"
    for shard, mine in (("1/2", (0, 2)), ("2/2", (1,))):
        said = joma("atlas", manifest, "--out", out, "--shard", shard)
        assert said.returncode == 0
        assert f"{len(mine)} of {len(mine)} run" in said.stdout
        assert not list(out.glob("atlas-*.html"))
    before = {name: len(one.requests) for name, one in hub.items()}
    assert joma("atlas", manifest, "--out", out).returncode == 0
    assert not [place for name in NAMES for place in tensors_read(hub[name], before[name])]
    assert (out / "atlas-mine.html").is_file()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[series", "is no TOML"),
        ("a = 1", "must hold"),
        ('[[series]]\nname = "a"', "must have a name and runs"),
        ('[[series]]\nname = "a"\nruns = ["x", 3]', "must have a name and runs"),
        ('[[series]]\nname = "a"\nruns = ["x", "x"]', "names a run twice"),
        ('[[series]]\nname = "a"\nruns = ["x"]\nseeds = 3', "has seeds; a series has"),
        ('[[series]]\nname = "a"\nruns = ["x"]\nsteps = 3', "steps must be text"),
        ('[[series]]\nname = "a"\nruns = ["x"]\nreads = {layers = 1}', "reads must have revisions, layers"),
        ('[[series]]\nname = "a"\nruns = ["x"]\n[[series]]\nname = "a"\nruns = ["y"]', "two series of one name"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(tmp_path, text, why):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=re.escape(why)):
        atlas.read_manifest(str(path))


def test_what_is_no_manifest_is_refused(tmp_path):
    with pytest.raises(
        BadInput, match=r"neither a manifest of joma nor a \.toml file that is there; did you mean 'pythia'"
    ):
        atlas.read_manifest("pythias")
    said = joma("atlas", "pythia", "--only", "pythia-3b", "--out", tmp_path)
    assert said.returncode == 2
    assert "no series is called 'pythia-3b'" in said.stderr


def test_the_lists_that_come_with_joma_are_complete():
    seeds = {one.name: one.runs for one in atlas.read_manifest("polypythias")}
    assert list(seeds) == [f"pythia-{size}m" for size in (14, 31, 70, 160, 410)]
    assert all(
        runs == (f"EleutherAI/{name}", *(f"EleutherAI/{name}-seed{n}" for n in range(1, 10)))
        for name, runs in seeds.items()
    )
    assert all(
        one.reads["mlp"] == 4 * one.reads["width"]
        for name in ("pythia", "polypythias")
        for one in atlas.read_manifest(name)
    )
    by_hand = 154 * 6 * 4 * 512**2 * 2 / 1e9
    assert {one.name: one.gigabytes for one in atlas.read_manifest("pythia")}["pythia-70m"] == pytest.approx(by_hand)
    assert all("/" in run for name in atlas.shipped() for one in atlas.read_manifest(name) for run in one.runs)


def test_the_manual_says_what_the_lists_read():
    page = (Path(__file__).parents[2] / "docs/how-to/scan-checkpoints.md").read_text(encoding="utf-8")
    for name in atlas.shipped():
        total, of = re.search(rf"([\d,]+) GB(?: to read)? for\s`{name}`(?: \(([^)]*)\))?", page).groups()
        known = {one.name.split("-")[1].upper(): one.gigabytes for one in atlas.read_manifest(name)}
        assert total == f"{sum(known.values()):,.0f}"
        assert all(
            f"{known[size]:,.1f}" == said for size, said in (one.split() for one in (of or "").split(", ") if one)
        )


def scanned(values, steps, rows=2):
    labels = tuple(Row(layer, None, f"h.{layer}") for layer in range(rows))
    curve = Curve("stable_rank", "mlp", labels, ("stable rank",), np.array(values, dtype=float))
    return Scan("a", list(steps), [], {"stable_rank/mlp": curve})


def test_runs_meet_at_the_steps_that_all_have():
    first, second = scanned([[1, 3], [2, 4], [5, 7]], (0, 1, 2)), scanned([[3, 5], [7, np.nan]], (0, 2))
    (found,) = atlas.over_runs([first, second]).values()
    assert found.steps == [0, 2]
    assert found.rows == ("layer 0", "layer 1", "mean over layers")
    assert found.mean.tolist() == [[2, 4, 3], [6, 7, 6.5]]
    half = t_quantile(0.95, 1) * np.sqrt(2) / np.sqrt(2)
    assert found.high[0].tolist() == pytest.approx([2 + half, 4 + half, 3 + half])
    assert np.isnan(found.low[1, 1])  # one run has a number there
    assert atlas.over_runs([first, scanned([[1.0], [1.0]], (0, 1), rows=1)]) == {}
    assert atlas.over_runs([first, scanned([[1, 2]], (9,))]) == {}
    assert np.isnan(next(iter(atlas.over_runs([first]).values())).low).all()


@pytest.mark.parametrize(("given", "steps"), [({}, "0,2"), ({"steps": None}, "0,2"), ({"steps": "5"}, "5")])
def test_steps_of_the_command_come_before_those_of_the_manifest(monkeypatch, given, steps):
    seen = []
    monkeypatch.setattr(
        atlas, "scan", lambda source, **options: seen.append((source, options)) or scanned([[1, 2]], (0,))
    )
    (measured,) = atlas.scan_series([atlas.ModelSeries("a", ("x", "y"), "0,2")], out="out", jobs=2, **given)
    assert [(source, options["steps"], options["jobs"]) for source, options in seen] == [
        ("x", steps, 2),
        ("y", steps, 2),
    ]
    assert len(measured.scans) == 2


def test_one_run_is_shown_without_an_interval(tmp_path):
    from joma.report import write_atlas

    one = atlas.Measured(atlas.ModelSeries("alone", ("a",)), (scanned([[1, 3], [4, 8]], (0, 7)),), {})
    page = write_atlas([one], tmp_path / "atlas-mine.html", made_by="joma atlas").read_text(encoding="utf-8")
    assert "One run has no interval." in page
    assert re.search(r"mean over layers</th><td>2[.0]*</td><td>6[.0]*</td><td>2[.0]* <span", page)
    assert "layer 1</th><td>3" in page
