"""What the playground computes: its functions against joma.theory, its Python against what it shows."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from javascript import running
from scipy import special

from joma.report import playground
from joma.theory import hierarchy, linear, salience, spread

CLOSE: Any = {"rtol": 1e-9, "atol": 1e-13}

DELTA, LOGIT = (0.5, -1.5, 0.05, 1.0), (-2.0, 0.0, 1.3)
MU, TIMES = (0.1, -0.7, 1.0, 1.95, 3.0, 4.0), np.linspace(0, 6, 121)
VARIANCE = np.concatenate([[0.0, 0.01, 0.1599, 0.1601], np.geomspace(0.1, 1000, 25)])
KEYS = (2, 3, 64, 1024, 2**20)
RHO, DEPTH, ZERO = (-0.95, -0.3, 0.0, 0.6, 0.99), (2, 3, 6, 12), (0.0, 0.35, 1.0)


SHOWN = """
const atPlaces = (name, places) => Object.fromEntries(jomaPlayground.panels[name].sliders.map((one) => {
  const place = places[one.name] ?? one.value;
  return [one.name, one.read ? one.read(place) : place];
}));
"""


@pytest.fixture(scope="module")
def js(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running(playground.script() + SHOWN, tmp_path_factory.mktemp("js")) as call:
        yield call


def computed(js: Any, call: str, cases: Any) -> np.ndarray:
    return np.array(js(f"cases => cases.map((one) => jomaForms.{call})", cases), dtype=float)


def test_special_functions(js: Any) -> None:
    x = np.linspace(-5, 25, 301).tolist()
    np.testing.assert_allclose(computed(js, "erfc(one)", x), special.erfc(x), rtol=1e-12)
    np.testing.assert_allclose(computed(js, "erf(one)", x), special.erf(x), rtol=1e-12)
    tail = [*np.geomspace(1e-300, 0.5, 100).tolist(), 0.499999, 0.4999999999]
    np.testing.assert_allclose(computed(js, "fromTail(one)", tail), -special.ndtri(tail), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("kappa", [1.0, 0.5])
def test_theorem_2(js: Any, kappa: float) -> None:
    pairs = [[delta, z0, kappa] for delta in DELTA for z0 in LOGIT]
    ends = np.array([linear.blow_up_time([d], z0=z, kappa=k)[0].item() for d, z, k in pairs])
    np.testing.assert_allclose(computed(js, "blowUpTime(one[0], one[1], one[2])", pairs), ends, **CLOSE)
    share = [0.0, 1e-6, 0.3, 0.9, 0.999, 0.999999, 1.001, 3.0]
    cases = [[d, e * s, z, k] for (d, z, k), e in zip(pairs, ends, strict=True) for s in share]
    wanted = [linear.trajectory([d], [t], z0=z, kappa=k)[0, 0].item() for d, t, z, k in cases]
    assert sum(map(np.isinf, wanted)) == 2 * len(pairs)
    np.testing.assert_allclose(computed(js, "linearTrajectory(...one)", cases), wanted, **CLOSE)


def test_equation_6(js: Any) -> None:
    depths = [0.0, 1e-8, 0.1, 1.0, 5.0, 40.0, 1e4]
    cases = [[depth, mu] for depth in depths for mu in MU]
    wanted = [salience.time_to_depth(depth, mu).item() for depth, mu in cases]
    np.testing.assert_allclose(computed(js, "timeToDepth(...one)", cases), wanted, **CLOSE)
    found = js("(all, t) => all.map((mu) => jomaForms.salienceTrajectory(mu, t))", MU, TIMES.tolist())
    np.testing.assert_allclose(np.array(found), salience.trajectory(MU, TIMES).T.numpy(), **CLOSE)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("mu", [(3.0, 2.0, 1.0), (0.1, 4.0, 3.9), (1.0, 1.0, 1.0)])
def test_entropy_along_equation_6(js: Any, mu: tuple[float, ...], scale: float) -> None:
    found = js("jomaForms.entropyCurve", mu, TIMES.tolist(), scale)
    np.testing.assert_allclose(found, salience.entropy_curve(mu, TIMES, scale=scale).numpy(), **CLOSE)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gaussianEntropy", spread.gaussian_entropy),
        ("randomEnergyEntropy", spread.random_energy_entropy),
        ("frozenEntropy", spread.frozen_entropy),
    ],
)
def test_entropy_against_spread(js: Any, name: str, function: Any) -> None:
    cases = [[variance, n] for variance in VARIANCE.tolist() for n in KEYS]
    wanted = function([one for one, _ in cases], [n for _, n in cases]).numpy()
    np.testing.assert_allclose(computed(js, f"{name}(...one)", cases), wanted, **CLOSE)
    critical = computed(js, "criticalVariance(one)", KEYS)
    np.testing.assert_allclose(critical, spread.critical_variance(np.array(KEYS, dtype=float)).numpy(), **CLOSE)


def test_theorem_5(js: Any) -> None:
    p0 = [0.3, 0.7]
    roots = [[p0, [a, b]] for a in ZERO for b in ZERO]
    for name, function in (("rootRho", hierarchy.root_rho), ("printedRootRho", hierarchy.printed_root_rho)):
        wanted = [function(*one).item() for one in roots]
        np.testing.assert_allclose(computed(js, f"{name}(...one)", roots), wanted, **CLOSE)
    cases = [[r, r0, d, h] for r in RHO for r0 in (-1.0, 0.2, 1.0) for d in DEPTH for h in range(d)]
    wanted = [hierarchy.cooccurrence(*one).item() for one in cases]
    np.testing.assert_allclose(computed(js, "cooccurrence(...one)", cases), wanted, **CLOSE)


def shown(js: Any, name: str, **at: float) -> Any:
    return js("(name, at) => jomaPlayground.panels[name].show(at)", name, at)


def curve(plot: Any, label: str) -> np.ndarray:
    (found,) = [one["points"] for one in plot["curves"] if one["label"] == label]
    return np.array(found, dtype=float).T


@pytest.mark.parametrize("z2", [0.0, 1.5])
def test_curves_of_theorem_2_keep_the_invariant_that_they_stand_for(js: Any, z2: float) -> None:
    """Dashed curves keep erf(v/2)/Δ, beside the most salient token. Solid ones are the flow."""
    delta, z0 = np.array([1.0, 0.8, -0.5]), np.array([0.0, z2, 0.0])
    plot = shown(js, "winner", delta1=1.0, delta2=0.8, delta3=-0.5, z2=z2)["plots"][0]
    end = linear.blow_up_time(delta, z0=z0).min().item()
    assert plot["at"]["x"] == pytest.approx(end, rel=1e-9)
    salient = curve(plot, "token 1")[1, :-1]
    for token in range(3):
        t, v = curve(plot, f"token {token + 1}")
        assert t[-1] == pytest.approx(end, rel=1e-9)
        wanted = linear.trajectory(delta, t[:-1], z0=z0)[:, token].numpy()
        np.testing.assert_allclose(v[:-1], wanted, rtol=1e-9, atol=1e-12)
        if token:
            dashed = curve(plot, f"token {token + 1}, printed")[1, :-1]
            np.testing.assert_allclose(special.erf(dashed / 2) / delta[token], special.erf(salient / 2), atol=1e-12)


def test_curves_of_the_other_panels_are_what_their_labels_say(js: Any) -> None:
    entropy, share = shown(js, "rebound", mu1=3.0, mu2=2.0, mu3=1.0)["plots"]
    for label, scale in (("printed", 1.0), ("corrected", 0.5)):
        t, height = curve(entropy, label)
        np.testing.assert_allclose(height, salience.entropy_curve([3.0, 2.0, 1.0], t, scale=scale).numpy(), **CLOSE)
    for at, mu in enumerate((3.0, 2.0, 1.0)):
        t, height = curve(share, f"component {at + 1}")
        np.testing.assert_allclose(height, salience.trajectory([mu], t)[:, 0].numpy() / mu, **CLOSE)
    (plot,) = shown(js, "spread", variance=4.0, n=256)["plots"]
    laws = {
        "exact": spread.gaussian_entropy,
        "many keys": spread.random_energy_entropy,
        "many keys, frozen": spread.frozen_entropy,
    }
    for label, law in laws.items():
        variance, height = curve(plot, label)
        np.testing.assert_allclose(height, law(variance, 256).numpy(), **CLOSE)
    assert plot["at"]["x"] == pytest.approx(2 * np.log(256))
    (plot,) = shown(js, "hierarchy", rho=0.8, depth=5, zero1=0.9, zero2=0.6)["plots"]
    for label, root in (("printed", 0.75), ("corrected", 0.5)):
        height, together = curve(plot, label)
        wanted = hierarchy.cooccurrence(0.8, root, 5, height.astype(int)).numpy()
        np.testing.assert_allclose(together, wanted, **CLOSE)


def run(snippet: str) -> list[list[str]]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet, "snippet", "exec"), {})
    return [line.split(" | ") for line in printed.getvalue().splitlines()]


def number(text: str) -> float | str:
    try:
        return float(text.replace("−", "-").replace("∞", "inf"))
    except ValueError:
        return text


PLACES = {
    "winner": [
        {},
        {"delta2": 1.4},
        {"delta2": -1.5, "delta3": 0},
        {"delta2": 0.5, "z2": 2},
        {"delta2": 1, "delta3": -1},
    ],
    "rebound": [{}, {"mu1": 0.1}, {"mu1": 4, "mu2": 3.95}, {"mu1": 2, "mu2": 2, "mu3": 2}],
    "spread": [{}, {"variance": -1}, {"variance": 3, "n": 20}, {"variance": 1.5, "n": 1}],
    "hierarchy": [{}, {"rho": -0.95, "depth": 2}, {"rho": 0.99, "depth": 12, "zero1": 1, "zero2": 1}, {"rho": 0}],
}


@pytest.mark.parametrize("name", PLACES)
def test_every_snippet_prints_what_its_panel_shows(js: Any, name: str) -> None:
    seen = set()
    for places in PLACES[name]:
        panel = js("(name, places) => jomaPlayground.panels[name].show(atPlaces(name, places))", name, places)
        rows = run(panel["python"])
        seen.add(str(rows))
        assert [row["name"] for row in panel["rows"]] == [row[0] for row in rows]
        for row, (_, *printed) in zip(panel["rows"], rows, strict=True):
            for found, wanted in zip((row["left"], row["right"]), map(number, printed), strict=True):
                assert found == (wanted if isinstance(wanted, str) else pytest.approx(wanted, rel=1e-9, abs=1e-12))
    assert len(seen) == len(PLACES[name])  # the sliders reached the snippet


def test_what_is_said_is_what_is_shown(js: Any) -> None:
    def says(name: str, **places: float) -> str:
        words: str = js("(name, places) => jomaPlayground.panels[name].show(atPlaces(name, places)).says", name, places)
        return words

    begins = "Token 2 wins. Its weight is infinite at t* = 0.2827, although token 1 is more salient."
    assert says("winner", delta2=0.6, z2=2) == begins
    assert says("winner") == "Token 1 wins. Its weight is infinite at t* = 1.253."
    assert says("rebound", mu1=1, mu2=1, mu3=1) == "Entropy does not come back."
    mu, t = [3.0, 2.0, 1.0], np.linspace(0, 6, 601)
    curve = salience.entropy_curve(mu, t, scale=0.5).numpy()
    late = special.softmax(np.square(mu) / 2)
    lowest, back = curve.min(), special.entr(late).sum() - curve.min()
    words = f"{lowest:.4g} nats at t = {t[curve.argmin()]:.4g}, then comes back by {back:.4g} nats."
    assert says("rebound") == f"Entropy falls to {words}"


@pytest.mark.parametrize(
    ("axis", "many", "wanted"),
    [
        ({"range": [0, 6]}, 7, [0, 1, 2, 3, 4, 5, 6]),
        ({"range": [0, 1.2]}, 6.2, [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2]),
        ({"range": [-0.35, 1]}, 4, [0, 0.5, 1]),
        ({"range": [0, 3], "whole": True}, 9, [0, 1, 2, 3]),
        ({"range": [0, 70]}, 8, [0, 10, 20, 30, 40, 50, 60, 70]),
        ({"range": [0.1, 1000], "log": True}, 3, [0.1, 1, 10, 100, 1000]),
        ({"range": [0.2, 900], "log": True}, 3, [1, 10, 100]),
    ],
)
def test_ticks_are_round_and_inside(js: Any, axis: Any, many: float, wanted: list[float]) -> None:
    assert js("jomaChart.ticks", axis, many) == pytest.approx(wanted)
