"""The playground in a real browser: its functions against joma.theory, its Python against what it shows, its looks."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_browser import hold_timers, let_go, violations_on
from scipy import special

from joma.report import playground, write_report
from joma.theory import hierarchy, linear, salience, spread

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
CLOSE: Any = {"rtol": 1e-9, "atol": 1e-13}

DELTA, LOGIT = (0.5, -1.5, 0.05, 1.0), (-2.0, 0.0, 1.3)
MU, TIMES = (0.1, -0.7, 1.0, 1.95, 3.0, 4.0), np.linspace(0, 6, 121)
VARIANCE = np.concatenate([[0.0, 0.01, 0.1599, 0.1601], np.geomspace(0.1, 1000, 25)])
KEYS = (2, 3, 64, 1024, 2**20)
RHO, DEPTH, ZERO = (-0.95, -0.3, 0.0, 0.6, 0.99), (2, 3, 6, 12), (0.0, 0.35, 1.0)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report without studies: the playground is all that it has."""
    return write_report([], tmp_path_factory.mktemp("page"), scale="quick").as_uri()


@pytest.fixture
def opened(page: Any) -> Any:
    """The page with all panels open. `page` fails a test whose page reports an error or asks for anything."""
    for fold in page.locator("#playground > details > summary").all():
        fold.click()
    page.locator('[data-panel="hierarchy"] .charts > svg').wait_for()
    return page


def computed(page: Any, call: str, cases: Any) -> np.ndarray:
    """What a function of the page gives for each case."""
    return np.array(page.evaluate(f"cases => cases.map((one) => jomaForms.{call})", cases), dtype=float)


def test_special_functions(page: Any) -> None:
    x = np.linspace(-5, 25, 301).tolist()
    np.testing.assert_allclose(computed(page, "erfc(one)", x), special.erfc(x), rtol=1e-12)
    np.testing.assert_allclose(computed(page, "erf(one)", x), special.erf(x), rtol=1e-12)
    tail = [*np.geomspace(1e-300, 0.5, 100).tolist(), 0.499999, 0.4999999999]
    np.testing.assert_allclose(computed(page, "fromTail(one)", tail), -special.ndtri(tail), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("kappa", [1.0, 0.5])
def test_theorem_2(page: Any, kappa: float) -> None:
    pairs = [[delta, z0, kappa] for delta in DELTA for z0 in LOGIT]
    ends = np.array([linear.blow_up_time([d], z0=z, kappa=k)[0].item() for d, z, k in pairs])
    np.testing.assert_allclose(computed(page, "blowUpTime(one[0], one[1], one[2])", pairs), ends, **CLOSE)
    share = [0.0, 1e-6, 0.3, 0.9, 0.999, 0.999999, 1.001, 3.0]
    cases = [[d, e * s, z, k] for (d, z, k), e in zip(pairs, ends, strict=True) for s in share]
    wanted = [linear.trajectory([d], [t], z0=z, kappa=k)[0, 0].item() for d, t, z, k in cases]
    assert sum(map(np.isinf, wanted)) == 2 * len(pairs)
    np.testing.assert_allclose(computed(page, "linearTrajectory(...one)", cases), wanted, **CLOSE)


def test_equation_6(page: Any) -> None:
    depths = [0.0, 1e-8, 0.1, 1.0, 5.0, 40.0, 1e4]
    cases = [[depth, mu] for depth in depths for mu in MU]
    wanted = [salience.time_to_depth(depth, mu).item() for depth, mu in cases]
    np.testing.assert_allclose(computed(page, "timeToDepth(...one)", cases), wanted, **CLOSE)
    found = page.evaluate(
        "([all, t]) => all.map((mu) => [...jomaForms.salienceTrajectory(mu, t)])", [MU, TIMES.tolist()]
    )
    np.testing.assert_allclose(np.array(found), salience.trajectory(MU, TIMES).T.numpy(), **CLOSE)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("mu", [(3.0, 2.0, 1.0), (0.1, 4.0, 3.9), (1.0, 1.0, 1.0)])
def test_entropy_along_equation_6(page: Any, mu: tuple[float, ...], scale: float) -> None:
    found = page.evaluate("(given) => [...jomaForms.entropyCurve(...given)]", [mu, TIMES.tolist(), scale])
    np.testing.assert_allclose(found, salience.entropy_curve(mu, TIMES, scale=scale).numpy(), **CLOSE)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gaussianEntropy", spread.gaussian_entropy),
        ("randomEnergyEntropy", spread.random_energy_entropy),
        ("frozenEntropy", spread.frozen_entropy),
    ],
)
def test_entropy_against_spread(page: Any, name: str, function: Any) -> None:
    cases = [[variance, n] for variance in VARIANCE.tolist() for n in KEYS]
    wanted = function([one for one, _ in cases], [n for _, n in cases]).numpy()
    np.testing.assert_allclose(computed(page, f"{name}(...one)", cases), wanted, **CLOSE)
    critical = computed(page, "criticalVariance(one)", KEYS)
    np.testing.assert_allclose(critical, spread.critical_variance(np.array(KEYS, dtype=float)).numpy(), **CLOSE)


def test_theorem_5(page: Any) -> None:
    p0 = [0.3, 0.7]
    roots = [[p0, [a, b]] for a in ZERO for b in ZERO]
    for name, function in (("rootRho", hierarchy.root_rho), ("printedRootRho", hierarchy.printed_root_rho)):
        wanted = [function(*one).item() for one in roots]
        np.testing.assert_allclose(computed(page, f"{name}(...one)", roots), wanted, **CLOSE)
    cases = [[r, r0, d, h] for r in RHO for r0 in (-1.0, 0.2, 1.0) for d in DEPTH for h in range(d)]
    wanted = [hierarchy.cooccurrence(*one).item() for one in cases]
    np.testing.assert_allclose(computed(page, "cooccurrence(...one)", cases), wanted, **CLOSE)


def shown(page: Any, name: str, **at: float) -> Any:
    return page.evaluate("([name, at]) => jomaPlayground.panels[name].show(at)", [name, at])


def curve(plot: Any, label: str) -> np.ndarray:
    (found,) = [one["points"] for one in plot["curves"] if one["label"] == label]
    return np.array(found, dtype=float).T


@pytest.mark.parametrize("z2", [0.0, 1.5])
def test_curves_of_theorem_2_keep_the_invariant_that_they_stand_for(page: Any, z2: float) -> None:
    """Dashed curves keep erf(v/2)/Δ, beside the most salient token. Solid ones are the flow."""
    delta, z0 = np.array([1.0, 0.8, -0.5]), np.array([0.0, z2, 0.0])
    plot = shown(page, "winner", delta1=1.0, delta2=0.8, delta3=-0.5, z2=z2)["plots"][0]
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


def test_curves_of_the_other_panels_are_what_their_labels_say(page: Any) -> None:
    entropy, share = shown(page, "rebound", mu1=3.0, mu2=2.0, mu3=1.0)["plots"]
    for label, scale in (("printed", 1.0), ("corrected", 0.5)):
        t, height = curve(entropy, label)
        np.testing.assert_allclose(height, salience.entropy_curve([3.0, 2.0, 1.0], t, scale=scale).numpy(), **CLOSE)
    for at, mu in enumerate((3.0, 2.0, 1.0)):
        t, height = curve(share, f"component {at + 1}")
        np.testing.assert_allclose(height, salience.trajectory([mu], t)[:, 0].numpy() / mu, **CLOSE)
    (plot,) = shown(page, "spread", variance=4.0, n=256)["plots"]
    laws = {
        "exact": spread.gaussian_entropy,
        "many keys": spread.random_energy_entropy,
        "many keys, frozen": spread.frozen_entropy,
    }
    for label, law in laws.items():
        variance, height = curve(plot, label)
        np.testing.assert_allclose(height, law(variance, 256).numpy(), **CLOSE)
    assert plot["at"]["x"] == pytest.approx(2 * np.log(256))
    (plot,) = shown(page, "hierarchy", rho=0.8, depth=5, zero1=0.9, zero2=0.6)["plots"]
    for label, root in (("printed", 0.75), ("corrected", 0.5)):
        height, together = curve(plot, label)
        wanted = hierarchy.cooccurrence(0.8, root, 5, height.astype(int)).numpy()
        np.testing.assert_allclose(together, wanted, **CLOSE)


def run(snippet: str) -> list[list[str]]:
    """The rows that a snippet prints."""
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


def set_sliders(box: Any, places: dict[str, float]) -> None:
    box.locator(".more > summary").click() if not box.locator(".more[open]").count() else None
    for name, value in places.items():
        box.locator(f'input[name="{name}"]').fill(str(value))
    box.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


@pytest.mark.parametrize("name", PLACES)
def test_every_snippet_prints_what_its_panel_shows(opened: Any, name: str) -> None:
    box = opened.locator(f'[data-panel="{name}"]')
    seen = set()
    for places in PLACES[name]:
        set_sliders(box, places)
        rows = run(box.locator("code").text_content())
        seen.add(str(rows))
        assert box.locator("tbody th").all_text_contents() == [row[0] for row in rows]
        values = box.locator("tbody td").evaluate_all("all => all.map((one) => [one.dataset.value, one.textContent])")
        said = [cell for row in rows for cell in row[1:]]
        assert len(values) == len(said)
        for (exact, text), printed in zip(values, said, strict=True):
            wanted = number(printed)
            if isinstance(wanted, str):
                assert exact == text == wanted
                continue
            assert float(exact) == pytest.approx(wanted, rel=1e-9, abs=1e-12), (places, rows)
            assert number(text) == pytest.approx(wanted, rel=6e-4, abs=1e-12), (places, rows)
    assert len(seen) == len(PLACES[name])  # the sliders reached the snippet


def test_what_is_said_follows_the_sliders(opened: Any) -> None:
    box = opened.locator('[data-panel="winner"]')
    set_sliders(box, {"delta2": 0.6, "z2": 2})
    assert box.locator(".says").text_content() == (
        "Token 2 wins. Its weight is infinite at t* = 0.2827, although token 1 is more salient."
    )
    assert "Token 2 wins" in box.locator("svg").first.get_attribute("aria-label")
    box.get_by_role("button", name="Reset").click()
    assert box.locator(".says").text_content() == "Token 1 wins. Its weight is infinite at t* = 1.253."
    box = opened.locator('[data-panel="rebound"]')
    set_sliders(box, {"mu1": 1, "mu2": 1, "mu3": 1})
    assert box.locator(".says").text_content() == "Entropy does not come back."


def test_the_keyboard_is_enough(opened: Any) -> None:
    box = opened.locator('[data-panel="hierarchy"]')
    main, before = box.locator("input").first, box.locator("tbody").text_content()
    main.focus()
    opened.keyboard.press("ArrowRight")
    opened.wait_for_function(
        "before => document.querySelector('[data-panel=hierarchy] tbody').textContent !== before", arg=before
    )
    assert main.get_attribute("aria-valuetext") == box.locator("output").first.text_content() == "0.91"
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = box.locator("button", has_text="Copy as Python").element_handle()
    hold_timers(opened)
    button.focus()
    opened.keyboard.press("Enter")
    box.get_by_text("Copied").wait_for()
    assert opened.evaluate("navigator.clipboard.readText()") == box.locator("code").text_content()
    assert "rho, depth = 0.91, 6" in box.locator("code").text_content()
    let_go(opened)
    assert button.text_content() == "Copy as Python"


def test_axes_have_names_and_letters_can_be_read(opened: Any) -> None:
    for width in (1280, 390, 320):
        opened.set_viewport_size({"width": width, "height": 844})
        opened.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        plots = opened.locator("[data-panel] .charts > svg").evaluate_all(
            "all => all.map((svg) => [svg.getBoundingClientRect().width / svg.viewBox.baseVal.width, svg.textContent])"
        )
        assert len(plots) == 5
        assert all(scale > 0.99 for scale, _ in plots)  # drawn for this width: letters keep their 12 px
        for (_, words), axes in zip(
            plots,
            (("time t", "weight v"), ("time t", "nats"), ("time t", "v/μ"), ("variance", "nats"), ("height H", "P[")),
            strict=True,
        ):
            assert all(label in words for label in axes)


TICKS = """name => [...document.querySelectorAll(`[data-panel="${name}"] .charts > svg:first-child > text`)].map(
  (text) => [text.textContent, Number(text.getAttribute("x")), Number(text.getAttribute("y"))])"""


def test_what_is_drawn_stands_where_the_axes_say(opened: Any) -> None:
    """The dot of the third panel and the last one of the fourth, by the numbers that the axes are marked with."""
    for name, x, y, log in (("spread", 3.98, 5.0350, True), ("hierarchy", 5, 0.4155, False)):
        ticks = opened.evaluate(TICKS, name)
        left = [
            (float(words), place - 4) for words, at, place in ticks if at == 44
        ]  # a label stands 4 px below its line
        low = [(float(words), at) for words, at, place in ticks if at > 44 and words.replace(".", "").isdigit()]
        dot = opened.locator(f'[data-panel="{name}"] .charts > svg > circle').last
        cx, cy = (float(dot.get_attribute(one)) for one in ("cx", "cy"))
        scale = np.log10 if log else np.asarray
        assert np.interp(cx, [at for _, at in low], [scale(value) for value, _ in low]) == pytest.approx(
            scale(x), abs=0.01
        )
        up = sorted(left, key=lambda one: one[1])
        assert np.interp(cy, [at for _, at in up], [value for value, _ in up]) == pytest.approx(y, abs=0.02)


@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 1280)])
def test_axe_finds_nothing(browser: Any, address: str, theme: str, width: int) -> None:
    assert violations_on(browser, address, theme, width, "open") == []


def test_a_printed_report_has_the_drawings(page: Any) -> None:
    assert page.locator("[data-panel]").count() == 0  # asleep
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("[data-panel] .charts > svg").count() == 5


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the manual, built with its own configuration."""
    for needed in ("sphinx", "furo", "myst_parser", "latex2mathml"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("manual")
    docs = folder / "docs"
    docs.mkdir()
    shutil.copytree(ROOT / "docs" / "_ext", docs / "_ext")
    (docs / "_static").mkdir()
    shutil.copy(ROOT / "docs" / "_static" / "manual.css", docs / "_static")
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    (docs / "conf.py").write_text(conf.replace('"../src', f'"{ROOT}/src'), encoding="utf-8")
    shutil.copy(ROOT / "docs" / "explanation" / "playground.md", docs / "playground.md")
    (docs / "index.md").write_text("# Manual\n\n```{toctree}\nplayground\n```\n", encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(docs), str(folder / "html")],
        check=True,
        capture_output=True,
    )
    return (folder / "html" / "playground.html").as_uri()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_manual_has_the_panels(browser: Any, manual: str, theme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
    page, troubles = context.new_page(), []
    page.on("console", lambda message: message.type in ("error", "warning") and troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(manual)
    page.locator('[data-panel="hierarchy"] .charts > svg').wait_for()
    assert page.locator("[data-panel] .charts > svg").count() == 5
    assert page.locator("[data-panel]").evaluate_all("all => all.map((one) => one.dataset.panel)") == list(
        playground.PANELS
    )
    ink = page.locator(".playground svg text").first.evaluate("one => getComputedStyle(one).fill")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ink != ground
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
    assert troubles == []


@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 1280)])
def test_axe_finds_nothing_in_the_panels_of_the_manual(browser: Any, manual: str, theme: str, width: int) -> None:
    """Furo's own frame is not ours to judge."""
    from importlib.resources import files

    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(manual)
    page.locator('[data-panel="hierarchy"] .charts > svg').wait_for()
    page.evaluate("document.querySelectorAll('.playground details').forEach((one) => { one.open = true; })")
    page.evaluate(axe)
    found = page.evaluate("axe.run('.playground', { resultTypes: ['violations'] })")
    context.close()
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
