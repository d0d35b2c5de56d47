"""The bilinear model: its gradient is the theory's flow, one rate stands for two, and the fast loop is SGD."""

import pytest
import torch
from refusals import refusals

from joma.models import Bilinear
from joma.models.bilinear import bilinear_loss, step_by_step
from joma.runs import Run
from joma.theory.scan_snap import ScanSnap
from joma.training import Ensemble, Optimizer, train

P = torch.tensor([[0.4, 0.1, 0.0, 0.5], [0.0, 0.0, 0.3, 0.7], [0.2, 0.2, 0.2, 0.4]], dtype=torch.float64)
QUERY = torch.tensor([0, 1, 1])


def spread_out(**options):
    return Bilinear(4, 5, [3, 4], queries=2, spread=0.7, dtype=torch.float64, **options)


def test_every_member_begins_with_what_its_seed_draws():
    """In float64 whatever the precision, first y and then z, which is kept divided by the root of the ratio."""
    model = Bilinear(4, 5, [3, 7], queries=2, ratio=[0.25, 4.0], spread=0.7, dtype=torch.float64)
    for member, (seed, root) in enumerate(((3, 0.5), (7, 2.0))):
        luck = torch.Generator().manual_seed(seed)
        y, z = (0.7 * torch.randn(*shape, generator=luck, dtype=torch.float64) for shape in ((4, 5), (2, 4)))
        torch.testing.assert_close(model.y[member], y, rtol=1e-14, atol=0)
        torch.testing.assert_close(model.scaled_z[member], z / root, rtol=1e-14, atol=0)
        torch.testing.assert_close(model.z[member], z, rtol=1e-14, atol=0)


@pytest.mark.parametrize("norm", ["unit", "softmax", "none"])
def test_the_expected_gradient_is_the_flow(norm):
    model = spread_out(norm=norm, ratio=0.3)
    losses = bilinear_loss(model, (P, torch.arange(3), QUERY))
    by_y, by_z = torch.autograd.grad(losses.sum(), [model.y, model.scaled_z])
    with torch.no_grad():
        for member in range(2):
            y = model.y[member]  # five outputs, of which no class has the last two: not alike, so one by one
            flow = ScanSnap(
                torch.cat([P, P[:2]]), torch.cat([QUERY, QUERY[:2]]), prior=[1 / 3] * 3 + [0.0] * 2, norm=norm
            )
            moving = flow.velocity(y, model.z[member])
            torch.testing.assert_close(moving.y, -by_y[member])
            torch.testing.assert_close(moving.z, -by_z[member] / 0.3**0.5)


def test_sequences_give_the_flow_in_expectation():
    """The mean gradient over many drawn sequences approaches that of the probabilities as sequences get longer."""
    model = spread_out()
    generator = torch.Generator().manual_seed(0)
    off = []
    for length in (64, 4096):
        drawn = torch.multinomial(P.repeat_interleave(200, 0), length, replacement=True, generator=generator)
        batch = drawn, torch.arange(3).repeat_interleave(200), QUERY.repeat_interleave(200)
        found, wanted = (
            torch.autograd.grad(bilinear_loss(model, data).sum(), model.scaled_z)[0]
            for data in (batch, (P, torch.arange(3), QUERY))
        )
        off.append(float((found - wanted).abs().max() / wanted.abs().max()))
    assert off[1] < off[0] / 3
    assert off[1] < 0.01


def test_tokens_in_any_order_are_their_frequencies():
    model = spread_out()
    tokens = torch.tensor([[0, 3, 3, 1], [2, 2, 2, 2]])
    counts = torch.tensor([[0.25, 0.25, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    for given in (counts, 4 * counts, tokens.flip(-1), tokens.expand(2, 2, 4)):
        torch.testing.assert_close(model(given, [1, 0]), model(tokens, [1, 0]))


def test_one_rate_with_a_ratio_is_two_rates():
    """z is stored as z / sqrt(ratio), so SGD with eta_Y moves it by eta_Y ratio = eta_Z."""
    ratio = torch.tensor([0.04, 2.0])
    scaled, plain = spread_out(ratio=ratio), spread_out()
    torch.testing.assert_close(scaled.z, plain.z)
    one = torch.optim.SGD(scaled.parameters(), lr=0.5)
    for step in range(5):
        batch = P.roll(step, 0), torch.arange(3).roll(step), QUERY.roll(step)
        one.zero_grad()
        bilinear_loss(scaled, batch).sum().backward()
        one.step()
        with torch.no_grad():
            by_y, by_z = _gradients(plain, batch)
            plain.y -= 0.5 * by_y
            plain.scaled_z -= (0.5 * ratio)[:, None, None] * by_z
    torch.testing.assert_close(scaled.y, plain.y)
    torch.testing.assert_close(scaled.z, plain.z)


def _gradients(model, batch):
    with torch.enable_grad():
        return torch.autograd.grad(bilinear_loss(model, batch).sum(), [model.y, model.scaled_z])


@pytest.mark.parametrize("norm", ["unit", "softmax", "none"])
def test_the_fast_loop_is_sgd(norm):
    fast, slow = (spread_out(norm=norm, ratio=[0.1, 3.0]) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    steps = 12
    x = P[torch.randint(3, (steps, 2), generator=generator)]
    label, query = (torch.randint(most, (steps, 2), generator=generator) for most in (5, 2))
    rate = torch.tensor([0.3, 0.8], dtype=torch.float64)
    step_by_step(fast, x, label, query, rate=rate)
    for now, right, row in zip(x, label, query, strict=True):
        gradients = _gradients(slow, (now[:, None], right[:, None], row[:, None]))
        with torch.no_grad():
            for parameter, gradient in zip(slow.parameters(), gradients, strict=True):
                parameter -= rate[:, None, None] * gradient
    torch.testing.assert_close(fast.y, slow.y)
    torch.testing.assert_close(fast.z, slow.z)


def test_attention_that_is_held_stays():
    model = spread_out(ratio=[0.0, 1.0])
    before = model.z.detach().clone()
    step_by_step(model, P[None, :2], [[0, 1]], rate=1.0)
    assert torch.equal(model.z[0], before[0] * 0)  # a ratio of 0 leaves no room for a start either
    assert not torch.equal(model.z[1], before[1])


def test_the_house_trains_it(tmp_path):
    ensemble = Ensemble(
        members=3,
        networks=lambda members: Bilinear(4, 3, members, queries=2, ratio=0.5),
        batch=lambda step, members: (P.float(), torch.arange(3), QUERY),
        loss=bilinear_loss,
        optimizer=Optimizer("sgd", rate=(0.5, 1.0, 2.0)),
        steps=60,
        measures={"z": lambda model, members: model.z[:, 1]},
        measure_at=(0,),
    )
    with Run.create(tmp_path / "run", study="x", config={}) as run:
        train(ensemble, run)
        loss, z = run.array("train_loss")[-1], run.array("z")
    assert (loss < 0.9).all()
    assert (loss[1:] < loss[:-1]).all()
    assert abs(z[0]).max() == 0
    assert abs(z[-1].sum(-1)).max() < 1e-5  # the sum of logits is conserved


def test_seeds_decide_the_start():
    first, again, zero = spread_out(), spread_out(), Bilinear(4, 5, [0])
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y[0], first.y[1])
    assert zero.y.abs().max() == 0
    assert first.seeds.tolist() == [3, 4]
    assert first.seeds.dtype == torch.int32


test_bad_input_gets_one_sentence = refusals(
    (lambda: Bilinear(0, 2, [0]), "tokens must be a whole number of at least 1, got 0"),
    (lambda: Bilinear(2, 2, []), "a bilinear model needs at least one member: seeds is empty"),
    (lambda: Bilinear(2, 2, [0], ratio=-1.0), "ratio must be finite and not negative, got -1"),
    (lambda: Bilinear(2, 2, [0], ratio=[1.0, 2.0]), "ratio must be one number or one per member, 1"),
    (lambda: Bilinear(2, 2, [0], norm="layer"), "norm must be 'unit', 'softmax' or 'none'"),
    (lambda: Bilinear(2, 2, [0], spread=-1.0), "spread must be a finite number of at least 0"),
    (lambda: Bilinear(2, 2, [0])([[0, 2]]), "sequences must hold tokens from 0 to 1, got 0 to 2"),
    (lambda: Bilinear(2, 2, [0])([[0.5, 0.25, 0.25]]), "sequences of frequencies must have 2 of them, got 3"),
    (lambda: Bilinear(2, 2, [0])([0, 1]), r"sequences must have shape \(batch, length\)"),
    (lambda: Bilinear(2, 2, [0])([[0, 1]], [1]), "query must lie between 0 and 0, got 1 to 1"),
    (lambda: step_by_step(Bilinear(2, 2, [0]), [[0.5, 0.5]], [[0]], rate=1.0), "frequencies must have shape"),
    (lambda: step_by_step(Bilinear(2, 2, [0]), [[[0.5, 0.5]]], [[2]], rate=1.0), "following must have shape"),
)
