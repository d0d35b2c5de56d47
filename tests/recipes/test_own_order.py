"""Seeds that read the text in an order of their own: other text for another seed, the same text again for the same."""

import numpy as np
import pytest
import torch
from kills import ends_the_same_after_a_kill

from joma.recipes.language import LanguageModelConfig, corpus, recipe, train_variants
from joma.recipes.language.text import PIECE, from_own_start, in_own_order
from joma.recipes.language.training import ensemble
from joma.runs import Run

CONFIG = LanguageModelConfig(
    tokens=20_000, vocabulary=60, width=8, mlp=8, streams=4, length=10, sequence=2, valid_sequences=3, steps=40,
    every=10, dropout=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def text():
    return corpus(CONFIG)


def base(text):
    return recipe(CONFIG, text, rates=(1e-2,)).with_(own_order=True, keep_at=(20,))


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    run = Run.create(tmp_path_factory.mktemp("order") / "a.sqlite", study="x", config={})
    twin = base(text).with_(branch_of="base", branch_at=20, keep_at=())
    train_variants({"base": base(text), "twin": twin}, text, run, lambda share, doing: None)
    return run


def epoch_of(variant, text, member):
    """All that one member reads in an epoch, (streams, tokens); windows follow one another, the last one overlaps."""
    made, length = ensemble(variant, text), variant.decoder.context
    long = len(text.tokens["train"]) // variant.streams
    found = torch.full((variant.streams, long), -1)
    for step in range(-(-(long - 1) // length)):
        inputs, targets = (part[0] for part in made.batch(step, [member]))
        first = min(step * length, long - 1 - length)
        found[:, first : first + length], found[:, first + 1 : first + 1 + length] = inputs, targets
    return found


def test_pieces_change_places_and_stay_whole():
    words = torch.arange(95)
    mine, other = (in_own_order(words, 10, seed) for seed in (1, 2))
    assert torch.equal(mine.sort().values, words)
    assert torch.equal(mine, in_own_order(words, 10, 1))
    assert not torch.equal(mine, other)
    assert not torch.equal(mine, words)
    jumps = (mine.diff() != 1).nonzero().flatten() + 1
    assert {int(mine[at]) % 10 for at in jumps} == {0}, "only pieces begin anew"


def test_a_start_may_be_anywhere_and_the_text_runs_on_from_there():
    words = torch.arange(40)
    starts = set()
    for seed in range(60):
        mine = from_own_start(words, seed)
        starts.add(int(mine[0]))
        assert torch.equal(mine, (words + mine[0]) % 40)
    assert {start // 10 for start in starts} == {0, 1, 2, 3}, "in every quarter of the text"


def test_with_both_the_pieces_are_those_of_the_text_as_it_was_begun(text):
    variant = base(text).with_(own_start=True)
    read = epoch_of(variant, text, 1)
    begun = from_own_start(text.tokens["train"].long(), variant.seeds[1])
    wanted = in_own_order(begun, PIECE * 10, variant.seeds[1])
    assert torch.equal(read, wanted[: read.numel()].view_as(read))
    assert not torch.equal(read, epoch_of(variant.with_(own_start=False), text, 1))


def test_two_seeds_read_other_text_first_and_the_same_text_in_all(text):
    variant = base(text)
    inputs, targets = ensemble(variant, text).batch(3, [0, 1, 2])
    assert inputs.shape == targets.shape == (3, 4, 10)
    assert torch.equal(inputs[..., 1:], targets[..., :-1])
    assert not torch.equal(inputs[0], inputs[1])
    first, second = (epoch_of(variant, text, member) for member in (0, 1))
    counts = [torch.bincount(read.flatten(), minlength=60) for read in (first, second)]
    assert int((counts[0] - counts[1]).abs().sum()) <= 2 * variant.streams, "but for what no stream has room for"
    together = PIECE * 10
    shared = in_own_order(text.tokens["train"].long(), together, variant.seeds[0])
    assert torch.equal(first, shared[: first.numel()].view_as(first))


def test_a_seed_decides_its_order_alone(text):
    """Whatever its place among the seeds, the rates and the groups that take turns."""
    three = ensemble(base(text), text)
    last = base(text).with_(seeds=base(text).seeds[2:], rates=(1e-3, 1e-2))
    for step in (0, 7, 700):
        alone, *_ = ensemble(last, text).batch(step, [0, 1])
        assert torch.equal(three.batch(step, [2])[0][0], alone[0])
        assert torch.equal(alone[0], alone[1]), "rates are compared on the same text"
        assert torch.equal(three.batch(step, [1, 2])[0], three.batch(step, [0, 1, 2])[0][1:])


def test_without_it_all_read_the_text_from_its_beginning(text):
    plain = ensemble(base(text).with_(own_order=False), text)
    inputs, _ = plain.batch(0, [0, 1, 2])
    assert inputs.shape == (4, 10)
    assert torch.equal(inputs[0], text.tokens["train"][:10].long())


def test_a_twin_goes_on_in_the_order_of_its_base(run):
    assert run.steps("twin/valid/loss").tolist() == [20, 30, 40]
    np.testing.assert_array_equal(run.array("twin/valid/entropy"), run.array("base/valid/entropy")[2:])


def test_the_order_shows_in_what_is_learned(text, run, tmp_path):
    other = Run.create(tmp_path / "a.sqlite", study="x", config={})
    train_variants({"base": base(text).with_(own_order=False)}, text, other, lambda share, doing: None)
    same, differs = (np.abs(run.array("base/valid/loss") - other.array("base/valid/loss"))[at] for at in (0, -1))
    assert not same.any(), "the untrained networks are the same"
    assert differs.min() > 1e-4


def test_a_kill_changes_nothing(text, run, tmp_path):
    names = ("valid/loss", "valid/entropy", "train_loss")
    ends_the_same_after_a_kill(ensemble(base(text), text), run, tmp_path / "a.sqlite", names)
