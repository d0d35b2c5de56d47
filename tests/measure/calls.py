"""One good call of every public function of joma.measure."""

import importlib
import inspect
import pkgutil

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
    spread,
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
SEEN = {
    "bias": torch.randn(1, 2, 1, 5, generator=GENERATOR),
    "sinks": torch.tensor([0.5, 1.0]),
    "key_padding": torch.tensor([[True, True, True, False, True]]),
    "cu_seqlens": torch.tensor([0, 2, 5]),
}
MASKED = {name: value for name, value in SEEN.items() if name != "sinks"} | {"query_padding": SEEN["key_padding"]}
CONTEXTS = {
    "height": torch.rand(60, 3, generator=GENERATOR),
    "position": torch.randint(4, (60, 3), generator=GENERATOR),
    "tokens": torch.randint(6, (60, 4), generator=GENERATOR),
    "keys": torch.randint(4, (60, 4, 2), generator=GENERATOR),
    "weights": torch.rand(60, 4, 2, generator=GENERATOR),
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
    forecast.backtest: ({"steps": torch.arange(8), "curve": CURVE[:8]}, {}),
    forecast.damped_trend: ({"steps": torch.arange(8), "curve": CURVE[:8]}, {"to": 14.0, "kept": 0.9, "moved": 0.5}),
    forecast.fit_damped_trend: ({"steps": torch.arange(8), "curves": CURVE[:8].repeat(2, 1)}, {}),
    forecast.skill: ({"made": ACTIVITY, "truth": FRESH, "persisted": FRESH + 1}, {}),
    intervals.mean_interval: ({"values": SEEDS}, {}),
    intervals.compare: ({"values": SEEDS, "control": SEEDS - 0.05}, {}),
    power_law.power_law: ({"values": TAILS}, {}),
    power_law.power_law_of_squares: ({"squares": TAILS}, {}),
    power_law.exponent_of_squares: ({"squares": TAILS[0]}, {"long": 300}),
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
    spread.spread: ({"q": Q, "k": K, **MASKED}, {}),
    spread.spread_sums: ({"q": Q, "k": K, **MASKED}, {}),
    spread.factors: (
        {
            "w_q": W,
            "w_k": W.flip(0).contiguous(),
            "x": W.flatten(0, 1),
            "variance": W[:, 0, 0].abs(),
            "b_q": W[:, :, 0],
        },
        {},
    ),
    superposition.peaks: ({"activations": W}, {}),
    superposition.superposition: (CONTEXTS, {"contexts": 4}),
}
"""Arguments that may be arrays, and others."""
HITS = sparsity.heavy_hitters(Q, K, 2)
STATES = [{"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([2.0, 2.0])}]
WITHOUT_ARRAYS = {
    active.units_of: {"budget": 0.5, "units": 8},
    allocation.allocate: {"function": lambda p: p["x"].sum(), "states": STATES, "groups": {"x": ["x"]}},
    embedding.random_mean_cosine: {"width": 3},
    intervals.t_quantile: {"level": 0.9, "freedom": 3},
    intervals.usual_level: {"seeds": 3},
    intervals.p_value: {"difference": 0.1, "half_width": 0.2, "level": 0.9, "freedom": 3},
    intervals.seeds_to_decide: {"difference": 0.1, "half_width": 0.2, "seeds": 5, "between": (0.0, 0.1)},
    sparsity.stability: {"sets_a": HITS, "sets_b": HITS},
    registry.axis_of: {"name": "alpha"},
    registry.measures_of: {"taker": "scan"},
    registry.leading_spectrum: {"w": W[0], "generator": GENERATOR},
    registry.full_spectrum: {"w": W[0], "generator": GENERATOR},
    registry.full_spectra: {"w": W},
}
"""Those that take no arrays, or tensors alone."""


def public_functions():
    for module in pkgutil.iter_modules(joma.measure.__path__, "joma.measure."):
        if not module.name.split(".")[-1].startswith("_"):
            room = importlib.import_module(module.name)
            for name, found in vars(room).items():
                function = inspect.unwrap(found) if callable(found) else found
                if inspect.isfunction(function) and function.__module__ == module.name and not name.startswith("_"):
                    yield found


def parts(answer):
    if isinstance(answer, tuple):
        return [part for one in answer for part in parts(one)]
    return [answer]
