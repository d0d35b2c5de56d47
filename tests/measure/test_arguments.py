"""Tensors, numpy arrays and lists: every public function of joma.measure gives the same answer to each of them."""

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
import torch

import joma.measure
from joma.measure import (
    active,
    alignment,
    allocation,
    attention,
    correlation,
    embedding,
    forecast,
    intervals,
    power_law,
    rebound,
    registry,
    sparsity,
    spectrum,
    superposition,
)

GENERATOR = torch.Generator().manual_seed(0)
W = torch.randn(2, 4, 6, generator=GENERATOR)
Q, K, V = torch.randn(3, 1, 2, 5, 4, generator=GENERATOR)
ACTIVITY, FRESH = torch.randn(2, 12, 3, generator=GENERATOR)
LATENTS = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]] * 3)
CURVE = (torch.linspace(0, 1, 41) - 0.6) ** 2
TAILS = torch.arange(30, 0, -1) ** torch.tensor([[-0.5], [-0.7]])
SEEDS = torch.tensor([0.72, 0.70, 0.74])
HEIGHT = torch.eye(12).repeat_interleave(20, 0)
SEEN = {
    "bias": torch.randn(1, 2, 1, 5, generator=GENERATOR),
    "sinks": torch.tensor([0.5, 1.0]),
    "key_padding": torch.tensor([[True, True, True, False, True]]),
    "cu_seqlens": torch.tensor([0, 2, 5]),
}
CONTEXTS = {
    "height": HEIGHT,
    "position": torch.zeros(240, 12, dtype=torch.long),
    "tokens": torch.arange(240)[:, None],
    "keys": torch.zeros(240, 1, 1, dtype=torch.long),
    "weights": torch.ones(240, 1, 1),
}
SAMPLES = {
    "activity": ACTIVITY,
    "latents": LATENTS,
    "fresh_activity": FRESH,
    "fresh_latents": LATENTS.flip(0).contiguous(),
}

CALLS = {
    active.neuron_contributions: ({"hidden": W, "output": W.mT.contiguous()}, {}),
    active.head_contributions: (
        {"mixed": Q, "output": torch.randn(8, 3, generator=torch.Generator().manual_seed(2))},
        {},
    ),
    active.carrying: ({"contributions": W.abs()}, {"share": 0.5}),
    active.active: ({"scores": W}, {"budget": 0.5}),
    active.carried: ({"contributions": W.abs(), "sets": W > 0}, {}),
    active.typical: ({"contributions": W.abs()}, {}),
    active.fit_predictor: ({"features": W, "contributions": W.abs()}, {}),
    active.agreement: ({"contributions": W.abs(), "scores": W, "usual": W[:, :1].contiguous()}, {"budget": 0.5}),
    alignment.best_neuron_correlation: ({"activity": ACTIVITY, "latents": LATENTS}, {}),
    alignment.held_out_correlation: (SAMPLES, {}),
    alignment.linear_probe: (SAMPLES, {"ridge": 0.1}),
    attention.attention_stats: ({"q": Q, "k": K, **SEEN}, {}),
    attention.attention_with_stats: ({"q": Q, "k": K, "v": V, **SEEN}, {}),
    attention.attention_stats_reference: ({"q": Q, "k": K, **SEEN}, {}),
    attention.logit_stats: ({"logits": Q, "first": torch.arange(5), "own": torch.arange(5) - 1}, {}),
    correlation.pearson: ({"x": ACTIVITY.T.contiguous(), "y": FRESH.T.contiguous()}, {}),
    correlation.spearman: ({"x": ACTIVITY, "y": FRESH}, {}),
    embedding.coherence: ({"vectors": W, "quantiles": torch.tensor([0.5, 0.9])}, {}),
    embedding.random_cosine_quantiles: ({"levels": torch.tensor([0.25, 0.5]).double()}, {"width": 3}),
    forecast.persistence: ({"steps": torch.arange(1, 42), "curve": CURVE}, {"to": 80}),
    forecast.linear: ({"steps": torch.arange(1, 42), "curve": CURVE}, {"to": 80}),
    forecast.log_linear: ({"steps": torch.arange(1, 42), "curve": CURVE}, {"to": 80}),
    forecast.earlier_runs: (
        {"steps": torch.arange(21), "curve": CURVE[:21], "runs_steps": torch.arange(41), "runs": CURVE.repeat(2, 1)},
        {"to": 40},
    ),
    forecast.value_at: ({"steps": torch.arange(41), "curve": CURVE}, {"step": 7.5}),
    forecast.backtest: ({"steps": torch.arange(41), "curve": CURVE}, {}),
    forecast.backtest_earlier_runs: ({"steps": torch.arange(41), "curves": CURVE.repeat(2, 1)}, {}),
    forecast.skill: ({"made": ACTIVITY, "truth": FRESH, "persisted": FRESH + 1}, {}),
    intervals.mean_interval: ({"values": SEEDS}, {}),
    intervals.compare: ({"values": SEEDS, "control": SEEDS - 0.05}, {}),
    power_law.power_law: ({"values": TAILS}, {}),
    power_law.power_law_of_squares: ({"squares": TAILS}, {}),
    power_law.spectral_power_law: ({"w": torch.randn(2, 24, 30, generator=GENERATOR)}, {}),
    power_law.squared_singular_values: ({"w": W}, {}),
    rebound.rebound: ({"curve": CURVE, "steps": torch.arange(41)}, {}),
    rebound.drop_and_rebound: ({"curve": CURVE.expand(3, 41).contiguous()}, {}),
    sparsity.mass_above: ({"q": Q, "k": K, **SEEN}, {"threshold": 0.2}),
    sparsity.keys_above: ({"q": Q, "k": K, **SEEN}, {"threshold": 0.2}),
    sparsity.top_mass: ({"q": Q, "k": K, **SEEN}, {"keep": 2}),
    sparsity.sink_mass: ({"q": Q, "k": K, **SEEN}, {"first": 2}),
    sparsity.effective_keys: ({"q": Q, "k": K, **SEEN}, {}),
    sparsity.heavy_hitters: ({"q": Q, "k": K, **SEEN}, {"keep": 2}),
    sparsity.sparsity_stats: ({"q": Q, "k": K, **SEEN}, {"first": 2}),
    spectrum.spectrum: ({"w": W, "start": torch.randn(2, 4, 2, generator=GENERATOR)}, {}),
    spectrum.stable_rank: ({"w": W}, {}),
    spectrum.spectral_norm: ({"w": W}, {}),
    spectrum.leading_singular_values: ({"w": W}, {"count": 2}),
    spectrum.effective_rank: ({"w": W}, {}),
    superposition.peaks: ({"activations": W}, {}),
    superposition.superposition: (CONTEXTS, {}),
}
"""Arguments that may be arrays, and others."""
WITHOUT_ARRAYS = {
    active.units_of,
    allocation.allocate,
    embedding.random_mean_cosine,
    intervals.t_quantile,
    intervals.seeds_to_decide,
    sparsity.stability,
    registry.axis_of,
    registry.leading_spectrum,
    registry.full_spectrum,
    registry.full_spectra,
}
IN_KIND = {correlation.pearson}
"""Answers arrays in arrays: it is for both, and says so."""
each_call = pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)


def public_functions():
    """All functions of the modules whose name has no underscore."""
    for module in pkgutil.iter_modules(joma.measure.__path__, "joma.measure."):
        if not module.name.split(".")[-1].startswith("_"):
            room = importlib.import_module(module.name)
            for name, found in vars(room).items():
                function = inspect.unwrap(found) if callable(found) else found
                if inspect.isfunction(function) and function.__module__ == module.name and not name.startswith("_"):
                    yield found


def test_every_public_function_is_here():
    assert set(public_functions()) == set(CALLS) | WITHOUT_ARRAYS
    functions = {getattr(joma.measure, name) for name in joma.measure.__all__}
    assert {one for one in functions if inspect.isfunction(one)} <= set(CALLS)


def parts(answer):
    """Numbers and tensors of an answer, whatever it is made of."""
    if isinstance(answer, tuple):
        return [part for one in answer for part in parts(one)]
    return [answer]


def assert_same(found, wanted, *, exact):
    for part, same in zip(parts(found), parts(wanted), strict=True):
        assert type(part) is type(same)
        if exact:
            assert getattr(part, "dtype", None) == getattr(same, "dtype", None)
        part, same = (np.asarray(one, dtype=np.float64) for one in (part, same))
        np.testing.assert_allclose(part, same, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


@each_call
def test_arrays_are_answered_as_tensors_are(function):
    arrays, others = CALLS[function]
    wanted = function(**arrays, **others)
    found = function(**{name: x.numpy() for name, x in arrays.items()}, **others)
    if function in IN_KIND:
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    else:
        assert_same(found, wanted, exact=True)


@each_call
def test_lists_are_answered_in_float64(function):
    arrays, others = CALLS[function]
    double = {name: x.double() if x.is_floating_point() else x for name, x in arrays.items()}
    wanted = function(**double, **others)
    found = function(**{name: x.tolist() for name, x in double.items()}, **others)
    if function in IN_KIND:
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    else:
        assert_same(found, wanted, exact=True)


@each_call
@pytest.mark.parametrize(
    "bad",
    ["many", [[1.0], [1.0, 2.0]], np.array([1j]), np.array([object()])],
    ids=["text", "ragged", "complex", "objects"],
)
def test_what_is_no_number_is_refused_by_name(function, bad):
    arrays, others = CALLS[function]
    for name in arrays:
        with pytest.raises(
            ValueError, match=rf"^{name} must be a real number, a list or an array of them, or a tensor"
        ):
            function(**{**arrays, name: bad}, **others)


def test_a_changed_number_changes_the_answer():
    arrays, _ = CALLS[spectrum.stable_rank]
    assert not torch.equal(spectrum.stable_rank(arrays["w"].numpy() + 1), spectrum.stable_rank(arrays["w"]))


def test_whole_numbers_of_a_list_are_numbers():
    assert spectrum.stable_rank([[2, 0], [0, 1]]).item() == 1.25
    assert rebound.rebound(np.arange(20)).drop.item() == 0
