"""The benchmark of forecasts: entries against curves that they must foretell, and nobody sees a future.

Histories are made here by hand; what the law must say of them is computed anew, with integrals over samples.
"""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from joma.host.errors import BadInput, FileError
from joma.measure.forecast import skill
from joma.runs import Run
from joma.studies.rebound.forecast import kept_runs
from joma.studies.rebound.forecast.board import score, standing
from joma.studies.rebound.forecast.entries import (
    LATE,
    SHARES,
    _best_share,
    _entropy,
    came,
    damped_line,
    fit,
    fitted,
    focus_and_dilution,
    made,
    no_change,
    trend,
)
from joma.studies.rebound.forecast.history import History

STEPS = np.array([0, *(round(8 * 2 ** (n / 2)) for n in range(17))], dtype=float)  # to 2,048
FIRST = 64
ROOT = Path(__file__).parents[3]


def sampled_entropy(variance, n_keys, draws=4000):
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for n in range(1, n_keys + 1):
        p = (torch.randn(draws, n, generator=generator, dtype=torch.float64) * variance**0.5).softmax(-1)
        total += float(torch.special.entr(p).sum(-1).mean())
    return total / n_keys


def history(seed=0, layers=2, entropy=None, n_keys=6, **fields):
    place = np.log1p(STEPS)[None] / 8
    level = 1 + 0.1 * np.arange(layers)[:, None] + 0.05 * seed
    plain = {
        "entropy": 1.4 - 0.5 * level * place * np.exp(-2 * place),
        "variance": 0.1 + place * level,
        "shared": 0.05 + 0.5 * place * level,
        "specific": 0.05 + 0.3 * place * level,
        "cross": 0.1 * place * level,
        "growth": 1 + place * level,
        "alignment": 0.1 + place * level,
        "mean_share": 0.3 + 0.2 * place * level,
        "rank": 20 - 5 * place * level,
    }
    plain |= {} if entropy is None else {"entropy": entropy}
    return History("Adam", n_keys, STEPS, 6 - place[0], **plain | fields)


def networks(layers=2, seeds=4):
    return {f"Adam, {layers} layers": [history(seed, layers) for seed in range(seeds)]}


def test_the_past_holds_nothing_of_the_future():
    whole = history()
    past = whole.until(91)
    assert past.steps.tolist() == [0, 8, 11, 16, 23, 32, 45, 64, 91]
    for name in (
        "loss",
        "entropy",
        "variance",
        "shared",
        "specific",
        "cross",
        "growth",
        "alignment",
        "mean_share",
        "rank",
    ):
        part = getattr(past, name)
        assert part.shape[-1] == 9
        assert part.base is None  # no view, through which the rest could be reached
        np.testing.assert_array_equal(part, getattr(whole, name)[..., :9])
    assert past.n_layers == 2


def test_no_entry_moves_with_the_future():
    whole = history()
    for entry in standing((0.5, 0.9, 0.6, 0.7)).values():
        told = made(entry, whole, FIRST)
        for last in (64, 512):
            after = whole.steps > last
            spoiled = {name: np.where(after, 9.0, getattr(whole, name)) for name in ("entropy", "shared", "mean_share")}
            again = made(entry, whole._replace(**spoiled), FIRST)
            known = np.array([t for t in STEPS if FIRST <= t <= STEPS[-1] / 2]) <= last
            assert 0 < known.sum() < len(known)
            np.testing.assert_array_equal(told[:, known], again[:, known])
            assert not np.allclose(told[:, ~known], again[:, ~known])


def test_the_law_by_hand():
    given = history(layers=1, n_keys=5)
    past = given.until(128)
    x, recent = np.log(past.steps[1:]), past.steps[1:] >= 63

    def ahead(values, share):
        slope = np.polyfit(x[recent], values[recent], 1)[0]
        return values[-1] + share * slope * np.log(2)

    a2, shared, specific, cross = (getattr(past, name)[0, 1:] for name in ("mean_share", "shared", "specific", "cross"))
    for share in (0.0, 0.6, 1.0):
        stored = ahead(np.log(shared / (a2 * (1 - a2))), share), ahead(np.log(specific / (1 - a2) ** 2), share)
        logit = ahead(np.log(a2 / (1 - a2)), share)
        then = np.exp(logit) / (1 + np.exp(logit))
        parts = np.exp(stored[0]) * then * (1 - then), np.exp(stored[1]) * (1 - then) ** 2
        correlation = cross[-1] / (2 * np.sqrt(shared[-1] * specific[-1]))
        variance = sum(parts) + 2 * correlation * np.sqrt(parts[0] * parts[1])
        now = shared[-1] + specific[-1] + cross[-1]
        wanted = past.entropy[0, -1] + sampled_entropy(variance, 5) - sampled_entropy(now, 5)
        assert focus_and_dilution(past, 128, share=share)[0] == pytest.approx(wanted, abs=1e-3)
    assert focus_and_dilution(past, 128, share=0.0)[0] == pytest.approx(past.entropy[0, -1], abs=1e-12)


def test_dilution_raises_entropy_and_focus_lowers_it():
    """The mean of the input falls: shared logits fade and entropy rises. More is stored: entropy falls."""
    still = {name: np.full((1, len(STEPS)), value) for name, value in (("cross", 0.0), ("specific", 1e-3))}
    share = 0.4 - 0.04 * np.log1p(STEPS)[None]
    faded = history(layers=1, mean_share=share, shared=3 * share * (1 - share), **still).until(256)
    grown = history(
        layers=1, mean_share=np.full((1, len(STEPS)), 0.3), shared=0.1 * (1 + np.log1p(STEPS))[None], **still
    ).until(256)
    assert focus_and_dilution(faded, 256, share=1.0)[0] > faded.entropy[0, -1] + 0.01
    assert focus_and_dilution(grown, 256, share=1.0)[0] < grown.entropy[0, -1] - 0.01


@pytest.mark.parametrize("variance", [0.0, 0.03, 1.0, 6.0, 80.0])
def test_entropy_of_gaussian_logits_by_drawing(variance):
    found = float(_entropy(np.array([variance]), history(n_keys=7))[0])
    assert found == pytest.approx(sampled_entropy(variance, 7), abs=6e-3)


def test_lines_and_trends_foretell_their_own_curves():
    logarithm = np.log(np.maximum(STEPS, 1))
    bent = history(entropy=np.stack([3 - 0.2 * logarithm, 2 + 0.1 * logarithm]))
    np.testing.assert_allclose(
        made(partial(damped_line, share=1.0), bent, FIRST)[:, :-2], came(bent, FIRST)[:, :-2], atol=2e-3
    )
    np.testing.assert_array_equal(made(partial(damped_line, share=0.0), bent, FIRST), made(no_change, bent, FIRST))
    past = bent.until(64)
    start, half, now = past.entropy[:, 0], past.entropy[:, past.steps == 32][:, 0], past.entropy[:, -1]
    wanted = start + 0.8 * (now - start) + 0.3 * (now - half)
    np.testing.assert_allclose(trend(past, 64, kept=0.8, moved=0.3), wanted)


def test_constants_are_found_again():
    doublings = np.log2(np.maximum(STEPS, 8) / 8)
    halving = history(entropy=np.stack([1 + 2.0**-doublings, 1 + 2 * 2.0**-doublings]))
    constants = fit([halving], FIRST)
    slope = np.polyfit(np.log2([4, 4 * 2**0.5, 8]), 2.0 ** -np.log2([0.5, 0.5 * 2**0.5, 1]), 1)[0]
    assert constants.line == pytest.approx(-0.5 / slope, abs=0.05)
    away = 2.0 ** -doublings[doublings >= 3] - 1  # of the curve from its start, at t; at t/2 and 2t it is known from it
    best = np.linalg.lstsq(
        np.stack([away, -(2.0 ** -doublings[doublings >= 3])], 1), away - (away + 1) / 2, rcond=None
    )[0]
    assert (constants.kept, constants.moved) == pytest.approx(tuple(best), rel=0.05)
    shared = history(1)
    steps = [t for t in STEPS if t >= FIRST]
    told = {2 * t: focus_and_dilution(shared.until(t), t, share=0.8) - shared.until(t).entropy[:, -1] for t in steps}
    assert set(SHARES) >= {0.0, 1.0}
    assert told  # the law says something else than no change
    assert max(np.abs(change).max() for change in told.values()) > 0.005


def test_the_law_is_fitted_where_it_holds():
    """Entropy that moves exactly as the variance says, with slopes that stay: the share is 1, and skill is high."""
    place = np.log(np.maximum(STEPS, 4))[None] / 8
    share, stored = 1 / (1 + np.exp(2 - place)), (np.exp(-2 + 2 * place), np.exp(-3 + place))
    shared, specific = stored[0] * share * (1 - share), stored[1] * (1 - share) ** 2
    parts = {"mean_share": share, "shared": shared, "specific": specific, "cross": 0 * share}
    bare = history(layers=1, **parts)
    entropy = _entropy((shared + specific)[0], bare)[None]
    true = bare._replace(entropy=entropy)
    constants = fit([true], FIRST)
    assert constants.law == pytest.approx(1.0)
    found = score(fitted(constants)["focus and dilution"], "law", {"Adam, 1 layer": [true] * 3}, first=FIRST)
    assert found.skill.value > 0.95


def test_constants_are_those_of_all_runs_together():
    place = np.log(np.maximum(STEPS, 4))[None] / 8
    share, stored = 1 / (1 + np.exp(2 - place)), np.exp(-2 + 2 * place)
    shared = stored * share * (1 - share)
    parts = {"mean_share": share, "shared": shared, "specific": 0 * share + 1e-3, "cross": 0 * share}
    moves = history(layers=1, entropy=np.array([[sampled_entropy(float(v), 6) for v in shared[0] + 1e-3]]), **parts)
    still = history(layers=1, entropy=np.full((1, len(STEPS)), 1.2), **parts)
    first, second = fit([moves, still], 512), fit([still, moves], 512)
    assert first == pytest.approx(second)
    assert 0.3 < first.law < 0.8
    # both are straight lines in log t from here on: of one the slope stays, of the other it is gone
    line = history(entropy=np.stack([np.log(np.maximum(STEPS, 1)), -np.log(np.maximum(STEPS, 1))]))
    past = np.where(STEPS < 1024, np.log(np.maximum(STEPS, 1)), np.log(1024))
    bent = history(entropy=np.stack([past, past]))
    at = STEPS[(STEPS >= FIRST) & (STEPS[-1] >= 2 * STEPS)]
    logs, due, came_by = np.log(STEPS[1:]), [], []
    for curve in (*line.entropy, *bent.entropy):
        for t in at:
            recent = (STEPS[1:] >= t / 2 / 1.01) & (STEPS[1:] <= t)
            due.append(np.polyfit(logs[recent], curve[1:][recent], 1)[0] * np.log(2))
            came_by.append(np.interp(np.log(2 * t), logs, curve[1:]) - curve[t == STEPS][0])
    wanted = np.dot(due, came_by) / np.dot(due, due)
    assert 0.5 < wanted < 0.95
    assert _best_share(damped_line, [line, bent], FIRST) == pytest.approx(wanted, abs=0.0251)
    assert _best_share(damped_line, [bent, line], FIRST) == pytest.approx(wanted, abs=0.0251)


def test_every_entry_gets_its_own_constants():
    found = standing((0.1, 0.2, 0.3, 0.4))
    assert list(found) == ["no change", "damped line in log t", "damped trend", "focus and dilution"]
    assert found["damped line in log t"].keywords == {"share": 0.1}
    assert found["damped trend"].keywords == {"kept": 0.2, "moved": 0.3}
    assert found["focus and dilution"].keywords == {"share": 0.4}


@pytest.mark.long
def test_the_kept_constants_are_those_of_the_open_runs():
    everyone = [one for seeds in kept_runs.open_runs().values() for one in seeds]
    seal = kept_runs.seal_of()
    np.testing.assert_allclose(fit(everyone, seal["first"]), seal["constants"], rtol=1e-5)


def percent(skill):
    return rf"{100 * skill.value:.0f} % \[{100 * skill.low:.0f}, {100 * skill.high:.0f}\]"


def test_the_kept_runs_are_those_of_the_record():
    record = json.loads((ROOT / "results/forecast/findings.json").read_text())
    law = next(one for one in record["findings"] if one["id"].endswith("focus-and-dilution-foretells"))
    seal = kept_runs.seal_of()
    assert seal["commit"] == record["commit"]
    for name, entry in standing(seal["constants"]).items():
        found = score(entry, name)
        if name != "no change":
            row = rf"{name}\W.*\| {percent(found.skill)} \| {percent(found.late)} \|"
            assert re.search(row, (ROOT / "docs/results/rebound.md").read_text()), row
            assert found.skill.value == pytest.approx(law["cases"]["skill"][name], abs=1e-4)
    with Run.open(ROOT / "results/forecast/forecast.sqlite") as run:
        opened, sealed = kept_runs.open_runs(), kept_runs.sealed_runs()
        for name in opened:
            kept = np.moveaxis(run.array(f"{name}/valid/entropy").mean(-1), 0, -1)  # (seeds, layers, points)
            both = np.stack([one.entropy for one in (*opened[name], *sealed[name])])
            np.testing.assert_allclose(both, kept, rtol=1e-6)
            assert (len(opened[name]), len(sealed[name])) == (4, 8)


def test_scores_are_the_skill_of_the_measure():
    runs = {"Adam, 1 layer": [history(n, 1) for n in range(4)], "SGD, 1 layer": [history(n + 9, 1) for n in range(4)]}
    entry = partial(damped_line, share=0.5)
    found = score(entry, "half", runs, first=FIRST)
    per_seed = [
        [np.concatenate([way(one, FIRST) for one in pair], 0) for pair in zip(*runs.values(), strict=True)]
        for way in (partial(made, entry), came, partial(made, no_change))
    ]
    wanted = skill(*(np.stack(some) for some in per_seed))
    assert found.skill.value == pytest.approx(float(wanted.mean()))
    assert found.skill.seeds == 4
    at = np.array([t for t in STEPS if FIRST <= t <= STEPS[-1] / 2])
    late = skill(*(np.stack(some)[..., at >= LATE] for some in per_seed))
    assert found.late.value == pytest.approx(float(late.mean()))
    assert found.as_json()["skill"]["value"] == found.skill.value
    assert found.as_json()[f"skill from t = {LATE} on"]["low"] == found.late.low
    perfect = {id(one): dict(zip(at, came(one, FIRST).T, strict=True)) for some in runs.values() for one in some}
    oracle = iter([value for some in runs.values() for one in some for value in perfect[id(one)].values()])
    assert score(lambda history, t: next(oracle), "oracle", runs, first=FIRST).skill.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            lambda history, t: 1.0,
            r"mine gave shape \(\) for Adam, 2 layers at t = 64; expected \(2,\), one entropy per",
        ),
        (lambda history, t: [1.0, np.nan], "mine gave .1.0, nan. for Adam, 2 layers at t = 64; every entropy must be"),
        (lambda history, t: history.entropy, "mine gave shape"),
        (lambda history, t: history.words, "mine failed for Adam, 2 layers at t = 64: AttributeError: "),
        (lambda history, t: ["a", "b"], "mine gave numbers of type <U1 for Adam, 2 layers at t = 64"),
    ],
)
def test_answers_that_are_no_forecast(answer, said):
    with pytest.raises(BadInput, match=said):
        score(answer, "mine", networks(), first=FIRST)


@pytest.mark.parametrize("runs", [{}, {"Adam, 1 layer": []}, {"a": [history()], "b": [history(), history(1)]}])
def test_runs_that_do_not_go_together_are_refused(runs):
    with pytest.raises(BadInput, match="runs must hold one or more networks with the same number of seeds each"):
        score(no_change, "mine", runs, first=FIRST)


def test_kept_runs_come_back_and_a_changed_file_is_refused(tmp_path):
    given = networks(seeds=3)
    kept_runs._write(tmp_path / kept_runs.SEALED, given)
    before = (tmp_path / kept_runs.SEALED).read_bytes()
    kept_runs._write(tmp_path / kept_runs.SEALED, given)
    assert (tmp_path / kept_runs.SEALED).read_bytes() == before  # no dates in it
    back = kept_runs._read(tmp_path / kept_runs.SEALED)
    assert list(back) == list(given)
    for one, other in zip(given["Adam, 2 layers"], back["Adam, 2 layers"], strict=True):
        assert (other.optimizer, other.n_keys) == ("Adam", 6)
        for name in History._fields[2:]:
            np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-6)
    import hashlib

    (tmp_path / kept_runs.SEAL).write_text(json.dumps({"sha256": hashlib.sha256(before).hexdigest(), "first": 64}))
    assert len(kept_runs.sealed_runs(tmp_path)["Adam, 2 layers"]) == 3
    (tmp_path / kept_runs.SEALED).write_bytes(before + b" ")
    with pytest.raises(FileError, match="is not the file that was sealed"):
        kept_runs.sealed_runs(tmp_path)
    for damaged in (b"nothing", b"", before[: len(before) // 2], before[:-9]):
        (tmp_path / kept_runs.OPEN).write_bytes(damaged)
        with pytest.raises(FileError, match="cannot be read"):
            kept_runs.open_runs(tmp_path)
