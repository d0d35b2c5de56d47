"""What the tests of `depth-width` share: a tiny run on Python source, on a text of words and on trees."""

from dataclasses import replace

import pytest
from records import carried_out
from studies.depth_width.small_depth_width import TINY

from joma.studies.depth_width.depth_width import STUDY


@pytest.fixture(scope="session")
def config(data_folder):
    return replace(TINY, data=str(data_folder))


@pytest.fixture(scope="session")
def tiny(config, tmp_path_factory):
    return carried_out(STUDY, config, tmp_path_factory.mktemp("depth") / "run.sqlite")
