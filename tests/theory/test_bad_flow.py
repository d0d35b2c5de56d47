"""Blocks, attentions, laws and flows made of bad input: one sentence that names what was wrong."""

from dataclasses import replace

import pytest
import torch
from theory.good_call import draw
from theory.spoiled import no_choices, not_finite, not_numbers, other_shapes, refusal, with_last

from joma.theory import radial
from joma.theory.attention import Attention, derivative, random_orthonormal, value_and_derivative
from joma.theory.flow import Block, constant_gradient, cross_entropy_gradient, integrate, integrate_together

U = random_orthonormal(6, 5, generator=torch.Generator().manual_seed(0))
BLOCK = Block(
    draw(0, 4, 3, low=0.1),
    torch.tensor([0, 1, 0, 1]),
    U[:, :3],
    U[:, 3:],
    constant_gradient(draw(1, 4, 2)),
    activation=torch.tanh,
)
W, Z = draw(2, 6, 2), draw(3, 2, 3)
NO_TENSORS = ("many", None, 1.5, [1.0], 1j, object())
METHODS = {"attend": {"z": Z}, "hidden": {"w": W, "z": Z}, "project": {"w": W}, "velocity": {"w": W, "z": Z}}


def spoiled(x):
    yield from NO_TENSORS
    yield from (value for kind, value in not_numbers(x) if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("name", ["x", "tokens", "queries"])
def test_arrays_of_a_block(name):
    good = getattr(BLOCK, name)
    for value in spoiled(good):
        assert refusal(lambda value=value: replace(BLOCK, **{name: value}), name) is None, value
    for kind, value in [("NaN", with_last(good, torch.nan)), *not_finite(good), ("meta", good.to("meta"))]:
        assert refusal(lambda value=value: replace(BLOCK, **{name: value}), name) is None, kind
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
        assert refusal(lambda dtype=dtype: replace(BLOCK, **{name: good.to(dtype)}), f"{name}|tokens|x") is None, dtype


@pytest.mark.parametrize("name", ["x", "tokens", "queries", "query"])
def test_shapes_of_a_block_fit_or_are_refused(name):
    for kind, value in other_shapes(getattr(BLOCK, name)):
        try:
            block = replace(BLOCK, **{name: value})
        except ValueError:
            assert refusal(lambda value=value: replace(BLOCK, **{name: value}), f"{name}|query|x") is None, kind
        else:
            lead = value.shape[:-2] if name == "x" else ()
            assert block.attend(torch.zeros(block.queries.shape[1], 3).double()).shape == (*lead, 4, 3), kind


@pytest.mark.parametrize("name", ["query", "backprop", "activation", "attention", "rate_w", "rate_z"])
def test_choices_of_a_block(name):
    for value in no_choices(but_numbers=name.startswith("rate")):
        assert refusal(lambda value=value: replace(BLOCK, **{name: value}), name) is None, value


@pytest.mark.parametrize("method", METHODS)
def test_states_of_a_block(method):
    call, given = getattr(BLOCK, method), METHODS[method]
    for name, good in given.items():
        for value in (*spoiled(good), good.float(), good.half(), good.to("meta"), good.long()):
            assert refusal(lambda name=name, value=value: call(**{**given, name: value}), name) is None, value
        for kind, value in other_shapes(good):
            *lead, rows, columns = value.shape if value.ndim >= 2 else (0, 0)
            fits = rows == good.shape[-2] and (name == "w" or columns == good.shape[-1])
            if fits and (method != "velocity" or columns == good.shape[-1]):
                answer = call(**{**given, name: value})
                assert all(p.shape[: len(lead)] == (*lead,) for p in (answer if method == "velocity" else [answer]))
            else:
                wrong = "backprop" if fits else name
                assert refusal(lambda name=name, value=value: call(**{**given, name: value}), wrong) is None, kind


def test_states_of_a_block_that_do_not_go_together():
    with pytest.raises(ValueError, match=r"shapes do not fit together: x \(\), w \(2,\), z \(3,\)"):
        BLOCK.velocity(W.expand(2, 6, 2), Z.expand(3, 2, 3))


def test_the_start_of_a_block():
    for name, good in (("w0", W), ("z0", Z)):
        for value in (*spoiled(good), good.to("meta"), good.long(), with_last(good, torch.nan), good[None], good[1:]):
            given = {"w0": W, "z0": Z, name: value}
            assert refusal(lambda given=given: BLOCK.solve(**given, t=[1.0]), f"{name}|start|w0") is None, value
    many = replace(BLOCK, x=BLOCK.x.expand(3, 4, 3))
    assert refusal(lambda: many.solve(W.expand(2, 6, 2), Z.expand(2, 2, 3), [1.0]), "w0") is None
    bad = {"t": ("many", [], [-1.0], [1.0, 0.5]), "rtol": (0.0, 1e-17, "small"), "atol": (-1.0, None)}
    for name, value in ((name, value) for name, values in bad.items() for value in values):
        assert refusal(lambda given={"t": [1.0], name: value}: BLOCK.solve(W, Z, **given), name) is None, value


def test_gradients_of_a_block():
    for value in spoiled(W):
        assert refusal(lambda value=value: constant_gradient(value), "g") is None, value
    for value in (*spoiled(W), torch.tensor([0.5]), torch.tensor([[1]]), torch.tensor([], dtype=torch.long)):
        assert refusal(lambda value=value: cross_entropy_gradient(value), "label") is None, value
    for label in (torch.tensor([2]), torch.tensor([-1])):
        assert refusal(lambda label=label: cross_entropy_gradient(label)(torch.zeros(1, 2), 0.0), "label") is None


GOOD_FLOW = {"field": lambda time, y: -y, "y0": torch.ones(2), "t": [1.0], "rtol": 1e-9, "atol": 1e-9}
BAD_NUMBERS = ("many", None, torch.nan, -3.0, object(), torch.ones(2, 2), torch.ones(2).to("meta"))


@pytest.mark.parametrize("name", ["field", "t", "rtol", "atol", "method", "max_evaluations"])
def test_flows_of_bad_input(name):
    for value in BAD_NUMBERS:
        assert refusal(lambda value=value: integrate(**{**GOOD_FLOW, name: value}), name) is None, value


def test_starts_of_bad_input():
    x = torch.ones(2)
    for value in (*(bad for kind, bad in not_numbers(x)), None, x.to("meta"), x * torch.nan, x * torch.inf):
        assert refusal(lambda value=value: integrate(**{**GOOD_FLOW, "y0": value}), "y0") is None, value
    for shape in ((), (0,), (2, 0), (1, 1)):
        assert integrate(**{**GOOD_FLOW, "y0": torch.ones(shape)}).shape == (1, *shape)


@pytest.mark.parametrize(
    "field",
    [
        lambda time, y: y[:1],
        lambda time, y: y.sum(),
        lambda time, y: y.tolist(),
        lambda time, y: None,
        lambda time, y: y[None],
        lambda time, y: y * torch.nan,
        lambda time, y: y * torch.inf,
    ],
)
def test_fields_that_are_none(field):
    assert refusal(lambda: integrate(field, torch.ones(2), [1.0]), "field") is None


@pytest.mark.parametrize(
    ("field", "start", "name"),
    [
        (lambda time, a, b: (a,), (torch.ones(1), torch.ones(2)), "field"),
        (lambda time, a, b: (a, b, b), (torch.ones(1), torch.ones(2)), "field"),
        (lambda time, a, b: (b, a), (torch.ones(1), torch.ones(2)), "field"),
        (lambda time: (), (), "start"),
        (lambda time, a: (a,), (torch.ones(1) * torch.nan,), "start"),
        (lambda time, a: (a,), ("many",), "start"),
        ("field", (torch.ones(1),), "field"),
    ],
)
def test_parts_that_do_not_flow_together(field, start, name):
    assert refusal(lambda: integrate_together(field, start, [1.0]), name) is None


@pytest.mark.parametrize("name", ["kind", "temperature", "norm"])
def test_attentions(name):
    for value in no_choices(but_numbers=name != "kind"):
        assert refusal(lambda value=value: Attention(**{name: value}), name) is None, value


@pytest.mark.parametrize("name", ["width", "count", "generator"])
def test_orthonormal_vectors(name):
    good = {"width": 3, "count": 2, "generator": torch.Generator()}
    for value in no_choices():
        assert refusal(lambda value=value: random_orthonormal(**{**good, name: value}), name) is None, value


def test_functions_that_are_not_pointwise():
    for call in (derivative, value_and_derivative):
        for function in ("sin", None, lambda x: x.sum(), lambda x: x[:1]):
            assert refusal(lambda f=function, call=call: call(f, torch.ones(2)), "function") is None


LAWS = {
    radial.Gaussian: {"dimension": 2, "scale": 1.0},
    radial.Ball: {"dimension": 2, "radius": 1.0},
    radial.StudentT: {"dimension": 2, "nu": 3.0},
    radial.ExponentialRadial: {"dimension": 2, "rate": 1.0},
}


@pytest.mark.parametrize("law", LAWS)
def test_laws(law):
    for name in LAWS[law]:
        for value in no_choices(but_numbers=name != "dimension"):
            assert refusal(lambda name=name, value=value: law(**{**LAWS[law], name: value}), name) is None, value
    for name in ("count", "generator"):
        for value in no_choices():
            if name == "generator" and value is None:
                continue
            given = {"count": 3, name: value}
            assert refusal(lambda given=given: law(**LAWS[law]).sample(**given), name) is None, value
    assert refusal(lambda: law(**LAWS[law]).radial(-1.0), "r") is None
