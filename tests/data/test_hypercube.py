"""Points and views of the hypercube: what a view keeps, what it scales, and what is refused."""

import pytest
import torch

from joma.data.hypercube import Hypercube
from joma.data.samples import streams

CUBE = Hypercube(inputs=12, informative=4)


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def test_points_are_uniform_and_independent():
    points = CUBE.points((20_000,), source())
    assert set(points.unique().tolist()) == {-1.0, 1.0}
    second_moment = points.T @ points / len(points)
    assert points.mean(0).abs().max() < 0.03
    assert (second_moment - torch.eye(12)).abs().max() < 0.04


def test_a_view_keeps_informative_coordinates_and_every_sign():
    points = CUBE.points((3000,), source())
    view = CUBE.view(points, source(1))
    assert torch.equal(view[:, :4], points[:, :4])
    assert torch.equal(view.sign(), points)


def test_factors_are_uniform_and_each_coordinate_has_its_own():
    factors = CUBE.view(torch.ones(30_000, 12), source())[:, 4:]
    assert factors.min() > 0
    assert factors.max() <= 1
    assert (factors.mean(0) - 0.5).abs().max() < 0.01
    centred = factors - factors.mean(0)
    covariance = centred.T @ centred / len(factors)
    assert (covariance - torch.eye(8) / 12).abs().max() < 0.003


def test_members_draw_what_they_would_draw_alone():
    both = CUBE.points((2, 5), streams(0, [3, 4]))
    alone = CUBE.points((1, 5), streams(0, [4]))
    assert torch.equal(both[1], alone[0])
    assert torch.equal(CUBE.view(both, streams(1, [3, 4]))[1], CUBE.view(alone, streams(1, [4]))[0])


@pytest.mark.parametrize("informative", [0, 12, 13])
def test_informative_coordinates_must_be_some_and_not_all(informative):
    with pytest.raises(ValueError, match=rf"informative must lie between 1 and 11.*got {informative}"):
        Hypercube(12, informative)


def test_points_of_another_cube_are_refused():
    with pytest.raises(ValueError, match="points must have 12 coordinates"):
        CUBE.view(torch.ones(3, 7), source())
