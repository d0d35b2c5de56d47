"""The reversal curse in decoders: what is taught and asked, and verdicts that follow the record."""

import numpy as np
import pytest
import torch
from records import changed, found, verdicts
from small_runs import small

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.reversal._decoders import grouped
from joma.studies.reversal.reversal_decoder import run as taught
from joma.studies.reversal.reversal_decoder.run import asymmetry, blocks, excess
from joma.studies.reversal.reversal_decoder.study import STUDY

TINY = small("reversal-decoder")
SEEDS = 4
CONFIG = taught.ReversalDecoderConfig(seeds=SEEDS, entities=(1, 2))
SIZE = 6
SPREAD = np.array([-1.0, 1.0, -0.5, 0.5])  # of four seeds, nothing in the mean

PUBLISHED = {"trained": 1.0, "one way": 0.99, "reverse": 0.002, "shuffled reverse": 0.002, "unseen": 0.002,
             "added reverse": 0.99, "other end": 0.5}  # fmt: skip
REVERSES = {"read backwards": 0.99, "any order": 0.99, "identities": 0.6}


def record(path, changes=None, *, ranks=None, accuracy=None, spread=1e-3, logits=(10.0, 0.0), attention=None):
    """A record in which the curse is as published and cures cure.

    changes: (condition, kind) -> probability; ranks: condition -> share of rivals that the reverse beats; accuracy:
    condition -> of what was taught, by seed.
    """
    changes = {(name, "reverse"): value for name, value in REVERSES.items()} | (changes or {})
    ranks, accuracy = ranks or {}, accuracy or {}
    run = Run.create(path, study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    for group, members in grouped(taught.conditions(vars(CONFIG))).items():
        parts = _group(members, changes, ranks, accuracy, spread)
        for point in (0, CONFIG.steps):
            run.record(point, {f"{group}/{series}": np.concatenate(part) for series, part in parts.items()})
        if group == "1 layer":
            for point in (0, CONFIG.steps):
                shown = logits if point else (0.0, 0.0)
                run.record(point, {f"{group}/matrix/{name}": value for name, value in
                                   _matrices(len(members), shown, attention if point else None).items()})  # fmt: skip
    return run


def _group(members, changes, ranks, accuracy, spread):
    series = ("facts/log", "facts/probability", "facts/accuracy", "rank/beaten", "rank/chosen", "diverged_at")
    parts = {name: [] for name in series}
    for one in members:
        usual = [changes.get((one.name, kind), PUBLISHED[kind]) for kind in taught.KINDS]
        known = np.broadcast_to(accuracy.get(one.name, 1.0), SEEDS)
        parts["facts/probability"].append(np.array(usual) + spread * SPREAD[:, None] * np.arange(1, 8))
        parts["facts/log"].append(np.log(np.maximum(parts["facts/probability"][-1], 1e-9)))
        parts["facts/accuracy"].append(np.repeat(known[:, None], len(taught.KINDS), 1))
        for name in ("rank/beaten", "rank/chosen"):
            parts[name].append(np.stack([np.ones(SEEDS), ranks.get(one.name, 0.5) + spread * SPREAD], -1))
        parts["diverged_at"].append(np.full(SEEDS, -1))
    return parts


def _matrices(conditions, logits, attention):
    luck = np.random.default_rng(0)
    shape = (conditions * SEEDS, 2 * SIZE, 2 * SIZE)
    said, looks = 0.1 * luck.normal(size=shape), luck.normal(size=shape)
    own = np.arange(SIZE)
    said[:, own, own + SIZE] += logits[0]
    said[:, own + SIZE, own] += logits[1]
    if attention == "symmetric":
        looks = looks + looks.swapaxes(-1, -2)
    if attention == "antisymmetric":
        looks = looks - looks.swapaxes(-1, -2)
    if attention == "by fact":
        looks[:, own, own + SIZE] += 5
    return {"logits": said, "attention": looks}


def verdict(path, claim, **options):
    return found(STUDY, record(path, **options), claim).verdict


def test_the_published_picture_holds(tmp_path):
    seen = verdicts(STUDY, record(tmp_path / "run", spread=1e-4))
    assert {name for name, one in seen.items() if one == "holds"} == {
        "reverse-no-better-than-uniform", "reverse-loss-above-uniform", "curse-at-every-depth",
        "curse-with-frozen-embeddings",
        "curse-with-long-entities", "longer-training-does-not-help", "no-trace-of-the-reverse", "reversed-statements",
        "identity-statements", "text-read-backwards", "any-order-objective", "next-token-logits",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "condition"),
    [
        ("reverse-no-better-than-uniform", taught.BASE),
        ("curse-at-every-depth", taught.BASE),
        ("curse-with-frozen-embeddings", "frozen"),
        ("curse-with-long-entities", "2 tokens"),
        ("longer-training-does-not-help", taught.LONG),
    ],
)
def test_a_reverse_that_is_known_ends_the_curse(tmp_path, claim, condition):
    def of(name, **options):
        return verdict(tmp_path / name, claim, **options)

    assert of("known", changes={(condition, "reverse"): 0.99}) == "not above its control"
    assert of("some", changes={(condition, "reverse"): 0.3}) == "only qualitative"
    assert of("noise", changes={(condition, "reverse"): 0.04}, spread=0.01) == "undecided"
    assert of("backwards", changes={(condition, "one way"): 0.1, (condition, "reverse"): 0.9}) == "fails"


def test_the_loss_is_set_beside_a_uniform_guess(tmp_path):
    for reverse, expected in ((0.01, "holds"), (1 / 48, "not above its control"), (0.1, "fails")):
        run = {"changes": {(taught.BASE, "reverse"): reverse}, "spread": 1e-5}
        assert verdict(tmp_path / str(reverse), "reverse-loss-above-uniform", **run) == expected


def test_a_trace_is_seen_in_the_ranks(tmp_path):
    def of(name, rank, spread=1e-3):
        return verdict(tmp_path / name, "no-trace-of-the-reverse", ranks={taught.BASE: rank}, spread=spread)

    assert of("none", 0.5) == "holds"
    assert of("half", 0.7) == "only qualitative"
    assert of("all", 1.0) == "not above its control"
    assert of("noise", 0.55, spread=0.1) == "undecided"


@pytest.mark.parametrize(
    ("claim", "other"),
    [
        ("other-pairs-both-ways", "no pair both ways"),
        ("trace-needs-shared-embeddings", "untied"),
        ("trace-grows-with-the-rate", "rate 0.005"),
    ],
)
def test_what_leaves_the_trace(tmp_path, claim, other):
    higher = {taught.BASE: 0.9}
    known = {(taught.BASE, "reverse"): 0.9}
    assert verdict(tmp_path / "trace", claim, ranks=higher, changes=known) == "holds"
    assert verdict(tmp_path / "none", claim) == "not above its control"
    same = verdict(tmp_path / "same", claim, ranks=higher | {other: 0.9})
    assert same == (
        "only qualitative" if claim == "trace-needs-shared-embeddings" else "not above its control"
    )  # frozen still differs
    assert verdict(tmp_path / "less", claim, ranks={other: 0.9, "frozen": 0.9}) == "fails"


def test_ranks_without_probability_are_no_cure(tmp_path):
    assert verdict(tmp_path / "run", "other-pairs-both-ways", ranks={taught.BASE: 0.9}) == "only qualitative"


@pytest.mark.parametrize(
    ("claim", "name", "twin"),
    [
        ("identity-statements", "identities", "other identities"),
        ("any-order-objective", "any order", "fill the end"),
        ("text-read-backwards", "read backwards", taught.BASE),
    ],
)
def test_a_cure_must_beat_its_twin(tmp_path, claim, name, twin):
    assert verdict(tmp_path / "holds", claim) == "holds"
    assert verdict(tmp_path / "little", claim, changes={(name, "reverse"): 0.2}) == "only qualitative"
    assert verdict(tmp_path / "none", claim, changes={(name, "reverse"): 0.002}) == "not above its control"
    same = {(name, "reverse"): 0.6, (twin, "reverse"): 0.6}
    assert verdict(tmp_path / "twin", claim, changes=same) == "not above its control"
    worse = {(name, "reverse"): 0.6, (twin, "reverse"): 0.9}
    assert verdict(tmp_path / "worse", claim, changes=worse) == "fails"


def test_reverses_that_are_taught_must_be_known(tmp_path):
    unknown = {("half the reverses", "added reverse"): 0.002}
    assert verdict(tmp_path / "run", "reversed-statements", changes=unknown) == "not above its control"


def test_logits_and_attention(tmp_path):
    assert verdict(tmp_path / "both", "next-token-logits", logits=(10.0, 3.0)) == "only qualitative"
    assert verdict(tmp_path / "same", "next-token-logits", logits=(3.0, 3.0)) == "not above its control"
    assert verdict(tmp_path / "turned", "next-token-logits", logits=(0.0, 10.0)) == "fails"
    assert verdict(tmp_path / "anti", "attention-not-symmetric", attention="antisymmetric") == "holds"
    assert verdict(tmp_path / "even", "attention-not-symmetric") == "not above its control"
    assert verdict(tmp_path / "turn", "attention-not-symmetric", attention="symmetric") == "fails"
    assert verdict(tmp_path / "fact", "attention-follows-facts", attention="by fact") == "holds"
    assert verdict(tmp_path / "none", "attention-follows-facts") == "not above its control"


def test_networks_that_did_not_learn_do_not_count(tmp_path):
    spoiled = {(taught.BASE, "reverse"): np.nan}
    nobody = record(tmp_path / "nobody", accuracy={taught.BASE: 0.9}, changes=spoiled)
    assert found(STUDY, nobody, "reverse-no-better-than-uniform").verdict == "not run"
    one = record(tmp_path / "one", accuracy={taught.BASE: np.array([1.0, 1.0, 1.0, 0.2])})
    curse = found(STUDY, one, "reverse-no-better-than-uniform")
    assert curse.verdict == "undecided"  # it counts as the worst
    assert curse.details["networks left out"] == {"did not learn": 1.0}


def test_a_network_that_diverged_on_its_way_does_not_count(tmp_path):
    def mark(name, step, value):
        marked = np.array(value)
        if step and name.endswith("/diverged_at"):
            marked[1::SEEDS] = 5  # the second seed of every condition
        return marked

    marked = changed(record(tmp_path / "sound"), mark)
    curse = found(STUDY, marked, "reverse-no-better-than-uniform")
    assert curse.main.seeds == SEEDS - 1
    assert curse.details["networks left out"]["did not learn"] >= 1


@pytest.mark.parametrize("condition", taught.conditions(vars(TINY)), ids=lambda one: f"{one.name}, {one.layers}")
def test_no_tested_reverse_is_trained(condition):
    """But where it is added. A masked statement shows both entities, so there only its own order counts."""
    one = taught.Taught(TINY, condition, seed=1)
    trained = {tuple(row) for row in one.statements().tokens.tolist()}
    assert not trained & {tuple(row) for row in one.facts.test.tokens.tolist()}
    assert {tuple(row) for row in one.facts.one_way.tokens.tolist()} <= trained
    assert {tuple(row) for row in one.added().tokens.tolist()} <= trained
    entities = {tuple(row) for row in torch.cat([one.facts.first, one.facts.second]).tolist()}
    assert not entities & {tuple(row[: condition.entity]) for row in one.facts.unseen.tokens.tolist()}


def test_conditions_teach_what_their_names_say():
    def of(name):
        condition = next(one for one in taught.conditions(vars(TINY)) if one.name == name)
        return taught.Taught(TINY, condition, seed=0)

    base = of(taught.BASE)
    count = len(base.statements())
    assert len(of("no pair both ways").facts.one_way) == TINY.pairs
    assert len(of("half the reverses").statements()) == count + len(base.facts.test) // 2
    own, other = (of(name).statements().tokens[count:] for name in ("identities", "other identities"))
    assert (own[:, 0] == own[:, 2]).all()
    assert not (other[:, 0] == other[:, 2]).any()
    assert sorted(own[:, 2].tolist()) == sorted(other[:, 2].tolist())  # as often an answer
    assert (own[:, 1] == base.relation_is).all()
    assert len(of("read backwards").statements()) == 2 * count
    both, end = (of(name).lesson().training for name in ("any order", "fill the end"))
    assert (len(both), len(end)) == (2 * count, count)
    assert (end.tokens[:, -1] == base.mask).all()


def test_a_batch_depends_on_step_and_member_alone():
    group = grouped(taught.conditions(vars(TINY)))["1 layer"]
    members = taught.FactNetworks(TINY, group)
    tokens, targets = members.batch(3, range(len(members.lessons)))
    some, wanted = members.batch(3, [1, 4])
    assert torch.equal(tokens[[1, 4]], some)
    assert torch.equal(targets[[1, 4]], wanted)
    assert not torch.equal(tokens, members.batch(4, range(len(members.lessons)))[0])
    count = len(members.lessons[0].training)
    first = members.order[0].flatten()[:count]
    assert sorted(first.tolist()) == list(range(count))  # an epoch reads everything once


def test_so_many_pairs_are_shown_one_by_one(monkeypatch):
    monkeypatch.setattr(taught, "SHOWN", 3)
    members = taught.FactNetworks(TINY, grouped(taught.conditions(vars(TINY)))["1 layer"])
    facts = members.taught[1].facts
    subjects, answers = facts.one_way.tokens[:3, 0], facts.test.tokens[:3, 0]
    asked = torch.cat([facts.one_way.tokens[:3, :2], facts.test.tokens[:3, :2]])
    decoder = members.networks([1])
    with torch.no_grad():
        found = members.matrices(decoder, [1])
        told = decoder(asked[None])[0, :, -1]
    assert found["attention"].shape == (1, 6, 6)
    torch.testing.assert_close(found["logits"][0], told[:, torch.cat([subjects, answers])])


def test_the_measures_of_matrices():
    matrix = np.zeros((1, 4, 4))
    matrix[0, :2, 2:] = [[5.0, 1.0], [2.0, 6.0]]
    ahead, back = blocks(matrix)
    assert (excess(ahead).item(), excess(back).item()) == (4.0, 0.0)
    luck = np.random.default_rng(0).normal(size=(1, 40, 40))
    turned = luck.swapaxes(1, 2)
    found_shares = [asymmetry(one).item() for one in (luck + turned, luck, luck - turned)]
    np.testing.assert_allclose(found_shares, [0.0, 0.5, 1.0], atol=0.05)


def test_four_pairs_with_one_direction_are_enough():
    assert taught.ReversalDecoderConfig(both=0.84).both == 0.84  # 3.84 of 24, rounded
