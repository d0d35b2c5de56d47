"""Configs that contradict themselves are refused in one sentence: the argument, the value and what is right.

What the bounds of single fields refuse is asked of all studies in test_every_study.py.
"""

from dataclasses import replace

import pytest
import torch

from joma.claims.execute import check_config, execute
from joma.studies import load

REFUSED = {
    "cdag": [({"branching": (50, 50)}, "make 12500 tokens, at most 4096")],
    "chain-of-thought": [
        ({"held_out": 0.0}, "held_out must leave a chain to test and one to train, got 0.0 of 20"),
        ({"held_out": 1.0}, "held_out must leave a chain to test and one to train"),
        ({"rates": (2.0,)}, "rates must lie from"),
    ],
    "chain-of-thought-decoder": [
        ({"held_out": 0.0}, r"held_out must hold out at least 4 of 24 chains, and not all, got 0\.0"),
        ({"held_out": 0.1}, r"held_out must hold out at least 4 of 24 chains, and not all, got 0\.1"),
        ({"held_out": 1.0}, r"held_out must hold out at least 4 of 24 chains, and not all, got 1\.0"),
        ({"spelled": (3,)}, r"spelled must be among the depths \(1, 2\), got \(3,\)"),
    ],
    "deja-vu": [
        ({"activations": ()}, "activations must not be empty"),
        ({"measure_at": (500,)}, "measure_at must lie between 0 and 100, the last step"),
        ({"corpus": "shakespeare"}, "corpus must be one of sympy"),
        ({"heads": 5}, "width 32 cannot be shared by 5 heads"),
    ],
    "depth-width": [
        ({"branching": (4,)}, "branching must have two levels or more"),
        ({"parameters": 2_000, "vocabulary": 5_000}, "parameters must leave room for 1 layer beside .* got 2000"),
        ({"multiple": 3}, "multiple must be even"),
    ],
    "fig7": [
        ({"heads": 5}, "width 32 cannot be shared by 5 heads"),
        ({"series": "somewhere", "seeds": 2}, "seeds must be 1 with a series, which was trained once, got 2"),
    ],
    "galore-lowrank": [
        ({"layers": ()}, "layers must not be empty"),
        ({"refresh": 25}, "steps must be a multiple of refresh, 25, from twice on, got 60"),
        ({"series_steps": 20}, "series_steps must be a multiple of refresh, 20, from twice on, got 20"),
    ],
    "galore-table": [
        ({"at_once": 3}, "at_once must divide the batch of 4 sequences, got 3"),
        ({"held_out": 3}, "held_out must be a multiple of at_once, 4, got 3"),
        ({"rank": 49}, "rank must be at most 48, the shorter side, got 49"),
        ({"restarts": 9}, "restarts must lie between 1 and 8"),
        ({"looks": 25}, "looks must be at most 24"),
        ({"width": 18}, "width 18 cannot be shared by 4 heads"),
    ],
    "galore-theory": [({"classes": ()}, "classes must not be empty")],
    "hblt-alignment": [
        ({"depths": (2,)}, "depths must hold one of at least 3"),
        ({"depths": (40,)}, "at most 4096"),
        ({"rhos": (1.0,)}, "and one below 1"),
        ({"rhos": (0.9, 0.8)}, "rhos must hold 1"),
        ({"steps": 50, "look_at": (3, 50)}, "look_at must lie below 50"),
        ({"width": 31}, "even width, got 31"),
    ],
    "inductive-bias": [
        ({"inputs": 15}, "inputs must be at least 16, twice informative"),
        ({"inputs": 8, "informative": 8}, "informative must lie between 1 and 7"),
        ({"image_batch": 501}, "image_batch must be at most 500, the images, got 501"),
    ],
    "kv-cache": [
        ({"policies": ("window", "sinks", "h2o")}, "'random' is missing"),
        ({"keeps": (0.5,)}, r"keeps must hold 0\.2, which is judged"),
        ({"checkpoints": (60,)}, "checkpoints must lie below 60"),
        ({"heads": 5}, "width 32 cannot be shared by 5 heads"),
    ],
    "python-hierarchy": [
        ({"shuffled": 9}, "shuffled must be at most seeds"),
        ({"heads": 3}, "cannot be shared by 3 heads"),
        ({"dropout": 1.0}, "less than 1"),
    ],
    "reversal": [
        ({"rates": (0.001,)}, r"rates must lie from 0.0103, 1/M\^0.99, to 1, got"),
        ({"rates": (1.5,)}, "rates must lie from"),
        ({"tokens": 19}, "tokens must be at least 20, two per fact, got 19"),
        ({"both": 1.0}, "both must lie from 0 to below 1"),
    ],
    "reversal-decoder": [
        ({"both": 1.0}, r"both must leave at least 4 of 24 pairs with one direction, and some with two, got 1\.0"),
        ({"both": 0.0}, r"both must leave .*, got 0\.0"),
        ({"both": 0.86}, r"both must leave at least 4 of 24 pairs with one direction.*, got 0\.86"),  # 3 of them
        ({"entities": (2, 3)}, r"entities must hold 1, and 2 or 3 at most, got \(2, 3\)"),
        ({"rates": (0.01,)}, r"rates must be one per depth, 2, got \(0\.01,\)"),
        ({"cured": (5,)}, r"cured must be among the depths \(1, 2\), got \(5,\)"),
        ({"slower": (0.1,)}, r"slower must be rates below 0\.015, that of the others, got \(0\.1,\)"),
        ({"long": 80}, "long must be more than 80, the steps of the others, got 80"),
        ({"look_at": (80,)}, r"look_at must lie between 0 and 80, the end, got \(80,\)"),
        ({"heads": 3}, "width 40 cannot be shared by 3 heads"),
    ],
    "shallow-first": [({"context": 29}, "two of the 30 tokens")],
    "sinks": [
        ({"text_kinds": ("sigmoid",)}, "text_kinds must hold softmax"),
        ({"triggers": 24}, "triggers must lie between 1 and 23"),
        ({"heads": 5}, "width 32 cannot be shared by 5 heads"),
        ({"corpus": "shakespeare"}, "corpus must be one of sympy"),
    ],
    "table1": [
        ({"columns": (1, 2)}, "each end of the table"),
        ({"steps": 50, "look_at": (50,)}, "look_at must lie below 50"),
        ({"width": 47}, "even width, got 47"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"rate": -1.0}, "rate must not be negative, got -1.0"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"device": "gpu"}, "device must be cpu, cuda or cuda:NUMBER, got 'gpu'"),
    ],
}
"""By study: what is changed in its quick preset, and what is said."""


@pytest.mark.parametrize(("name", "changes", "sentence"), [(n, *row) for n, rows in REFUSED.items() for row in rows])
def test_a_config_that_contradicts_itself_is_refused(name, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(load(name).quick, **changes)


WITH_A_GPU = ("table1", "hblt-alignment", "shallow-first", "python-hierarchy", "chain-of-thought-decoder",
              "galore-table", "reversal-decoder", "inductive-bias", "cdag", "fig7")  # fmt: skip
"""Of studies that look for their text only afterwards."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
@pytest.mark.parametrize("name", WITH_A_GPU)
def test_without_a_gpu_the_paper_scale_is_not_run(name, tmp_path):
    study = load(name)
    check_config(study.paper)
    result = execute(study, study.paper, tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert {finding.command for finding in result.findings} == {f"joma verify {name} --scale paper"}
    assert "CUDA" in result.findings[0].reason
