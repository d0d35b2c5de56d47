"""Verdicts of the block of today from records that are made up; the clip, and the order of words, by slow oracles."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from records import found, verdicts

from joma.claims.execute import plain_config
from joma.models.decoder import Decoder, DecoderConfig
from joma.runs import Run
from joma.studies.rebound.modern_block import record
from joma.studies.rebound.modern_block import run as networks
from joma.studies.rebound.modern_block.clip import Clipped
from joma.studies.rebound.modern_block.run import ARMS, CLIPS, FAMILIES, MADE, MADE_ARMS, PLAIN, name_of
from joma.studies.rebound.modern_block.study import STUDY

SEEDS, WORDS, STEPS = 8, 12, tuple(range(0, 401, 20))
CONFIG = replace(
    STUDY.quick, arms=tuple(ARMS)[1:], families=tuple(FAMILIES), layers=(1, 2), muon=True, muon_rates=(0.01,),
    seeds=SEEDS, steps=400, every=20, window=60,
)  # fmt: skip
ALL = (*ARMS, *CLIPS, "Muon at 0.01")
NONE = "not above its control"
CHANCE = np.linspace(-0.02, 0.02, SEEDS)


def level(step, back, low):
    """Entropy falls from 2 to 1 at the step `low`, and rises by `back` to the last step."""
    return 2 - step / low if step <= low else 1 + back * (step - low) / (STEPS[-1] - low)


def words(step, ordered):
    far = np.arange(1, WORDS + 1)
    half = 200 - 15 * far if ordered else 20 + 15 * far
    return far * (1 - 0.5 ** (step / half)) * (-1) ** far + 9 * np.cos(7 * far)  # where each begins says nothing


def made(folder, back=(), *, low=(), ordered=(), sinks=(), diverged=(), losses=(), fetched=0.1):
    """A record in which every arm has its rise, the step of its minimum, its order of words, and its sink."""
    run = Run.create(folder / "made.sqlite", study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    back = dict.fromkeys(ALL, 0.4) | dict(back)
    for layers in CONFIG.layers:
        for family in FAMILIES:
            for kind, arms in {"": tuple(ARMS), "clipped": CLIPS, "Muon": ("Muon at 0.01",)}.items():
                name = name_of(layers, family, kind)
                run.append(f"{name}/rates", 0, np.array([0.01] * len(arms)))
                run.append(f"{name}/seeds", 0, np.arange(SEEDS))
                run.append(f"{name}/loss by frequency", 0, 4.2)
                for step in STEPS:
                    shape = (len(arms) * SEEDS, layers, 1)
                    curves = np.stack([
                        level(step, back[arm], dict(low).get(arm, 100)) + np.roll(CHANCE, 3 * i) * (step > 100)
                        for i, arm in enumerate(arms)
                    ])  # fmt: skip
                    far = np.stack([words(step, dict(ordered).get(arm, True)) for arm in arms])
                    loss = [4 - 2.5 * step / 400 + dict(losses).get(arm, 0.0) for arm in arms]
                    gone = [np.where(np.arange(SEEDS) < dict(diverged).get(arm, 0), 120, -1) for arm in arms]
                    run.append(f"{name}/valid/loss", step, np.repeat(loss, SEEDS))
                    run.append(f"{name}/diverged_at", step, np.concatenate(gone))
                    entropy = np.broadcast_to(curves.reshape(-1, 1, 1), shape)
                    run.append(f"{name}/block/entropy", step, entropy)
                    for what in ("logit", "output", "sink", "shared", "specific"):
                        run.append(f"{name}/block/{what}", step, np.ones(shape))
                    noise = 0.01 * np.sin(np.arange(SEEDS)[:, None] + np.arange(WORDS))
                    run.append(f"{name}/block/words", step, (far[:, None] + noise).reshape(-1, WORDS))
    masses = {PLAIN: 0.6, "MLP gate": 0.6, "gate": 0.06} | dict(sinks)
    trained = np.stack([masses.get(arm, 0.1) + CHANCE for arm in MADE_ARMS]).reshape(-1, 1, 1)
    run.append("unfetched", 0, 1.0)
    for step, mass in ((0, np.full_like(trained, 0.05)), (200, trained)):
        run.append(f"{MADE}/made/sink", step, mass)
        run.append(f"{MADE}/made/second", step, np.full_like(mass, 0.02))
        run.append(f"{MADE}/made/fetched", step, np.full(len(mass), fetched))
    return run


def test_arms_without_the_recovery_hold_and_all_others_do_not(tmp_path):
    with made(tmp_path, {"QK-norm": 0.1, "QK-clip": 0.05}, ordered={"Muon at 0.01": False}) as run:
        assert set(verdicts(STUDY, run).values()) == {"holds"}


@pytest.mark.parametrize(("arm", "control"), [("QK-norm", "VO-norm"), ("QK-clip", "VO-clip")])
@pytest.mark.parametrize("family", ["", "-norms-before"])
@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        ({"back": ("arm", 0.4)}, {NONE, "fails"}),  # it recovers as far
        ({"back": ("arm", 0.26)}, {"only qualitative"}),  # a third is gone
        ({"back": ("arm", 0.1, "control", 0.1)}, {NONE}),  # so it is elsewhere
        ({"back": ("arm", 0.1), "low": ("arm", 260)}, {"not run"}),  # perhaps a delay
        ({"back": ("arm", 0.1), "low": ("control", 260)}, {"not run"}),
        ({"back": ("arm", 0.1), "diverged": ("arm", 6)}, {"not run"}),
        ({"back": ("arm", 0.1), "losses": ("control", 9.0)}, {"not run"}),  # the control learned nothing
        ({"back": ("arm", 0.1, "plain", 0.03)}, {"not run"}),  # nothing comes back
    ],
)
def test_a_spoiled_record_turns_the_verdict_on_queries_and_keys(arm, control, family, spoil, verdict, tmp_path):
    named = {"arm": arm, "control": control, "plain": PLAIN}
    given = {what: {named[pairs[i]]: pairs[i + 1] for i in range(0, len(pairs), 2)} for what, pairs in spoil.items()}
    with made(tmp_path, **given) as run:
        assert found(STUDY, run, f"{arm.lower()}-halves-recovery{family}").verdict in verdict


@pytest.mark.parametrize(
    ("back", "low", "verdict"),
    [
        ({}, {}, "holds"),
        ({"rotary": 0.6}, {}, "only qualitative"),  # it recovers by 0.2 nats more
        ({"no positions": 0.2}, {}, "only qualitative"),
        ({"ALiBi": 0.0}, {}, "only qualitative"),
        ({}, {"learned positions": 300}, "holds"),  # left out
        ({}, dict.fromkeys(("learned positions", "no positions", "rotary", "ALiBi"), 300), "not run"),
    ],
)
def test_positions(back, low, verdict, tmp_path):
    with made(tmp_path, back, low=low) as run:
        assert verdicts(STUDY, run)["recovers-with-any-positions"] == verdict


@pytest.mark.parametrize(
    ("ordered", "verdict"),
    [
        ({}, {NONE, "fails"}),  # Muon has the order too
        ({"Muon at 0.01": False, "MLP gate": False}, {NONE}),  # so has any change
        ({"Muon at 0.01": False, PLAIN: False}, {NONE}),  # Adam has no order to lose
    ],
)
def test_the_order_of_words(ordered, verdict, tmp_path):
    with made(tmp_path, ordered=ordered) as run:
        assert verdicts(STUDY, run)["muon-weakens-salient-first"] in verdict
        moved = np.array([words(step, ordered.get(PLAIN, True)) - words(0, True) for step in STEPS])
        way = record._order(np.array(STEPS), moved - moved.mean(1, keepdims=True), STEPS.index(100))
        np.testing.assert_allclose(record.order(run, "2 layers, norms before", PLAIN), way)


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ({"sinks": {"gate": 0.6}}, NONE),
        ({"sinks": {"gate": 0.3}}, "only qualitative"),
        ({"sinks": {"MLP gate": 0.06}}, NONE),  # a gate elsewhere does it too
        ({"sinks": {PLAIN: 0.06}}, "not run"),  # there was none
        ({"fetched": 0.6}, "not run"),
    ],
)
def test_the_gate(how, verdict, tmp_path):
    with made(tmp_path, **how) as run:
        assert verdicts(STUDY, run)["gate-removes-sinks"] == verdict


def test_arms_that_were_not_trained_are_for_paper_scale(tmp_path):
    config = replace(CONFIG, arms=("VO-norm",), muon=False, families=("norms after",))
    with Run.create(tmp_path / "few.sqlite", study=STUDY.name, config=plain_config(config), version=1) as run:
        for name in ("qk-norm-halves-recovery", "muon-weakens-salient-first", "qk-clip-halves-recovery-norms-before"):
            finding = found(STUDY, run, name)
            assert (finding.verdict, finding.command) == ("at paper scale", "joma verify modern-block --scale paper")


def test_without_language_models_the_made_language_is_judged_alone(tmp_path):
    """What a run with them would tell is not run, with the options of one; what takes more is at paper scale."""
    config = replace(STUDY.quick, seeds=3, made_steps=4, made_every=2, made_batch=4, made_pool=16, made_width=8)
    with Run.create(tmp_path / "made.sqlite", study=STUDY.name, config=plain_config(config), version=1) as run:
        STUDY.run(config, run, lambda share, doing: None)
        assert not [name for name in run.names() if "layer" in name]
        STUDY.check(config, run)
        finding = found(STUDY, run, "qk-norm-halves-recovery")
        assert (finding.verdict, finding.reason) == ("not run", "this run has no language models")
        others = ("muon-weakens-salient-first", "recovers-with-any-positions", "qk-clip-halves-recovery-norms-before")
        assert {found(STUDY, run, name).verdict for name in others} == {"at paper scale"}
        assert "no networks" not in found(STUDY, run, "gate-removes-sinks").reason
        assert [drawing.name for drawing in STUDY.draw(run)] == ["sinks-by-block"]


# ---- what is read, and what is done


def test_each_arm_is_read_where_it_was_recorded(tmp_path):
    low = {arm: 60 + 20 * i for i, arm in enumerate(ALL)}
    with made(tmp_path, low=low) as run:
        base = "2 layers, norms before"
        for arm in ALL:
            (case,) = [case for case in record.cases(run, "norms before") if case == (base, (1,))]
            assert record.minimum(run, case, arm) == low[arm], arm
            np.testing.assert_allclose(record.drop(record.path(run, base, arm)), 1.0, atol=0.05)


def test_the_order_is_a_rank_correlation_of_how_far_and_when():
    steps = np.array([0, 1, 2, 4, 8, 16])
    way = np.array([[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 3, 0], [4, 6, 1], [5, 9, 2.0]])
    # half of 5, 9 and 2 is crossed at 2.5 of ln-interpolated 2..4, at 4.5 of 4..8, and at 1 of 8
    when = [math.log(2) + 0.5 * math.log(2), math.log(4) + 0.5 * math.log(2), math.log(8)]
    ranks = np.argsort(np.argsort(when)), np.argsort(np.argsort(way[-1]))
    assert record._order(steps, way, 5) == pytest.approx(-np.corrcoef(*ranks)[0, 1])
    assert record._order(steps, -way, 5) == record._order(steps, way, 5)
    assert math.isnan(record._order(steps, way, 1))


def by_hand(decoder, tokens):
    """The largest logit and the largest number added, of every member, layer and head, in float64, one at a time."""
    seen = {}
    decoder.features(tokens, look=lambda layer, name, x: seen.update({(layer, name): x.detach().double()}))
    config, width = decoder.config, decoder.config.width // decoder.config.heads
    logit, output = (torch.empty(decoder.members, config.layers, config.heads).double() for _ in range(2))
    for layer in range(config.layers):
        for member in range(decoder.members):
            for head in range(config.heads):
                q, k, mixed = (seen[layer, name][member, :, head] for name in ("query", "key", "mixed"))
                logits = [q[b, t] @ k[b, s] / width**0.5 for b in range(len(q)) for t in range(6) for s in range(t + 1)]
                rows = decoder.projection.detach()[member, layer, width * head : width * (head + 1)].double()
                logit[member, layer, head], output[member, layer, head] = max(logits), (mixed @ rows).abs().max()
    return logit, output


@pytest.mark.parametrize("what", [0, 1])
def test_a_clip_scales_the_heads_that_are_above_their_threshold_and_no_others(what):
    """The first layer stands at its threshold, what its other numbers do is untouched, bit for bit."""
    config = DecoderConfig(vocabulary=13, width=8, heads=2, mlp=12, layers=2, context=6)
    tokens = torch.randint(13, (3, 6), generator=torch.Generator().manual_seed(0))
    largest = by_hand(Decoder(config, seeds=[3, 4]), tokens)[what]
    bounds = torch.full((2, 2, 2, 2), math.inf)
    bounds[what, 0, 0, 1] = largest[0, 0, 1] / 3  # member 0, layer 0, head 1
    bounds[what, 1, 1, 0] = largest[1, 1, 0] * 1.01  # not reached
    decoder = Clipped(config, [3, 4], tokens, bounds, every=5)
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    decoder.tend(4)
    assert all(torch.equal(p, before[name]) for name, p in decoder.named_parameters())
    decoder.tend(5)
    assert by_hand(decoder, tokens)[what][0, 0, 1] == pytest.approx(float(bounds[what, 0, 0, 1]), rel=1e-5)
    columns = [*range(4, 8), *range(12, 16)] if what == 0 else range(20, 24)
    for name, p in decoder.named_parameters():
        times = torch.ones_like(p)
        if name in ("qkv", "qkv_bias"):
            times[0, 0, ..., list(columns)] = 3**-0.5
        elif name == "projection" and what == 1:
            times[0, 0, 4:8] = 3**-0.5
        torch.testing.assert_close(p, before[name] * times, rtol=1e-6, atol=0)
        assert torch.equal(p[times == 1], before[name][times == 1])


@torch.no_grad()
def test_what_is_looked_at_is_what_it_says():
    """Entropy without the idle key, the largest logit, the first key's share, and words' logits to the mean query."""
    shape = DecoderConfig(vocabulary=5, width=8, mlp=12, layers=2, context=6)
    kinds = [shape, replace(shape, attention="off-by-one"), replace(shape, positions="alibi")]
    decoder = Decoder(shape, seeds=[3, 3, 3], kinds=kinds, of=[0, 1, 2])
    tokens = torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(0))
    found = networks.looks(tokens, torch.tensor([2, 4]))(decoder, range(3))
    seen = {}
    decoder.features(tokens, look=lambda layer, name, x: seen.update({(layer, name): x.detach().double()}))
    for member in range(3):
        query, key = (seen[0, name][member, :, 0] for name in ("query", "key"))
        for i, word in enumerate((2, 4)):
            where = (tokens == word).nonzero().tolist()
            logits = [float(query.mean((0, 1)) @ key[b, t]) / 8**0.5 for b, t in where]
            assert float(found["words"][member, i]) == pytest.approx(np.mean(logits), abs=1e-5)
        for layer in range(2):
            logits, weights = (seen[layer, name][member, :, 0] for name in ("logits", "attention"))
            assert float(found["logit"][member, layer, 0]) == pytest.approx(float(logits.max()), abs=1e-5)
            assert float(found["sink"][member, layer, 0]) == pytest.approx(float(weights[:, 3:, 0].mean()), abs=1e-6)
            shares = [logits[b, t, : t + 1].softmax(0).tolist() for b in range(4) for t in range(6)]
            each = [-sum(a * math.log(a) for a in one) for one in shares]
            assert float(found["entropy"][member, layer, 0]) == pytest.approx(np.mean(each), abs=1e-5)
    largest = by_hand(decoder, tokens)[1]
    torch.testing.assert_close(found["output"].double(), largest, rtol=1e-5, atol=1e-6)


def test_arms_differ_in_what_their_name_says_and_controls_have_as_many_parameters():
    assert set(networks.POSITIONS) < set(ARMS)

    def numbers(arm):
        config = replace(DecoderConfig(vocabulary=9, width=8, mlp=12), **ARMS[arm])
        return sum(p.numel() for p in Decoder(config, seeds=[0]).parameters())

    assert numbers("QK-norm") == numbers("VO-norm") == numbers(PLAIN) + 2 * 8
    assert numbers("gate") == numbers("MLP gate") == numbers(PLAIN) + 8 * 8 + 8
    assert {"gate", "MLP gate", PLAIN} < set(MADE_ARMS)


def test_thresholds_are_half_of_the_plain_network_s_peak(small_run):
    """In the small run of all studies: by seed, layer and head, of logits for QK-clip, of outputs for its control."""
    run = small_run("modern-block")
    config = small_run.config("modern-block")
    variant = networks._of_arms(replace_recipe(config), 2)
    plain = type("Plain", (), {"batch": staticmethod(lambda step, members: (torch.zeros(1, 4, 6, dtype=torch.long),))})
    kept = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "replace", lambda ensemble, **changes: kept.update(changes))
        networks._clipped(config, run, "2 layers, norms after", variant, plain)
    bounds = kept["networks"](range(6)).bounds  # (members, 2, layers, heads)
    for what, name in enumerate(("logit", "output")):
        peak = run.array(f"2 layers, norms after/block/{name}")[:, :3].max(0)
        torch.testing.assert_close(bounds[3 * what : 3 * what + 3, what], torch.from_numpy(0.5 * peak))
        assert torch.isinf(bounds[3 * (1 - what) : 3 * (1 - what) + 3, what]).all()


def test_members_are_of_the_arm_under_which_they_are_read():
    variant, plain = networks._of_arms(replace_recipe(CONFIG), len(ARMS)), type("Plain", (), {})
    kept = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "replace", lambda one, **changes: kept.update(changes) or replace_in(one, changes))
        networks._mixed(CONFIG, variant, plain)
    mixed, count = kept["networks"](range(len(ARMS) * SEEDS)), range(SEEDS)
    made_of = networks.MadeLanguage(CONFIG, networks.copying(24, 6, 24, train=4, valid=4, seed=0))
    for decoder, arms in ((mixed, tuple(ARMS)), (made_of.networks(range(len(MADE_ARMS) * SEEDS)), MADE_ARMS)):
        for place, arm in enumerate(arms):
            members = slice(place * SEEDS, (place + 1) * SEEDS)
            assert decoder.seeds[members].tolist() == [CONFIG.seed + seed for seed in count]
            assert decoder.get_buffer("has_gate")[members].all() == (arm == "gate")
            assert decoder.get_buffer("learns_sink")[members].all() == (arm == "learned sink")
            if decoder is mixed:
                assert decoder.get_buffer("has_qk_norm")[members].all() == (arm == "QK-norm")
                assert decoder.get_buffer("learns_place")[members].all() == (arm == "learned positions")


def replace_in(one, changes):
    return replace(one, **changes) if isinstance(one, DecoderConfig) else None


def replace_recipe(config):
    from joma.recipes.language import Recipe
    from joma.recipes.optimizers import make_optimizer

    shape = DecoderConfig(vocabulary=40, width=8, mlp=8, layers=2, context=6)
    seeds = tuple(range(config.seed, config.seed + config.seeds))
    return Recipe(shape, make_optimizer("adam", rate=0.01), rates=(0.01,), seeds=seeds)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 401}, "window must be at most 400, the steps, got 401"),
        ({"made_triggers": 24}, "made_triggers must be at most 23, all words but one, got 24"),
    ],
)
def test_configs_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)
