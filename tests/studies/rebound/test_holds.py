"""What twins hold and what their controls push, by oracles that take logits one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from joma.models import Decoder, DecoderConfig
from joma.models.parts import compiled_parts
from joma.runs import Run
from joma.studies.rebound._held import Held
from joma.studies.rebound._twins import spreads
from joma.studies.rebound.dilution import Sizes
from joma.studies.rebound.reading import Mean, Moments, transport
from joma.studies.rebound.word_logits import Words
from joma.training import Ensemble, Optimizer, branch, next_token_loss, train_all

SHAPE = DecoderConfig(vocabulary=9, width=8, heads=2, mlp=8, layers=2, context=7)
TEXT = torch.randint(8, (6, 7), generator=torch.Generator().manual_seed(0))  # the last word is nowhere
KINDS = {"words": Words(), "both": Sizes(), "shared": Sizes(parts=("shared",)),
         "specific": Sizes(parts=("specific",)), "mean": Mean(), "moments": Moments()}  # fmt: skip
ALWAYS = ("words", "mean")
OTHER = torch.randint(8, (4, 7), generator=torch.Generator().manual_seed(9))  # another batch than the fixed one


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


def words_by_hand(seen, member, head, text=None, through=None):
    """The logit of one query, the mean of all, at every place, less its mean over places, as a mean for each word."""
    text = TEXT if text is None else text
    query = seen["query"][member, :, head].mean((0, 1)) if through is None else through
    found = [[float(k @ query) / math.sqrt(len(query)) for k in seen["key"][member, b, head]] for b in range(len(text))]
    found = np.array(found) - np.mean(found)
    return {word: found[(text == word).numpy()].mean() for word in text.unique().tolist()}


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


def test_sizes_that_are_recorded_are_those_of_the_parts_that_they_are_named_after():
    _, plain = drifted(Sizes())
    with torch.no_grad():
        found = spreads(plain, TEXT)
    for layer, member, head in EVERY:
        for part, size in sizes_by_hand(passing(plain, layer), member, head).items():
            assert float(found[part][member, layer, head]) == pytest.approx(size, rel=1e-6)


def test_queries_are_scaled_by_ten_at_most():
    now = {"shared": torch.ones(1, 3), "specific": torch.ones(1, 3), "query": torch.zeros(1, 3, 4)}
    valley = {"shared": torch.ones(1, 3), "specific": torch.tensor([[1e6, 4.0, 1e-6]])}
    push = Sizes().push(valley, now, torch.eye(4).expand(1, 3, 4, 4), TEXT)
    torch.testing.assert_close(1 + push["more"], torch.tensor([[10.0, 2.0, 0.1]]))


def test_sizes_are_off_by_the_part_and_the_head_that_is_off_most():
    valley = {"shared": torch.tensor([[1.0, 4.0], [1.0, 1.0]]), "specific": torch.ones(2, 2)}
    now = {"shared": torch.tensor([[1.0, 9.0], [1.21, 1.0]]), "specific": torch.tensor([[1.44, 1.0], [1.0, 0.25]])}
    for parts, wanted in ((("shared", "specific"), [0.5, 0.5]), (("shared",), [0.5, 0.1]), (("specific",), [0.2, 0.5])):
        torch.testing.assert_close(Sizes(parts=parts).miss(valley, now, TEXT), torch.tensor(wanted))


def test_words_are_off_by_the_mean_over_places_so_that_frequent_words_count_more():
    draws = np.random.default_rng(0)
    valley, now = (draws.standard_normal((2, 2, 9)) for _ in range(2))
    found = Words().miss({"logit": torch.from_numpy(valley)}, {"logit": torch.from_numpy(now)}, TEXT)
    words = TEXT.flatten().tolist()
    for member in range(2):
        off, size = (
            sum(values[member, head, word] ** 2 for head in range(2) for word in words)
            for values in (now - valley, valley)
        )
        assert float(found[member]) == pytest.approx(math.sqrt(off / size))


def logits_and_moves(decoder, text, layer):
    """What passes by in a layer with its hold, and what that adds to logits of keys, (members, batch, heads, keys)."""
    seen = {}
    look = lambda at, name, value: seen.update({name: value.detach()}) if at == layer else None
    decoder.features(text, look=look)
    bare = seen["query"] @ seen["key"].mT / math.sqrt(seen["query"].shape[-1])
    moves = decoder.changes()[layer].score(bare, seen["query"], seen["key"], text[None]) - bare
    torch.testing.assert_close(moves, moves[..., :1, :].expand_as(moves), msg="every query sees the same offset")
    return seen, moves[..., 0, :].detach()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("text", [TEXT, OTHER], ids=["fixed batch", "another batch"])
def test_words_that_are_held_have_their_logits_of_the_valley(text, again):
    decoder, plain = drifted(Words(), again=again)
    for layer, member, head in EVERY:
        valley = words_by_hand(passing(plain, layer), member, head)
        seen, moves = logits_and_moves(decoder, text, layer)
        free = words_by_hand(seen, member, head, text)
        for b, i in np.ndindex(*text.shape):
            word = int(text[b, i])
            lacks = valley[word] - free[word] if word in valley else 0.0  # words of the batch get what they lack
            assert float(moves[member, b, head, i]) == pytest.approx(lacks, abs=1e-9)


def test_a_word_that_the_fixed_batch_has_not_gets_no_offset():
    text = OTHER.clone()
    text[0, 3] = 8
    decoder, _ = drifted(Words())
    _, moves = logits_and_moves(decoder, text, 1)
    assert (moves[:, 0, :, 3] == 0).all()
    assert (moves[:, 0, :, 2] != 0).all()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("text", [TEXT, OTHER], ids=["fixed batch", "another batch"])
def test_a_mean_that_is_held_is_that_of_the_valley_in_every_batch(text, again):
    decoder, plain = drifted(Mean(), again=again)
    for layer in range(2):
        seen = {}
        look = lambda at, name, value, seen=seen: seen.update({(at, name): value.detach()})
        decoder.features(text, look=look)
        valley = passing(plain, layer)["input"].mean((1, 2))
        torch.testing.assert_close(seen[layer, "input"].mean((1, 2)), valley, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("again", [False, True])
def test_moments_that_are_held_are_those_of_the_valley(again):
    decoder, plain = drifted(Moments(), again=again)
    for layer, member in np.ndindex(2, 2):
        now, valley = (passing(one, layer)["input"][member].flatten(0, 1).numpy() for one in (decoder, plain))
        np.testing.assert_allclose(now.mean(0), valley.mean(0), atol=1e-9)
        size = np.linalg.norm(np.cov(valley.T))
        assert np.linalg.norm(np.cov(now.T) - np.cov(valley.T)) < 0.02 * size  # the ridge leaves that much


def test_the_map_of_a_covariance_is_the_one_that_moves_least():
    draws = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 50, 4, generator=draws, dtype=torch.float64) for _ in range(2))
    now, then = ((z.mT @ z) / 50 for z in (x, y * torch.tensor([3.0, 1.0, 0.5, 2.0])))
    found = transport(now, then) + torch.eye(4)
    ridge = 1e-3 * then.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * torch.eye(4)
    torch.testing.assert_close(found @ (now + ridge) @ found, then + ridge)
    assert (torch.linalg.eigvalsh(found) > 0).all(), "of all roots the positive one: it turns nothing round"
    torch.testing.assert_close(transport(now, now), torch.zeros(2, 4, 4, dtype=torch.float64), atol=1e-9, rtol=0)
    flat = torch.zeros(1, 4, 4, dtype=torch.float64)
    flat[0, 0, 0] = 1.0
    wider = transport(flat, 4 * flat)[0]
    assert float(wider[0, 0]) == pytest.approx(1.0, abs=2e-3)
    assert wider[1:].abs().max() < 1e-9, "where nothing varies, nothing is moved"


def test_nothing_can_be_learned_against_a_mean_that_is_held():
    decoder, control = (drifted(Mean(elsewhere=elsewhere))[0] for elsewhere in (False, True))
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64, generator=draws, requires_grad=True)
    weights = torch.randn(2, 3, 7, 8, dtype=torch.float64, generator=draws)
    (slope,) = torch.autograd.grad((decoder.changes()[0].read(x) * weights).sum(), x)
    torch.testing.assert_close(slope, weights - weights.mean((1, 2), keepdim=True))  # to move all places does nothing
    (slope,) = torch.autograd.grad((control.changes()[0].read(x) * weights).sum(), x)
    torch.testing.assert_close(slope, weights, msg="the control's push has no gradient")


def test_nothing_can_be_learned_against_words_that_are_held():
    decoder, control = (drifted(Words(elsewhere=elsewhere))[0] for elsewhere in (False, True))
    query, key = (passing(decoder, 0)[name].requires_grad_(True) for name in ("query", "key"))
    slopes = []
    for one in (decoder, control):
        bare = query @ key.mT / math.sqrt(4)
        offsets = (one.changes()[0].score(bare, query, key, TEXT[None]) - bare)[..., 0, :]
        shared = (query.mean((1, 3), keepdim=True) * key).sum(-1) / math.sqrt(4) + offsets
        of_word = shared[(TEXT == 3)[None, :, None].expand_as(shared)].mean() - shared.mean()
        slopes.append(torch.autograd.grad(of_word, (query, key), retain_graph=True))
    for held, free in zip(*slopes, strict=True):
        assert held.abs().max() < 1e-12 < free.abs().max(), "to move the mean query or a key changes nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_how_far_it_is_off(kind):
    decoder, _ = drifted(KINDS[kind])
    tight = decoder.miss()
    assert tight.shape == (2, 2)
    assert float(tight.max()) < 0.02
    shake(decoder, seed=5, by=0.1)
    if kind in ALWAYS:
        assert float(decoder.miss().max()) < 1e-9, "it is held in every pass"
    else:
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
        torch.testing.assert_close(decoder(TEXT), plain(TEXT), rtol=1e-10, atol=1e-10)
        assert decoder.miss().max() < 1e-8
    before = {name: value.clone() for name, value in decoder.state_dict().items() if name.startswith("push")}
    shake(decoder, seed=1, by=0.1)
    decoder.tend(14)
    assert all(torch.equal(before[name], decoder.state_dict()[name]) for name in before)
    decoder.tend(15)
    assert all(torch.equal(before[name], decoder.state_dict()[name]) for name in before) == (kind in ALWAYS)
    assert not any(value.requires_grad for value in decoder.buffers()), "no gradient goes through a push"


# ---- controls: pushes of the same size, elsewhere


def test_the_control_holds_words_along_a_direction_that_is_as_long_as_the_mean_query():
    control, plain = drifted(Words(elsewhere=True))
    for layer, member, head in EVERY:
        then = passing(plain, layer)
        aside = control.drawn[layer, member, head].double() * then["query"][member, :, head].mean((0, 1)).norm()
        valley = words_by_hand(then, member, head, through=aside)
        seen, moves = logits_and_moves(control, OTHER, layer)
        free = words_by_hand(seen, member, head, OTHER, through=aside)
        for b, i in np.ndindex(*OTHER.shape):
            word = int(OTHER[b, i])
            assert float(moves[member, b, head, i]) == pytest.approx(valley[word] - free[word], abs=1e-6)
    assert float(control.drawn.norm(dim=-1).sub(1).abs().max()) < 1e-6


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


@pytest.mark.parametrize("kind", ["mean", "moments"])
def test_the_control_of_the_mean_is_a_vector_of_the_same_size(kind):
    decoder, control = (drifted(replace(KINDS[kind], elsewhere=elsewhere))[0] for elsewhere in (False, True))
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    held, other = ((one.changes()[0].read(x) - x).mean((1, 2)) for one in (decoder, control))
    torch.testing.assert_close(held.norm(dim=-1), other.norm(dim=-1))
    assert (torch.cosine_similarity(held, other) < 0.95).all()
    assert (torch.cosine_similarity(other[:1], other[1:]) < 0.95).all(), "every member has its own direction"


def test_the_control_of_moments_has_the_same_map_turned():
    decoder, control = (drifted(Moments(elsewhere=elsewhere))[0] for elsewhere in (False, True))
    held, other = decoder.push_more[0], control.push_more[0]  # the first layer reads the same in both
    torch.testing.assert_close(*(torch.linalg.eigvalsh(more) for more in (held, other)))
    assert (held - other).norm() > 0.3 * held.norm()


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
    shake(decoder, seed=21, by=0.05)
    assert (kind in ALWAYS and not elsewhere) or (decoder.miss() > 1e-6).all(), "something was held"


def test_a_member_that_diverged_disturbs_no_other():
    for hold in KINDS.values():
        decoder, other = (drifted(hold)[0] for _ in range(2))
        with torch.no_grad():
            for p in decoder.parameters():
                p[0] = torch.nan
            for one in (decoder, other):
                one.tend(20)
        torch.testing.assert_close(decoder(TEXT)[1], other(TEXT)[1])


@pytest.mark.parametrize("hold", [Words(elsewhere=True), Sizes(), Mean(), Moments()])
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
@pytest.mark.parametrize("hold", [Words(), Sizes(), Sizes(elsewhere=True), Mean(), Moments(elsewhere=True)])
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
