"""What makes the rebound, on a made-up language: what twins hold, by an oracle, and that judges can be turned."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from every_study import draws_labelled_figures, ends_the_same_after_an_interrupt, findings_survive_json
from records import carried_out, changed, found, verdicts

from joma.claims.execute import draw
from joma.figures.style import house_style
from joma.models import Decoder, DecoderConfig
from joma.models.parts import compiled_parts
from joma.recipes.language import curves as recorded
from joma.runs import Run
from joma.studies.rebound.dilution import STUDY
from joma.studies.rebound.dilution import run as record
from joma.studies.rebound.dilution import study as claims
from joma.studies.rebound.dilution.holds import Held, Mean, Sizes, Words
from joma.studies.rebound.dilution.run import DilutionConfig, twin_name
from joma.training import Ensemble, Optimizer, branch, next_token_loss, train_all

SMALL = {
    "corpus": "wikitext-2", "vocabulary": 40, "width": 8, "mlp": 8, "streams": 4, "valid_streams": 3, "length": 6,
    "sequence": 5, "valid_sequences": 6, "steps": 10, "every": 2, "valley": 4, "refresh": 2, "batches": 3, "seeds": 3,
    "layers": (1, 2), "rate": 0.01,
}  # fmt: skip
NONE = "not above its control"
HELD = {claims.LOGITS: record.BOTH, claims.PREFERENCE: record.SHARED, claims.LOSE: record.WORDS,
        claims.INPUT: record.MEAN}  # fmt: skip
RISE = 0.4
"""Of a layer that comes back, in records that are made up."""
SHAPE = DecoderConfig(vocabulary=9, width=8, heads=2, mlp=8, layers=2, context=7)
TEXT = torch.randint(8, (6, 7), generator=torch.Generator().manual_seed(0))  # the last word is nowhere
KINDS = {"words": Words(), "both": Sizes(), "shared": Sizes(parts=("shared",)),
         "specific": Sizes(parts=("specific",)), "mean": Mean()}  # fmt: skip


@pytest.fixture(scope="module")
def config(data_folder):
    return DilutionConfig(**SMALL, data=str(data_folder))


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return carried_out(STUDY, config, tmp_path_factory.mktemp("dilution") / "run.sqlite")


# ---- what is held, by an oracle that takes logits one by one


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


# ---- the run


def test_twins_leave_their_base_at_the_valley(run):
    for base in ("1 layer", "2 layers"):
        whole = recorded.curve(run, base, "valid/entropy")[0]
        for twin in record.twins_of(base):
            assert recorded.steps_of(run, twin).tolist() == [4, 8, 10]
            twins = recorded.curve(run, twin, "valid/entropy")[0]
            np.testing.assert_array_equal(twins[:, 0], whole[:, 2])
            assert np.abs(twins[:, 1:] - whole[:, 3:]).min() > 0
            assert (recorded.curve(run, twin, "held/miss")[0][:, 0] == 0).all()
    assert len(record.twins_of("1 layer")) == 2 * len(record.HOLDS) - 1


def test_a_twin_has_what_it_holds_and_its_control_has_not(run):
    for base in ("1 layer", "2 layers"):
        for held in (record.BOTH, record.MEAN, record.WORDS):
            twin, control = (
                recorded.curve(run, twin_name(base, held, elsewhere=elsewhere), "held/miss")[0][:, 1:].mean()
                for elsewhere in (False, True)
            )
            assert twin < control, held


def test_a_run_that_was_stopped_ends_the_same(run, config, tmp_path):
    ends_the_same_after_an_interrupt(STUDY, config, run, tmp_path / "again.sqlite", after=0.5)


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


# ---- judges


def made(run, path, *, rise=RISE, gone=None, control=0.0, spread=0.01, off=0.0, loss=1.0):
    """A copy in which every layer of a base rises by `rise`; twins lack the shares `gone` of it, controls `control`."""
    gone = gone or {}

    def share(variant):
        for held in record.HOLDS:
            if variant.endswith(f"{held} held"):
                return gone.get(held, 0.0)
        return control if variant.endswith("elsewhere") else 0.0

    def change(name, step, value):
        variant, _, what = name.partition("/")
        if what == "valid/loss":
            return value * 0 + (9.0 if step == 0 else loss)
        if what == "held/miss":
            return value * 0 + (off if "held" in variant else 1.0) * (step > 4)  # at the valley nothing can be off
        if what == "valid/entropy":
            seeds = spread * (np.arange(len(value)) - 1)[:, None, None] * (1 if share(variant) else -1)
            back = rise * (1 - share(variant)) + seeds
            return 2.5 - min(step, 4) / 4 + max(step - 4, 0) / 6 * back + 0 * value
        return value

    return changed(run, path, change)


@pytest.mark.parametrize(("claim", "held"), HELD.items())
def test_what_makes_the_rebound(run, tmp_path, claim, held):
    for gone, control, verdict in (
        (1.0, 0.0, "holds"),
        (0.65, 0.1, "holds"),
        (0.55, 0.0, "only qualitative"),  # it removes a part, and does not make the rebound
        (1.0, 0.25, NONE),  # any push of this size removes a part
        (0.2, 0.0, "only qualitative"),
        (0.0, 0.0, NONE),
        (-0.8, 0.0, "fails"),
    ):
        copy = made(run, tmp_path / "copy.sqlite", gone={held: gone}, control=control, spread=1e-3)
        assert found(STUDY, copy, claim).verdict == verdict, (gone, control)
    copy = made(run, tmp_path / "copy.sqlite", gone={held: 1.0}, spread=1e-3)
    others = {name: verdict for name, verdict in verdicts(STUDY, copy).items() if name != claim.name}
    assert set(others.values()) == {NONE}
    finding = found(STUDY, copy, claim)
    assert set(finding.printed.effects) == {"1 layer", "2 layers: layer 2"}
    assert finding.printed.effects["1 layer"].effect == pytest.approx(1.0, abs=0.02)
    assert finding.details["1 layer, valley to end"][f"gone with {held} held"] == pytest.approx(1.0, abs=0.02)
    wide = made(run, tmp_path / "wide.sqlite", gone={held: 0.5}, spread=0.05)
    assert found(STUDY, wide, claim).verdict == "undecided"


def test_what_is_not_judged(run, tmp_path):
    for changes, reason in (
        ({"rise": 0.0}, "no layer that the claim is about comes back by 0.05 nats beyond chance"),
        ({"rise": 0.1, "spread": 0.2}, "beyond chance"),
        ({"loss": 9.0}, "learned no more than how frequent words are"),
        ({"off": 0.11}, "was not held in 1 layer: it was off by 11%, and 10% is allowed"),
    ):
        copy = made(run, tmp_path / "copy.sqlite", **changes)
        assert set(verdicts(STUDY, copy).values()) == {"not run"}, changes
        assert reason in found(STUDY, copy, claims.LOGITS).reason

    def gone(name, step, value):
        return value * 0 + 3 if name == "2 layers, both sizes held/diverged_at" else value

    finding = found(STUDY, changed(made(run, tmp_path / "a.sqlite"), tmp_path / "b.sqlite", gone), claims.LOGITS)
    assert "too many runs of 2 layers, both sizes held diverged: 0 are left" in finding.reason


def test_of_deep_networks_the_layers_that_come_back_are_judged_together(run, monkeypatch):
    rises = np.array([[0.4, 0.4, 0.4], [0.2, 0.21, 0.22], [-0.3, 0.2, 0.4], [0.1, 0.11, 0.12]])
    monkeypatch.setattr(record, "rises", lambda run, name: rises if name == "2 layers" else rises[2:3])
    assert record.judged_layers(run) == [record.Case("2 layers", (1, 3))]


def test_shares_are_of_the_mean_rise_so_that_no_seed_decides_that_hardly_rises(run, monkeypatch):
    rises = {"1 layer": np.array([[0.1, 0.2, 0.6]]), "twin": np.array([[0.0, 0.1, 0.3]])}
    monkeypatch.setattr(record, "rises", lambda run, name: rises[name])
    share = record.removed(run, record.Case("1 layer", (0,)), "twin")
    np.testing.assert_allclose(share, [0.1 / 0.3, 0.1 / 0.3, 1.0])


def test_the_fixed_batch_is_spread_over_all_that_is_read(config):
    class Read:
        def batch(self, step, members):
            return torch.full((2, 3), step), torch.full((2, 3), -1)

    assert record.fixed_batch(config, Read()).tolist() == [[step] * 3 for step in (0, 0, 4, 4, 9, 9)]


def test_the_figure_says_what_the_record_has(run, tmp_path):
    copy = made(run, tmp_path / "a.sqlite", gone={record.BOTH: 0.75, record.SHARED: 0.5}, control=0.25)
    with house_style():
        (drawing,) = draw(STUDY, copy)
    for words in (
        "Both sizes of logits held at the valley remove 75% of the rise in 1 layer; 75% of the rise in 2 layers: layer",
        "2 layers: layer 2: +0.40 with nothing held, +0.10 with both sizes held (+0.30 pushed elsewhere), +0.20 with",
        "+0.40 with specific size held, +0.40 with words' logits held (+0.30 pushed elsewhere)",
    ):
        assert words in drawing.caption
    assert "“nothing held” rises from 0 to 0.4 nats" in drawing.alt
    assert "“both sizes” rises from 0 to 0.1 nats" in drawing.alt
    assert "Six panels. 1 layer, held, change of entropy (nats) by training step" in drawing.alt
    draws_labelled_figures(STUDY, run)
    findings_survive_json(STUDY, copy)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valley": 10}, "valley must lie between 0 and 10, where training ends, got 10"),
        ({"refresh": 3}, "refresh must divide the valley, 4, got 3"),
        ({"refresh": 0}, "refresh must be at least 1, got 0"),
        ({"batches": 0}, "batches must be at least 1, got 0"),
    ],
)
def test_what_a_config_refuses(changes, words):
    with pytest.raises(ValueError, match=words):
        DilutionConfig(**SMALL | changes)


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
