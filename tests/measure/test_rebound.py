"""Drop and rebound: found where it is, and not found where only chance is."""

import numpy as np
import pytest
import torch
from refusals import refusals

from joma.measure.rebound import drop_and_rebound, rebound
from joma.runs import Run


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def there_and_back(points, back=0.5):
    x = torch.linspace(0, 1, points, dtype=torch.float64)
    return torch.exp(-12 * x) - 1 + back * (x - 0.3).clamp_min(0) / 0.7


NULLS = {
    "flat noise": lambda e, x: e,
    "random walk": lambda e, x: e.cumsum(-1),
    "noisy line down": lambda e, x: -5 * x + 0.3 * e,
    "noisy decay to a level": lambda e, x: 3 * torch.exp(-8 * x) + 0.1 * e,
    "a step down in a walk": lambda e, x: e.cumsum(-1) - 10 * (x > 0.1),
}


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("points", [12, 40, 154])
def test_one_series_without_rebound_is_rarely_called_one(null, points):
    curves = NULLS[null](noise(4000, points), torch.linspace(0, 1, points, dtype=torch.float64))
    found = rebound(curves)
    assert found.rebounds.double().mean() < 0.05
    if null in ("flat noise", "random walk"):
        assert found.drops.double().mean() < 0.07


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize(("seeds", "points"), [(3, 20), (5, 60), (20, 40)])
def test_seeds_without_rebound_are_rarely_called_one(null, seeds, points):
    curves = NULLS[null](noise(2000, seeds, points), torch.linspace(0, 1, points, dtype=torch.float64))
    assert rebound(curves, over_seeds=True).rebounds.double().mean() < 0.05


@pytest.mark.parametrize("points", [16, 40, 154])
def test_one_series_with_rebound_is_found(points):
    found = rebound(there_and_back(points) + 0.01 * noise(500, points))
    assert found.rebounds.double().mean() > 0.9
    assert found.drop.mean().item() == pytest.approx(0.95, abs=0.08)
    assert found.rebound.mean().item() == pytest.approx(0.47, abs=0.05)


def test_seeds_with_rebound_are_found_in_noise_that_hides_each_of_them():
    curves = there_and_back(40) + 0.1 * noise(200, 8, 40)
    assert rebound(curves, over_seeds=True).rebounds.double().mean() > 0.95
    assert rebound(curves[:, 0]).rebounds.double().mean() < 0.2


def test_over_seeds_nothing_happening_is_measured_without_bias():
    found = rebound(noise(4000, 5, 30), over_seeds=True)
    assert abs(found.rebound.mean()) < 4 * found.rebound.std() / 4000**0.5
    assert noise(4000, 5, 30).mean(1).amin(-1).mean() < -0.5  # what the minimum of the mean curve would have said


def test_a_small_rebound_is_none_whatever_its_significance():
    x = torch.linspace(0, 1, 100, dtype=torch.float64)
    for slope, back in ((0.13, False), (0.25, True)):  # by 1.4 and 3.8 % of the drop
        smooth = (0.8 - x).clamp_min(0) + slope * (x - 0.8).clamp_min(0)  # no second differences but at the valley
        assert rebound(smooth).rebounds.item() is back


def test_the_numbers_of_a_curve_without_noise():
    curve = torch.tensor([5.0, 4, 3, 2, 1, 1, 1.5, 2, 2.5, 3, 3, 3])
    found = rebound(curve, steps=torch.tensor([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]))
    assert [f.item() for f in found[:5]] == [5, 1, 3, 4, 2]
    assert found.valley.item() == 8


def test_scale_and_batch_do_not_matter():
    curves = noise(3, 4, 50) + there_and_back(50)
    whole = rebound(curves)
    assert whole.drop.shape == (3, 4)
    for scale in (1e-20, 1e20):
        scaled = rebound(curves * scale)
        torch.testing.assert_close(scaled.rebound_margin / scale, whole.rebound_margin)
        assert (scaled.rebounds == whole.rebounds).all()
    one = rebound(curves[1, 2])
    for alone, together in zip(one, whole, strict=True):  # sums of one curve and of many may round otherwise
        torch.testing.assert_close(alone, together[1, 2], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_the_curves_of_a_run_are_read_as_they_come(tmp_path):
    curves, steps = (noise(40, 2) * 0.001 + there_and_back(40)[:, None]).numpy(), np.arange(0, 400, 10)
    with Run.create(tmp_path / "a.sqlite", study="demo", config={}) as run:
        for step, row in zip(steps, curves, strict=True):
            run.append("entropy", int(step), row)
        found = rebound(run.array("entropy").T, steps=run.steps("entropy"))
    want = rebound(torch.tensor(curves).T, steps=torch.tensor(steps))
    torch.testing.assert_close(tuple(found), tuple(want))
    assert found.rebounds.all()


def test_a_constant_curve_neither_drops_nor_rebounds():
    found = rebound(torch.full((2, 20), 3.0))
    assert not found.drops.any()
    assert not found.rebounds.any()


test_bad_input_gets_one_sentence = refusals(
    (lambda: rebound(torch.zeros(5)), "at least 12 points"),
    (lambda: rebound(torch.tensor([1.0] * 11 + [torch.nan])), "curve contains NaN"),
    (lambda: rebound(torch.zeros(2, 20), over_seeds=True), "at least 3 seeds"),
    (lambda: rebound(torch.zeros(20), over_seeds=True), r"curve must have shape \(..., seeds, points\), got \(20,\)"),
    (lambda: rebound(torch.zeros(20), steps=torch.zeros(20)), "20 increasing numbers"),
    (lambda: rebound(torch.zeros(20), steps=torch.arange(19)), "20 increasing numbers"),
)


def test_twins_do_not_choose_each_others_valley():
    """By a loop over the definition; without twins the answer is that of no groups."""
    curve = torch.from_numpy(np.random.default_rng(3).standard_normal((2, 6, 9)))
    groups = [0, 0, 1, 2, 2, 2]
    drop, back = drop_and_rebound(curve, groups)
    for layer in range(2):
        for seed in range(6):
            others = [curve[layer, one] for one in range(6) if groups[one] != groups[seed]]
            low = curve[layer, seed, torch.stack(others).mean(0).argmin()]
            assert drop[layer, seed] == pytest.approx(float(curve[layer, seed, 0] - low))
            assert back[layer, seed] == pytest.approx(float(curve[layer, seed, -1] - low))
    assert not torch.equal(drop, drop_and_rebound(curve)[0])
    alone = drop_and_rebound(curve, list(range(6)))
    torch.testing.assert_close(alone, drop_and_rebound(curve))
    with pytest.raises(ValueError, match=r"groups must have one number for each of the 6 seeds, got shape \(5,\)"):
        drop_and_rebound(curve, [0] * 5)
