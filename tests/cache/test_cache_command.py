"""`joma cache`: table, JSON and figure of a saved model, and one sentence for what it cannot do."""

import json

import numpy as np
import pytest
import torch
from tiny_models import TOKENS, fresh, without_cache

from joma.cli.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    fresh("llama").save_pretrained(folder / "model")
    ids = torch.randint(TOKENS, (200,), generator=torch.Generator().manual_seed(1))
    np.save(folder / "ids.npy", ids.numpy())
    np.save(folder / "few.npy", ids[:20].numpy())
    return folder


def cache(place, out, *arguments, model="model", text="ids.npy"):
    return main(["cache", str(place / model), "--text", str(place / text), "--out", str(out), *arguments])


def written(out):
    (path,) = out.glob("cache-*.json")
    return json.loads(path.read_text())


def test_a_table_a_figure_and_json(place, tmp_path, capsys):
    assert cache(place, tmp_path, "--keep", "0.25", "16", "1.0") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "model: 3 sequences of 64 tokens"
    at = next(i for i, line in enumerate(printed) if line.startswith("full attention: "))
    assert printed[at + 1].split() == ["policy", "25", "%", "100", "%"]
    assert [line.split()[0] for line in printed[at + 2 : at + 9]] == [
        "window", "sinks", "h2o", "h2o-oracle", "snapkv", "random", "top-k",
    ]  # fmt: skip
    assert all(line.endswith("+0.000 ± 0.000") for line in printed[at + 2 : at + 9])
    assert printed[at + 9] == "±: 95 % interval over n = 3 sequences, each compared with itself under full attention"
    found = written(tmp_path)
    assert found["schema"] == "joma-cache"
    assert found["length"] == 64
    costs = {name: several[0] for name, several in found["policies"].items()}
    assert {cost["budget"] for cost in costs.values()} == {16}
    assert abs(costs["top-k"]["added"]) < abs(costs["window"]["added"])
    for cost in costs.values():
        assert cost["loss"] == pytest.approx(found["full"]["loss"] + cost["added"])
        assert cost["half_width"] > 0
    (figure,) = tmp_path.glob("*.png")
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_measured_twice_and_more_can_be_added(place, tmp_path, monkeypatch):
    from joma.cache import costs

    measured, real = [], costs.losses

    def counted(model, tokens, policy, keep, **options):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append((policy, keep))
        return real(model, tokens, policy, keep, **options)

    monkeypatch.setattr(costs, "losses", counted)
    arguments = ["--policies", "window,h2o", "--keep", "0.5", "0.25"]
    assert cache(place, tmp_path, *arguments) == 130
    assert measured == [("full", 64), ("window", 32)]
    measured += [None]  # no further interrupt
    assert cache(place, tmp_path, *arguments) == 0
    assert cache(place, tmp_path, *arguments, "--policies", "top-k", "window") == 0
    assert measured[3:] == [("window", 16), ("h2o", 32), ("h2o", 16), ("top-k", 32), ("top-k", 16)]
    monkeypatch.setattr(costs, "losses", real)
    again = tmp_path / "again"
    assert cache(place, again, "--policies", "top-k", "window", "--keep", "0.5", "0.25") == 0
    assert {**written(again), "run": ""} == {**written(tmp_path), "run": ""}


def test_json_on_standard_output_is_json_alone(place, tmp_path, capsys):
    assert cache(place, tmp_path, "--policies", "window", "--keep", "8", "--seq-len", "32", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sequences"] == 6
    assert found == written(tmp_path)


def test_a_model_without_rotations_is_told(tmp_path, place, capsys):
    fresh("gpt2").save_pretrained(tmp_path / "gpt2")
    assert cache(place, tmp_path, "--policies", "sinks", model=tmp_path / "gpt2") == 0
    assert "this model has no rotary positions" in capsys.readouterr().out


def test_a_policy_that_the_model_cannot_have_is_left_out(tmp_path, place, capsys):
    model = fresh("llama")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    model.save_pretrained(tmp_path / "dynamic")
    assert cache(place, tmp_path, "--policies", "sinks", "window", model=tmp_path / "dynamic") == 3
    assert "left out: sinks: positions of LlamaForCausalLM" in capsys.readouterr().out
    assert list(written(tmp_path)["policies"]) == ["window"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policies", "h20"], "policy must be one of full, window, sinks"),
        (["--keep", "65"], "keep must be from 1 to 64 keys"),
        (["--keep", "some"], "--keep takes shares, as 0.1, or whole numbers of keys, got 'some'"),
        (["--seq-len", "2"], "seq_len must be a number of tokens, at least 3, got 2"),
        (["--seq-len", "201"], "has 200 tokens, and at least 201 are needed: give 1 more token"),
        (["--tokens", "20"], "tokens 20 is too short: one sequence has 64 tokens, and there are 20 (--tokens N)"),
        (["--device", "tpu"], "device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
        (["--recent", "2"], "recent is a share of the budget, from 0 to 1, got 2.0"),
        (["--text", "nowhere.txt"], "text nowhere.txt cannot be read"),
        (["--policies", "full"], "policies must name at least one of window, sinks"),
        (["--policies", ","], "policies must name at least one of window, sinks"),
    ],
)
def test_bad_input_gets_one_sentence(place, tmp_path, capsys, arguments, sentence):
    assert cache(place, tmp_path, *arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("joma: ")
    assert said.count("\n") == 1


def test_a_text_that_is_too_short(place, tmp_path, capsys):
    assert cache(place, tmp_path, text="few.npy") == 2
    assert "has 20 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("mamba", "mamba models have no attention: there is no cache to cut"),
        ("bert", "a model that attends in both directions has no cache"),
        ("t5", "t5 models read two texts"),
        ("gpt_neo", "gpt_neo models do not send attention through transformers' AttentionInterface"),
    ],
)
def test_a_model_without_a_cache(place, tmp_path, capsys, kind, sentence):
    without_cache(kind).save_pretrained(tmp_path / kind)
    assert cache(place, tmp_path, model=tmp_path / kind) == 2
    assert sentence in capsys.readouterr().err


def test_several_checkpoints_need_a_name(place, tmp_path, capsys):
    for step in (0, 10):
        fresh("llama").save_pretrained(tmp_path / f"run/checkpoint-{step}")
    assert cache(place, tmp_path, model=tmp_path / "run") == 2
    assert "has 2 checkpoints (0, 10); name one (--step STEP)" in capsys.readouterr().err
    assert cache(place, tmp_path, "--step", "10", "--policies", "window", model=tmp_path / "run") == 0


def test_weights_that_are_nan_are_one_sentence_and_leave_nothing(place, tmp_path, capsys):
    model = fresh("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "nan")
    capsys.readouterr()  # which draws a bar
    assert cache(tmp_path, tmp_path / "out", "--keep", "0.2", model="nan", text=place / "ids.npy") == 2
    said = capsys.readouterr().err
    assert "down_proj.weight" in said
    assert said.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.*"))
