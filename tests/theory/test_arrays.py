"""Tensors, numpy arrays and lists: every public function of joma.theory gives the same answer to each of them.

`calls.py` has one good call per function; `test_bad_input.py` fails where a public function has none. Here the flow,
which has its own kind of arguments, is added.
"""

import inspect

import numpy as np
import pytest
import torch
from theory.calls import CALLS, of_every_call
from theory.good_call import Call, draw

from joma.host.arguments import as_numbers, as_tensor
from joma.theory import flow
from joma.theory.flow import Block, State

U = torch.eye(4, dtype=torch.float64)
X, QUERY = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double(), torch.tensor([0, 1])
W, Z, G = draw(70, 4, 2), draw(71, 2, 2), draw(72, 2, 2)


def block(x, query, tokens, queries, g, w, z):
    found = Block(x, query, tokens, queries, flow.constant_gradient(g))
    return (
        found.attend(z),
        found.hidden(w, z),
        found.project(w),
        *found.velocity(w, z),
        *found.solve(w, z, [0.1, 0.2]),
    )


def together(y, x):
    return flow.integrate_together(lambda time, a, b: (-a, -b), (y, x), [0.5])


FLOW = {
    "identity": Call(flow.identity, {"x": X}, None),
    "constant_gradient": Call(lambda g: flow.constant_gradient(g)(torch.zeros(2, 2), 0.0), {"g": G}, None),
    "cross_entropy_gradient": Call(
        lambda label: flow.cross_entropy_gradient(label)(torch.zeros(2, 2), 0.0), {"label": QUERY}, None
    ),
    "integrate": Call(lambda y0, t: flow.integrate(lambda time, y: -y, y0, t), {"y0": W, "t": [0.1, 0.5]}, None),
    "integrate_together": Call(together, {"y": W, "x": Z}, None),
    "Block": Call(
        block, {"x": X, "query": QUERY, "tokens": U[:, :2], "queries": U[:, 2:], "g": G, "w": W, "z": Z}, None
    ),
}
WITH_ARRAYS = {room: [call for call in calls if call.arrays] for room, calls in CALLS.items()}
each_call = of_every_call(WITH_ARRAYS | {"flow": list(FLOW.values())})


def taken(value):
    return as_tensor(value, "value")


def parts(answer):
    return list(answer) if isinstance(answer, tuple) else [answer]


def test_every_function_of_the_flow_is_here():
    functions = dict(inspect.getmembers(flow, inspect.isfunction))
    public = {name for name, f in functions.items() if f.__module__ == flow.__name__ and not name.startswith("_")}
    assert public == set(FLOW) - {"Block"}
    methods = {name for name, _ in inspect.getmembers(Block, inspect.isfunction) if not name.startswith("_")}
    assert methods - {"activation"} == {"attend", "hidden", "project", "velocity", "solve"}
    assert State._fields == ("w", "z")


@each_call
def test_arrays_and_lists_are_answered_as_tensors_are(call):
    """Bit for bit: an array lends its memory, and a list becomes a fresh tensor, laid out row by row.

    The same numbers in another order of memory may differ in the last place, so a list is compared with a fresh tensor.
    """
    tensors = _tensors(call)
    fresh = {name: x.clone(memory_format=torch.contiguous_format) for name, x in tensors.items()}
    for given, give in ((tensors, lambda x: x.numpy()), (fresh, lambda x: x.tolist())):
        wanted = parts(call(**given))
        found = parts(call(**{name: give(x) for name, x in given.items()}))
        for part, same in zip(found, wanted, strict=True):
            assert isinstance(part, torch.Tensor)
            assert part.dtype == same.dtype
            torch.testing.assert_close(part, same, rtol=0, atol=0, equal_nan=True)


def _tensors(call):
    return {name: taken(value) for name, value in call.arrays.items()}


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (1, torch.float64),
        (0.5, torch.float64),
        ([1, 2], torch.float64),
        ([[0.5], [1]], torch.float64),
        ((True, False), torch.float64),
        (np.float32(0.5), torch.float32),
        (np.ones(2, np.float16), torch.float16),
        (np.ones(2, np.float32), torch.float32),
        (np.ones(2, ">f4"), torch.float32),
        (np.ones(2, np.longdouble), torch.float64),
        (np.arange(2, dtype=np.uint16), torch.float64),
        (np.array([2**63], np.uint64), torch.float64),
        ([torch.tensor(0.5), torch.tensor(1.5)], torch.float32),
    ],
)
def test_the_type_of_numbers(given, dtype):
    taken = as_numbers(given, "w")
    assert taken.dtype == dtype
    assert np.array_equal(taken.double().numpy(), np.asarray(given, dtype=np.float64))


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ([3, 1], torch.int64),
        ([True, False], torch.bool),
        (np.arange(3, dtype=np.uint16), torch.int64),
        (np.arange(3, dtype=np.uint32), torch.int64),
        (np.arange(3, dtype=np.uint8), torch.uint8),
        (np.arange(3, dtype=np.int32), torch.int32),
    ],
)
def test_whole_numbers_stay_whole(given, dtype):
    assert as_tensor(given, "tokens").dtype == dtype
    assert as_tensor(given, "tokens").tolist() == np.asarray(given).tolist()


def test_a_tensor_comes_back_itself():
    class Marked(torch.Tensor):
        pass

    for x in (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.int64), torch.ones(2).as_subclass(Marked)):
        assert as_tensor(x, "x") is x
        assert as_numbers(x, "x") is x


def test_an_array_lends_its_memory_and_keeps_its_numbers():
    array = np.arange(6.0).reshape(2, 3)
    assert as_numbers(array, "w").data_ptr() == array.ctypes.data
    for usable in (array.T, array[:, 1:], array[:, ::2]):
        assert as_numbers(usable, "w").data_ptr() == usable.ctypes.data
        assert np.array_equal(as_numbers(usable, "w").numpy(), usable)
    bytes_between = np.ndarray((2, 3), np.float64, bytearray(49), offset=1)
    fields = np.zeros(2, [("byte", "i1"), ("number", "f8")])["number"]
    for odd in (
        array[::-1],
        array[:, ::-2],
        np.broadcast_to(array, (4, 2, 3)),
        array[:1, ::-1][:, :1],
        bytes_between,
        fields,
    ):
        assert np.array_equal(as_numbers(odd, "w").numpy(), odd)


def test_what_is_copied_begins_where_tensors_begin():
    """On x86 a product may round otherwise at another address; numpy promises 16 bytes alone."""
    kept = []
    for size in range(1, 40):
        kept.append(as_numbers(np.arange(size, dtype=np.float64)[::-1], "w"))
        kept.append(as_numbers([0.5] * size, "w"))
    begins = torch.empty(3).data_ptr() % 64
    assert {x.data_ptr() % 64 for x in kept} == {begins}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("many", "'many'"),
        (["many"], "['many']"),
        ([[1.0], [1.0, 2.0]], "[[1.0], [1.0, 2.0]]"),
        (1j, "1j"),
        (np.array([1j]), "an array of complex128"),
        (np.array([None]), "an array of object"),
        (np.array(["a"]), "an array of <U1"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "MaskedArray of shape (2,)"),
        (None, "None"),
        ({"a": 1}, "{'a': 1}"),
        ([torch.ones(2, requires_grad=True)], "[tensor([1., 1.], requires_grad=True)]"),
    ],
)
def test_what_is_no_number_gets_one_sentence(bad, said):
    for take in (as_tensor, as_numbers):
        with pytest.raises(ValueError) as refused:
            take(bad, "w")
        assert str(refused.value) == f"w must be a real number, a list or an array of them, or a tensor, got {said}"


def test_a_tensor_goes_through_the_compiler_untouched():
    compiled = torch.compile(lambda x: 2 * as_numbers(x, "x"), backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(torch.vmap(lambda x: as_tensor(x, "x") + 1)(torch.ones(3)), torch.full((3,), 2.0))
