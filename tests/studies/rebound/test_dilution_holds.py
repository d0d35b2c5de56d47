"""What twins of `dilution` hold and what their controls push, by an oracle that takes logits one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from joma.models import Decoder, DecoderConfig
from joma.models.parts import compiled_parts
from joma.runs import Run
from joma.studies.rebound.dilution.holds import Held, Mean, Sizes, Words
from joma.training import Ensemble, Optimizer, branch, next_token_loss, train_all

SHAPE = DecoderConfig(vocabulary=9, width=8, heads=2, mlp=8, layers=2, context=7)
TEXT = torch.randint(8, (6, 7), generator=torch.Generator().manual_seed(0))  # the last word is nowhere
KINDS = {"words": Words(), "both": Sizes(), "shared": Sizes(parts=("shared",)),
         "specific": Sizes(parts=("specific",)), "mean": Mean()}  # fmt: skip


def drifted(hold, *, by=0.15, again=False):
    """A decoder in float64 that holds its state of step 10, and whose weights then went elsewhere; and its valley.

    again: they went on from there, and it was pushed a second time.
    """
    decoder = Held(SHAPE, [3, 4], hold, TEXT, at=10, every=5).double()
    shake(decoder, seed=1, by=0.3)
    valley = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    decoder.tend(10)
    shake(decoder, seed=2, by=by)
    decoder.tend(15)
    if again:
        shake(decoder, seed=3, by=by / 5)  # not so far that the largest factor were too small
        decoder.tend(20)
    plain = Decoder(SHAPE, [3, 4]).double()
    plain.load_state_dict(valley, strict=False)
    return decoder, plain


def shake(decoder, *, seed, by):
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in decoder.parameters():
            p += by * torch.randn(p.shape, generator=draws, dtype=torch.float64)


def passing(decoder, layer, change=()):
    seen = {}
    look = lambda at, name, value: seen.update({name: value.detach()}) if at == layer else None
    decoder.features(TEXT, look=look, change=change)
    return seen


def rows_of(seen, member, head, offsets=None):
    """For every sequence and query: the logits of the keys that it sees, with their words, formed one by one."""
    for b, words in enumerate(TEXT.tolist()):
        for i in range(len(words)):
            q, keys = seen["query"][member, b, head, i], seen["key"][member, b, head, : i + 1]
            yield (
                q,
                keys,
                [
                    sum((q * key).tolist()) / math.sqrt(len(q)) + (0.0 if offsets is None else float(offsets[word]))
                    for key, word in zip(keys, words, strict=False)
                ],
                words[: i + 1],
            )


def sizes_by_hand(seen, member, head):
    """The variance over keys through the mean query and through the rest, means over rows."""
    mean = seen["query"][member, :, head].mean((0, 1))
    parts = [
        [np.var([float(k @ part) / math.sqrt(len(part)) for k in keys]) for part in (mean, q - mean)]
        for q, keys, _, _ in rows_of(seen, member, head)
    ]
    return dict(zip(("shared", "specific"), np.mean(parts, 0), strict=True))


def words_by_hand(seen, member, head, offsets=None):
    """The mean logit of each word as key, less the mean of its row."""
    all_of = {}
    for _, _, logits, words in rows_of(seen, member, head, offsets):
        for logit, word in zip(logits, words, strict=True):
            all_of.setdefault(word, []).append(logit - np.mean(logits))
    return np.array([np.mean(all_of[word]) for word in sorted(all_of)])


EVERY = [(layer, member, head) for layer in range(2) for member in range(2) for head in range(2)]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kind", ["both", "shared", "specific"])
def test_sizes_that_are_held_are_those_of_the_valley(kind, again):
    hold = KINDS[kind]
    decoder, plain = drifted(hold, again=again)
    for layer, member, head in EVERY:
        now, valley = (sizes_by_hand(passing(one, layer), member, head) for one in (decoder, plain))
        for part in ("shared", "specific"):
            if part in hold.parts:
                assert now[part] == pytest.approx(valley[part], rel=1e-6)
            else:
                assert abs(now[part] / valley[part] - 1) > 1e-3, "what is not held is free"


@pytest.mark.parametrize("again", [False, True])
def test_words_that_are_held_have_their_logits_of_the_valley(again):
    decoder, plain = drifted(Words(), again=again)
    for layer, member, head in EVERY:
        offsets = decoder.push_offsets[layer, member, head]
        valley = words_by_hand(passing(plain, layer), member, head)
        held, free = (words_by_hand(passing(decoder, layer), member, head, some) for some in (offsets, None))
        assert np.abs(held - valley).max() < 0.02 * np.abs(free - valley).max()
        assert offsets[8] == 0, "a word that is nowhere gets no offset"


@pytest.mark.parametrize("again", [False, True])
def test_a_mean_that_is_held_is_that_of_the_valley(again):
    decoder, plain = drifted(Mean(), again=again)
    for layer in range(2):
        now, valley = (passing(one, layer)["input"].mean((1, 2)) for one in (decoder, plain))
        torch.testing.assert_close(now, valley, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_how_far_it_is_off(kind):
    decoder, _ = drifted(KINDS[kind])
    tight = decoder.miss()
    assert tight.shape == (2, 2)
    assert float(tight.max()) < 0.02
    shake(decoder, seed=5, by=0.1)
    assert (decoder.miss() > tight).all()
    control, _ = drifted(replace(KINDS[kind], elsewhere=True))
    assert (control.miss() > 3 * tight).all(), "a push elsewhere holds nothing"


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_at_the_valley_nothing_is_pushed_and_between_times_nothing_changes(kind, elsewhere):
    decoder = Held(SHAPE, [3, 4], replace(KINDS[kind], elsewhere=elsewhere), TEXT, at=10, every=5).double()
    plain = Decoder(SHAPE, [3, 4]).double()
    assert decoder.miss().abs().max() == 0, "before the valley nothing is held"
    for step in (10, 11):
        decoder.tend(step)
        torch.testing.assert_close(decoder(TEXT), plain(TEXT), rtol=1e-12, atol=1e-12)
        assert decoder.miss().max() < 1e-12
    before = {name: value.clone() for name, value in decoder.state_dict().items() if name.startswith("push")}
    shake(decoder, seed=1, by=0.1)
    decoder.tend(14)
    assert all(torch.equal(before[name], decoder.state_dict()[name]) for name in before)
    decoder.tend(15)
    assert not all(torch.equal(before[name], decoder.state_dict()[name]) for name in before)
    assert not any(value.requires_grad for value in decoder.buffers()), "no gradient goes through a push"


# ---- controls: pushes of the same size, elsewhere


def test_the_controls_offsets_are_the_same_ones_on_other_words():
    draws = torch.Generator().manual_seed(0)
    valley, now = ({"logit": torch.randn(2, 1, 9, generator=draws)} for _ in range(2))
    for one in (valley, now):
        one["logit"][..., 8] = 0
    drawn = torch.stack([Words().draw(SHAPE, TEXT, torch.Generator().manual_seed(seed)) for seed in (1, 2)])
    held, other = (Words(elsewhere=e).push(valley, now, drawn, TEXT)["offsets"] for e in (False, True))
    torch.testing.assert_close(held.sort(-1).values, other.sort(-1).values)
    assert ((held != other).sum(-1) >= 5).all()
    assert (drawn[0] != drawn[1]).any(), "every member has its own words"


def test_the_control_of_sizes_moves_queries_as_far_in_other_directions():
    draws = torch.Generator().manual_seed(0)
    valley, now = (
        {"shared": torch.rand(2, 2, generator=draws), "specific": torch.rand(2, 2, generator=draws)} for _ in range(2)
    )
    now["query"] = torch.randn(2, 2, 4, generator=draws)
    drawn = torch.stack([Sizes().draw(SHAPE, TEXT, torch.Generator().manual_seed(seed)) for seed in (1, 2)])
    query = torch.randn(2, 3, 2, 5, 4, generator=draws)
    moves = []
    for elsewhere in (False, True):
        hold = Sizes(elsewhere=elsewhere)
        moves.append(hold.change(hold.push(valley, now, drawn, TEXT)).ask(query) - query)
    torch.testing.assert_close(*(move.norm(dim=-1) for move in moves))
    assert torch.cosine_similarity(*moves, dim=-1).abs().mean() < 0.9


def test_the_control_of_the_mean_is_a_vector_of_the_same_size():
    draws = torch.Generator().manual_seed(0)
    valley, now = ({"mean": torch.randn(2, 8, generator=draws)} for _ in range(2))
    drawn = torch.stack([Mean().draw(SHAPE, TEXT, torch.Generator().manual_seed(seed)) for seed in (1, 2)])
    held, other = (Mean(elsewhere=e).push(valley, now, drawn, TEXT)["shift"] for e in (False, True))
    torch.testing.assert_close(held.norm(dim=-1), other.norm(dim=-1))
    assert (torch.cosine_similarity(held, other) < 0.95).all()


@pytest.mark.parametrize("kind", KINDS)
def test_controls_of_layers_and_of_members_are_drawn_apart_and_members_keep_theirs(kind):
    drawn, other = (Held(SHAPE, seeds, KINDS[kind], TEXT, at=10, every=5).drawn for seeds in ([3, 4], [4, 5]))
    places = [(layer, member) for layer in range(2) for member in range(2)]
    for one in places:
        assert not any(torch.equal(drawn[one], drawn[two]) for two in places if two != one), one
    assert torch.equal(drawn[:, 1], other[:, 0]), "by its seed, whoever stands beside"


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_hold_rests_on_is_saved(kind, elsewhere):
    hold = replace(KINDS[kind], elsewhere=elsewhere)
    decoder, _ = drifted(hold)
    other = Held(SHAPE, [3, 4], hold, TEXT, at=10, every=5).double()
    other.load_state_dict(decoder.state_dict())
    for step in (15, 16, 20):  # just after a push, between two, and with a new one
        assert torch.equal(other(TEXT), decoder(TEXT)), step
        assert torch.equal(other.miss(), decoder.miss()), step
        for one in (decoder, other):
            shake(one, seed=step, by=0.05)
            one.tend(step)
    assert (decoder.miss() > 0).all()


def test_a_member_that_diverged_disturbs_no_other():
    for hold in KINDS.values():
        decoder, other = (drifted(hold)[0] for _ in range(2))
        with torch.no_grad():
            for p in decoder.parameters():
                p[0] = torch.nan
            for one in (decoder, other):
                one.tend(20)
        torch.testing.assert_close(decoder(TEXT)[1], other(TEXT)[1])


@pytest.mark.parametrize("hold", [Words(elsewhere=True), Sizes(), Mean()])
def test_groups_that_take_turns_hold_what_all_together_hold(hold, tmp_path):
    def networks(members):
        return Held(SHAPE, list(members), hold, TEXT, at=3, every=2)

    base = Ensemble(
        members=3, networks=lambda members: Decoder(SHAPE, list(members)), loss=next_token_loss, steps=9,
        batch=lambda step, members: (TEXT[:, :-1], TEXT[:, 1:]), optimizer=Optimizer("adam", rate=0.02), keep_at=(3,),
        measure_at=(3,), measures={"out": lambda decoder, members: decoder.out.flatten(1)},
    )  # fmt: skip
    found = {}
    for together in (3, 1):
        twin = replace(branch(base, of="base", at=3), networks=networks, tend=Held.tend, together=together)
        twin = replace(twin, measures=dict(base.measures) | {"miss": lambda decoder, members: decoder.miss()})
        with Run.create(tmp_path / f"{together}.sqlite", study="x", config={}) as run:
            train_all({"base": base, "twin": twin}, run)
            found[together] = [run.array(f"{name}") for name in ("twin/out", "twin/miss", "base/out")]
    for whole, parts in zip(found[3], found[1], strict=True):
        np.testing.assert_allclose(whole, parts, rtol=1e-3, atol=1e-4)
    assert np.abs(found[3][0] - found[3][2])[-1].max() > 1e-3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("hold", [Words(), Sizes(), Sizes(elsewhere=True), Mean()])
def test_a_compiled_step_takes_a_hold_once_for_all_layers_and_reads_what_is_written_later(hold):
    decoder, _ = drifted(hold)
    batch = TEXT[:, :-1], TEXT[:, 1:]

    def compiled():
        with compiled_parts("aot_eager"), torch._dynamo.config.patch(error_on_recompile=True):
            return next_token_loss(decoder, batch)

    torch.compiler.reset()
    before = compiled()
    torch.testing.assert_close(before, next_token_loss(decoder, batch))
    shake(decoder, seed=7, by=0.1)
    decoder.tend(20)
    later = compiled()
    torch.testing.assert_close(later, next_token_loss(decoder, batch))
    assert (later - before).abs().min() > 1e-4
