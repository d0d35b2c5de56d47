"""The study `forecast` on a made-up language: nothing is foretold from the future, and its judges can be turned."""

from functools import partial
from math import isfinite

import numpy as np
import pytest
import torch
from records import carried_out, changed, copied, found, verdicts
from small_runs import small as sizes

from joma.claims.execute import draw
from joma.data.text import Corpus
from joma.measure.forecast import backtest, persistence, skill
from joma.models import Decoder, DecoderConfig
from joma.probes.decoder import ensemble_entropy
from joma.recipes.language.curves import curve, steps_of
from joma.studies.rebound._points import spread_points
from joma.studies.rebound.forecast import entries, kept_runs
from joma.studies.rebound.forecast import record as scores
from joma.studies.rebound.forecast import study as forecast
from joma.studies.rebound.forecast.by_theory import Past, along_equation_6, drift, equation_6, logit_shift, tie, until
from joma.studies.rebound.forecast.history import histories, open_and_sealed
from joma.studies.rebound.forecast.run import (
    Words,
    _foretelling,
    entropy_after,
    look_at_words,
    words_of,
)
from joma.theory import salience

pytestmark = pytest.mark.usefixtures("no_other_text")
VARIANTS = ("Adam, 1 layer", "Adam, 2 layers", "SGD, 1 layer")
FOREVER = 1e6


@pytest.fixture(scope="module")
def small(small_run):
    return small_run("forecast")


def test_what_is_recorded(small):
    for variant in VARIANTS:
        layers = 2 if "2" in variant else 1
        assert small.value(f"{variant}/at").tolist() == [8, 11, 16, 23]
        for quantity in scores.QUANTITIES:
            assert small.value(f"{variant}/{quantity}/persistence").shape == (3, layers, 4)
    # the first forecast needs a past, and at the start there is none: the network as it is
    told = curve(small, VARIANTS[0], "words/entropy, corrected")[0]
    now = curve(small, VARIANTS[0], "valid/entropy")[0].mean(-1)
    np.testing.assert_allclose(told[:, 0], now[:, 0], atol=1e-6)
    assert np.abs(told[:, 3:] - now[:, 3:]).max() > 1e-6


@pytest.mark.parametrize("last", [8, pytest.param(16, marks=pytest.mark.long)])
def test_the_future_of_a_run_moves_none_of_its_forecasts(small, last):
    """All that was recorded of the first judged seed after step `last` is spoiled, as measures would have given it."""

    def spoil(name, step, value):
        if step <= last or not name.startswith(VARIANTS) or name.count("/") < 2:
            return value
        value = value.copy()
        value[2] = FOREVER  # the first that is judged
        return value

    spoiled = changed(small, spoil)
    for variant in VARIANTS:
        seeds = open_and_sealed(small, variant)
        told = partial(scores.entropy_forecasts, entries=entries.fitted(entries.Constants(0.7, 0.9, 0.6, 0.8)))
        for make in (told, scores.logit_forecasts):
            before, after = (make(run, variant, seeds, 8) for run in (small, spoiled))
            known = before[scores.PERSISTENCE].at <= last
            assert 0 < known.sum() < len(known)
            for name in before:
                same = torch.equal(before[name].made[0][..., known], after[name].made[0][..., known])
                assert same is not name.endswith("weights at 2t known"), name  # which is no forecast
                assert not torch.equal(before[name].truth[0][..., known], after[name].truth[0][..., known])


def test_what_theorem_1_foretells_while_training_is_what_the_record_says(small):
    """The entropy that was foretold at a step follows from the past in the record: the measure saw nothing else."""
    steps = steps_of(small, VARIANTS[0])
    past = scores.past_of_words(small, VARIANTS[0], np.arange(5))
    assert past.steps.tolist() == steps.tolist() == spread_points(4, 46)
    sizes, shares = (torch.from_numpy(small.value(f"words/{name}").copy()) for name in ("sizes", "shares"))
    shift = logit_shift(until(past, 4), 2 * steps[4], sizes, shares)
    again = logit_shift(until(past, 4)._replace(logits=past.logits[:5] * 2), 2 * steps[4], sizes, shares)
    torch.testing.assert_close(again, 2 * shift)  # the tie is fitted to the logits
    torch.testing.assert_close(
        (shares * past.logits).sum(-1), torch.zeros(len(steps), 5, 1).double(), atol=1e-6, rtol=0
    )


def with_errors(run, **by_name):
    """A copy in which squared errors are as given by forecaster, or by its seeds, relative to persistence: it has 1."""

    def change(name, step, value):
        parts = name.split("/")
        if name.endswith("/valid/loss"):
            return value * 0 + (9.0 if step == 0 else 0.1)  # they all learned
        if len(parts) < 3 or parts[1] not in scores.QUANTITIES:
            return value
        size = by_name.get(parts[2].replace(",", "").replace(" ", "_").replace(".", ""), 1.0)
        return np.reshape(size, (-1, 1, 1)) * np.ones_like(value) * (1 + 0.01 * np.arange(len(value)))[:, None, None]

    return changed(run, change)


NEARLY = np.array([0.999, 1.0, 1.001])  # as good as persistence, though no seed to the last digit


@pytest.mark.parametrize(
    ("claim", "name"),
    [("theorem-1-foretells", "Theorem_1"), ("equation-6-foretells", "eq_6")],
    ids=["theorem", "equation"],
)
def test_verdicts_turn_with_the_errors(small, claim, name):
    printed = f"{name}_as_printed"
    cases = {
        "holds": {printed: 0.5},
        "holds as corrected": {name: 0.5},
        "fails": {printed: 1.5, name: 1.5},
        "not above its control": {printed: NEARLY, name: NEARLY},
        "only qualitative": {printed: 0.95, name: 0.95},
    }
    for _place, (verdict, errors) in enumerate(cases.items()):
        run = with_errors(small, **errors)
        assert verdicts(forecast.STUDY, run)[claim] == verdict, errors
    for line in scores.CONTROLS:
        given = {printed: 0.5, name: 0.5, line.replace(",", "").replace(" ", "_"): 0.2}
        finding = found(forecast.STUDY, with_errors(small, **given), claim)
        assert finding.verdict == "fails"
        assert f"against {line}" in finding.measured
    worse = {line.replace(",", "").replace(" ", "_"): 3.0 for line in scores.CONTROLS}
    finding = found(forecast.STUDY, with_errors(small, **{printed: 1.5, name: 1.5}, **worse), claim)
    assert finding.verdict == "fails"  # better than straight lines, and worse than no change
    assert "against no change" in finding.measured
    early = with_errors(small, **{printed: 0.5, name: 0.5, "earlier_runs": 0.2})
    finding = found(forecast.STUDY, early, claim)
    assert finding.verdict == "holds"  # they saw other futures: a ceiling beside it, and no control
    assert "against earlier runs" not in finding.measured
    assert finding.details["skill with SGD, entropy"]["earlier runs"] == pytest.approx(0.8)


def test_the_law_is_held_against_every_control(small):
    law, claim = "focus_and_dilution", "focus-and-dilution-foretells"
    assert found(forecast.STUDY, with_errors(small, **{law: 0.5}), claim).verdict == "holds"
    assert found(forecast.STUDY, with_errors(small, **{law: 1.5}), claim).verdict == "fails"
    level = with_errors(small, **{law: NEARLY})
    assert found(forecast.STUDY, level, claim).verdict == "not above its control"
    for _place, control in enumerate((*scores.CONTROLS, *scores.FITTED)):
        given = {law: 0.5, control.replace(" ", "_"): 0.2}
        finding = found(forecast.STUDY, with_errors(small, **given), claim)
        assert finding.verdict == "fails"
        assert f"against {control}" in finding.measured
    worse = {control.replace(" ", "_"): 3.0 for control in (*scores.CONTROLS, *scores.FITTED)}
    finding = found(forecast.STUDY, with_errors(small, **{law: 1.5}, **worse), claim)
    assert finding.verdict == "fails"  # better than lines and trends, and worse than no change
    assert "against no change" in finding.measured
    better = found(forecast.STUDY, with_errors(small, **{law: 0.5, "damped_trend": 0.7}), claim)
    assert better.verdict == "holds"
    early = found(forecast.STUDY, with_errors(small, **{law: 0.5, "earlier_runs": 0.2}), claim)
    assert early.verdict == "holds"  # a ceiling, no control
    assert early.details["skill with SGD"]["earlier runs"] == pytest.approx(0.8)
    assert early.details["skill"][entries.LAW] == pytest.approx(0.5)
    assert early.details["constants"] == dict(
        zip(("line", "kept", "moved", "law"), small.value("constants").tolist(), strict=True)
    )


def test_constants_are_fitted_on_open_seeds_and_scores_are_of_the_others(small):
    """Spoiled judged seeds leave the constants; a spoiled open seed moves them."""
    runs = [one for variant in VARIANTS for one in histories(small, variant, open_and_sealed(small, variant)[0])]
    assert len(runs) == 6
    np.testing.assert_allclose(small.value("constants"), entries.fit(runs, 8))
    for variant in VARIANTS:
        assert open_and_sealed(small, variant) == ([0, 1], [2, 3, 4])
        truth = curve(small, variant, "valid/entropy")[0].mean(-1)[2:]  # (judged, points, layers)
        steps, at = steps_of(small, variant).tolist(), small.value(f"{variant}/at")
        for place, t in enumerate(at):
            if 2 * t in steps:
                still = truth[:, steps.index(t)] - truth[:, steps.index(2 * t)]
                kept = small.value(f"{variant}/entropy/persistence")[:, :, place]
                np.testing.assert_allclose(kept, still**2, atol=1e-9)
        earlier = curve(small, variant, "valid/entropy")[0].mean(-1)[:2].mean(0)
        told = truth[0, steps.index(16)] + earlier[steps.index(32)] - earlier[steps.index(16)]
        np.testing.assert_allclose(small.value(f"{variant}/told/earlier runs")[0, :, at.tolist().index(16)], told)


def test_late_steps_are_scored_apart(small, monkeypatch):
    monkeypatch.setattr(entries, "LATE", 16)

    def worse_early(name, step, value):
        if name.endswith("/valid/loss"):
            return value * 0 + (9.0 if step == 0 else 0.1)
        if f"/entropy/{entries.LAW}" in name:
            return np.broadcast_to(np.array([4.0, 4.0, 0.5, 0.5]), value.shape)
        return np.ones_like(value) if "/entropy/" in name and "words" not in name else value

    details = found(forecast.STUDY, changed(small, worse_early), "focus-and-dilution-foretells").details
    assert details["skill"][entries.LAW] == pytest.approx(1 - 2.25)
    assert details["skill from t = 16 on"][entries.LAW] == pytest.approx(0.5)
    assert details["above damped trend"]["skill"] == pytest.approx(-1.25)
    assert details["above damped line in log t from t = 16 on"]["skill"] == pytest.approx(0.5)


def test_networks_that_learned_nothing_foretell_nothing(small):
    idle = changed(small, lambda name, step, value: value + 9 * name.endswith("/valid/loss"))
    for finding in (found(forecast.STUDY, idle, claim) for claim in forecast.STUDY.claims):
        assert finding.verdict == "not run"
        assert "learned no more than how frequent words are" in finding.reason
    assert all("othing" in picture.caption or "No network" in picture.caption for picture in draw(forecast.STUDY, idle))


def test_a_seed_that_diverged_is_left_out(data_folder, tmp_path):
    config = sizes("forecast", data=str(data_folder), steps=32, layers=(1,), sgd_rate=1e30)
    run = carried_out(forecast.STUDY, config, tmp_path / "run")
    assert f"{VARIANTS[0]}/at" in run
    assert f"{VARIANTS[2]}/at" not in run  # all diverged
    for claim in forecast.STUDY.claims:
        assert found(forecast.STUDY, run, claim).details["diverged and left out"] == {"runs of SGD, 1 layer": 5.0}


LOST, OPEN, JUDGED = (VARIANTS[0], VARIANTS[2]), 0, 3
"""Two networks; one open and one judged seed, which diverge in the first of them."""


class unscored(changed):
    """A run as it was when its training had ended, but some of its seeds diverged."""

    def __init__(self, run):
        super().__init__(run, self.lose)

    def names(self):
        made = ("at", *scores.QUANTITIES, "told")
        return [name for name in self.run.names() if name != "constants" and (name + "/").split("/")[1] not in made]

    def lose(self, name, step, value):
        lost = name == f"{VARIANTS[0]}/diverged_at" and step > 0
        return np.where(np.isin(np.arange(len(value)), (OPEN, JUDGED)), 3, value) if lost else value


@pytest.fixture(scope="module")
def lost(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lost")
    run = copied(unscored(small), folder / "run.sqlite")
    with pytest.MonkeyPatch.context() as patch:  # what fits give is tested elsewhere, and takes its time
        patch.setattr(scores, "fit", lambda runs, first: learned.extend(runs) or entries.Constants(0.7, 0.9, 0.6, 0.8))
        learned = []
        scores.keep_scores(run, LOST, 8)
    assert len(learned) == 3, "one open seed of the first network, two of the other"
    return run


def test_seeds_that_diverged_teach_nothing_and_are_not_judged(small, lost):
    assert open_and_sealed(lost, VARIANTS[0]) == ([1], [2, 4])
    assert open_and_sealed(lost, LOST[1]) == ([0, 1], [2, 3, 4])
    for name in ("persistence", *scores.CONTROLS):
        now, before = (run.value(f"{VARIANTS[0]}/entropy/{name}") for run in (lost, small))
        assert np.isnan(now[1]).all(), "the place of a seed stays its own"
        np.testing.assert_allclose(now[[0, 2]], before[[0, 2]], rtol=1e-6)
    line, still = (small.value(f"{VARIANTS[0]}/entropy/{name}").mean((1, 2)) for name in ("linear in t", "persistence"))
    wanted = (still - line) / still[[0, 2]].mean()
    wanted[1] = np.nan
    np.testing.assert_allclose(scores.skill_of(lost, VARIANTS[:1], "entropy", "linear in t"), wanted, rtol=1e-5)


def test_the_benchmark_is_sealed_with_the_seeds_that_all_networks_have(small, lost, tmp_path):
    cases = (small, VARIANTS, [0, 1], [2, 3, 4]), (lost, LOST, [1], [2, 4])
    for place, (run, variants, opened, sealed) in enumerate(cases):
        folder = tmp_path / str(place)
        kept_runs.seal(run, folder, {"commit": "abc"})
        seal = kept_runs.seal_of(folder)
        assert (seal["first"], seal["commit"]) == (8, "abc")
        assert seal["constants"] == run.value("constants").tolist()
        for kept, seeds in ((kept_runs.open_runs(folder), opened), (kept_runs.sealed_runs(folder), sealed)):
            assert sorted(kept) == sorted(variants)
            for variant, some in kept.items():
                whole = run.array(f"{variant}/valid/entropy").mean(-1)[:, seeds]  # (points, seeds, layers)
                np.testing.assert_allclose(np.stack([one.entropy for one in some]), whole.transpose(1, 2, 0), rtol=1e-6)
                loss = np.stack([one.loss for one in some])
                np.testing.assert_allclose(loss, run.array(f"{variant}/valid/loss")[:, seeds].T, rtol=1e-6)


def test_members_in_groups_have_their_own_past(small):
    tokens = torch.arange(12).view(2, 6)
    words = Words(tokens, tokens.clamp(max=12), torch.from_numpy(small.value("words/sizes").copy()))
    measure = _foretelling(words, VARIANTS[0], small, [*spread_points(4, 46), 65])
    shape = DecoderConfig(vocabulary=40, width=8, mlp=8, context=6)
    with torch.no_grad():
        every, some = (measure(Decoder(shape, list(group)), group) for group in (range(5), [3, 1]))
    for what, values in some.items():
        torch.testing.assert_close(values, every[what][[3, 1]], msg=what)
    assert not torch.allclose(some["entropy, corrected"], every["entropy, corrected"][:2], atol=1e-6)


def test_words_are_those_that_are_frequent_in_the_training_text():
    train, valid = torch.tensor([3, 3, 3, 1, 1, 0, 2, 4]), torch.tensor([0, 0, 0, 2, 2, 1, 3, 4])
    text = Corpus("x", tuple("abcde"), {"train": train.int(), "valid": valid.int()}, "")
    words = words_of(text, torch.tensor([[0, 1, 2, 3, 4]]), 2)
    assert words.classes.tolist() == [[2, 1, 2, 0, 2]]
    assert words.sizes.tolist() == [1, 1, 3]


def test_words_and_entropy_of_a_network_by_hand():
    decoder = Decoder(DecoderConfig(vocabulary=5, width=8, mlp=8, layers=2, context=4), seeds=[0, 1])
    tokens = torch.tensor([[0, 1, 0, 3], [4, 0, 2, 0]])
    words = Words(tokens, tokens.clamp(max=2), torch.tensor([1.0, 1.0, 3.0]).double())
    with torch.no_grad():
        seen = look_at_words(decoder, words)
        still = entropy_after(decoder, words, torch.zeros(2, 2, 3))
        sharp = entropy_after(decoder, words, torch.tensor([50.0, 0.0, 0.0]).expand(2, 2, 3))
    torch.testing.assert_close(still, ensemble_entropy(decoder, tokens).mean(-1))
    # rows that see word 0 once have all on it, rows that see it twice choose between the two
    assert (sharp <= np.log(2) * 3 / 8 + 1e-6).all()
    torch.testing.assert_close(seen["attention"].sum(-1), torch.ones(2, 2).double())
    kept = {}
    decoder.requires_grad_(False)
    decoder.features(tokens, look=lambda layer, name, value: kept.update({(layer, name): value}))
    logits = kept[1, "logits"][0, :, 0]
    rows = [(s, q) for s in range(2) for q in range(1, 4)]
    ones = [logits[s, q, k] - logits[s, q, : q + 1].mean() for s, q in rows for k in range(q + 1) if tokens[s, k] == 1]
    assert seen["logits"][0, 1, 1].item() == pytest.approx(float(torch.stack(ones).mean()), abs=1e-5)
    x = decoder.embedding[0, 1] * 8**0.5 + decoder.sinusoids[1]
    through = decoder.qkv[0, 0, :, 16:] @ decoder.projection[0, 0] @ decoder.up[0, 0]  # the scale is 1 at the start
    assert seen["squares"][0, 0, 1].item() == pytest.approx(float((x @ through).square().sum()), rel=1e-4)


def test_logits_that_obey_theorem_1_are_foretold():
    steps = torch.tensor([0.0, 8, 11, 16, 23, 32, 64], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    growth = torch.rand(6, generator=generator, dtype=torch.float64)
    squares = 1 + growth * steps.clamp(min=1).log()[:, None]
    bbar = torch.softmax(torch.randn(6, generator=generator, dtype=torch.float64), -1)
    sizes, shares = torch.tensor([1.0] * 5 + [10.0]).double(), torch.full((6,), 1 / 6).double()
    logits = 0.7 * drift(squares - squares[0], bbar, sizes)
    logits = logits - (shares * logits).sum(-1, keepdim=True)
    past = Past(steps[:-1], logits[:-1], squares[:-1], bbar.expand(6, 6))
    assert float(tie(past, sizes, "corrected")) == pytest.approx(0.7)
    torch.testing.assert_close(logits[-2] + logit_shift(past, 64.0, sizes, shares), logits[-1])
    wrong = past._replace(attention=past.attention.flip(-1))
    assert (logits[-2] + logit_shift(wrong, 64.0, sizes, shares) - logits[-1]).abs().max() > 0.01


def test_attention_of_the_time_is_that_at_the_start_of_each_interval():
    """Logits moved interval by interval, with attention that changes: their tie is found again."""
    steps, draws = torch.tensor([0.0, 8, 16, 23, 32]).double(), torch.Generator().manual_seed(2)
    squares = torch.rand(5, 4, generator=draws).double().cumsum(0)
    attention = torch.softmax(2 * torch.randn(5, 4, generator=draws).double(), -1)
    sizes = torch.tensor([1.0, 1, 1, 6]).double()
    logits = [torch.zeros(4).double()]
    for n in range(4):
        grown = squares[n + 1] - squares[n]
        logits.append(logits[-1] + 0.7 * (grown - attention[n] / sizes * (grown * sizes).sum()) / 2)
    past = Past(steps, torch.stack(logits), squares, attention)
    assert float(tie(past, sizes, "corrected")) == pytest.approx(0.7)
    assert abs(float(tie(past, sizes, "printed")) - 0.7) > 0.01


def test_words_that_follow_equation_6_are_foretold():
    steps = torch.tensor([0.0, 8, 11, 16, 19, 23, 27, 32], dtype=torch.float64)
    mu, clock = torch.tensor([0.5, 1.0, 1.8]).double(), 0.01
    u = salience.trajectory(mu, steps * clock, v0=0.1)
    wanted = salience.trajectory(mu, [0.64], v0=0.1)[0]
    told = along_equation_6(steps, u[:, None], 64.0)[0]
    torch.testing.assert_close(told, wanted, atol=0.02, rtol=0)
    assert ((u[-1] - wanted).abs() > 0.08).all()  # they do move


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_entropies_that_follow_equation_6_are_foretold(scale):
    """Before, in and after the drop, for targets that are not on the grid of the fit."""
    steps = torch.cat([torch.zeros(1), 2 ** torch.arange(3, 10.5, 0.5)]).double()
    mu = torch.linspace(0.6, 3.1, 10, dtype=torch.float64)
    curves = torch.stack([salience.entropy_curve(mu, steps * clock, scale=scale) for clock in (0.0005, 0.001, 0.002)])
    still, told = (backtest(steps, curves, way, first=64) for way in (persistence, partial(equation_6, scale=scale)))
    assert skill(told.made, told.truth, still.made).mean() > 0.5
    assert not isfinite(float(equation_6(steps, curves[0] * torch.nan, 9.0, scale=scale)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first": 4}, "first must be at least 8, 2 times every, got 4"),
        ({"steps": 15}, "steps must be at least 16, 2 times first, got 15"),
        ({"open_seeds": 3}, "open_seeds must be 1 to 2, so that 3 of 5 seeds are left to judge, got 3"),
        ({"heads": 2}, "heads must be 1: with several the theorem does not say whose logits, got 2"),
    ],
)
def test_refusals(change, said):
    with pytest.raises(ValueError, match=said):
        sizes("forecast", **change)


def test_more_words_than_there_are(data_folder, tmp_path):
    config = sizes("forecast", words=40, data=str(data_folder))
    with pytest.raises(ValueError, match="words must be below 40, those of the vocabulary, got 40"):
        carried_out(forecast.STUDY, config, tmp_path / "run")
