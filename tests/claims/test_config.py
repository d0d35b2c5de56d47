"""Bounds stand on the fields of a config, and every one of them refuses what it says."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from joma.claims.config import Above, Least, OneOf, StudyConfig, Values, Within, check_config


@dataclass(frozen=True)
class FlowConfig(StudyConfig):
    steps: Annotated[int, Least(2, "the start and a later moment")] = 21
    widths: Annotated[tuple[int, ...], Least(4)] = (4, 8)
    counts: Annotated[tuple[int, ...], Values(2, "a coarse and a finer one", exactly=True, rising=True)] = (20, 80)
    seeds_at: Annotated[tuple[int, ...], Values(2)] = (1, 3)
    share: Annotated[float, Within(0, 1)] = 0.5
    inner: Annotated[tuple[float, ...], Within(0, 1, "a share", open=True)] = (0.5,)
    scales: Annotated[tuple[float, ...], Above(0)] = (1.0,)
    kinds: Annotated[tuple[str, ...], OneOf("relu", "linear")] = ("relu",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 1}, "steps must be at least 2, the start and a later moment, got 1"),
        ({"widths": (8, 2)}, "widths must be at least 4, got"),
        ({"widths": (2, 8)}, "widths must be at least 4, got"),
        ({"counts": (20,)}, "counts must be 2 values that rise, a coarse and a finer one, got"),
        ({"counts": (20, 40, 80)}, "counts must be 2 values that rise"),
        ({"counts": (80, 20)}, "counts must be 2 values that rise"),
        ({"counts": (20, 20)}, "counts must be 2 values that rise"),
        ({"seeds_at": (1, 1)}, "seeds_at must be at least 2 values that differ, got"),
        ({"seeds_at": (1,)}, "seeds_at must be at least 2 values that differ, got"),
        ({"share": 1.01}, "share must be from 0 to 1, got 1.01"),
        ({"share": -0.01}, "share must be from 0 to 1, got -0.01"),
        ({"inner": (0.5, 1.0)}, "inner must lie between 0 and 1, a share, got"),
        ({"inner": (0.0,)}, "inner must lie between 0 and 1, a share, got"),
        ({"scales": (0.5, 0.0)}, "scales must be above 0, got"),
        ({"kinds": ("relu", "tanh")}, "kinds must be one of relu, linear, got 'tanh'"),
        ({"kinds": ()}, "kinds must not be empty"),
        ({"share": float("nan")}, "share must be finite"),
    ],
)
def test_what_a_bound_does_not_allow(change, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        FlowConfig(**change)


@pytest.mark.parametrize("change", [{"steps": 2}, {"share": 0.0}, {"share": 1.0}, {"seeds_at": (3, 1)}])
def test_what_lies_on_a_bound_is_allowed(change):
    check_config(FlowConfig(**change))


def test_bounds_are_inherited():
    @dataclass(frozen=True)
    class LongerConfig(FlowConfig):
        more: int = 1

    with pytest.raises(ValueError, match="steps must be at least 2"):
        LongerConfig(steps=1)
    with pytest.raises(ValueError, match="more must be at least 1"):
        LongerConfig(more=0)


@dataclass(frozen=True)
class TrainingConfig(StudyConfig):
    seed: int = 0
    rate: float = 0.1
    rates: tuple[float, ...] = (0.1,)
    weight_decay: float = 0.0
    device: str = "cpu"
    precision: str = "float32"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**63 - 10}, "seed must be below 2\\^63 and leave room for those that follow"),
        ({"rate": -0.1}, "rate must not be negative, got -0.1"),
        ({"rates": (0.1, -0.1)}, "rates must not be negative, got -0.1"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative, got -0.1"),
        ({"device": "tpu"}, "device must be"),
        ({"precision": "tf32"}, "precision 'tf32' is a choice for a GPU; on a CPU it is float32"),
    ],
)
def test_what_no_study_can_mean(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainingConfig(**change)


def test_seeds_and_rates_begin_at_zero_and_a_gpu_has_a_choice():
    assert TrainingConfig(seed=0, rate=0.0, rates=(0.0,)).rates == (0.0,)
    assert TrainingConfig(seed=2**62).seed == 2**62
    assert TrainingConfig(device="cuda", precision="tf32").precision == "tf32"
