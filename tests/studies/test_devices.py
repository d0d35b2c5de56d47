"""A study that is asked for a device that is not here says so before it begins, with the command for elsewhere."""

from dataclasses import fields, replace

import pytest
import torch

from joma import studies
from joma.claims.execute import execute

LATER = {"fig10"}  # They measure checkpoints that are trained elsewhere, and choose the device after that
CHOOSES = [
    name
    for name in studies.names()
    if name not in LATER and "device" in {field.name for field in fields(type(studies.load(name).quick))}
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", CHOOSES)
def test_a_device_that_is_not_here(name, tmp_path):
    study = studies.load(name)
    short = {"tokens": 30_000} if getattr(study.quick, "tokens", 0) > 30_000 else {}
    result = execute(study, replace(study.quick, device="cuda", **short), tmp_path, pictures=False)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert "device cuda needs a CUDA GPU" in result.findings[0].measured
    assert "; run it with: " in result.findings[0].measured
