"""The task that needs a sink: its tokens, what networks can do with them, and verdicts from made-up records."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import found, verdicts

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.sparsity.sinks_needed import ALWAYS, KINDS, STUDY, TRIGGER, Heads, Members, Record, name_of, sequences

CONFIG = replace(STUDY.quick, heads=(1, 2), steps=100, every=50)
CHECK, LITTLE, NOT = "softmax-needs-a-sink", "only qualitative", "not above its control"
ENDS = {"softmax": 0.97, "off-by-one": 0.6, "learned-sink": 0.02, "sigmoid": 0.03, "relu": 0.0}


def made(folder, *, ends=(), starts=0.1, error=0.01, second=0.01, always=0.11):
    """A record in which all claims hold; masses at the end by kind, errors of all networks or by kind."""
    run = Run.create(folder / "made.sqlite", study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    luck = np.linspace(-0.004, 0.004, CONFIG.seeds)
    ends = ENDS | dict(ends)
    for turn, (name, (kind, heads, task)) in enumerate(CONFIG.variants.items()):
        own = np.roll(luck, turn)
        off = error.get(kind, 0.01) if isinstance(error, dict) else error
        for step in (0, 50, 100):
            mass = (ends[kind] if task == TRIGGER else always) if step else starts
            rows = {"missed": off / 2 + 0 * own, "noise": off / 2 + 0 * own}
            rows |= {what: (value + own)[:, None].repeat(heads, 1)
                     for what, value in (("first", mass), ("second", second), ("total", 1.0))}  # fmt: skip
            run.record(step, {f"{name}/read/{what}": row for what, row in rows.items()})
    return run


def test_a_record_of_sinks_with_softmax_alone_holds(tmp_path):
    with made(tmp_path) as run:
        assert set(verdicts(STUDY, run).values()) == {"holds"}
        assert Record(run, 1).uniform == pytest.approx(sum(1 / keys for keys in range(7, 13)) / 6)


@pytest.mark.parametrize(
    ("change", "claim", "verdict"),
    [
        ({"ends": {"softmax": 0.7}}, CHECK, LITTLE),
        ({"starts": 0.96}, CHECK, "undecided"),  # no room above the untrained network
        ({"always": 0.96}, CHECK, "undecided"),
        ({"second": 0.96}, CHECK, "undecided"),
        ({"second": 0.4, "ends": {"softmax": 0.35}}, CHECK, NOT),
        ({"ends": {"softmax": 0.1}}, CHECK, NOT),
        ({"error": 0.11}, CHECK, "not run"),
        ({"error": {"relu": 0.11}}, "relu-needs-none", "not run"),
        ({"error": {"relu": 0.07}}, "relu-needs-none", NOT),
        ({"ends": {"relu": 0.2}}, "relu-needs-none", LITTLE),
        ({"ends": {"sigmoid": 0.2}}, "sigmoid-needs-none", LITTLE),
        ({"ends": {"sigmoid": 0.9}}, "sigmoid-needs-none", LITTLE),
        ({"ends": {"learned-sink": 0.2}}, "learned-sink-takes-over", LITTLE),
        ({"ends": {"learned-sink": 0.97}}, "learned-sink-takes-over", NOT),
        ({"ends": {"off-by-one": 0.12}}, "zero-sink-is-not-enough", LITTLE),
        ({"ends": {"off-by-one": 0.96}}, "zero-sink-is-not-enough", LITTLE),
    ],
)
def test_a_verdict_follows_its_record(change, claim, verdict, tmp_path):
    with made(tmp_path, **change) as run:
        assert found(STUDY, run, claim).verdict == verdict


def test_each_claim_reads_its_own_kind(tmp_path):
    claims = {"relu": "relu-needs-none", "sigmoid": "sigmoid-needs-none", "learned-sink": "learned-sink-takes-over"}
    for kind, claim in claims.items():
        with made(tmp_path, ends={kind: 0.5}) as run:
            assert {name for name, verdict in verdicts(STUDY, run).items() if verdict != "holds"} == {claim}
        (tmp_path / "made.sqlite").unlink()


def test_tokens_say_what_is_asked():
    tokens, wanted, asked = sequences(CONFIG, TRIGGER, 200, 3)
    vectors, marks = tokens[..., : CONFIG.content], tokens[..., CONFIG.content :]
    assert (marks.sum(-1) == 1).all()
    assert torch.equal(marks[..., 0], torch.eye(CONFIG.length)[:1].expand(200, -1))
    assert (vectors[:, 0] == 0).all()
    assert torch.equal(asked, marks[..., 1] == 1)
    places = asked.int().argmax(1)
    assert (asked.sum(1) == 1).all()
    assert set(places.tolist()) == set(range(2, CONFIG.length))
    for row in range(20):
        at = int(places[row])
        assert torch.allclose(wanted[row, at], vectors[row, : at + 1].mean(0), atol=1e-6)
        assert (wanted[row, [place for place in range(CONFIG.length) if place != at]] == 0).all()
    control, means, everywhere = sequences(CONFIG, ALWAYS, 200, 3)
    assert torch.equal(control[..., : CONFIG.content], vectors)
    assert torch.equal(everywhere, marks[..., 0] == 0)
    assert (control[..., CONFIG.content + 1] == 0).all()
    assert torch.allclose(means[:, -1], vectors.mean(1), atol=1e-6)
    assert not torch.equal(sequences(CONFIG, TRIGGER, 200, 4)[0], tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_do_it_and_softmax_with_its_sink_alone(kind):
    """Weights that solve it: logits are high at a trigger, and else low, or with softmax high at the first key."""
    config = replace(CONFIG, width=8)
    networks = Heads(config, kind, 1, [0]).double()
    first, trigger, other = range(config.content, config.content + 3)
    high = {"relu": 1.0, "sigmoid": -9.0}.get(kind, 12.0) * 8**0.5
    with torch.no_grad():
        networks.read.zero_()
        for row in (first, trigger, other):  # the keys: the first, and all others
            networks.read[0, row, 8 + (row != first)] = 1.0
        networks.read[0, trigger, :2] = high
        networks.read[0, [first, other], 0] = {"softmax": 12.0}.get(kind, -24.0) * 8**0.5
        networks.read[0, [first, other], 1] = -24.0 * 8**0.5
        for place in range(config.content):
            networks.read[0, place, 16 + place] = 1.0
        networks.write.zero_()
        networks.write[0, : config.content] = torch.eye(config.content) * {"sigmoid": np.exp(9.0)}.get(kind, 1.0)
    members = Members(config, kind, 1, TRIGGER)
    members.valid = tuple(part.double() if part.is_floating_point() else part for part in members.valid)
    seen = members.look(networks, [0])
    assert (seen["missed"] + seen["noise"]).item() < 1e-3
    assert seen["first"].item() == pytest.approx(1.0 if kind == "softmax" else 0.0, abs=1e-4)


def test_what_is_looked_at_are_late_queries_that_must_be_silent():
    members = Members(CONFIG, "softmax", 2, TRIGGER)
    networks = Heads(CONFIG, "softmax", 2, [0, 1])
    with torch.no_grad():
        networks.read[..., : 2 * 2 * CONFIG.width] = 0.0  # uniform attention
    seen = members.look(networks, [0, 1])
    weight = torch.zeros(CONFIG.length)
    weight[CONFIG.length // 2 :] = (~members.valid[2]).sum(0)[CONFIG.length // 2 :].float()
    uniform = (weight / torch.arange(1, CONFIG.length + 1)).sum() / weight.sum()
    for key in ("first", "second"):
        assert torch.allclose(seen[key], uniform.expand(2, 2))
    tokens, wanted, asked = members.valid
    square = (networks(tokens) - wanted).square().sum(-1)
    for name, where in (("missed", asked), ("noise", ~asked)):
        assert seen[name].tolist() == pytest.approx([(o[where].sum() / wanted.square().sum()).item() for o in square])
    with torch.no_grad():
        networks.write.zero_()
    seen = members.look(networks, [0, 1])
    assert torch.stack([seen["missed"], seen["noise"]]).tolist() == [pytest.approx([1.0, 1.0]), [0.0, 0.0]]


def test_weights_that_sum_to_more_than_one_count_as_shares():
    members, networks = Members(CONFIG, "relu", 1, TRIGGER), Heads(CONFIG, "relu", 1, [0])
    with torch.no_grad():
        networks.read.zero_()
        networks.read[:, CONFIG.content :, [0, CONFIG.width]] = 8.0  # all logits are alike, and large
    seen = members.look(networks, [0])
    assert seen["total"].item() == pytest.approx(64 / CONFIG.width**0.5)
    plain = Heads(CONFIG, "softmax", 1, [0])
    with torch.no_grad():
        plain.read.zero_()
    uniform = Members(CONFIG, "softmax", 1, TRIGGER).look(plain, [0])
    assert seen["first"].item() == pytest.approx(uniform["first"].item(), rel=1e-5)


def test_kinds_begin_alike_and_members_are_their_seeds():
    plain, relu = (Heads(CONFIG, kind, 2, [3, 4]) for kind in ("softmax", "relu"))
    assert torch.equal(plain.read, relu.read)
    assert torch.equal(plain.write, relu.write)
    assert torch.equal(Heads(CONFIG, "softmax", 2, [4]).read[0], plain.read[1])
    tokens = sequences(CONFIG, TRIGGER, 3, 0)[0]
    learned, zero = (Heads(CONFIG, kind, 2, [3, 4]) for kind in ("learned-sink", "off-by-one"))
    assert torch.allclose(learned(tokens), zero(tokens))
    assert name_of("relu", 2) in CONFIG.variants
