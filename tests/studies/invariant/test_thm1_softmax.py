"""The study of Theorem 1 under softmax attention: its verdicts, its seeds, and that verdicts follow their numbers."""

from dataclasses import replace

import numpy as np
import pytest
from every_study import add, put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, carried_out, changed, found, verdicts
from small_runs import small

from joma.studies.invariant.thm1_softmax import run as softmax
from joma.studies.invariant.thm1_softmax.study import STUDY

TINY = small("thm1-softmax")
HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"
QUALITATIVE, OPEN = "only qualitative", "undecided"
KINDS = softmax.KINDS
NAN = put((0, -1), np.nan)
TOKENS, SEEDS = 8, 4
JITTER = np.array([-1.0, 1.0, -1.0, 1.0])


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    return carried_out(STUDY, replace(TINY, seeds=8), tmp_path_factory.mktemp("runs") / "several")


def directions():
    """Seven vectors over the tokens that do not correlate with each other, and a constant."""
    centred = np.eye(TOKENS) - 1 / TOKENS
    return np.linalg.svd(centred)[0].T


def logits(which):
    """z that grows along one direction per network, the same at all recorded moments but the first."""
    z = np.repeat(directions()[list(which)][:, None], 13, 1)
    z[:, 0] = 0.01 * directions()[5]
    return z


def like(z, correlation, size=1.0):
    """An estimate that correlates with z of its own network as given, and with nothing else."""
    correlation = np.broadcast_to(np.asarray(correlation, dtype=float), (SEEDS,))[:, None, None]
    return size * (correlation * z + np.sqrt(1 - correlation**2) * directions()[4])


def made(run, change):
    """The run with `change` put in the place of its series; z of each network along its own direction."""
    z = logits(range(SEEDS))
    change = {f"{k}/z": z for k in KINDS} | {f"{k}/{name}": v for k in KINDS for name, v in change(z).items()}
    return changed(run, lambda name, step, value: change.get(name, value))


def test_verdicts_that_hold_at_any_size(several):
    seen = dict(verdicts(STUDY, several))
    expected = {
        "softmax-published": QUALITATIVE,
        "eq17-sum": FIXED,
        "eq17-covariance": FIXED,
        "eq18-constant-mean": FIXED,
        "softmax-condition": FIXED,
        "softmax-mean-logit": HOLDS,
    }
    assert seen | expected == seen


SPOILED = [
    ("one/velocity, all nodes", lambda x: x + 1e-9, "eq17-sum", FAILS),
    ("one/velocity, all nodes", NAN, "eq17-sum", "undecided"),
    ("one/velocity, one node", lambda x: 0 * x, "eq17-sum", HOLDS),
    ("one/velocity, all nodes", lambda x: x + 1e-9, "softmax-condition", FAILS),
    ("one/velocity, all nodes", NAN, "softmax-condition", "undecided"),
    ("smooth/condition/each", lambda x: 0 * x, "softmax-condition", BLIND),
    ("random/condition/each", lambda x: 0 * x, "softmax-condition", BLIND),
    ("random/condition/each", NAN, "softmax-condition", OPEN),
    ("smooth/identity", lambda x: x + 1e-9, "eq17-covariance", FAILS),
    ("random/identity", add((0, 5, 0), 1e-9), "eq17-covariance", FAILS),
    ("random/identity", NAN, "eq17-covariance", "undecided"),
    ("one/z integrated", lambda x: x + 1e-6, "eq18-constant-mean", FAILS),
    ("one/z integrated", NAN, "eq18-constant-mean", "undecided"),
    ("random/z", lambda x: x + np.arange(x.shape[1])[:, None], "softmax-mean-logit", FAILS),
    ("smooth/z", NAN, "softmax-mean-logit", "undecided"),
]


def test_equations_that_hold_in_training_would_make_their_controls_blind(run):
    """Where the covariance changes nothing, no residual can tell the two forms of eq. 17 apart."""

    def exact(name, step, value):
        kind = name.partition("/")[0]
        return run.value(f"{kind}/z") if name.endswith(("/integrated", "/identity")) else value

    seen = verdicts(STUDY, changed(run, exact))
    assert (seen["eq17-sum"], seen["eq17-covariance"], seen["eq18-constant-mean"]) == (BLIND, BLIND, BLIND)
    assert seen["softmax-condition"] == HOLDS


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_condition_that_is_not_met_is_no_case_of_it(run, side):
    """Eq. 17 is exact in training here, but both sides of the printed condition would have to vanish as well."""
    exact = {f"{kind}/integrated": run.value(f"{kind}/z") for kind in KINDS}
    exact[f"smooth/condition/{side}"] = run.value("smooth/condition/left") + 0.1
    copy = changed(run, lambda name, step, value: exact.get(name, value))
    assert found(STUDY, copy, "softmax-condition").verdict == FIXED


def test_the_covariance_of_other_classes_must_not_do(run):
    shift = run.value("smooth/identity") - run.value("smooth/integrated")
    copy = altered(run, "random/integrated", lambda _: run.value("random/identity") - shift)
    finding = found(STUDY, copy, "eq17-covariance")
    assert finding.residuals["printed"] > 0.01
    assert finding.verdict == BLIND


def test_a_mean_that_moves_nowhere_shows_nothing(run):
    copy = changed(run, lambda n, step, x: 0 * x + 1 if n.endswith("first term") else x)
    assert found(STUDY, copy, "softmax-mean-logit").verdict == BLIND


@pytest.mark.parametrize(
    ("claim", "series", "form", "value"),
    [
        ("eq17-sum", "one/velocity, one node", "printed", 0.25),
        ("eq17-sum", "one/velocity, all nodes", "corrected", 0.25),
        ("eq18-constant-mean", "one/z closed", "printed", 0.25),
        ("eq18-constant-mean", "one/z integrated", "corrected", 0.25),
    ],
)
def test_residuals_are_those_of_the_record(run, claim, series, form, value):
    truth = 1.25 * run.value("one/z") if "z" in series else np.full_like(run.value(series), value)
    assert found(STUDY, altered(run, series, lambda _: truth), claim).residuals[form] == pytest.approx(value)


@pytest.mark.parametrize(("series", "form"), [("integrated", "printed"), ("identity", "corrected")])
def test_the_residuals_of_equation_17_in_training_are_those_of_the_record(run, series, form):
    copy = altered(run, f"random/{series}", lambda _: 3 * run.value("random/z"))
    assert found(STUDY, copy, "eq17-covariance").residuals[form] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("own", "frozen", "verdict"),
    [
        (0.97 + 0.01 * JITTER, 0.50 - 0.02 * JITTER, HOLDS),
        (0.80 + 0.01 * JITTER, 0.50 - 0.02 * JITTER, QUALITATIVE),  # far above its controls, but not high
        (0.93 + 0.001 * JITTER, 0.91 - 0.001 * JITTER, QUALITATIVE),  # above, by less than matters
        (0.93 + 0.001 * JITTER, 0.93 - 0.001 * JITTER, BLIND),
        (0.93 + 0.05 * JITTER, 0.91 - 0.05 * JITTER, OPEN),
        (0.97 + 0.01 * JITTER, 0.97 - 0.01 * JITTER, OPEN),  # no room for more below 1
        (0.50 + 0.01 * JITTER, 0.80 + 0.02 * JITTER, FAILS),
        (np.full(SEEDS, np.nan), 0.50, OPEN),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_figure_2_beside_frozen_attention(run, kind, own, frozen, verdict):
    copy = made(run, lambda z: {"published": like(z, own), "frozen/published": like(z, frozen)})
    finding = found(STUDY, copy, f"fig2-{kind}")
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("own", "alike", "verdict"),
    [
        (0.91 + 0.004 * JITTER, False, HOLDS),
        (0.91 + 0.004 * JITTER, True, BLIND),
        (0.91 + 0.050 * JITTER, True, OPEN),
        (0.97 + 0.004 * JITTER, True, OPEN),  # no room for more below 1
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_figure_2_beside_another_seed(run, kind, own, alike, verdict):
    def change(z):
        z[:, 1:] = directions()[0] if alike else z[:, 1:]
        return {"z": z, "published": like(z, own), "frozen/published": like(z, 0.1 * JITTER)}

    finding = found(STUDY, made(run, change), f"fig2-{kind}")
    assert finding.main.effect == pytest.approx(own.mean())
    assert finding.verdict == verdict


@pytest.mark.parametrize(("frozen", "harder"), [(0.5, "frozen attention"), (-0.99, "another seed")])
def test_figure_2_names_the_harder_control(run, frozen, harder):
    def change(z):
        return {"published": like(z, 0.97), "frozen/published": like(z, frozen)}

    assert harder in found(STUDY, made(run, change), "fig2-random").control


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        (lambda z: like(z, 0.995), HOLDS),
        (lambda z: like(z, 0.995 * np.array([1, -1, 1, -1])), OPEN),
        (lambda z: like(z, -0.9 + 0.02 * JITTER), FAILS),
        (lambda z: like(z, 0.01 * JITTER), BLIND),
        (lambda z: like(z, 0.6 + 0.001 * JITTER), QUALITATIVE),
    ],
)
@pytest.mark.parametrize(("claim", "name"), [("softmax-published", "published"), ("eq18-current-mean", "current mean")])
def test_estimates_beside_logits_that_never_move(run, claim, name, estimate, verdict):
    assert found(STUDY, made(run, lambda z: {name: estimate(z)}), claim).verdict == verdict


def test_a_correlation_does_not_hide_the_size(run):
    copy = made(run, lambda z: {"published": like(z, 0.995, size=5.0)})
    assert found(STUDY, copy, "softmax-published").verdict == QUALITATIVE


@pytest.mark.parametrize("claim", ["softmax-published", "eq18-current-mean"])
def test_estimates_no_better_than_the_start_are_not_above_it(run, claim):
    def change(z):
        z[:, 0] = 0.01 * like(z, 0.9 + 0.001 * JITTER)[:, -1]
        estimate = like(z, 0.9 - 0.001 * JITTER)
        return {"z": z, "published": estimate, "current mean": estimate}

    assert found(STUDY, made(run, change), claim).verdict == BLIND


@pytest.mark.parametrize("moment", [6, -1])
@pytest.mark.parametrize(("claim", "name"), [("softmax-published", "published"), ("eq18-current-mean", "current mean")])
def test_the_size_is_asked_at_every_moment(run, claim, name, moment):
    def change(z):
        estimate = like(z, 0.995)
        estimate[:, moment] *= 1.0 if moment == -1 else -1.0
        return {name: estimate}

    assert found(STUDY, made(run, change), claim).verdict == (HOLDS if moment == -1 else QUALITATIVE)


def test_components_are_judged_by_their_correlations(run):
    def terms(first, second):
        return lambda z: {"published": like(z, 0.97), "first term": like(z, first), "second term": like(z, second)}

    for name, change, verdict in (
        ("neither", terms(0.02 * JITTER, -0.02 * JITTER), HOLDS),
        ("both, by half", terms(0.55 + 0.001 * JITTER, 0.55 - 0.001 * JITTER), QUALITATIVE),
        ("first", terms(0.95 + 0.01 * JITTER, 0.02 * JITTER), FIXED),
        ("first, weakly", terms(0.8 + 0.01 * JITTER, 0.02 * JITTER), QUALITATIVE),
        ("both", terms(0.97 + 0.001 * JITTER, 0.97 - 0.001 * JITTER), BLIND),
        ("second", terms(0.02 * JITTER, 0.95 + 0.01 * JITTER), QUALITATIVE),
        ("second, the other way round", terms(0.95 + 0.01 * JITTER, -0.95 + 0.01 * JITTER), QUALITATIVE),
    ):
        assert (name, found(STUDY, made(run, change), "fig2-components").verdict) == (name, verdict)


def test_a_first_term_that_any_seed_has_shows_nothing(run):
    def alike(z):
        z[:, 1:] = directions()[0]
        return {"z": z, "published": like(z, 0.97), "first term": like(z, 0.95), "second term": like(z, 0.01 * JITTER)}

    finding = found(STUDY, made(run, alike), "fig2-components")
    assert finding.verdict == BLIND
    assert "another seed" in finding.control


def test_components_must_pass_on_both_kinds_of_classes(run):
    def terms(z):
        return {"published": like(z, 0.97), "first term": like(z, 0.95), "second term": like(z, 0.02 * JITTER)}

    both = made(run, terms)
    for kind in KINDS:
        swapped = both.value(f"{kind}/first term")
        copy = altered(both, f"{kind}/second term", lambda _, x=swapped: x)
        assert found(STUDY, copy, "fig2-components").verdict == QUALITATIVE


@pytest.mark.parametrize(
    ("rebuilt", "verdict"),
    [
        (lambda z: like(z, 0.999), FIXED),
        (lambda z: like(z, 0.999, size=0.7 + 0.01 * JITTER[:, None, None]), QUALITATIVE),  # fair, but not close
        (lambda z: like(z, 0.985), QUALITATIVE),  # close, but of another form
        (lambda z: (2 + 0.01 * JITTER[:, None, None]) * z, BLIND),  # no closer than that z never moves
        (lambda z: 3 * z, FAILS),
    ],
)
def test_rebuilt_logits_are_judged_by_size_and_form(run, rebuilt, verdict):
    """A correlation of 0.999 leaves an error of 4 %, one of 0.985 an error of 17 %."""
    copy = made(run, lambda z: {"published": -8 * z, "self-consistent": rebuilt(z)})
    assert found(STUDY, copy, "softmax-rebuilt").verdict == verdict


def test_rebuilt_logits_stand_beside_logits_that_never_move(run):
    def late(z):
        z[:, 0] = 0.4 * z[:, -1]
        return {"z": z, "published": 3 * z, "self-consistent": like(z, 0.999)}

    finding = found(STUDY, made(run, late), "softmax-rebuilt")
    effects = [*finding.printed.effects.values(), *finding.corrected.effects.values()]
    assert [effect.control_effect for effect in effects] == pytest.approx([0.4] * 4)


def test_a_closed_form_that_were_right_would_hold_as_printed(several):
    perfect = {f"{kind}/published": several.value(f"{kind}/z") for kind in KINDS}
    copy = changed(several, lambda name, step, value: perfect.get(name, value))
    assert found(STUDY, copy, "softmax-rebuilt").verdict == HOLDS
    assert found(STUDY, copy, "softmax-published").verdict == HOLDS


def test_logits_that_another_seed_rebuilds_as_well_show_nothing(run):
    def alike(z):
        z[:, 1:] = directions()[0]
        return {"z": z, "self-consistent": like(z, 0.999 + 1e-4 * JITTER), "published": like(z, 0.99, size=8.0)}

    finding = found(STUDY, made(run, alike), "softmax-rebuilt")
    assert finding.verdict == BLIND
    assert "another seed" in finding.control


def growth(shares, still):
    """v at the start, half and end: of 8 tokens the two fastest have a share of the late growth."""
    v = np.zeros((SEEDS, 3, TOKENS, 6))
    v[:, 1] = 0.0 if not still else np.where(np.arange(TOKENS) == 0, 100.0, 0.0)[:, None]
    late = np.where(np.arange(TOKENS) < 2, np.asarray(shares)[:, None] / 2, (1 - np.asarray(shares)[:, None]) / 6)
    v[:, 2] = v[:, 1] + late[..., None]
    return v


@pytest.mark.parametrize(
    ("moving", "frozen", "still", "verdict"),
    [
        (0.80 + 0.01 * JITTER, 0.40 - 0.01 * JITTER, True, HOLDS),
        (0.60 + 0.01 * JITTER, 0.40 - 0.01 * JITTER, False, QUALITATIVE),  # concentrated, but nothing saturates
        (0.45 + 0.001 * JITTER, 0.40 - 0.001 * JITTER, True, QUALITATIVE),
        (0.40 + 0.001 * JITTER, 0.40 - 0.001 * JITTER, True, BLIND),
        (0.45 + 0.100 * JITTER, 0.40 - 0.100 * JITTER, True, OPEN),
        (0.40 + 0.01 * JITTER, 0.80 - 0.01 * JITTER, True, FAILS),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_figure_3_beside_frozen_attention(run, kind, moving, frozen, still, verdict):
    change = {f"{kind}/v": growth(moving, still), f"{kind}/frozen/v": growth(frozen, still)}
    copy = changed(run, lambda name, step, value: change.get(name, value))
    assert found(STUDY, copy, f"fig3-{kind}").verdict == verdict


EMPIRICAL = [claim for claim in STUDY.claims if claim.empirical]


@pytest.mark.parametrize("value", [np.nan, 0.0], ids=["not finite", "did not move"])
@pytest.mark.parametrize("claim", EMPIRICAL, ids=lambda claim: claim.name)
def test_networks_that_learned_nothing_are_not_judged(run, claim, value):
    def unlearned(name, step, series):
        return value * series[:, -1:] + (1 - value) * series[:, :1] + 0 * series if name.endswith("/z") else series

    finding = found(STUDY, changed(run, unlearned), claim)
    assert finding.verdict == "not run"
    assert finding.command.startswith("joma run thm1-softmax")


@pytest.mark.parametrize("claim", EMPIRICAL, ids=lambda claim: claim.name)
def test_a_network_that_diverged_is_left_out_and_counted(run, claim):
    def diverged(name, step, series):
        return put((0,), np.nan)(series) if name.endswith("/z") and not name.startswith("one") else series

    finding = found(STUDY, changed(run, diverged), claim)
    assert finding.main.seeds == TINY.seeds - 1
    assert "left out" in finding.measured


def test_the_default_seed_gives_the_numbers_of_seed_zero(run):
    start = softmax.draw_start("random", range(SEEDS), classes=6, tokens=8)
    np.testing.assert_array_equal(run.value("random/z")[:, 0], start.z[:, 0].numpy())
    np.testing.assert_array_equal(run.value("one/z"), softmax.one_sample(2, seed=0)["z"].numpy())
    assert not np.allclose(run.value("one/z"), softmax.one_sample(2, seed=1)["z"].numpy())
