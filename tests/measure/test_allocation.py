"""Change allocation: it closes, it is what single moves do, it knows no order of groups, and it says what it cannot."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from joma.measure import _allocation_slopes, attention_stats
from joma.measure._allocation_slopes import cheaper, read_groups
from joma.measure.allocation import allocate
from joma.models import Decoder, DecoderConfig

TOKENS = torch.randint(20, (12, 10), generator=torch.Generator().manual_seed(5))
QK = slice(0, 16)


def at(layer, *more):
    return (slice(None), layer, *more)


def by_layer(layer):
    """The groups of one layer of a decoder of width 8, whose layers are stacked in its parameters."""
    qkv = [("qkv", at(layer, slice(None), QK)), ("qkv_bias", at(layer, QK))]
    value = [("qkv", at(layer, slice(None), slice(16, 24))), ("qkv_bias", at(layer, slice(16, 24)))]
    value += [(name, at(layer)) for name in ("projection", "projection_bias")]
    mlp = [(name, at(layer)) for name in ("up", "up_bias", "down", "down_bias")]
    return {f"qk {layer}": qkv, f"value {layer}": value, f"mlp {layer}": mlp}


GROUPS = {**by_layer(0), **by_layer(1), "embedding": ["embedding"], "output": ["out", "out_bias"]}


def entropies(decoder):
    """Mean attention entropy of every layer, (members, layers)."""

    def measure(parameters):
        seen = {}
        functional_call(
            decoder, parameters, (TOKENS,), {"look": lambda layer, name, x: seen.update({(layer, name): x})}
        )
        return torch.stack([layer_entropy(seen, layer) for layer in range(decoder.config.layers)], -1)

    def layer_entropy(seen, layer):
        query, key = (seen[layer, name] for name in ("query", "key"))
        return attention_stats(query.flatten(0, 1), key.flatten(0, 1)).entropy.view(len(query), -1).mean(-1)

    return measure


def trained(dtype, activation, seeds=(0, 1), stops=(0, 10, 20)):
    """A decoder of two layers and its states along some steps of Adam."""
    config = DecoderConfig(vocabulary=20, width=8, mlp=16, layers=2, context=10, activation=activation)
    decoder = Decoder(config, seeds=seeds).to(dtype)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    states = []
    for step in range(stops[-1] + 1):
        if step in stops:
            states.append({name: p.detach().clone() for name, p in decoder.named_parameters()})
        logits = decoder(TOKENS[:, :-1]).flatten(0, 2)
        optimizer.zero_grad()
        F.cross_entropy(logits, TOKENS[:, 1:].expand(len(seeds), -1, -1).reshape(-1)).backward()
        optimizer.step()
    return decoder, states


@pytest.fixture(scope="module")
def double():
    decoder, states = trained(torch.float64, "gelu")
    return decoder, states, allocate(entropies(decoder), states, GROUPS, members=True)


@pytest.fixture(scope="module")
def single():
    decoder, states = trained(torch.float32, "relu")
    return decoder, states, allocate(entropies(decoder), states, GROUPS, members=True)


@pytest.mark.parametrize("type_", ["single", "double"])
def test_the_entropy_of_a_trained_decoder_closes(type_, request):
    decoder, states, found = request.getfixturevalue(type_)
    assert found.groups == (*GROUPS, "rest")
    assert found.parts.shape == (2, 9, 2, 2)
    assert found.closed.all()
    assert found.reasons == ()
    levels = torch.stack([entropies(decoder)(state).detach() for state in states]).double()
    torch.testing.assert_close(found.change, levels.diff(dim=0))
    assert (found.change.abs().amax(0) > 0.01).all()  # something happened
    eps = torch.finfo(states[0]["qkv"].dtype).eps
    size = torch.maximum(levels.abs().amax(), found.parts.abs().sum(1))
    assert ((found.parts.sum(1) - found.change).abs() <= 1e-3 * found.change.abs() + 16 * eps * size).all()
    assert (found.error <= 1e-3 * found.change.abs().sum(0) + 3 * 16 * eps * size.amax(0)).all()


def test_float32_and_float64_agree(double):
    decoder, states, wanted = double
    function = entropies(Decoder(decoder.config, seeds=[0, 1]))
    found = allocate(
        function, [{name: p.float() for name, p in state.items()} for state in states], GROUPS, members=True
    )
    assert (found.parts - wanted.parts).abs().max() < 2e-3 * wanted.parts.abs().max()


def test_what_comes_later_in_the_network_gets_exactly_zero(double):
    found = dict(zip(double[2].groups, double[2].parts.unbind(1), strict=True))
    for group in ("output", "value 1", "mlp 1"):
        assert not found[group].any()
    assert not found["qk 1"][..., 0].any()
    assert found["qk 1"][..., 1].all()


def test_members_together_are_members_alone(double):
    decoder, states, found = double
    for member in range(2):
        one = Decoder(decoder.config, seeds=[member]).double()
        alone = [{name: p[member : member + 1] for name, p in state.items()} for state in states]
        apart = allocate(entropies(one), alone, GROUPS, tolerance=1e-3)
        assert apart.parts.shape == (2, 9, 1, 2)
        error = found.gaps.amax() + apart.gaps.amax()
        assert ((apart.parts[:, :, 0] - found.parts[:, :, member]).abs() <= 10 * error).all()


def test_small_moves_are_finite_differences_of_single_groups(double):
    decoder, states, _ = double
    function, start = entropies(decoder), states[-1]
    generator = torch.Generator().manual_seed(0)
    step = {name: 1e-5 * torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in start.items()}
    found = allocate(function, [start, {name: p + step[name] for name, p in start.items()}], GROUPS, members=True)
    assert found.nodes.tolist() == [2]
    for group, part in zip(found.groups, found.parts[0], strict=True):
        listed = GROUPS.get(group, ["attention_scale", "attention_shift", "mlp_scale", "mlp_shift"])
        moved = {name: p.clone() for name, p in start.items()}
        for entry in listed:
            name, index = entry if isinstance(entry, tuple) else (entry, ...)
            moved[name][index] += step[name][index]
        difference = (function(moved) - function(start)).detach()
        torch.testing.assert_close(part, difference, rtol=2e-3, atol=1e-9)


# exact answers


def polynomial(p):
    return torch.stack([(p["a"] ** 2).sum() + (p["a"] * p["b"]).sum(), p["b"].sum() ** 2, p["c"].sum()])


numbers = st.lists(st.floats(-3, 3), min_size=2, max_size=2)
state = st.fixed_dictionaries({"a": numbers, "b": numbers, "c": numbers, "d": numbers})
EACH = {"A": ["a"], "B": ["b"], "C": ["c"]}


@given(st.lists(state, min_size=2, max_size=4))
@settings(max_examples=25)
def test_quadratic_functions_are_exact_with_two_nodes(states):
    found = allocate(polynomial, states, EACH)
    assert found.closed.all()
    assert found.nodes.max() <= 2
    a, b, c = (torch.tensor([s[name] for s in states], dtype=torch.float64) for name in "abc")
    middle = [(x[1:] + x[:-1]) / 2 for x in (a, b)]
    wanted = {
        "A": [(a.diff(dim=0) * (2 * middle[0] + middle[1])).sum(1), 0, 0],
        "B": [(b.diff(dim=0) * middle[0]).sum(1), (b.sum(1) ** 2).diff(), 0],
        "C": [0, 0, c.sum(1).diff()],
        "rest": [0, 0, 0],
    }
    assert found.groups == tuple(wanted)
    for n, (group, parts) in enumerate(wanted.items()):
        for measure, part in enumerate(parts):
            np.testing.assert_allclose(found.parts[:, n, measure], part, rtol=0, atol=1e-12, err_msg=group)
            assert isinstance(part, torch.Tensor) or not found.parts[:, n, measure].any()


@given(
    st.lists(state, min_size=2, max_size=3), st.permutations(["A", "B", "C"]), st.sampled_from(["forward", "backward"])
)
@settings(max_examples=15)
def test_permuted_labels_permute_the_answer(states, order, way):
    def rough(p):
        return torch.stack([torch.sin(p["a"] * p["b"]).sum() * p["c"].sum().tanh(), p["d"].prod().tanh()])

    plain = allocate(rough, states, {**EACH, "D": ["d"]}, way=way, most=6)
    turned = allocate(rough, states, {"D": ["d"], **{name: EACH[name] for name in order}}, way=way, most=6)
    rounding = {"rtol": 1e-9, "atol": 1e-9}  # groups are columns of a product, and columns may round otherwise
    places = [plain.groups.index(name) for name in turned.groups]
    torch.testing.assert_close(turned.parts, plain.parts[:, places], **rounding)
    torch.testing.assert_close(turned.error, plain.error, **rounding)


@given(st.lists(state, min_size=3, max_size=5))
@settings(max_examples=15)
def test_intervals_are_independent_and_add_up(states):
    def smooth(p):
        return torch.stack([torch.tanh(p["a"] * p["b"]).sum(), p["c"].cos().sum() * p["d"].sum()])

    found = allocate(smooth, states, EACH, most=6)
    alone = [allocate(smooth, pair, EACH, most=6) for pair in itertools.pairwise(states)]
    assert torch.equal(found.parts, torch.cat([one.parts for one in alone]))
    assert torch.equal(found.total, found.parts.sum(0))
    ends = allocate(smooth, [states[0], states[-1]], EACH).change[0]
    torch.testing.assert_close(found.change.sum(0), ends)
    torch.testing.assert_close(found.error, (found.total.sum(0) - ends).abs(), atol=1e-12, rtol=0)


@given(state, state, st.integers(0, 1), st.sampled_from(["forward", "backward"]))
@settings(max_examples=15)
def test_a_group_may_be_a_part_of_a_parameter(start, end, cut, way):
    def whole(p):
        return (p["a"].prod() + p["b"].sum()).sin()

    split = {"one": [("a", cut)], "other": [("a", 1 - cut)], "b": ["b", "c", "d"]}
    parts = allocate(whole, [start, end], split, way=way)
    together = allocate(whole, [start, end], {"a": ["a"], "b": ["b", "c", "d"]})
    torch.testing.assert_close(parts.parts[0, :2].sum(), together.parts[0, 0], atol=1e-9, rtol=1e-9)
    left = allocate(whole, [start, end], {"one": [("a", cut)], "b": ["b", "c", "d"]}, way=way)
    assert left.groups == ("one", "b", "rest")
    torch.testing.assert_close(left.parts[0, 2], parts.parts[0, 1], atol=1e-9, rtol=1e-9)


# both modes of autograd


def plain_network(p):
    hidden = torch.tanh(torch.linspace(-1, 1, 6, dtype=p["w"].dtype)[:, None] @ p["w"] + p["b"])
    return (hidden @ p["v"]).exp().mean(0)


def plain_states(measures=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (1, 4), "b": (4,), "v": (4, measures)}
    return [{n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()} for _ in range(3)]


PLAIN = {"in": ["w", "b"], "out": ["v"]}


def test_forward_and_backward_agree_and_the_cheaper_is_taken():
    states = plain_states()
    ways = {way: allocate(plain_network, states, PLAIN, way=way) for way in ("forward", "backward", "auto")}
    torch.testing.assert_close(ways["forward"].parts, ways["backward"].parts, rtol=1e-12, atol=1e-12)
    assert ways["auto"].way == "forward"  # two groups, five measures
    assert torch.equal(ways["auto"].parts, ways["forward"].parts)
    assert allocate(plain_network, plain_states(1), PLAIN).way == "backward"
    assert [cheaper(2, measures) for measures in (1, 2)] == ["backward", "forward"]
    assert [cheaper(groups, 9) for groups in (9, 10)] == ["forward", "backward"]


class OnlyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


class LostTangent(OnlyBackward):
    @staticmethod
    def jvp(ctx, tangent):
        return torch.zeros_like(tangent)


@pytest.mark.parametrize("operation", [OnlyBackward, LostTangent])
def test_without_a_right_forward_mode_the_backward_one_is_taken(operation):
    states = [{"x": torch.linspace(0, 1, 9)}, {"x": torch.linspace(1, 3, 9)}]
    found = allocate(lambda p: operation.apply(p["x"]), states, {"x": ["x"]})
    assert found.way == "backward"
    assert found.closed.all()
    if operation is OnlyBackward:
        with pytest.raises(ValueError, match="way must be auto or backward: function has no forward mode"):
            allocate(lambda p: operation.apply(p["x"]), states, {"x": ["x"]}, way="forward")


def test_a_function_without_gradients_is_followed_in_forward_mode():
    states = [{"x": [0.0, 1.0]}, {"x": [2.0, 1.5]}]
    found = allocate(torch.no_grad()(lambda p: p["x"].sin().sum()), states, {"x": ["x"]})
    assert found.way == "forward"
    assert found.closed.all()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_grad_mode_does_not_matter(context):
    wanted = allocate(plain_network, plain_states(1), PLAIN)
    with context():
        assert torch.equal(allocate(plain_network, plain_states(1), PLAIN).parts, wanted.parts)


# closing, or not


@given(st.floats(0.05, 0.95), st.floats(0.1, 10))
@settings(max_examples=15)
def test_a_kink_is_closed_in(place, slope):
    states = [{"x": [-place, 0.0]}, {"x": [1 - place, 1.0]}]
    found = allocate(lambda p: slope * p["x"][0].relu() + p["x"][1] ** 2, states, {"k": [("x", 0)], "s": [("x", 1)]})
    assert found.closed.all()
    assert abs(found.parts[0, 0] - slope * (1 - place)) <= 1.01e-3 * found.change[0]
    assert abs(found.parts[0, 1] - 1) < 1e-9


def test_what_does_not_close_is_said():
    kink = [{"x": [-0.37]}, {"x": [0.63]}]
    few = allocate(lambda p: p["x"].relu(), kink, {"x": ["x"]}, most=14, tolerance=1e-6)
    assert not few.closed.any()
    assert few.nodes.tolist() == [14]
    assert (few.gaps > few.allowed).all()
    assert few.reasons[0].startswith("interval 0, measure 0: the parts miss the change by ")
    assert few.reasons[0].endswith("after 14 nodes; more nodes would help: raise most, or give absolute")
    assert allocate(lambda p: p["x"].relu(), kink, {"x": ["x"]}, most=14, absolute=0.2).closed.all()


def test_jumps_noise_and_missing_gradients_are_told_apart():
    line = [{"x": [0.0]}, {"x": [1.0]}, {"x": [1.0]}]
    jump = allocate(lambda p: p["x"].detach().round() + 0.1 * p["x"], line, {"x": ["x"]})
    assert jump.closed.tolist() == [[False], [True]]
    assert len(jump.reasons) == 1
    assert "more nodes hardly help" in jump.reasons[0]
    cut = allocate(lambda p: torch.stack([p["x"].sum(), p["x"].sum().detach()]), line, {"x": ["x"]})
    assert cut.closed.tolist() == [[True, False], [True, True]]
    assert "measure 1" in cut.reasons[0]
    assert "no gradient by any parameter" in cut.reasons[0]
    count = itertools.count()
    noise = allocate(lambda p: p["x"] + 0.1 * (next(count) % 7), line, {"x": ["x"]}, most=14)
    assert all("other numbers when it is called again" in reason for reason in noise.reasons)
    assert noise.reasons


def test_parts_whose_errors_cancel_are_found_when_asked():
    def cancelling(p):
        return torch.sin(9 * p["a"]) - torch.sin(9 * p["b"]) + p["a"] * 0

    states = [{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
    trusting = allocate(cancelling, states, {"A": ["a"], "B": ["b"]})
    asking = allocate(cancelling, states, {"A": ["a"], "B": ["b"]}, each=True)
    assert trusting.nodes.tolist() == [2]
    assert trusting.moved.isinf().all()
    assert asking.closed.all()
    assert abs(asking.parts[0, 0] - np.sin(9)) < 1e-3
    assert abs(trusting.parts[0, 0] - np.sin(9)) > 0.1
    assert (asking.moved <= 1e-3).all()
    short = allocate(cancelling, states, {"A": ["a"], "B": ["b"]}, each=True, most=6)
    assert not short.closed.any()
    assert "their sum is closed, but a part moved by 1.2 when nodes were last added" in short.reasons[0]


def test_nothing_that_moves_costs_nothing():
    calls = []

    def function(p):
        calls.append(1)
        return p["x"].sum()

    found = allocate(function, [{"x": [1.0]}] * 3, {"x": ["x"], "none": []})
    assert (len(calls), found.nodes.tolist(), found.parts.any().item()) == (3, [0, 0], False)
    assert found.closed.all()


def test_the_cost_is_what_is_stated():
    forwards = []

    def function(p):
        forwards.append(1)
        return torch.stack([p["x"].sin().sum(), p["x"].sum()])

    found = allocate(function, [{"x": [0.0, 1.0]}, {"x": [0.1, 1.1]}, {"x": [0.2, 1.0]}], {"x": ["x"]}, way="backward")
    assert len(forwards) == 3 + found.nodes.sum()


def test_states_may_be_lists_arrays_tensors_or_read_one_by_one():
    states = plain_states(1)
    wanted = allocate(plain_network, states, PLAIN)
    arrays = [{name: p.numpy() for name, p in state.items()} for state in states]
    lists = ({name: p.tolist() for name, p in state.items()} for state in states)
    for found in (allocate(plain_network, arrays, PLAIN), allocate(plain_network, lists, PLAIN)):
        assert torch.equal(found.parts, wanted.parts)
    kept = [{**state, "seed": torch.tensor(3)} for state in states]
    assert allocate(plain_network, kept, PLAIN).groups == ("in", "out")


def test_states_are_left_as_they_were():
    states = [{name: p.clone().requires_grad_() for name, p in state.items()} for state in plain_states()]
    allocate(plain_network, states, PLAIN)
    assert all(
        torch.equal(p, q)
        for a, b in zip(states, plain_states(), strict=True)
        for p, q in zip(a.values(), b.values(), strict=True)
    )
    assert all(p.grad is None for state in states for p in state.values())


def halves(members, rows=6):
    """The square sum of a parameter on its way, and groups that split it."""
    draw = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(members, rows, 8, generator=draw)} for _ in range(2)]
    return lambda p: p["w"].square().sum((1, 2)), states, {"a": [("w", (slice(None), slice(2)))]}


def test_products_inside_autocast_are_as_outside():
    """Sums over groups are products as well, and autocast rounds their factors to eight bits."""
    x = torch.randn(48, generator=torch.Generator().manual_seed(1))
    _, (start, end), _ = halves(1, rows=48)
    asked = (
        lambda p: (p["w"][0].mT @ x).square().mean(),
        [start, end],
        {"a": [("w", (0, slice(9)))], "b": [("w", (0, slice(9, 30)))]},
    )
    outside = allocate(*asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = allocate(*asked)
    assert torch.equal(inside.parts, outside.parts)
    assert torch.equal(inside.change, outside.change)


def test_a_program_that_uses_the_newer_setting_of_precision_keeps_it():
    function, states, groups = halves(2)
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    seen = []
    try:
        with pytest.raises(RuntimeError):  # else this test tells nothing
            torch.get_float32_matmul_precision()
        allocate(lambda p: seen.append(matmul.fp32_precision) or function(p), states, groups, members=True)
        assert set(seen) == {"ieee"}
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("large", [1, 1 << 20])
@pytest.mark.parametrize("alike", [True, False])
def test_sums_with_and_without_a_matrix_agree(monkeypatch, large, alike):
    """Few groups of a large parameter are summed one by one; members may differ in what a group holds."""
    monkeypatch.setattr(_allocation_slopes, "LARGE", large)
    function, states, groups = halves(3)
    if not alike:
        groups = {"a": [("w", torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(2)) > 0.5)]}
    found = allocate(function, states, groups, members=True, way="backward")
    mask = torch.zeros(3, 6, 8, dtype=torch.bool)
    mask[groups["a"][0][1]] = True
    change = states[1]["w"].double().square() - states[0]["w"].double().square()
    expected = torch.stack([(change * mask).sum((1, 2)), (change * ~mask).sum((1, 2))])
    torch.testing.assert_close(found.parts[0], expected, rtol=0, atol=1e-4)
    sums = _allocation_slopes.GroupSums(read_groups(groups, states[0]))
    sums.add(torch.zeros(2, 3), "w", states[0]["w"])
    assert bool(sums.matrices) == (large > 1)
