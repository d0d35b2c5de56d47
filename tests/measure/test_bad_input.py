"""Every public function of joma.measure, every argument spoiled in turn: one sentence of ours, or the right answer.

`calls.py` has one good call of each function, `theory/spoiled.py` what is done to an argument. A call is right if it
gives an answer without NaN, or if it is refused in one sentence that names the argument. What has no meaning must be
refused. One test per module: to collect thousands takes longer than to run them.
"""

import inspect
import warnings

import numpy as np
import pytest
import torch
from measure.calls import CALLS, SEEN, WITHOUT_ARRAYS, parts, public_functions
from theory.spoiled import complaint, extremes, not_finite, not_numbers, other_shapes, with_last

from joma.measure import alignment, correlation, embedding, intervals, registry, spread, superposition

NO_NUMBERS = (float("nan"), "many", b"1", None, object(), {"a": 1}, 1j, np.array(["a"]), torch.ones(2, 2))
"""What no option is: neither a number, nor a name, nor a function."""
ODD_NUMBERS = (torch.inf, -torch.inf, -1, 0, 0.5, 2.5, -0.5, 10**400, 2**70, [1.0], [], (), (3, 1), True)
"""What some options may be."""
ALLOWED = {
    (correlation.pearson, "constant"): "nan",
    (intervals.p_value, "difference"): "nan",
    (intervals.p_value, "half_width"): "nan",
    (intervals.seeds_to_decide, "difference"): "nan",
    (intervals.seeds_to_decide, "half_width"): "nan",
    (registry.axis_of, "name"): "text",
    (registry.leading_spectrum, "generator"): "None",
    (registry.full_spectrum, "generator"): "all",  # it draws nothing
}
"""Options for which one of these is good, or everything."""
POWER_LAW = ("matrix", "values")
"""What there is no power law of: a sentence may speak of these."""
LATENTS = ("latents", "fresh_latents")
CONSTANT = {
    alignment.best_neuron_correlation: LATENTS,
    alignment.held_out_correlation: LATENTS,
    alignment.linear_probe: LATENTS,
    correlation.pearson: ("x", "y"),
    correlation.spearman: ("x", "y"),
    embedding.coherence: ("vectors",),
    spread.spread: ("key_padding", "query_padding", "bias"),
    superposition.superposition: ("tokens", "weights"),
}
"""Arguments that tell nothing where all is one number: NaN, as the docstring says."""
UNSEEN = ("attention", "sparsity")
"""Modules that do not look at values, which would keep a GPU waiting: infinity may give NaN, as the docstring says."""


def is_real(x):
    return isinstance(x, torch.Tensor) and x.is_floating_point()


SHAPES = {kind for kind, _ in other_shapes(torch.zeros(2, 2, 2, 2))}


def room_of(function):
    return inspect.unwrap(function).__module__.split(".")[-1]


ROOMS = sorted({room_of(function) for function in public_functions()})


def has_nan(answer):
    if isinstance(answer, list):
        return any(map(has_nan, answer))
    return any(
        bool(part.isnan().any()) if isinstance(part, torch.Tensor) else isinstance(part, float) and part != part
        for one in parts(answer)
        for part in (one if isinstance(one, list) else [one])
    )


def fault(function, given, *names, refused=False, nan=False):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = function(**given)
    except Exception as error:
        return None if any(complaint(error, each) is None for each in names) else complaint(error, names[0])
    if refused:
        return "accepted"
    return "gives NaN" if has_nan(answer) and not nan else None


def arrays_spoiled(function, name, x):
    """What is done to an array, the new value, and how the call must then be answered."""
    room, optional = room_of(function), inspect.signature(function).parameters.get(name)
    yield from ((kind, value, {"refused": True}) for kind, value in not_numbers(x))
    yield "meta", x.to("meta"), {"refused": True}
    if optional is not None and optional.default is not None:
        yield "None", None, {"refused": True}
    unseen = room in UNSEEN or function is correlation.pearson
    yield from ((kind, value, {"nan": unseen}) for kind, value in not_finite(x))
    yield "NaN", with_last(x, torch.nan), {"nan": True}
    if room == "sparsity" and name in SEEN:
        return  # they go the way of attention
    yield from ((kind, value, {}) for kind, value in other_shapes(x))
    for kind, value in extremes(x):
        yield kind, value, {"nan": kind.startswith("all") and name in CONSTANT.get(function, ())}
    for dtype in (torch.int64, torch.int16, torch.uint8, torch.bool, torch.float16, torch.bfloat16):
        yield str(dtype), x.to(dtype), {"nan": name in CONSTANT.get(function, ())}


def options_spoiled(function, name, good):
    allowed = ALLOWED.get((function, name))
    for value in NO_NUMBERS:
        kind = {float: "nan", str: "text", type(None): "None"}.get(type(value))
        if allowed == "all" or (kind and kind == allowed) or (value is None and good is None):
            continue
        yield repr(value), value, {"refused": True}
    yield from ((repr(value)[:20], value, {"nan": room_of(function) in UNSEEN}) for value in ODD_NUMBERS)


def calls(room):
    for function in public_functions():
        if room_of(function) != room:
            continue
        arrays, others = CALLS[function] if function in CALLS else ({}, WITHOUT_ARRAYS[function])
        # whole numbers stay whole, real ones are in float64, where 1e300 is a number
        given = {name: x.double() if is_real(x) else x for name, x in (arrays | others).items()}
        parameters = inspect.signature(function).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
        yield function, given, defaults


def test_every_public_function_has_a_good_call():
    assert set(public_functions()) == set(CALLS) | set(WITHOUT_ARRAYS)


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_spoiled_is_answered_right_or_refused(room):
    found, tried = [], 0
    for function, given, defaults in calls(room):
        assert fault(function, given, "") is None, function
        others = [name for name, good in given.items() if isinstance(good, torch.Tensor)]
        for name, good in {**defaults, **given}.items():
            if isinstance(good, bool):
                continue  # whatever Python takes for true is true
            spoiled = arrays_spoiled if isinstance(good, torch.Tensor) else options_spoiled
            for kind, value, wanted in spoiled(function, name, good):
                tried += 1
                # shapes that disagree are named by the one or the other, and an option by what it is too large for
                also = others if spoiled is options_spoiled or kind in SHAPES else []
                names = [name, *also, *POWER_LAW] if room == "power_law" else [name, *also]
                if wrong := fault(function, {**given, name: value}, *names, **wanted):
                    found.append(f"{function.__name__}, {name} {kind}: {wrong}")
    assert tried
    assert not found, "\n".join(found)
