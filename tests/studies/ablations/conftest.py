"""What tests of ablations ask for by name: small runs, made once."""

from functools import cache

import pytest
from small_ablations import STUDIES, carry_out


@pytest.fixture(scope="session")
def ablations(data_folder, tmp_path_factory):
    """The run of every study by its name, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("ablation-runs")
    return cache(lambda name: carry_out(STUDIES[name], data_folder, folder / f"{name}.sqlite"))
