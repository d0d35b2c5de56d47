"""A word names an executor; what names none is refused in one sentence."""

import pytest

from joma.host.errors import BadInput
from joma.scale.choosing import executor_of
from joma.scale.local import Local
from joma.scale.ray import RayCluster


@pytest.mark.parametrize(
    ("on", "found"),
    [
        ("local", Local(jobs=3, threads=2, silence=9.0)),
        ("ray", RayCluster(None, jobs=3, threads=2, silence=9.0)),
        ("ray:auto", RayCluster("auto", jobs=3, threads=2, silence=9.0)),
        ("ray:10.0.0.1:6379", RayCluster("10.0.0.1:6379", jobs=3, threads=2, silence=9.0)),
        ("ray://head:10001", RayCluster("ray://head:10001", jobs=3, threads=2, silence=9.0)),
    ],
)
def test_a_word_names_an_executor(on, found):
    assert executor_of(on, jobs=3, threads=2, silence=9.0) == found
    assert found.retries == 3


@pytest.mark.parametrize("on", ["", "slurm", "ray:", "ray://", "Ray", "local:4", "rays"])
def test_another_word_is_refused(on):
    with pytest.raises(BadInput, match=r"^on must be local, ray, ray:ADDRESS or ray://HOST:PORT, got "):
        executor_of(on)


def test_no_jobs_are_refused():
    with pytest.raises(BadInput, match="jobs must be at least 1, got 0"):
        executor_of("local", jobs=0)
