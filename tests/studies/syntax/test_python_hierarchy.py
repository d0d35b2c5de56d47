"""Syntax labels as latents, their controls, and verdicts that follow what was recorded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pins import pin
from records import altered, changed, found, verdicts
from small_runs import small

from joma.claims.execute import execute
from joma.data.errors import CorpusError
from joma.data.python_source import python_tokens
from joma.models import Decoder, DecoderConfig
from joma.runs import Run
from joma.studies.syntax.python_hierarchy import run as syntax
from joma.studies.syntax.python_hierarchy import study as judging
from joma.studies.syntax.python_hierarchy.run import Scores, octave, slope
from joma.studies.syntax.python_hierarchy.study import STUDY

SMALL = small("python-hierarchy")
CLAIMS = [claim.name for claim in STUDY.claims]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    made = execute(STUDY, SMALL, tmp_path_factory.mktemp("python-hierarchy"))
    with Run.open(made.run) as run:
        pin(STUDY, SMALL, run)
    return made


@pytest.fixture
def recorded(result):
    with Run.open(result.run) as run:
        yield run


@pytest.fixture(scope="module")
def code():
    return python_tokens(SMALL.vocabulary, tokens=SMALL.tokens)


@pytest.fixture(scope="module")
def material(code):
    return syntax.prepare(code, SMALL, [0, 1])


def test_panels_over_training_begin_where_training_does():
    pytest.importorskip("matplotlib")
    with Run.open(Path(__file__).parents[3] / "results/python-hierarchy/python-hierarchy.sqlite") as run:
        panels = STUDY.draw(run)[0].figure.axes
        first = run.steps("alignment")[1]
    assert [-first < panel.get_xlim()[0] <= 0 for panel in panels] == [True] * 3


def test_latents_are_the_frequent_labels_and_the_table_counts_tokens(code, material):
    count, latents = len(material.train), material.latents
    assert count == int(code.starts[material.files[0]])
    assert material.files[0] + material.files[1] == len(code.files)
    for level, label, share in zip(latents.level.tolist(), latents.label.tolist(), latents.share.tolist(), strict=True):
        name = syntax.LEVELS[level]
        assert code.names[name][label] != "none"
        assert share == pytest.approx(float((code.labels[name][:count] == label).double().mean()))
        assert syntax.FREQUENT <= share <= 1 - syntax.FREQUENT
    token = int(torch.bincount(material.train).argmax())
    level, label = int(latents.level[0]), int(latents.label[0])
    there = code.labels[syntax.LEVELS[level]][:count][material.train == token] == label
    smoothed = (there.sum() + latents.share[0]) / (len(there) + 1)
    assert float(latents.given_token[token, 0]) == pytest.approx(float(smoothed))


def test_halves_are_of_different_files_and_never_of_the_training_text(code, material):
    first = material.files[0]
    for member in range(2):
        texts = [
            " ".join(map(str, code.tokens[a:b].tolist())) for a, b in zip(code.starts, code.starts[1:], strict=False)
        ]
        homes = []
        for half in (material.chosen, material.scored):
            windows = [" ".join(map(str, window.tolist())) for window in half.windows[member]]
            found = [{i for i, text in enumerate(texts) if window in text} for window in windows]
            # A window across the end of a file is in none; a common phrase may be in a training file too.
            homes.append({min(held) for where in found if len(held := {i for i in where if i >= first}) == 1})
        assert homes[0]
        assert homes[1]
        assert not homes[0] & homes[1]
    assert not torch.equal(material.chosen.windows[0], material.chosen.windows[1])  # every seed has its own


def test_rotation_keeps_how_often_a_label_is_on_within_the_file(code):
    latents = syntax.find_latents(code, len(code.tokens))
    files = torch.tensor([int(code.starts.diff().argmax())])
    size = SimpleNamespace(context=SMALL.context, windows=2000, held_out=0.5)
    half = syntax._half(code, latents, files, size, torch.Generator().manual_seed(0))
    on, rotated, _ = half.latents.unflatten(-1, (3, -1)).unbind(-2)
    assert not torch.equal(on, rotated)
    assert (on.mean(0) - rotated.mean(0)).abs().max() < 0.06  # sampling


class Planted:
    def __init__(self, hidden, members=2):
        self.members, self.hidden = members, hidden
        self.config = DecoderConfig(vocabulary=SMALL.vocabulary, layers=1, width=2, context=SMALL.context)

    def features(self, tokens, look):
        noise = torch.rand(*tokens.shape, 3, generator=torch.Generator().manual_seed(0))
        look(0, "hidden", torch.cat([self.hidden(tokens), noise], -1))
        look(0, "stream", torch.cat([self.hidden(tokens), noise], -1))


def test_a_neuron_that_knows_the_label_scores_one_and_a_random_one_nothing(material):
    count = len(material.latents.level)
    # A label that is always or never there in some half of the files has no correlation: choose one that varies.
    varies = torch.stack([half.latents.float().std(1).amin(0) for half in (material.chosen, material.scored)]).amin(0)
    which = int(varies.argmax())

    def knows(tokens):
        half = material.chosen if torch.equal(tokens, material.chosen.windows[..., :-1]) else material.scored
        whole = torch.zeros(*tokens.shape, 1)
        whole[:, :, SMALL.context // 2 :, 0] = half.latents[..., which].unflatten(1, (SMALL.windows, -1))
        return whole

    found = syntax.alignment(Planted(knows), material.chosen, material.scored)
    assert found.shape == (2, len(syntax.places(1)), 3, count)
    assert found[:, :, 0, which].min() > 0.97  # neurons exactly, probes up to their ridge
    assert found[:, 0, 0, which].tolist() == pytest.approx([1.0, 1.0])
    assert found[:, :, 1, which].abs().max() < 0.4


def test_a_neuron_that_reads_the_token_says_nothing_beyond_it(code):
    size = SimpleNamespace(context=16, windows=400, held_out=0.4)
    material = syntax.prepare(code, size, [0])
    table = material.latents.given_token[:, 0].float()
    reads = Planted(lambda tokens: table[tokens][..., None], members=1)
    found = syntax.alignment(reads, material.chosen, material.scored)[0, 0, :, 0]
    alone = syntax.token_score(material.scored, len(material.latents.level))[0, 0]
    assert float(found[0]) == pytest.approx(float(alone), abs=1e-6)
    assert found[0] > 0.4
    assert abs(found[2]) < 0.15


def test_a_network_that_is_not_finite_has_no_score_and_spoils_no_other(material):
    decoder = Decoder(DecoderConfig(vocabulary=SMALL.vocabulary, layers=1, width=4, mlp=5, context=16), [0, 1])
    with torch.no_grad():
        before = syntax.alignment(decoder, material.chosen, material.scored)
        decoder.up[1] = torch.nan
        after = syntax.alignment(decoder, material.chosen, material.scored)
    assert after[1].isnan().all()
    torch.testing.assert_close(after[0], before[0], equal_nan=True)


def test_octaves_and_slopes():
    steps = np.array([0, 4, 8, 16, 32])
    late = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    even = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    assert octave(steps, late) == pytest.approx(4.5)
    assert octave(steps, even) == pytest.approx((2 + 2.5 + 3.5 + 4.5) / 4)
    assert slope(np.array([[1.0, 3.0, 5.0]]), np.array([0, 1, 3]))[0] == pytest.approx(9 / 7)


def written(
    path,
    *,
    seeds=4,
    gain=(0.3,) * 4,
    half=(40, 40, 40, 40),
    last=(0, 0, 0, 0),
    together=1.0,
    noise=0.002,
    shuffled=2,
    loss=2.0,
):
    """A record in which each level gains so much, half of it by that step, and is so much better in the last block.

    All nodes together begin at four times the best node, and gain `together` times what it gains.
    """
    config = dataclasses.asdict(dataclasses.replace(SMALL, seeds=seeds, shuffled=shuffled))
    steps = [0, 5, 10, 20, 40, 80, 160, 320]
    source = np.random.default_rng(0)
    members = seeds + shuffled
    run = Run.create(path, study=STUDY.name, config=config)
    run.keep("latents", lambda: np.frombuffer(json.dumps([[n, "x"] for n in syntax.LEVELS]).encode(), np.uint8))
    run.keep("level", lambda: np.arange(4))
    run.keep("share", lambda: np.full(4, 0.1))
    run.keep("token", lambda: np.full((seeds, 4), 0.2))
    for step in steps:
        risen = np.array(gain) / (1 + (np.array(half) / step) ** 3) if step else np.zeros(4)
        value = np.zeros((members, len(syntax.places(2)), 3, 4))
        value[:seeds, 0, 0] = value[:seeds, 0, 2] = value[:seeds, 1, 2] = value[:seeds, 2, 2] = risen
        value[:seeds, 2, 2] += np.array(last) * (step > 0)
        value[:seeds, 3, 0] = 0.3 + together * risen
        value[:seeds, 3, 2] = 2 * risen
        value += 0.1 * (np.arange(3) != 1)[:, None] + noise * source.standard_normal(value.shape)
        run.record(
            step, {"alignment": value, "diverged_at": np.full(members, -1), "train_loss": np.full(members, loss)}
        )
    return run


BEST = {"half": (20, 30, 60, 90), "last": (0, 0.05, 0.1, 0.15), "together": 0.0}
"""Of a record in which every claim holds."""
NOT, OPEN, LITTLE = "not above its control", "undecided", "only qualitative"


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (BEST, ["holds"] * 5),
        # All levels at once, in all blocks: the order and the depth are measured well, and are nothing.
        ({}, ["holds", "holds", LITTLE, NOT, NOT]),
        ({"half": (90, 60, 30, 20), "last": (0.15, 0.1, 0.05, 0)}, ["holds", "holds", LITTLE, "fails", "fails"]),
        # Real but small.
        ({"gain": (0.01,) * 4, "noise": 1e-4, "together": 0.0}, [LITTLE, LITTLE, NOT, NOT, NOT]),
        ({"half": (40, 41, 42, 43), "noise": 1e-4}, ["holds", "holds", LITTLE, LITTLE, NOT]),
        ({"last": (0, 0.005, 0.01, 0.015), "noise": 1e-4}, ["holds", "holds", LITTLE, NOT, LITTLE]),
        # Nothing was learned of syntax, though the loss fell.
        ({"gain": (0.0,) * 4}, [NOT, NOT, NOT, "not run", NOT]),
        # Seeds differ too much for what matters.
        ({"noise": 0.2, "gain": (0.05,) * 4}, [OPEN, OPEN, OPEN, "not run", OPEN]),
        # The control has no interval.
        ({"shuffled": 1}, [OPEN, OPEN, OPEN, NOT, NOT]),
        # The best of the nodes falls behind all of them together.
        ({"together": 8.0}, ["holds", "holds", "fails", NOT, NOT]),
        ({**BEST, "loss": 4.0}, ["not run"] * 5),
        ({**BEST, "loss": float("nan")}, ["not run"] * 5),
    ],
)
def test_verdicts_follow_what_was_planted(tmp_path, planted, expected):
    with written(tmp_path / "run.sqlite", **planted) as run:
        assert list(verdicts(STUDY, run).values()) == expected


def test_networks_that_never_moved_are_not_judged(tmp_path):
    still = execute(STUDY, dataclasses.replace(SMALL, rate=0.0), tmp_path, pictures=False)
    assert {finding.verdict for finding in still.findings} == {"not run"}
    assert "did not learn" in still.findings[0].reason


@pytest.mark.parametrize(
    ("row", "expected"),
    [("rotated", [NOT, "holds", NOT]), ("shuffled", [NOT, NOT, NOT]), ("untrained", [NOT, NOT, OPEN])],
)
def test_each_control_can_turn_the_verdict(tmp_path, row, expected):
    def spoil(name, step, value):
        value = value.copy()
        if name == "alignment" and row == "rotated":
            value[:, 0, 1] = value[:, 0, 0]
        elif name == "alignment" and row == "shuffled":
            value[-5:] = value[:5]
        elif name == "alignment" and step == 0:
            value[:, 0] = run.at(name, 320)[:, 0]
        return value

    enough = {"seeds": 5, "shuffled": 5}
    with written(tmp_path / "run.sqlite", **BEST, **enough) as run:
        copy = changed(run, spoil)
        assert [verdicts(STUDY, copy)[name] for name in CLAIMS[:3]] == expected


def test_a_node_that_told_as_much_before_training_stands_for_nothing_new(tmp_path):
    def spoil(name, step, value):
        value = value.copy()
        if name == "alignment":
            value[:4, 3, 0] = value[:4, 0, 0] / 0.9
        return value

    with written(tmp_path / "run.sqlite", **BEST) as run:
        copy = changed(run, spoil)
        seen = found(STUDY, copy, "one-node-each")
        assert seen.main.control_effect == pytest.approx(0.9)
        assert seen.verdict == NOT


def test_blocks_that_differed_before_training_have_learned_nothing_by_it(tmp_path):
    with written(tmp_path / "run.sqlite", **BEST) as run:

        def ahead(name, step, value):
            value = value.copy()
            if name == "alignment" and step == 0:
                value[:, 1:3, 2] = run.at(name, 320)[:, 1:3, 2]
            return value

        assert verdicts(STUDY, changed(run, ahead))["higher-levels-in-later-blocks"] == NOT


def test_seeds_that_differ_leave_one_node_below_its_size(tmp_path):
    def spoil(value):
        value = value.copy()
        value[:4, 3, 0] *= np.array([1.0, 1.0, 1.3, 1.3])[:, None]
        return value

    with written(tmp_path / "run.sqlite", **BEST) as run:
        copy = altered(run, "alignment", spoil)
        seen = found(STUDY, copy, "one-node-each")
        assert seen.main.effect > judging.HIGH  # the mean is, its interval is not
        assert seen.verdict == LITTLE


@pytest.mark.long
def test_a_network_that_diverged_is_left_out_and_counted(tmp_path):
    def mark(value, *members):
        value = value.copy()
        value[list(members)] = 7
        return value

    def spoil(name, step, value):
        value = value.copy()
        if name == "alignment" and step:  # it began well
            value[1] = np.nan
        return value

    with written(tmp_path / "run.sqlite", noise=5e-4) as run:
        bad = changed(run, spoil)
        marked = altered(bad, "diverged_at", lambda value: mark(value, 1))
        for copy in (bad, marked):  # whether or not the trainer has seen it
            findings = STUDY.judge(copy)
            assert [finding.verdict for finding in findings] == list(verdicts(STUDY, run).values())
            assert all(one.details["diverged and left out"] == {"networks": 1} for one in findings)
            assert findings[4].main.seeds == 3
            assert Scores(copy).written.shape[1] == 3
        # one seed is left; none is; no control on shuffled text is left; one is
        for gone, expected in (
            ((0, 1, 2), [OPEN] * 5),
            ((0, 1, 2, 3), ["not run"] * 5),
            ((4, 5), [OPEN, OPEN, OPEN, NOT, NOT]),
            ((5,), [OPEN, OPEN, OPEN, NOT, NOT]),
        ):
            tmp_path / f"c{gone}.sqlite"
            copy = altered(run, "diverged_at", lambda value, gone=gone: mark(value, *gone))
            assert list(verdicts(STUDY, copy).values()) == expected
            STUDY.draw(copy)


def test_two_levels_are_no_order(tmp_path):
    with written(tmp_path / "run.sqlite", gain=(0.3, 0.3, 0.0, 0.0)) as run:
        seen = found(STUDY, run, "lower-levels-first")
        assert seen.verdict == "not run"
        assert seen.reason == "only 2 of 4 levels of syntax were learned, and 3 are needed for an order"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": 500}, "at least 4 of each are needed"),
        ({"context": 20_000}, "longer than half of the held-out"),
    ],
)
def test_too_little_text(tmp_path, change, sentence):
    with pytest.raises(CorpusError, match=sentence):
        execute(STUDY, dataclasses.replace(SMALL, **change), tmp_path)
