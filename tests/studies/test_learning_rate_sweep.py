"""Figure 8 on a made-up language: what is recorded, what is judged, and that its judges can be turned."""

import numpy as np
import pytest
from records import HOLDS, carried_out, changed, found, verdicts
from small_language_models import SMALL, untrained

from joma.studies import _language_model_curves as recorded
from joma.studies import learning_rate_sweep as fig8
from joma.studies.drawing import house_style
from joma.studies.execute import draw, execute

pytestmark = pytest.mark.usefixtures("no_other_text")


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """A judge draws anew each time it is asked, and these cases are clear enough for few draws."""
    monkeypatch.setattr(fig8, "RESAMPLES", 200)


@pytest.fixture(scope="module")
def sweep(data_folder, tmp_path_factory):
    config = fig8.Config(**SMALL, data=str(data_folder), layers=2, rates=(0.3, 1e-3, 0.02))
    return carried_out(fig8.STUDY, config, tmp_path_factory.mktemp("fig8") / "run.sqlite")


def test_members_are_rates_and_then_seeds(sweep):
    assert sweep.value("sweep/rates").tolist() == [1e-3, 0.02, 0.3]
    assert sweep.value("sweep/seeds").tolist() == [1, 2, 3]
    start = recorded.curve(sweep, "sweep", "valid/loss")[..., 0]
    np.testing.assert_allclose(start[0], start[1], rtol=1e-6)  # one seed, one start, whatever the rate
    assert len(np.unique(start[0].round(6))) == 3


def test_verdicts_of_small_runs(sweep):
    of = verdicts(fig8.STUDY, sweep)
    assert set(of) == {claim.name for claim in fig8.STUDY.claims}
    assert {name for name, verdict in of.items() if verdict == "not run"} == {"fig8-best-rate", "fig8-curves"}


def test_an_untrained_network_holds_nothing(sweep, tmp_path):
    still = untrained(sweep, tmp_path / "still")
    assert not HOLDS & set(verdicts(fig8.STUDY, still).values())


def test_a_rate_that_diverges_is_marked_and_the_sweep_goes_on(data_folder, tmp_path):
    config = fig8.Config(**SMALL, data=str(data_folder), layers=1, rates=(1e-3, 0.02, 1e30))
    run = carried_out(fig8.STUDY, config, tmp_path / "run.sqlite")
    assert recorded.alive(run, "sweep").tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert np.isfinite(recorded.best_loss(run, "sweep")[:2]).all()
    said = found(fig8.STUDY, run, fig8.TOGETHER).measured
    assert "over 6 runs" in said
    assert "diverged and left out: 3 of 3 runs at 1e+30" in said
    assert "nan" not in found(fig8.STUDY, run, fig8.PATTERN).measured
    largest = found(fig8.STUDY, run, fig8.LARGE)  # the best rate is no control of itself
    assert largest.verdict == "not run"
    assert "the largest rate that does not diverge, 0.02, has the lowest loss" in largest.measured
    assert len(draw(fig8.STUDY, run)) == 1
    everything = fig8.Config(**SMALL, data=str(data_folder), layers=1, rates=(1e28, 1e29, 1e30))
    result = execute(fig8.STUDY, everything, tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert result.run.exists()  # what was trained is not thrown away
    assert "3 of 3 runs at 1e+30; run it with: lower --rates" in result.findings[0].measured


def sweep_like(scores, losses):
    """Entropy that falls from 2 to 1 and comes back by the rate's score; the rate's loss."""

    def change(name, step, value):
        each = np.repeat(np.array(scores), 3)
        noise = 1e-3 * np.random.default_rng(step).standard_normal(value.shape)
        if name == "sweep/valid/entropy":
            level = 2 - min(step, 24) / 24 + max(step - 24, 0) / 24 * each
            return level[:, None, None] + noise
        if name == "sweep/valid/loss":
            return np.repeat(np.array(losses), 3) + noise + (5.0 if step == 0 else 0.0)
        return value

    return change


def test_the_pattern_of_the_best_rate(sweep, tmp_path):
    cases = {
        (0.1, 0.8, 0.2): "holds",
        (0.1, 0.5, 0.9): "not above its control",
        (0.1, 0.5, 0.5): "not above its control",
        (0.0, 0.0, 0.0): "not above its control",
    }
    for scores, verdict in cases.items():
        run = changed(sweep, tmp_path / f"{scores}", sweep_like(scores, (3.0, 2.0, 2.5)))
        assert verdicts(fig8.STUDY, run)["fig8-pattern-of-the-best"] == verdict
        np.testing.assert_allclose(fig8.comes_back(run).mean(-1), scores, atol=0.06)


def test_rank_correlation_needs_more_than_chance(data_folder, sweep, tmp_path):
    rates = tuple(1e-3 * 2**i for i in range(7))
    config = fig8.Config(**SMALL | {"steps": 44}, data=str(data_folder), layers=1, rates=rates)
    run = carried_out(fig8.STUDY, config, tmp_path / "seven")
    scores = np.linspace(0.1, 0.7, 7)
    for losses, verdict in ((3 - scores, "holds"), (2 + scores, "not above its control")):
        made = changed(run, tmp_path / f"{losses[0]}", sweep_like(scores, losses))
        assert verdicts(fig8.STUDY, made)["fig8-pattern-and-loss"] == verdict
    # three rates can be put in order by chance, however many seeds there are
    three = changed(sweep, tmp_path / "three", sweep_like((0.1, 0.4, 0.7), (3.0, 2.5, 2.0)))
    assert verdicts(fig8.STUDY, three)["fig8-pattern-and-loss"] == "not above its control"


def test_rates_that_learn_nothing_are_told_apart(data_folder, sweep, tmp_path):
    """They are no rival of the best rate, and the correlation is also given without them."""
    frequencies = float(sweep.value("sweep/loss by frequency"))
    idle = changed(
        sweep, tmp_path / "idle", sweep_like((0.1, 0.5, 0.9), (frequencies - 1, frequencies - 2, frequencies))
    )
    assert recorded.learned_at(idle, "sweep").tolist() == [True, True, False]
    assert verdicts(fig8.STUDY, idle)["fig8-pattern-of-the-best"] == "holds"
    assert "without" not in found(fig8.STUDY, idle, fig8.TOGETHER).measured  # two rates can always be put in order
    rates = tuple(1e-3 * 2**i for i in range(7))
    config = fig8.Config(**SMALL | {"steps": 44}, data=str(data_folder), layers=1, rates=rates)
    run = carried_out(fig8.STUDY, config, tmp_path / "seven")
    scores = np.linspace(0.1, 0.7, 7)
    losses = np.append(frequencies - 1 - scores[:6], frequencies)
    said = found(fig8.STUDY, changed(run, tmp_path / "one idle", sweep_like(scores, losses)), fig8.TOGETHER)
    assert said.verdict == "not above its control"
    assert "without 0.064, where only frequencies are learned: -0.9" in said.measured


def test_large_rates(sweep, tmp_path):
    def at_the_end(*layers):
        def change(name, step, value):
            if name != "sweep/valid/entropy" or step == 0:
                return value
            value = value.copy()
            value[6:] = np.array(layers)[None, :, None]  # the largest rate
            value[:6] = 1.0
            return value

        return change

    for layers, verdict in (((0.01, 0.02), "holds"), ((0.01, 2.0), "only qualitative"), ((0.5, 2.0), "fails")):
        run = changed(sweep, tmp_path / f"{layers}", at_the_end(*layers))
        assert verdicts(fig8.STUDY, run)["fig8-large-rate"] == verdict


def test_figures(sweep):
    with house_style():
        assert [d.name for d in fig8.draw(sweep)] == ["learning-rate-sweep"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rates": (1e-3, 1e-2, -1.0)}, "rate must be finite and not negative"),
        ({"rates": (1e-3, 1e-3, 1e-2)}, "at least three different"),
        ({"steps": 100, "every": 50}, "fewer than 12 points"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        fig8.Config(**changes)


def test_spearman():
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((2, 30))
    x[:5] = x[5]
    scipy = pytest.importorskip("scipy.stats")
    assert fig8.spearman(x, y) == pytest.approx(scipy.spearmanr(x, y).statistic)
    assert np.isnan(fig8.spearman(x, np.ones(30)))


def test_nothing_favourable_where_no_rate_learns(sweep, tmp_path):
    frequencies = float(sweep.value("sweep/loss by frequency"))
    idle = changed(sweep, tmp_path / "idle", sweep_like((0.1, 0.9, 0.2), [frequencies] * 3))
    assert verdicts(fig8.STUDY, idle)["fig8-pattern-of-the-best"] == "not above its control"


def test_a_correlation_that_cannot_be_worked_out_is_not_run(sweep, tmp_path):
    def flat(name, step, value):
        return np.full_like(value, 2.0) if name == "sweep/valid/entropy" else value

    finding = found(fig8.STUDY, changed(sweep, tmp_path / "flat", flat), fig8.TOGETHER)
    assert finding.verdict == "not run"
    assert "cannot be worked out" in finding.measured
