"""Figure 8 on a made-up language: what is recorded, what is judged, and that its judges can be turned."""

import numpy as np
import pytest
from records import carried_out, changed, found, verdicts
from small_language_models import FREQUENCIES, SMALL, as_the_paper, by_hand, down_and_up, untrained

from joma.claims.execute import draw
from joma.recipes.language import curves as recorded
from joma.studies.language import _published, fig8

pytestmark = pytest.mark.usefixtures("no_other_text")


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(fig8, "RESAMPLES", 200)


@pytest.fixture(scope="module")
def sweep(small_run):
    return small_run("fig8")


def test_verdicts_of_small_runs(sweep):
    of = verdicts(fig8.STUDY, sweep)
    assert set(of) == {claim.name for claim in fig8.STUDY.claims}
    assert {name for name, verdict in of.items() if verdict == "at paper scale"} == {"fig8-best-rate", "fig8-curves"}


def test_an_untrained_network_tells_nothing(sweep):
    still = untrained(sweep)
    assert set(verdicts(fig8.STUDY, still).values()) == {"not run", "at paper scale"}


@pytest.mark.long
def test_a_rate_that_diverges_is_marked_and_the_sweep_goes_on(data_folder, tmp_path):
    config = fig8.Fig8Config(**SMALL, data=str(data_folder), layers=1, rates=(0.01, 0.02, 1e30))
    run = carried_out(fig8.STUDY, config, tmp_path / "run.sqlite")
    assert recorded.alive(run, "sweep").tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert np.isfinite(recorded.best_loss(run, "sweep")[:2]).all()
    pattern = found(fig8.STUDY, run, "fig8-pattern-of-the-best")
    assert pattern.details["diverged and left out"] == {"runs at 1e+30": 3.0}
    assert "unknown" not in pattern.measured
    together = found(fig8.STUDY, run, "fig8-pattern-and-loss")
    assert together.reason == "only 2 of 3 rates learn more than how frequent words are, and 3 are needed (1 diverges)"
    largest = found(fig8.STUDY, run, "fig8-large-rate")  # the best rate is no control of itself
    assert largest.verdict == "not run"
    assert largest.reason == "the largest rate that learns, 0.02, has the lowest loss"
    assert len(draw(fig8.STUDY, run)) == 1


SEEDS = np.array([-1.0, 0.0, 1.0])  # Three seeds; their mean is known to 2.48 (95 %)
RATES = (1e-3, 1e-2, 1e-1)


def made(path, back, losses, *, rates=RATES, spread=0.001, drop=1.0, diverged=(), rises=None):
    """A sweep whose rates come back by such parts of their drop, and have such losses.

    Seeds differ by `spread`, at every rate in another order.
    """
    noise = np.tile(SEEDS, len(rates))
    turned = np.concatenate([np.roll(SEEDS, turn) for turn in range(len(rates))])
    members = np.repeat(np.array(back, float), 3) + spread * turned
    entropy = down_and_up(np.full((len(members), 2), drop), drop * members[:, None])
    if rises is not None:
        entropy[:, -1] = rises
    config = fig8.Fig8Config(**SMALL, rates=rates, layers=2)
    variants = {"sweep": (rates, np.repeat(np.array(losses, float), 3) + 0.001 * noise, entropy, diverged, {})}
    return by_hand(path, fig8.STUDY, config, variants)


LOSSES = (3.0, 2.0, 2.5)  # the second rate is the best, and all of them learn


def of(run, claim):
    return found(fig8.STUDY, run, claim).verdict


@pytest.mark.parametrize(
    ("back", "spread", "verdict"),
    [
        ((0.1, 0.8, 0.2), 0.01, "holds"),
        ((0.1, 0.43, 0.4), 0.0, "only qualitative"),  # more than elsewhere, by less than what matters
        ((0.1, 0.5, 0.5), 0.001, "not above its control"),
        ((0.1, 0.5, 0.9), 0.01, "fails"),
    ],
)
def test_the_pattern_of_the_best_rate(tmp_path, back, spread, verdict):
    run = made(tmp_path / "run", back, LOSSES, spread=spread)
    assert of(run, "fig8-pattern-of-the-best") == verdict
    np.testing.assert_allclose(fig8.comes_back(run).mean(-1), back)


@pytest.mark.parametrize("uncertain", [1, 2])
def test_the_pattern_must_be_beyond_what_seeds_differ(tmp_path, uncertain):
    run = made(tmp_path / "run", (0.1, 0.5, 0.4), LOSSES, spread=0.0)
    back = np.repeat([0.1, 0.5, 0.4], 3)
    back[3 * uncertain : 3 * uncertain + 3] += 0.1 * SEEDS
    entropy = down_and_up(np.ones((9, 2)), back[:, None])

    def change(name, step, value):
        return entropy[:, step // 4, :, None] if name == "sweep/valid/entropy" else value

    assert of(run, "fig8-pattern-of-the-best") == "holds"
    assert of(changed(run, change), "fig8-pattern-of-the-best") == "undecided"


def test_more_than_elsewhere_is_not_enough_where_nothing_comes_back(tmp_path):
    run = made(tmp_path / "run", (0.1, 0.8, 0.2), LOSSES, spread=0.0)
    peaks = np.repeat([2.0, 1.4, 2.0], 3)

    def change(name, step, value):
        if name != "sweep/valid/entropy":
            return value
        level = np.full(9, 4.0 if step == 0 else 1.0)
        if step in (12, 16, 20):
            level = np.where(np.tile([12, 16, 20], 3) == step, peaks, 0.9)
        return np.broadcast_to(level[:, None, None], value.shape).copy()

    spoiled = changed(run, change)
    np.testing.assert_allclose(fig8.comes_back(spoiled)[:, 0], [-1 / 2, -0.4 / 2.6, -1 / 2])
    assert of(spoiled, "fig8-pattern-of-the-best") == "not above its control"


def test_every_layer_must_rebound_at_the_best_rate(tmp_path):
    def one_layer(name, step, value):
        value = value.copy()
        if name == "sweep/valid/entropy":
            value[:, 1] = 2 - min(step, 40) / 48 / 4 + 0.001 * np.tile(SEEDS, 3)[:, None]
        return value

    good = made(tmp_path / "good", (0.1, 0.8, 0.2), LOSSES, spread=0.01)
    finding = found(fig8.STUDY, changed(good, one_layer), "fig8-pattern-of-the-best")
    assert finding.verdict == "only qualitative"
    assert finding.printed.tests[0].value == 1.0


def test_noise_is_no_rebound(tmp_path):
    """What comes back of curves that fall and then only jump about is nothing in the mean, and may be negative."""
    run = made(tmp_path / "run", (0.0, 0.0, 0.0), LOSSES, spread=0.0)
    generator = np.random.default_rng(1)

    def noisy(name, step, value):
        if name != "sweep/valid/entropy" or step == 0:
            return value
        return 1.0 + 0.3 * generator.standard_normal(value.shape)

    backs = np.array([fig8.comes_back(changed(run, noisy)) for i in range(20)])
    assert (backs < 0).any()
    backs = backs[np.isfinite(backs)]  # some end by chance as if they still fell
    assert abs(backs.mean()) < 3 * backs.std() / np.sqrt(backs.size)


def test_layers_that_hardly_drop_have_nothing_to_make_good(tmp_path):
    for drop, back in ((0.05, 0.0), (0.15, 0.5)):  # of 2 nats
        run = made(tmp_path / f"{drop}", (0.5, 0.5, 0.5), LOSSES, drop=drop, spread=0.0)
        np.testing.assert_allclose(fig8.comes_back(run), back)
    over = made(tmp_path / "over", (1.5, 1.5, 1.5), LOSSES, spread=0.0)
    np.testing.assert_allclose(fig8.comes_back(over), 1.0)  # no more than all of it


def test_rates_that_learn_nothing_are_no_rivals(tmp_path):
    idle = made(tmp_path / "idle", (0.1, 0.5, 0.9), (3.0, 2.0, FREQUENCIES))
    assert recorded.learned_at(idle, "sweep").tolist() == [True, True, False]
    finding = found(fig8.STUDY, idle, "fig8-pattern-of-the-best")
    assert finding.verdict == "holds"
    assert finding.details["rates"] == {"the best": 1e-2, "its control": 1e-3}
    alone = made(tmp_path / "alone", (0.1, 0.5, 0.1), (FREQUENCIES, 2.0, FREQUENCIES))
    assert (
        of(alone, "fig8-pattern-of-the-best")
        == of(alone, "fig8-large-rate")
        == of(alone, "fig8-pattern-and-loss")
        == "not run"
    )


def test_nothing_is_told_where_no_rate_learns(tmp_path):
    idle = made(tmp_path / "idle", (0.1, 0.9, 0.2), [FREQUENCIES - 0.04] * 3)
    for claim in ("fig8-pattern-of-the-best", "fig8-pattern-and-loss", "fig8-large-rate"):
        finding = found(fig8.STUDY, idle, claim)
        assert finding.verdict == "not run"
        assert finding.reason.startswith("only 0 of 3 rates learn more than how frequent words are")


def test_a_run_that_diverged_has_no_part_in_it(tmp_path):
    config = fig8.Fig8Config(**SMALL, rates=RATES, layers=2, seeds=4)
    back = np.repeat([0.1, 0.8, 0.2], 4)
    back[3::4] = [9.0, -9.0, 9.0]
    losses = np.repeat(LOSSES, 4)
    losses[3::4] = [0.1, 9.0, 0.1]
    entropy = down_and_up(np.ones((12, 2)), back[:, None])
    run = by_hand(tmp_path / "run", fig8.STUDY, config, {"sweep": (RATES, losses, entropy, [3, 7, 11], {})})
    finding = found(fig8.STUDY, run, "fig8-pattern-of-the-best")
    assert (finding.verdict, finding.main.seeds, finding.main.failed) == ("undecided", 3, 1)
    assert finding.details["diverged and left out"] == {f"runs at {rate:g}": 1.0 for rate in RATES}
    assert np.isnan(fig8.comes_back(run)[:, 3]).all()


SEVEN = tuple(1e-3 * 2**i for i in range(7))
SCORES = np.linspace(0.1, 0.7, 7)


def test_rank_correlation_needs_more_than_chance(tmp_path):
    cases = {"falling": (3 - SCORES, "holds"), "rising": (2 + SCORES, "fails")}
    for name, (losses, verdict) in cases.items():
        run = made(tmp_path / name, SCORES, losses, rates=SEVEN)
        assert of(run, "fig8-pattern-and-loss") == verdict
    mixed = made(tmp_path / "mixed", SCORES[[0, 1, 2, 3, 4, 6, 5]], 3 - SCORES[[3, 0, 5, 1, 6, 2, 4]], rates=SEVEN)
    assert of(mixed, "fig8-pattern-and-loss") == "undecided"
    # three rates can be put in order by chance, however many seeds there are
    three = made(tmp_path / "three", (0.1, 0.4, 0.7), (3.0, 2.5, 2.0))
    assert of(three, "fig8-pattern-and-loss") == "undecided"


def test_a_correlation_that_exchanged_rates_reach_is_not_above_its_control(tmp_path, monkeypatch):
    run = made(tmp_path / "run", SCORES, 3 - SCORES, rates=SEVEN)
    real = fig8.correlation
    assert real(fig8.comes_back(run), -recorded.best_loss(run, "sweep")).chance < 1
    for chance, verdict in ((0.9, "holds"), (1.0, "not above its control"), (np.nan, "not above its control")):
        monkeypatch.setattr(fig8, "correlation", lambda *rows, chance=chance: real(*rows)._replace(chance=chance))
        assert of(run, "fig8-pattern-and-loss") == verdict


def test_a_rate_that_learns_nothing_counts_among_all_runs(tmp_path):
    losses = np.append(3 - SCORES[:6], FREQUENCIES)
    finding = found(fig8.STUDY, made(tmp_path / "run", SCORES, losses, rates=SEVEN), "fig8-pattern-and-loss")
    assert finding.verdict == "undecided"
    assert finding.details["only rates that learn"]["correlation"] > 0.9
    assert finding.main.effect < 0.5


def test_a_correlation_that_cannot_be_worked_out_is_not_run(tmp_path):
    finding = found(fig8.STUDY, made(tmp_path / "run", (0.0, 0.0, 0.0), LOSSES, spread=0.0), "fig8-pattern-and-loss")
    assert finding.verdict == "not run"
    assert "cannot be computed" in finding.reason


@pytest.mark.parametrize(
    ("ends", "spread", "verdict"),
    [
        ((0.02, 0.1), 0.01, "holds"),
        ((0.02, 0.5), 0.01, "only qualitative"),  # of 2 nats, 0.5 is more than a tenth
        ((0.02, 1.9), 0.01, "mixed"),
        ((0.95, 0.97), 0.001, "only qualitative"),
        ((1.0, 1.0), 0.001, "not above its control"),
        ((0.3, 0.3), 0.6, "undecided"),
        ((1.9, 1.8), 0.01, "fails"),
    ],
)
def test_large_rates(tmp_path, ends, spread, verdict):
    last = np.ones((9, 2))
    last[6:] = np.array(ends) + spread * SEEDS[:, None]
    assert of(made(tmp_path / "run", (0.1, 0.1, 0.1), LOSSES, rises=last), "fig8-large-rate") == verdict


def test_the_largest_rate_is_one_that_learns(tmp_path):
    last = np.ones((9, 2))
    last[3:6] += 0.001 * SEEDS[:, None]
    last[6:] = 0.001
    run = made(tmp_path / "run", (0.1, 0.1, 0.1), (2.0, 2.5, FREQUENCIES), rises=last)
    finding = found(fig8.STUDY, run, "fig8-large-rate")
    assert finding.verdict == "not above its control"
    assert finding.details["rates"] == {"the largest that learns": 1e-2, "the best, its control": 1e-3}
    assert finding.details["lost at 0.1, which learns nothing"]["layer 1"] == pytest.approx(0.9995)


@pytest.mark.parametrize(
    ("losses", "spread", "verdict"),
    [
        ((2.5, 2.0, 2.1), 0.005, "holds"),
        ((2.5, 2.0, 2.01), 0.0005, "only qualitative"),
        ((2.5, 2.0, 2.0), 0.001, "not above its control"),
        ((2.5, 2.0, 2.1), 0.1, "undecided"),
        ((2.5, 2.0, 1.9), 0.005, "fails"),  # however far the others are behind
        ((2.5, 2.0, 1.99), 0.0005, "not above its control"),  # slightly reversed
    ],
)
def test_the_best_rate_is_the_printed_one(tmp_path, monkeypatch, losses, spread, verdict):
    run = made(tmp_path / "run", (0.1, 0.1, 0.1), losses)
    as_the_paper(monkeypatch, run.config)
    monkeypatch.setattr(_published, "differs", lambda config, **wanted: "")
    monkeypatch.setattr(fig8, "PRINTED_BEST", 1e-2)

    def noisy(name, step, value):
        noise = np.outer([0.0, 1.0, -1.0], spread * SEEDS).flatten()
        return value + noise if name == "sweep/valid/loss" else value

    assert of(changed(run, noisy), "fig8-best-rate") == verdict


def test_a_printed_rate_that_learned_nothing_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(_published, "differs", lambda config, **wanted: "")
    monkeypatch.setattr(_published, "not_wikitext_2", lambda run: "")
    monkeypatch.setattr(fig8, "PRINTED_BEST", 1e-2)
    run = made(tmp_path / "run", (0.1, 0.1, 0.1), (2.0, FREQUENCIES, 2.5))
    assert "learned only how frequent words are" in found(fig8.STUDY, run, "fig8-best-rate").reason


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rates": (1e-3, 1e-2, -1.0)}, "rates must not be negative"),
        ({"steps": 100, "every": 50}, "fewer than 12 points"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        fig8.Fig8Config(**changes)


def test_rank_correlations_of_many_draws_are_those_of_one_by_one():
    """Beside scipy; with ties, with numbers that are missing, and where nothing varies."""
    scipy_stats = pytest.importorskip("scipy.stats")
    luck = np.random.default_rng(0)
    first, second = luck.integers(5, size=(2, 30, 12)).astype(float)
    first[luck.random(first.shape) < 0.2] = np.nan
    second[luck.random(first.shape) < 0.1] = np.inf
    second[3] = 2.0
    together = fig8._spearmans(first, second)
    for row, (x, y) in enumerate(zip(first, second, strict=True)):
        both = np.isfinite(x) & np.isfinite(y)
        wanted = np.nan if row == 3 else scipy_stats.spearmanr(x[both], y[both]).statistic
        assert together[row] == pytest.approx(wanted, abs=1e-12, nan_ok=True)
