"""Sparsity of attention over a series: one reading of the text per checkpoint, and everything a scan does with it."""

import csv
import sys

import numpy as np
import pytest
import torch
from checkpoint_series import LAYERS, change, make_series, scan

from joma.measure.registry import MEASURES
from joma.probes import attention_entropy, attention_sparsity, attention_spread

CURVES = list(MEASURES["sparsity"].curves)
SPREAD = ["spread/variance", "spread/shared", "spread/specific", "spread/cross"]


@pytest.fixture
def three(neox, tmp_path):
    return make_series(neox, tmp_path / "series", (0, 1, 10))


def test_entropy_that_is_there_is_kept_and_sparsity_is_added(three, tokens, tmp_path, capsys):
    before = scan(three, "--measures", "entropy", "--text", tokens, out=tmp_path / "out")[1]
    after = scan(three, "--measures", "entropy,sparsity", "--text", tokens, out=tmp_path / "out")[1]
    assert after["curves"]["entropy"] == before["curves"]["entropy"]
    capsys.readouterr()
    assert scan(three, "--measures", "sparsity", "--text", tokens, out=tmp_path / "out")[0] == 0
    assert capsys.readouterr().out.count("recorded already") == 3


def test_all_that_run_the_model_come_from_one_reading(three, tokens, tmp_path, monkeypatch):
    from transformers import AutoModel

    running = sys.modules["joma.scan.model.running"]
    loaded, read = running.loaded_model, []
    monkeypatch.setattr(
        running, "loaded_model", lambda folder, device: (read.append(folder), loaded(folder, device))[1]
    )
    arguments = ("--measures", "entropy,sparsity,spread", "--text", tokens, "--csv", tmp_path / "a.csv")
    status, found = scan(three, *arguments, out=tmp_path / "out")
    assert (status, len(read)) == (0, 3)
    assert list(found["curves"]) == ["entropy", *CURVES, *SPREAD]
    assert found["notes"][0].startswith("entropy, sparsity, spread read tokens.npy: 6 windows of 16 tokens")
    ids, values = torch.from_numpy(np.load(tokens)), {}
    for at, step in enumerate(found["steps"]):
        model = AutoModel.from_pretrained(three / f"step{step}")
        spread = attention_spread(model, ids, context=16)._asdict()
        wanted = [attention_entropy(model, ids, context=16), *attention_sparsity(model, ids, keep=16, context=16)]
        wanted += [spread[name.partition("/")[2]] for name in SPREAD]
        for (name, curve), want in zip(found["curves"].items(), wanted, strict=True):
            assert curve["columns_are"] == "heads"
            values[name] = torch.tensor(curve["values"][at]).double()
            assert values[name].shape == (LAYERS, 4)
            near = {"rtol": 1e-5, "atol": 1e-9} if name in SPREAD else {"rtol": 0, "atol": 1e-6}
            torch.testing.assert_close(values[name], want, **near)
        parts = sum(values[f"spread/{name}"] for name in ("shared", "specific", "cross"))
        torch.testing.assert_close(parts, values["spread/variance"], rtol=1e-6, atol=0)
    with (tmp_path / "a.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "sparsity" and row["group"] == "near_zero"]
    assert len(rows) == 3 * LAYERS * 4
    assert float(rows[5]["value"]) == found["curves"]["sparsity/near_zero"]["values"][0][1][1]
    assert (rows[5]["layer"], rows[5]["head"]) == ("1", "1")


def test_a_fault_is_told_once_for_all_its_curves(three, tokens, tmp_path):
    change(three / "step1", lambda t: t["gpt_neox.embed_in.weight"][0, 0].fill_(torch.nan))
    status, found = scan(three, "--measures", "entropy,sparsity", "--text", tokens, out=tmp_path / "out")
    assert (status, found["steps"]) == (3, [0, 10])
    assert [fault["measure"] for fault in found["left_out"]] == ["entropy", "sparsity"]
