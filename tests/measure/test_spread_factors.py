"""Growth, alignment and context of an attention layer, against A itself in float64."""

import pytest
import torch

from joma.measure.spread import factors, spread


def draw(heads=4, kv_heads=2, width=3, inputs=7, tokens=(3, 11), seed=0):
    generator = torch.Generator().manual_seed(seed)
    w_q = torch.randn(heads, width, inputs, generator=generator)
    w_k = torch.randn(kv_heads, width, inputs, generator=generator)
    b_q = torch.randn(heads, width, generator=generator)
    x = torch.randn(*tokens, inputs, generator=generator) * torch.arange(1, inputs + 1) + torch.linspace(-2, 1, inputs)
    return w_q, w_k, b_q, x, torch.rand(heads, generator=generator) + 1


def by_definition(w_q, w_k, b_q, x, variance, scale):
    """A of inputs x inputs, M and C as they are written."""
    w_q, w_k, b_q, x, variance = (one.double() for one in (w_q, w_k, b_q, x, variance))
    x = x.flatten(0, -2)
    c = torch.cov(x.T, correction=0)
    rows = []
    for h, s2 in enumerate(variance):
        key = w_k[h // (len(w_q) // len(w_k))]
        a = scale * w_q[h].T @ key
        z = x @ a + scale * b_q[h] @ key
        m = z.T @ z / len(z)
        mean = z.mean(0)
        growth, product = a.square().sum(), (m @ c).trace()
        rows.append(torch.stack([growth, product / growth, s2 / product, mean @ c @ mean]))
    share = x.mean(0).square().sum() / x.square().sum(1).mean()
    return torch.stack(rows, 1), share, c.trace() ** 2 / (c @ c).trace()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("tokens", [(3, 11), (5,)])  # more tokens than inputs, and fewer
def test_factors_are_those_of_the_matrix(dtype, scale, tokens):
    w_q, w_k, b_q, x, variance = (one.to(dtype) for one in draw(tokens=tokens))
    found = factors(w_q, w_k, x, variance=variance, b_q=b_q, scale=scale)
    want, share, rank = by_definition(w_q, w_k, b_q, x, variance, scale or 3**-0.5)
    close = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 0.0}
    torch.testing.assert_close(torch.stack(found[:4]).double(), want, **close)
    torch.testing.assert_close(found.mean_share.double(), share, **close)
    torch.testing.assert_close(found.rank.double(), rank, **close)
    assert {part.dtype for part in found} == {dtype}
    product = found.growth * found.alignment * found.context
    torch.testing.assert_close(product, variance, rtol=1e-6, atol=0)


def test_without_a_bias_it_is_zero():
    w_q, w_k, b_q, x, variance = draw()
    for got, want in zip(
        factors(w_q, w_k, x, variance=variance),
        factors(w_q, w_k, x, variance=variance, b_q=torch.zeros_like(b_q)),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def test_context_is_one_where_every_query_sees_all_tokens():
    w_q, w_k, b_q, x, _ = draw(tokens=(1, 40))
    q = torch.einsum("hdi,bti->bhtd", w_q, x) + b_q[:, None]
    k = torch.einsum("hdi,bti->bhtd", w_k, x)
    found = spread(q, k, causal=False)
    why = factors(w_q, w_k, x, variance=found.variance, b_q=b_q)
    torch.testing.assert_close(why.context, torch.ones(4), rtol=1e-5, atol=0)
    torch.testing.assert_close(why.shared, found.shared, rtol=1e-5, atol=0)


def test_larger_weights_are_growth_alone():
    w_q, w_k, _, x, variance = draw()
    before = factors(w_q, w_k, x, variance=variance)
    after = factors(3 * w_q, w_k, x, variance=9 * variance)
    torch.testing.assert_close(after.growth, 9 * before.growth)
    torch.testing.assert_close(after.alignment, before.alignment)
    torch.testing.assert_close(after.context, before.context)


@pytest.mark.parametrize("directions", [1, 4, 7])
def test_rank_counts_directions(directions):
    """As many equal and opposite steps as directions."""
    eye = torch.eye(7)[:directions]
    w_q, w_k, _, _, variance = draw()
    found = factors(w_q, w_k, torch.cat([eye, -eye]) + 3, variance=variance)
    torch.testing.assert_close(found.rank, torch.tensor(float(directions)))


@pytest.mark.parametrize(("change", "says"), [
    ({"w_q": torch.ones(3, 3, 7)}, "w_q and w_k must be"),
    ({"w_k": torch.ones(2, 4, 7)}, "w_q and w_k must be"),
    ({"w_q": torch.ones(4, 7)}, "w_q and w_k must be"),
    ({"x": torch.ones(3, 11, 6)}, "x must be two or more tokens"),
    ({"x": torch.ones(1, 7)}, "x must be two or more tokens"),
    ({"b_q": torch.ones(4)}, "b_q must be"),
    ({"variance": torch.ones(3)}, "variance must be"),
    ({"scale": float("nan")}, "scale must be"),
])  # fmt: skip
def test_wrong_arguments_get_one_sentence(change, says):
    w_q, w_k, b_q, x, variance = draw()
    given = {"w_q": w_q, "w_k": w_k, "x": x, "b_q": b_q, "variance": variance} | change
    with pytest.raises(ValueError, match=says):
        factors(**given)
