"""Change allocation refuses bad input, each in one sentence that names the argument."""

import pytest
import torch

from joma.measure.allocation import allocate

TWO = [{"x": [1.0, 2.0], "y": [0.0]}, {"x": [2.0, 2.0], "y": [1.0]}]
XY = {"x": ["x"], "y": ["y"]}


def total(p):
    return sum(one.sum() for one in p.values())


def nan_at_end(p):
    return torch.log(p["x"] - 1.5).sum()


def nan_gradient(p):
    return torch.where(p["x"] > 5, (p["x"] - 9).sqrt(), p["x"]).sum()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"states": TWO[:1]}, "states must hold at least two states, got 1"),
        ({"states": []}, "states must hold at least two states, got 0"),
        ({"states": TWO[0]}, "states must be a sequence of dicts of parameters"),
        ({"states": [TWO[0], [1.0]]}, r"states\[1\] must be a dict of parameters by name, got \[1.0\]"),
        ({"states": [TWO[0], {"x": [2.0, 2.0], "z": [1.0]}]}, r"states\[1\] must have the names of states\[0\]: it lacks \['y'\] and adds \['z'\]"),  # noqa: E501
        ({"states": [TWO[0], {**TWO[1], "x": [2.0]}]}, r"states\[1\]\['x'\] must be as in states\[0\], torch.float64 \(2,\), got torch.float64 \(1,\)"),  # noqa: E501
        ({"states": [TWO[0], {**TWO[1], "x": [2.0, float("nan")]}]}, r"states\[1\]\['x'\] contains NaN"),
        ({"states": [TWO[0], {**TWO[1], "x": "many"}]}, r"states\[1\]\['x'\] must be a real number"),
        ({"states": [{"x": torch.ones(2).half()}] * 2}, r"states\[0\]\['x'\] must be float32 or float64, got torch.float16"),  # noqa: E501
        ({"states": [{"x": torch.ones(2) * 1j}] * 2}, r"states\[0\]\['x'\] must be real, got torch.complex64"),
        ({"states": [{**TWO[0], "n": torch.tensor(1)}, {**TWO[1], "n": torch.tensor(2)}]}, r"states\[1\]\['n'\] holds whole numbers"),  # noqa: E501
        ({"groups": {"x": ["x", "w"]}}, r"groups\['x'\] names 'w', which is not a parameter: states have 'x', 'y'"),
        ({"groups": {"x": ["x"], "z": ["y", "x"]}}, "groups must share no parameter, but 'x' is in both 'x' and 'z'"),
        ({"groups": {"x": ["x", ("x", 0)]}}, "but 'x' is in 'x' twice"),
        ({"groups": {"x": [("x", 2)]}}, r"groups\['x'\]: 'x' of shape \(2,\) cannot be indexed by 2"),
        ({"groups": {"x": "x"}}, r"groups\['x'\] must be a list of parameter names, got 'x'"),
        ({"groups": ["x"]}, "groups must be a dict of lists of parameter names"),
        ({"groups": {"rest": ["x"]}}, r"groups\['rest'\] must have another name"),
        ({"function": 3}, "function must be a function"),
        ({"function": lambda p: 3.0}, "function must return a floating tensor of measures, got 3.0"),
        ({"function": lambda p: p["x"].sum().long()}, "function must return a floating tensor of measures, got torch.int64"),  # noqa: E501
        ({"function": nan_at_end}, "function gave NaN or infinity at interval 0, 0% of the way"),
        ({"function": nan_gradient}, "the gradient of function has NaN or infinity at interval 0, 21% of the way"),
        ({"function": lambda p: p["x"][: int(p["x"][0])]}, r"function must return the same shape for every state, got \(1,\) and then \(2,\)"),  # noqa: E501
        ({"tolerance": 0}, "tolerance must be a finite number above 0, got 0"),
        ({"absolute": -1}, "absolute must be a finite number of at least 0, got -1"),
        ({"most": 1}, "most must be a whole number of at least 2, got 1"),
        ({"members": True}, r"members=True: the first dimension .* got \(\) and the result of function of shape \(\)"),
        ({"members": True, "function": lambda p: p["x"]}, r"members=True: .* got \(2,\) and 'y' of shape \(1,\)"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(change, sentence):
    arguments = {"function": total, "states": TWO, "groups": XY, **change}
    with pytest.raises(ValueError, match=sentence):
        allocate(**arguments)


def test_a_group_of_whole_numbers_is_refused():
    states = [{"x": [1.0], "n": torch.tensor(1)}] * 2
    with pytest.raises(ValueError, match=r"groups\['n'\] names 'n', which holds whole numbers and has no gradient"):
        allocate(lambda p: p["x"].sum(), states, {"n": ["n"]})
