"""The study of Scan and Snap: its verdicts, and that each follows the numbers of its claim and of its controls."""

import numpy as np
import pytest
import torch
from every_study import put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import altered, found, verdicts
from small_runs import small

from joma.studies.scan_snap.scan_snap.run import (
    ScanSnapConfig,
    dominant_growth,
    drawn_classes,
    frequencies,
    graded_classes,
    passes,
    phases,
    straight_line,
    without_common,
)
from joma.studies.scan_snap.scan_snap.study import STUDY, theorems
from joma.theory.scan_snap import ScanSnap

SMALL = small("scan-snap")
HOLDS, FIXED, FAILS, BLIND, SOME = "holds", "holds as corrected", "fails", "not above its control", "only qualitative"
TOKENS, OWN = 14, 5  # two classes of five distinct tokens, four common ones


def test_verdicts(run):
    of = verdicts(STUDY, run)
    assert {name: verdict for name, verdict in of.items() if not name.startswith("sgd")} == {
        "common-tokens-lose": FIXED,
        "distinct-tokens-gain": HOLDS,
        "frequent-tokens-grow-faster": HOLDS,
        "relative-gain": HOLDS,
        "one-gain-for-all": FIXED,
        "gain-bounds": FIXED,
        "transition-time": HOLDS,
        "late-growth": BLIND,
        "late-slope": SOME,
        "larger-rates-larger-growth": HOLDS,
        "faster-decoder-denser-attention": SOME,
        "attention-sparser": SOME,
        "attention-frozen": BLIND,
    }


LATE = (slice(None), slice(None), slice(TOKENS, TOKENS + OWN))  # B of the recorded flows


def growth(change):
    def changed(path):
        path = np.array(path)
        path[..., TOKENS : TOKENS + OWN] = change(path[..., TOKENS : TOKENS + OWN])
        return path

    return changed


def even_gain(path):
    path, p = np.array(path), graded_classes(2, 5, 4)[0, :5].numpy()
    clock = 1 - np.exp(-2 * path[..., 4:5])
    path[..., :5] = -np.log1p(-clock * (p / p[-1]) ** 2) / 2
    return path


def early(path):
    return put((..., -2), 0.9)(path)


def rare_first(z):
    first, second, common = z[..., :OWN], z[..., OWN : 2 * OWN], z[..., 2 * OWN :]
    return np.concatenate([first[..., ::-1], second[..., ::-1], common], -1)


SPOILED = [
    ("alike/z", put((-1, 0, -1), 0.1), "common-tokens-lose", FAILS),
    ("alike/z", put((-1, 0, -1), np.nan), "common-tokens-lose", "undecided"),
    ("skewed/z", lambda z: -np.abs(z), "common-tokens-lose", HOLDS),
    ("alike/z", put((1, 0, -1), 0.1), "common-tokens-lose", FAILS),  # early, and not at the end
    ("alone/z", put((-1, 0, 0), 0.01), "common-tokens-lose", BLIND),
    ("alone/z", put((1, 0, 0), -0.01), "common-tokens-lose", BLIND),
    ("alike/z", put((-1, 0, 0), -0.1), "distinct-tokens-gain", FAILS),
    ("alike/z", put((1, 0, 0), -0.1), "distinct-tokens-gain", FAILS),
    ("alone/z", put((-1, 0, 0), 0.01), "distinct-tokens-gain", BLIND),
    ("alike/z", lambda z: -z, "frequent-tokens-grow-faster", FAILS),
    ("alike/z", lambda z: z[::-1], "frequent-tokens-grow-faster", HOLDS),  # falls in time, and is in order
    ("alike/z", rare_first, "frequent-tokens-grow-faster", FAILS),  # rises in time, and is not
    ("alike/z", put((1, 0, slice(2 * OWN)), np.arange(2.0 * OWN, 0, -1)), "frequent-tokens-grow-faster", FAILS),
    ("alone/z", put((-1, 0, 0), 0.01), "frequent-tokens-grow-faster", BLIND),
    ("premise/gain", put((0, 0), 1.0), "relative-gain", FAILS),
    ("premise/gain", put((0, -2), np.nan), "relative-gain", "undecided"),
    ("premise/gain", lambda gain: np.concatenate([gain[:, :-1], gain[:, -2:-1]], 1), "relative-gain", BLIND),
    ("ratio/path", even_gain, "one-gain-for-all", HOLDS),
    ("ratio/path", growth(lambda b: 0.3 * b), "gain-bounds", HOLDS),
    ("ratio/path", growth(lambda b: 3 * b), "gain-bounds", FAILS),
    ("transition/time", lambda t: 3 * t, "transition-time", FAILS),
    ("transition/time", lambda t: t / 5, "transition-time", FAILS),
    ("transition/time", lambda t: 0 * t + 4 * 4.5, "transition-time", BLIND),
    ("transition/time", put(0, np.nan), "transition-time", "undecided"),
    ("ratio/path", growth(lambda b: b[::-1]), "late-slope", FAILS),
    ("equal/path", lambda path: path[:, ::-1], "larger-rates-larger-growth", FAILS),
    ("equal/path", early, "larger-rates-larger-growth", FAILS),
    ("fixed/path", lambda path: path[:, ::-1], "faster-decoder-denser-attention", FAILS),
    ("ratio/path", lambda path: -path, "attention-sparser", FAILS),
    ("ratio/path", growth(lambda b: np.arange(len(b))[:, None, None] ** 3.0 + 0 * b), "attention-frozen", BLIND),
]


def test_a_share_counts_tokens_of_all_times_and_draws(run):
    steps, draws, _ = run.value("alike/z").shape
    copy = altered(run, "alike/z", put((1, 0, 0), -1.0))
    (test,) = found(STUDY, copy, "distinct-tokens-gain").printed.tests
    assert test.value == pytest.approx(1 - 1 / (steps * draws * 2 * OWN), abs=1e-12)
    (test,) = found(STUDY, copy, "frequent-tokens-grow-faster").printed.tests
    p = run.value("alike/p")[0, 0, :OWN]
    assert test.value == pytest.approx(1 - (p[0] != p.min()) / (steps * draws * 2 * (OWN - 1)), abs=1e-12)
    (test,) = found(STUDY, altered(run, "alike/z", put((1, 1, -1), 1.0)), "common-tokens-lose").corrected.tests
    assert test.value == pytest.approx(1 - 1 / (steps * draws * 4), abs=1e-12)


def printed_growth(run, slope=1.0):
    t, ratios = run.value("ratio/t"), run.value("ratio/ratios")
    log = np.log(1000 * t / 2) ** 2
    return np.log(2.0 + 4 * slope * ratios * log[:, None])[..., None]


def test_the_printed_law_would_be_recognised(run):
    law = printed_growth(run)
    of = verdicts(STUDY, altered(run, "ratio/path", growth(lambda b: law + 0 * b)))
    assert of["late-growth"] == HOLDS
    assert of["late-slope"] == HOLDS


def test_a_growth_that_stops_is_frozen(run):
    def stops(b):
        t = run.value("ratio/t")
        return np.minimum(t, 50.0)[:, None, None] + 0 * b

    assert verdicts(STUDY, altered(run, "ratio/path", growth(stops)))["attention-frozen"] == HOLDS


def test_a_sharper_attention_is_sparse(run):
    def sharper(path):
        path = np.array(path)
        path[..., :TOKENS] *= 20
        return path

    assert verdicts(STUDY, altered(run, "ratio/path", sharper))["attention-sparser"] == HOLDS


def sgd(values):
    def change(z):
        z = np.array(z)
        z[-1] = np.concatenate([values[0], values[0], values[1]]) + 1e-6 * np.arange(z.shape[-2])[:, None]
        return z

    return change


RISING, LOW = np.arange(1.0, 6.0), -np.ones(4)


SPOILED = [
    ("sgd/z", sgd((RISING, LOW)), "sgd-common-tokens-lose", HOLDS),
    ("sgd/z", sgd((RISING, [-1, -1, -1, 1])), "sgd-common-tokens-lose", SOME),
    ("sgd/z", sgd((RISING, -LOW)), "sgd-common-tokens-lose", FAILS),
    ("sgd/z", sgd((RISING, LOW)), "sgd-distinct-tokens-gain", HOLDS),
    ("sgd/z", sgd((RISING - 1.5, LOW)), "sgd-distinct-tokens-gain", SOME),
    ("sgd/z", sgd((-RISING, LOW)), "sgd-distinct-tokens-gain", FAILS),
    ("sgd/z", sgd((RISING, LOW)), "sgd-frequent-tokens-grow-faster", HOLDS),
    ("sgd/z", sgd((-RISING, LOW)), "sgd-frequent-tokens-grow-faster", FAILS),
]


def test_labels_that_say_nothing_must_not_do_the_same(run):
    good = sgd((RISING, LOW))
    both = altered(altered(run, "sgd/z", good), "sgd shuffled/z", good)
    of = verdicts(STUDY, both)
    assert {of[name] for name in of if name.startswith("sgd")} == {"undecided"}  # no room below the ceiling


def test_rates_are_a_clock(run):
    assert theorems.same_clock(run) < 1e-7
    beside = found(STUDY, run, "larger-rates-larger-growth").details
    assert beside["rates only set the clock"]["largest difference of B at equal rate × time"] < 1e-7


@pytest.mark.long
def test_the_phase_plot_is_what_each_pair_of_rates_gives(run):
    """One flow per ratio serves a whole diagonal: compare with a flow of its own."""
    growth_there = phases(run)["growth"]
    rates = run.value("phase/rates")
    assert rates.tolist() == pytest.approx([0.5, 8.0])
    p = graded_classes(2, 5, 4)
    for i, j in ((0, 1), (1, 1), (1, 0)):
        own = ScanSnap(p, vocabulary=1000, rate_y=float(rates[i]), rate_z=float(rates[j]))
        path = own.solve([1000.0], rtol=1e-8, atol=1e-10)
        assert growth_there[i, j] == pytest.approx(path.growth[0, 0, 4].item(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"vocabulary": 1}, "vocabulary must be at least classes, 2, got 1")],
)
def test_bad_options_get_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ScanSnapConfig(**options)


def test_classes_are_probabilities_and_their_tokens_where_they_should_be():
    p = graded_classes(3, 4, 2)
    assert p.shape == (3, 14)
    torch.testing.assert_close(p.sum(-1), torch.ones(3).double())
    assert ((p > 0).sum(0) == torch.tensor([1] * 12 + [3] * 2)).all()
    alone = without_common(p, 4)
    torch.testing.assert_close(alone.sum(-1), torch.ones(3).double())
    assert ((alone > 0).sum(0) == 1).all()
    skewed = drawn_classes(2, 3, 4, 2, skew=1.0, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(skewed.sum(-1), torch.ones(2, 3).double())
    assert skewed[:, 0, -1].ne(skewed[:, 1, -1]).all()


def test_drawn_sequences_have_the_frequencies_of_their_class():
    p = graded_classes(2, 3, 2)
    x, which = frequencies(p, 400, 2, 50, generator=torch.Generator().manual_seed(0))
    assert x.shape == (400, 2, 8)
    torch.testing.assert_close(x.sum(-1), torch.ones(400, 2).double())
    for n in range(2):
        np.testing.assert_allclose(x[which == n].mean(0), p[n], atol=0.01)


def test_a_straight_line_and_a_crossing():
    x = np.arange(5.0)
    assert straight_line(x, 2 + 3 * x) == pytest.approx((2, 3, 0), abs=1e-12)
    assert straight_line(x, (-1) ** x)[2] > 0.4
    crossed = passes(np.array([0.0, 1.0, 2.0]), np.array([[0.0, 0.0, 0.9], [0.25, 0.0, 0.9], [0.75, 0.4, 0.9]]))
    assert crossed[0] == pytest.approx(1.5)
    assert np.isnan(crossed[1:]).all()


def test_growth_is_that_of_the_most_frequent_token(run):
    path = run.value("ratio/path")
    np.testing.assert_array_equal(dominant_growth(run, "ratio"), path[..., TOKENS + OWN - 1])


def test_transitions_are_timed_at_the_rates_that_are_told(run):
    """At the recorded time the right output of class 1 is as likely as not, with eta_Y = K/4 and eta_Z = K/400."""
    for (classes, words, rate), time in zip(run.value("transition/cases"), run.value("transition/time"), strict=True):
        assert rate == classes / 4
        p = graded_classes(int(classes), SMALL.distinct, SMALL.common)
        t = torch.tensor([0.0, 0.5, 1.0]).double() * float(time)
        path = (model := ScanSnap(p, vocabulary=int(words), rate_y=rate, rate_z=rate / 100)).solve(t)
        assert float(model.predicted(path.y, path.z)[-1, 0, 0]) == pytest.approx(0.5, abs=8e-5)


def test_the_margin_is_over_an_output_that_never_follows(run):
    """Logits are f . y: that of class 1 after its own sequences, minus that of the last output."""
    model = ScanSnap(
        graded_classes(2, SMALL.distinct, SMALL.common), vocabulary=SMALL.vocabulary, rate_z=torch.tensor(SMALL.ratios)
    )
    path = model.solve(torch.from_numpy(run.value("ratio/t"))[[0, 60, 120]])
    f, y = model.attended(path.z)[:, :, 0].numpy(), path.y.numpy()[:, :, 0] if path.y.ndim == 5 else path.y.numpy()
    never = [[(f[i, j] * y[i, j, :, -1]).sum() for j in range(3)] for i in range(3)]
    own = [[(f[i, j] * y[i, j, :, 0]).sum() for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(run.value("ratio/path")[[0, 60, 120], :, -1], np.subtract(own, never), rtol=1e-4)
