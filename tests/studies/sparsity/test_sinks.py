"""Attention sinks: networks of all kinds train, and verdicts follow the mass on the first key of those that learned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import altered, changed, found, verdicts

from joma.claims.execute import judge, plain_config
from joma.data.text import Corpus, CorpusError
from joma.models import Decoder
from joma.recipes.copying import Reading, copying, sequences_of, without_fetching
from joma.runs import Run
from joma.studies.sparsity._readings import COPY, TEXT, of_text
from joma.studies.sparsity.sinks import KEYS, KINDS, STUDY, Members, SinksConfig, _mass, uniform

SEEDS = 4
CONFIG = SinksConfig(
    text_kinds=KINDS, firsts=("fixed", "free"), layers=2, text_layers=2, heads=3, width=12, seeds=SEEDS, length=100
)
TINY = replace(CONFIG, length=16, width=12, batch=2, steps=4, text_steps=2, every=2, pool=8, valid=3, seeds=2,
               text_kinds=("softmax",), tokens=20_000, vocabulary=60, seed=1)  # fmt: skip
NOT, OPEN, LITTLE = "not above its control", "undecided", "only qualitative"
VANISHED = {"off-by-one": 0.12, "learned-sink": 0.01, "sigmoid": 0.01}
UNFETCHED = 1.2


def test_points_are_every_so_many_steps():
    config = replace(TINY, steps=5, every=2)
    reading = Reading(torch.zeros(8, 17, dtype=torch.long), torch.zeros(3, 17, dtype=torch.long), 60)
    assert Members(config, COPY, KINDS[0], reading).ensemble().points == [0, 2, 4, 5]


def written(path, *, softmax=0.4, second=0.01, start=0.01, replaced=0.3, text=None, spread=0.01, fetched=0.1, loss=2.0,
            **others):  # fmt: skip
    """A record in which every claim holds; softmax's mass on the first key, and that of the `others` by kind."""
    luck = np.random.default_rng(0)
    away = luck.standard_normal(SEEDS)
    away = np.tile(spread * (away - away.mean()), 2)  # of every seed; nothing in the mean
    ends = VANISHED | {name.replace("_", "-"): value for name, value in others.items()}
    run = Run.create(path, study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    run.keep("unfetched", lambda: UNFETCHED)
    for reading in (COPY, TEXT):
        run.keep(f"{reading}/words", lambda: 300)
        for kind in KINDS:
            own = softmax if reading == COPY or text is None else text
            end = own if kind == "softmax" else ends[kind]
            for step in (0, 50, 100):
                mass = np.full((2 * SEEDS, 2, 3, KEYS), second)
                mass[..., 0] = (end if step else start) + (away if step else 0 * away)[:, None, None]
                values = {"mass": mass, "total": mass.sum(-1), "replaced": mass[..., 0] * 0 + replaced,
                          "moved": mass[..., :2], "loss": np.full(2 * SEEDS, loss),
                          "fetched": np.full(2 * SEEDS, fetched)}  # fmt: skip
                run.record(step, {f"{reading}/{kind}/attention/{name}": value for name, value in values.items()})
    return run


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({}, ["holds"] * 5),
        ({"spread": 1.0}, [OPEN, *["not run"] * 4]),
        ({"softmax": 0.03}, [LITTLE, *["not run"] * 4]),  # above its controls, by less than matters
        ({"softmax": 0.0, "spread": 0.001}, [NOT, *["not run"] * 4]),  # below them, by as little
        ({"softmax": 0.0, "start": 0.2}, ["fails", *["not run"] * 4]),
        ({"start": 0.4}, [NOT, *["not run"] * 4]),  # the untrained network has it as well
        ({"second": 0.4}, [NOT, *["not run"] * 4]),  # and so has the second key
        ({"text": 0.01}, [LITTLE, *["holds"] * 4]),  # no sink in the text: only the made language is judged
        ({"replaced": 0.1}, ["holds", LITTLE, *["holds"] * 3]),  # another word has a quarter of it
        ({"replaced": 0.0}, ["holds", NOT, *["holds"] * 3]),
        ({"replaced": 0.0, "second": 0.2}, ["holds", "fails", *["holds"] * 3]),
        ({"sigmoid": 0.4}, ["holds", "holds", NOT, "holds", "holds"]),
        ({"sigmoid": 0.2}, ["holds", "holds", LITTLE, "holds", "holds"]),  # less than softmax, and still a sink
        ({"sigmoid": 0.5}, ["holds", "holds", "fails", "holds", "holds"]),
        ({"learned_sink": 0.4}, ["holds", "holds", "holds", NOT, "holds"]),
        ({"off_by_one": 0.01}, ["holds", "holds", "holds", "holds", LITTLE]),  # it is enough after all
        ({"fetched": 1.1, "loss": 5.6}, ["not run"] * 5),
        ({"fetched": 1.1, "text": 0.01}, [NOT, *["not run"] * 4]),  # only the text was learned, and has no sink
        ({"loss": 5.6}, ["holds"] * 5),  # only the made language was: guessing among 301 words loses 5.7
    ],
)
def test_verdicts_follow_the_record(tmp_path, planted, expected):
    with written(tmp_path / "run.sqlite", **planted) as run:
        findings = judge(STUDY, run)
        assert [finding.verdict for finding in findings] == expected


def test_text_is_learned_a_tenth_below_guessing_with_the_first_token_among_the_words(tmp_path):
    """Of 300 words and a first token: 0.9 ln 301 is 5.1364, and 0.9 ln 300 would be 5.1334."""
    judged = {}
    for loss in (2.0, 5.135, 5.138):
        with written(tmp_path / f"{loss}.sqlite", fetched=1.1, loss=loss) as run:
            judged[loss] = list(verdicts(STUDY, run).values())
    assert judged[5.135] == judged[2.0] != judged[5.138] == ["not run"] * 5


def test_a_kind_that_never_attends_proves_nothing(tmp_path):
    with written(tmp_path / "a.sqlite") as run:
        name = f"{COPY}/sigmoid/attention/fetched"
        copy = altered(run, name, lambda x: x * 0 + UNFETCHED)
        assert found(STUDY, copy, "sinks-need-softmax").verdict == "not run"
        assert found(STUDY, copy, "learned-sink-takes-over").verdict == "holds"

        def one(value):
            value = value.copy()
            value[0] = UNFETCHED
            return value

        finding = found(STUDY, altered(run, name, one), "sinks-need-softmax")
        assert finding.verdict == "undecided"  # what did not learn counts as the worst
        assert finding.printed.effects["made language"].seeds == SEEDS - 1
        assert finding.details["left out because they did not learn"] == {"networks": 1}


def test_numbers_beside_leave_out_networks_that_did_not_learn(tmp_path):
    """One network with softmax never attends, and puts all on the first key from the beginning on."""

    def never_attends(name, step, value):
        value = value.copy()
        if name == f"{COPY}/softmax/attention/fetched":
            value[0] = UNFETCHED
        if name == f"{COPY}/softmax/attention/mass":
            value[0, ..., 0] = 1.0
        if name == f"{COPY}/softmax/attention/loss":
            value[0] = 9.0
        return value

    with written(tmp_path / "a.sqlite", spread=0.0) as run:
        copy = changed(run, never_attends)
        told = found(STUDY, copy, "first-token-draws-attention").details["made language"]
        assert told["strongest head"] == pytest.approx(0.4)
        assert told["step with half of the final mass"] == 50
        assert "made language" not in found(STUDY, copy, "sinks-need-softmax").details  # whether it has one is open


def test_the_made_language_is_what_it_says():
    made = copying(12, 3, 40, train=200, valid=5, seed=0)
    assert made.train.shape == (200, 41)
    assert made.valid.shape == (5, 41)
    before, trigger, after = made.train[:, :-2], made.train[:, 1:-1], made.train[:, 2:]
    asked = trigger < 3
    assert torch.equal(after[asked], before[asked])
    assert (after[~asked] == before[~asked]).float().mean() < 0.5
    assert torch.equal(made.train, copying(12, 3, 40, train=200, valid=5, seed=0).train)
    assert not torch.equal(made.train, copying(12, 3, 40, train=200, valid=5, seed=1).train)
    certain = Reading(torch.tensor([[5, 5, 0, 5, 0, 5, 0, 5]]), torch.zeros(1, 8), 6, 1)
    assert without_fetching(certain) == 0.0
    assert 0.5 < without_fetching(made) < np.log(12)


def test_the_made_language_has_no_word_beyond_its_last(monkeypatch):
    """Added up in float32, the chances of a row may end below 1, and luck may lie above."""
    monkeypatch.setattr(torch, "rand", lambda *shape, generator: torch.full(shape, 1 - 2.0**-24))
    made = copying(12, 3, 40, train=200, valid=5, seed=0)
    assert made.train.max() == 11


def test_every_epoch_reads_all_in_an_order_of_its_own():
    train = torch.arange(100, 108)[:, None].expand(8, 3)
    read = torch.stack([sequences_of(train, step, 3) for step in range(4)])  # two steps an epoch: two are left over
    assert read.shape == (4, 3, 3)
    first, second = (part.flatten().tolist() for part in (read[:2, :, 0], read[2:, :, 0]))
    assert len(set(first)) == len(set(second)) == 6
    assert first != second
    assert sorted(sequences_of(train, 0, 20)[:, 0].tolist()) == list(range(100, 108))


def test_members_begin_alike_and_read_what_their_first_token_says():
    made = copying(12, 3, 16, train=8, valid=3, seed=0)
    config = replace(TINY, words=12, triggers=3)
    members = Members(config, COPY, "softmax", made)
    read, following = members.batch(0, range(4))
    assert (read[:2, :, 0] == 12).all()
    assert (read[2:, :, 0] != 12).any()
    assert torch.equal(read[:2, :, 1:], read[2:, :, :-1])
    assert torch.equal(read[..., 1:], following[..., :-1])
    plain, sigmoid = (Members(config, COPY, kind, made).networks([0, 1]) for kind in ("softmax", "sigmoid"))
    assert torch.equal(plain.qkv, sigmoid.qkv)


def test_mass_of_uniform_attention_is_uniform_and_sigmoids_are_shares():
    for kind, most in (("softmax", 1.0), ("sigmoid", 1.0)):
        decoder = Decoder(TINY.shape(9, kind, 2), seeds=[0])
        with torch.no_grad():
            decoder.qkv.zero_()
            decoder.qkv_bias.zero_()
        mass, total = _mass(decoder, torch.zeros(1, 2, 16, dtype=torch.long))
        assert total.max() <= most + 1e-6
        if kind == "softmax":
            assert mass[..., 0].flatten().tolist() == pytest.approx([uniform(16)] * 6)
        with torch.no_grad():
            decoder.qkv_bias[..., : 2 * 12] = 9.0  # all logits large: a sigmoid's weights are all 1
        mass, total = _mass(decoder, torch.zeros(1, 2, 16, dtype=torch.long))
        assert mass[..., 0].flatten().tolist() == pytest.approx([uniform(16)] * 6, rel=1e-3)
        assert (total > 2).all() == (kind == "sigmoid")


def test_a_text_that_is_too_short_is_refused():
    def read(train, valid):
        parts = {"train": torch.zeros(train, dtype=torch.int32), "valid": torch.zeros(valid, dtype=torch.int32)}
        return of_text(Corpus("short", ("a", "b"), parts, ""), 16, 3)

    read(17, 51)  # one sequence, and three
    for short in ((16, 51), (17, 50)):
        with pytest.raises(CorpusError, match="too few for sequences of 17 tokens"):
            read(*short)


def test_one_network_that_keeps_its_sink_leaves_it_open(tmp_path):
    """In the mean the excess matters, but one network of four has all of it: what is left is not decided."""

    def one(value):
        value = value.copy()
        value[..., 0] = 0.0
        value[0, ..., 0] = 0.6
        return value

    with written(tmp_path / "a.sqlite", text=0.01) as run:
        for kind, claim in (("learned-sink", "learned-sink-takes-over"), ("off-by-one", "zero-sink-is-not-enough")):
            finding = found(STUDY, altered(run, f"{COPY}/{kind}/attention/mass", one), claim)
            assert finding.verdict == OPEN
            assert finding.details["made language"]["networks with a head above 30 %"] == 1
