"""Every public function of joma.theory, every argument spoiled in turn: one sentence of ours, or the right answer.

`calls.py` has one good call of each function with the rule for the shapes of its answer, `spoiled.py` what is done to
an argument. A call is right if it gives an answer of the right shape without NaN, or if it is refused in one sentence
that names the argument.
"""

import inspect
from importlib import import_module

import pytest
import torch
from theory.calls import CALLS, of_every_call
from theory.good_call import Misfit
from theory.spoiled import (
    NO_CHOICES,
    as_tensor,
    complaint,
    extremes,
    not_finite,
    not_numbers,
    other_layouts,
    other_shapes,
    refusal,
    with_last,
)

from joma.theory import radial

HALF = {torch.float16: 2**-10, torch.bfloat16: 2**-7}
WITH_ARRAYS = {room: [call for call in calls if call.arrays] for room, calls in CALLS.items()}
each_call, each_quick_call = of_every_call(WITH_ARRAYS), of_every_call(WITH_ARRAYS, slow_later=True)
WITH_CHOICES = {room: [call for call in calls if call.others] for room, calls in CALLS.items()}


def parts(answer):
    return list(answer) if isinstance(answer, tuple) else [answer]


def bare(call, name):
    given = {other: value for other, value in call.arrays.items() if other == name or other not in call.optional}
    return given if len(given) < len(call.arrays) else None


def wanted(call, given):
    """The shapes that the answer must have, or None where the call must be refused."""
    shapes = {name: tuple(torch.as_tensor(given[name]).shape) if name in given else () for name in call.arrays}
    try:
        shape = call.shape(**shapes)
    except Misfit:
        return None
    return shape if isinstance(shape, list) else [shape]


def fault(call, given, name, *, refused=False, any_value=False, overflow=False):
    """What is wrong with what this call does, or None. `refused`: it must not give an answer."""
    try:
        answer = parts(call.function(**given, **call.others))
    except Exception as error:
        return complaint(error, name)
    if refused:
        return "accepted"
    found = [tuple(part.shape) for part in answer]
    if found != (shape := wanted(call, given)):
        return f"gives {found}, not {shape}"
    if any_value:
        return None
    if "nan" not in call.may_be and any(part.isnan().any() for part in answer):
        return "gives NaN"
    if "inf" not in call.may_be and not overflow and any(part.isinf().any() for part in answer):
        return "gives infinity"
    return None


def faults(call, changes, **options):
    """All that goes wrong with each argument changed, the others as in the good call and left out.

    changes: (name, argument) -> pairs of what is done and the new value.
    """
    found = []
    for name, argument in call.arrays.items():
        for kind, value in changes(name, argument):
            for given in (dict(call.arrays), bare(call, name)):
                if given is not None:
                    found.append((name, kind, fault(call, {**given, name: value}, name, **options)))
    return [each for each in found if each[-1]]


@of_every_call(CALLS)
def test_the_good_call_has_its_shape(call):
    assert fault(call, dict(call.arrays), "") is None


def test_every_public_function_is_here():
    for room, calls in CALLS.items():
        called = {call.function.__name__ for call in calls}
        assert public_functions(import_module(f"joma.theory.{room}")) - SPECIAL <= called, room
    laws = {getattr(radial, name) for name in radial.__all__} - {radial.RadialLaw}
    methods = {f"{law.__name__}.{name}" for law in laws for name in METHODS}
    assert methods == {str(call) for call in CALLS["radial"]}


METHODS = ("F", "density", "inverse_theta1", "radial", "residual_life", "theta1", "theta2")
SPECIAL = {"random_orthonormal"}  # Has no argument that is an array; `test_bad_flow.py` has it


def public_functions(room):
    names = getattr(room, "__all__", [name for name in vars(room) if not name.startswith("_")])
    found = {name: getattr(room, name) for name in names if inspect.isfunction(getattr(room, name))}
    return {name for name, f in found.items() if hasattr(room, "__all__") or f.__module__ == room.__name__}


@each_call
def test_what_is_no_number_is_refused(call):
    def changes(name, value):
        yield from not_numbers(value)
        if inspect.signature(call.function).parameters[name].default is not None:
            yield "None", None

    assert not faults(call, changes, refused=True)


@each_call
def test_values_without_a_number_are_refused(call):
    def unknown(name, value):
        x = as_tensor(value)
        yield from (("NaN", with_last(x, torch.nan)), ("list", with_last(x, torch.nan).tolist()))
        yield "meta", x.to("meta")

    if call.quick:  # it does not look
        values = lambda name, x: [("NaN", with_last(x, torch.nan)), ("meta", x.to("meta")), *not_finite(x)]
        assert not faults(call, values, any_value=True)
    else:
        assert not faults(call, unknown, refused=True)
        assert not faults(call, lambda name, x: () if name in call.infinite else not_finite(x), refused=True)
        assert not faults(call, lambda name, x: not_finite(x) if name in call.infinite else ())


def half(call, changes, *, other=False):
    """Every second change. Which ones depends on the call, so that each of them is made to some function."""
    return list(changes)[(len(str(call)) + other) % 2 :: 2]


@each_quick_call
def test_other_shapes_are_answered_in_the_right_shape_or_refused(call):
    assert not faults(call, lambda name, value: half(call, other_shapes(value)))


@pytest.mark.long
@each_call
def test_the_other_half_of_the_shapes_is_too(call):
    assert not faults(call, lambda name, value: half(call, other_shapes(value), other=True))


@each_quick_call
def test_extreme_numbers_give_no_nan(call):
    assert not faults(call, lambda name, value: half(call, extremes(value)), any_value=call.quick, overflow=True)


@pytest.mark.long
@each_call
def test_the_other_half_of_the_extreme_numbers_gives_none_either(call):
    extreme = lambda name, value: half(call, extremes(value), other=True)
    assert not faults(call, extreme, any_value=call.quick, overflow=True)


@each_quick_call
def test_the_layout_in_memory_does_not_matter(call):
    reference = parts(call())
    layouts = {name: dict(other_layouts(argument)) for name, argument in call.arrays.items()}
    for kind in next(iter(layouts.values())):
        given = {name: of[kind] for name, of in layouts.items()}
        if call.quick and not all(isinstance(value, torch.Tensor) for value in given.values()):
            continue
        for part, same in zip(parts(call(**given)), reference, strict=True):
            torch.testing.assert_close(part, same, rtol=1e-12, atol=1e-12, msg=kind)


@each_quick_call
def test_whole_numbers_are_numbers(call):
    def changes(name, value):
        x = as_tensor(value).round().long()
        yield from (("whole numbers", x), ("32 bits", x.int()))

    assert not faults(call, changes, refused=call.quick)


@each_call
def test_float32_stays_float32_and_is_close(call):
    single = {name: rounded(value, torch.float32) for name, value in call.arrays.items()}
    double = {name: x.double() if is_floating(x) else x for name, x in single.items()}
    if str(call) == "linearisation":  # the point is not critical to the digits that float64 asks for
        double = dict(call.arrays)
    for part, reference in zip(parts(call(**single)), parts(call(**double)), strict=True):
        assert part.dtype == (torch.float32 if reference.is_floating_point() else reference.dtype)
        torch.testing.assert_close(part.double(), reference.double(), rtol=1e-4, atol=1e-5)


@each_call
def test_half_precision_is_computed_in_float32_and_rounded_once(call):
    """The float32 answer to the same, already rounded numbers, rounded: not a power of what half precision loses."""
    for half in HALF:
        half_precision(call, half)


def half_precision(call, half):
    given = {name: rounded(value, half) for name, value in call.arrays.items()}
    keep = {"p0", "probability"}  # in float32 these would have to sum to 1 more closely
    wide = {name: x.float() if is_floating(x) and name not in keep else x for name, x in given.items()}
    lost = ROUNDED_AWAY.get(str(call))
    if lost and refusal(lambda: call(**wide), lost) is None:
        assert refusal(lambda: call(**given), lost) is None
        return
    for part, single in zip(parts(call(**given)), parts(call(**wide)), strict=True):
        assert part.dtype == (half if single.is_floating_point() else single.dtype)
        torch.testing.assert_close(part, single.to(part.dtype), rtol=HALF[half], atol=0)


ROUNDED_AWAY = {"linearisation": "mu", "hyperplane_mean in a basis": "basis"}
"""A critical point and an orthonormal basis may be none after rounding."""


def rounded(value, dtype):
    x = as_tensor(value)
    return x.to(dtype) if x.is_floating_point() else value


def is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@of_every_call({room: calls for room, calls in WITH_CHOICES.items() if calls})
def test_what_cannot_be_chosen_is_refused(call):
    for name, good in call.others.items():
        if isinstance(good, bool):
            continue  # whatever Python takes for true is true
        allowed = call.choices.get(name, ())
        for value in NO_CHOICES:
            if (value is None and None in allowed) or (isinstance(value, float | int) and 1.5 in allowed):
                continue
            assert refusal(lambda changed={name: value}: call(**changed), name) is None, (name, value)
