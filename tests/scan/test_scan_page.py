"""What a scan leaves behind: a page, tables, an exit status for thresholds, and two models on one axis."""

import sys

import numpy as np
import pytest
import torch
from checkpoint_series import LAYERS, LOWER, change, scan
from safetensors.torch import save_file

from joma.cli.main import main
from joma.runs import Run
from joma.scan import open_series, plan, sweep
from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve, Scan
from joma.scan.result.thresholds import Threshold, summaries, violations


def joma(*words):
    return main([str(word) for word in words])


@pytest.mark.parametrize(
    ("rules", "status"),
    [(["stable_rank<1"], 0), (["stable_rank/mlp@1>=1"], 4), (["stable_rank<1", "stable_rank/mlp > 1e1"], 4)],
)
def test_thresholds_decide_the_exit_status(series, tmp_path, capsys, rules, status):
    arguments = [word for rule in rules for word in ("--fail-if", rule)]
    assert scan(series, "--steps", "0,10", *arguments, out=tmp_path)[0] == status
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("beyond: ")]
    if not status:
        assert said == []
    elif "@1" in rules[0]:
        assert [line.split(": ")[2] for line in said] == ["step 0, layer 1", "step 10, layer 1"]
        assert said[0].startswith("beyond: stable_rank/mlp@1>=1: step 0, layer 1: stable_rank/mlp is 1")
    else:
        assert len(said) == 2 * LAYERS


def test_a_threshold_beats_what_was_left_out_and_none_usable_beats_it(series, tmp_path):
    change(series / "step10", lambda t: t.pop(LOWER.format(0)))
    assert scan(series, "--fail-if", "stable_rank>0", out=tmp_path)[0] == 4
    assert scan(series, "--fail-if", "stable_rank<0", out=tmp_path)[0] == 3
    (series / "step1" / "model.safetensors").write_bytes(b"123")
    assert scan(series, "--fail-if", "stable_rank>0", "--steps", "1", out=tmp_path)[0] == 1


@pytest.mark.parametrize(("rule", "words"), [
    ("stable_rank", "a threshold is MEASURE"),
    ("stable_rank=5", "a threshold is MEASURE"),
    ("stable_rank<nan", "a threshold is MEASURE"),
    ("__import__('os')<1", "a threshold is MEASURE"),
    ("entropy<1", "speaks of entropy, but the measures are stable_rank"),
    ("stable_ranks<1", "speaks of stable_ranks, but the measures are stable_rank"),
    ("stable_rank/mpl<1", "speaks of nothing that was measured; there are stable_rank/mlp@0 to @2"),
    ("stable_rank@7<1", "speaks of nothing"),
])  # fmt: skip
def test_a_rule_that_could_never_fail_is_refused(series, tmp_path, capsys, rule, words):
    assert joma("scan", series, "--steps", "0", "--fail-if", rule, "--out", tmp_path) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.endswith(("(--fail-if RULE)\n", "(--measures NAMES)\n"))


def test_a_summary_counts_the_steps_and_layers_that_are_beyond_and_no_others():
    rows = tuple(Row(layer, None, f"layer {layer}") for layer in range(3))
    values = np.array([[5.0, 6.0, 7.0], [5.0, 2.0, 7.0], [5.0, 1.0, 3.0], [5.0, 6.0, 7.0]])
    curve = Curve("stable_rank", "mlp", rows, ("stable rank",), values)
    found = Scan("a", [0, 1, 2, 3], [], {curve.name: curve})
    rules = [Threshold.read(rule) for rule in ("stable_rank<4", "stable_rank>=7", "stable_rank<0")]
    assert summaries(rules, found) == [
        "stable_rank<4: 3 of 12 numbers, in 2 of 4 steps and 2 of 3 layers; the lowest is 1 (step 2, layer 1)",
        "stable_rank>=7: 3 of 12 numbers, in 3 of 4 steps and 1 of 3 layers; the highest is 7 (step 0, layer 2)",
    ]


def test_a_rule_speaks_of_its_own_layer_and_group_the_first_layer_too():
    rows = tuple(Row(layer, None, f"layer {layer}") for layer in (0, 1, 12))
    groups = [Curve("alpha", group, rows, ("alpha",), np.array([[1.0, 2.0, 3.0]])) for group in ("mlp", "mlp_down")]
    found = Scan("a", [5], [], {one.name: one for one in groups})
    for place, layers in {"@0": [0], "@12": [12], "": [0, 1, 12]}.items():
        for group, curves in {"/mlp": ["alpha/mlp"], "": ["alpha/mlp", "alpha/mlp_down"]}.items():
            said = [(one.curve, one.row) for one in violations([f"alpha{group}{place}>0"], found)]
            assert said == [(curve, f"layer {layer}") for curve in curves for layer in layers]


def test_a_number_on_the_threshold_is_beyond_it_only_where_the_rule_says_or_equal():
    curve = Curve("alpha", "mlp", (Row(0, None, "x"),), ("alpha",), np.array([[1.0], [2.0], [3.0]]))
    found = Scan("a", [10, 20, 30], [], {curve.name: curve})
    beyond = {"<2": [1.0], "<=2": [1.0, 2.0], ">2": [3.0], ">=2": [2.0, 3.0], "<-2e0": [], " > +.25e01 ": [3.0]}
    for rule, values in beyond.items():
        said = [(one.threshold, one.value) for one in violations([f"alpha{rule}"], found)]
        assert said == [(f"alpha{rule.rstrip()}", value) for value in values]


def test_rules_speak_of_heads_quantities_and_experts():
    heads = Curve("entropy", None, (Row(0, None, "layer 0"),), ("0", "1"), np.array([[[0.5, 0.2]]]))
    many = Curve("coherence", "embedding", (Row(None, None, "wte"),), ("mean", "q0.5"), np.array([[[0.1, 0.4]]]))
    moe = Curve("stable_rank", "mlp_experts", (Row(0, 1, "x"),), ("stable rank",), np.array([[3.0]]))
    found = Scan("a", [7], [], {one.name: one for one in (heads, many, moe)}, {7: 7})

    def said(rule):
        return [str(one).partition(": ")[2] for one in violations([Threshold.read(rule)], found)]

    assert said("entropy<1") == [f"epoch 7, layer 0, head {one}" for one in ("0: entropy is 0.5", "1: entropy is 0.2")]
    assert said("coherence>0") == ["epoch 7, wte: coherence/embedding is 0.1"]
    assert said("coherence_q0.5 >= 4e-1") == ["epoch 7, wte: coherence/embedding is 0.4"]
    assert said("stable_rank<=3") == ["epoch 7, layer 0, expert 1: stable_rank/mlp_experts is 3"]


def test_several_scans_are_one_report(series, tmp_path):
    for steps in ("0,1", "0,100"):
        scan(series / f"step{steps[-1]}", out=tmp_path)
    runs = sorted((tmp_path / "runs").glob("*.sqlite"))
    assert joma("report", *runs, "--out", tmp_path / "page") == 0
    assert "2 series of checkpoints were measured" in (tmp_path / "page" / "report.html").read_text()
    assert joma("report", tmp_path, *runs) == 2


def test_tensors_are_listed_and_nothing_is_measured(series, tmp_path, capsys):
    assert joma("scan", series, "--list", "--out", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "this is step100" in shown
    assert "mlp covers 3 of 3 layers" in shown
    assert not (tmp_path / "out").exists()


def test_a_run_of_the_first_version_is_read_but_not_added_to(series, tmp_path, capsys):
    found = scan(series, "--steps", "0,1", out=tmp_path)[1]
    with Run.open(found["run"]) as run:
        config, old = run.config, run.at("stable_rank/mlp", 0)
    Run.delete(found["run"])
    with Run.create(found["run"], study="scan", config=config, version=1) as run:
        run.append("stable_rank/mlp", 0, old)
    with pytest.raises(ValueError, match="version 1 of joma scan, and this is version 5"):
        scan(series, out=tmp_path)
    assert joma("report", found["run"], "--out", tmp_path / "page") == 0
    assert joma("export", found["run"], "--to", "csv", "--out", tmp_path / "old.csv") == 0
    assert (tmp_path / "old.csv").read_text().count("\n") == 1 + LAYERS


def test_tiny_matrices_are_measured_by_one_thread(series, tmp_path, monkeypatch):
    reading, seen = sys.modules["joma.scan.sweep.reading"], []
    read = reading._read
    monkeypatch.setattr(reading, "_read", lambda *given: (seen.append(torch.get_num_threads()), read(*given))[1])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Run.create(tmp_path / "run.sqlite", study="scan", config={}) as run:
            sweep(plan(open_series(series / "step1", downloads=tmp_path)), run)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_measure_whose_tensors_are_not_there_is_refused_alone(tmp_path, capsys):
    save_file({"h.0.mlp.c_fc.weight": torch.eye(4)}, tmp_path / "step0.safetensors")
    status, found = scan(tmp_path / "step0.safetensors", "--measures", "coherence,stable_rank", out=tmp_path / "out")
    assert (status, list(found["curves"])) == (3, ["stable_rank/mlp"])
    assert found["refused"]["coherence"].startswith("embedding tensors are not known in this architecture")
    assert "refused: coherence: embedding tensors are not known" in capsys.readouterr().out
    with pytest.raises(ValueError, match="embedding tensors are not known"):
        scan(tmp_path / "step0.safetensors", "--measures", "coherence", out=tmp_path / "out")
