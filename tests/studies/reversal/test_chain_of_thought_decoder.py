"""Chain of thought in decoders: what is taught and asked, and verdicts that follow the record."""

import numpy as np
import pytest
import torch
from records import found, verdicts
from small_runs import small

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.reversal import chain_of_thought_decoder as study
from joma.studies.reversal._decoders import grouped
from joma.studies.reversal.chain_of_thought_decoder import STUDY

TINY = small("chain-of-thought-decoder")
SEEDS = 4
CONFIG = study.ChainOfThoughtDecoderConfig(seeds=SEEDS)
SPREAD = np.array([-1.0, 1.0, -0.5, 0.5])
PUBLISHED = {"first step": 0.98, "second step": 0.99, "compositions": 0.99, "held out": 0.005,
             "shuffled held out": 0.005, "unseen": 0.0}  # fmt: skip
WAYS = {study.BASE: (0.0, 1.0, np.nan), "spelled out": (0.0, 1.0, 0.9), "other steps": (0.0, 1.0, 0.05),
        "frozen": (0.0, 1.0, np.nan)}  # fmt: skip

COMPOSE = "held-out-composition-no-better-than-uniform"


def record(path, changes=None, *, ways=None, rank=0.5, accuracy=1.0, spread=1e-3):
    """A record in which nothing is composed at once and everything step by step.

    changes: (condition, kind) -> probability; ways: condition -> shares reached at once, step by step, written.
    """
    changes, ways = changes or {}, WAYS | (ways or {})
    run = Run.create(path, study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    for group, members in grouped(study.conditions(vars(CONFIG))).items():
        shape = len(members) * SEEDS
        kinds = [[changes.get((one.name, kind), PUBLISHED[kind]) for kind in study.KINDS] for one in members]
        luck = spread * np.tile(SPREAD, len(members))[:, None]
        found_now = {
            "facts/probability": np.repeat(kinds, SEEDS, 0) + luck * np.arange(1, 7),
            "facts/accuracy": np.full((shape, len(study.KINDS)), accuracy),
            "rank/beaten": np.tile([1.0, rank], (shape, 1)) + luck * [0, 1],
            "answered": np.repeat([ways[one.name] for one in members], SEEDS, 0) + luck,
            "diverged_at": np.full(shape, -1),
        }
        for point in (0, CONFIG.steps):
            run.record(point, {f"{group}/{name}": value for name, value in found_now.items()})
    return run


def verdict(path, claim, **options):
    return found(STUDY, record(path, **options), claim).verdict


def test_the_published_picture_holds(tmp_path):
    assert set(verdicts(STUDY, record(tmp_path / "run")).values()) == {"holds"}


@pytest.mark.parametrize(
    ("claim", "condition"),
    [(COMPOSE, study.BASE), ("no-composition-with-frozen-embeddings", "frozen")],
)
def test_a_composition_that_is_known_ends_it(tmp_path, claim, condition):
    def of(name, held_out, **options):
        return verdict(tmp_path / name, claim, changes={(condition, "held out"): held_out}, **options)

    assert of("known", 0.98) == "not above its control"
    assert of("some", 0.3) == "only qualitative"
    assert of("noise", 0.05, spread=0.01) == "undecided"
    assert verdict(tmp_path / "nobody", claim, accuracy=0.9) == "not run"


def test_the_step_that_is_known_less_counts(tmp_path):
    unknown = {(study.BASE, "second step"): 0.2}
    assert verdict(tmp_path / "run", COMPOSE, changes=unknown) == "only qualitative"


def test_a_trace_is_seen_in_the_ranks(tmp_path):
    for rank, expected in ((0.5, "holds"), (0.7, "only qualitative"), (1.0, "not above its control")):
        assert verdict(tmp_path / str(rank), "no-trace-of-the-composition", rank=rank) == expected


def test_rollouts_must_reach_what_asking_at_once_does_not(tmp_path):
    def of(name, direct, rollout):
        return verdict(tmp_path / name, "rollout-answers", ways={study.BASE: (direct, rollout, np.nan)})

    assert of("lower", 0.0, 0.8) == "only qualitative"
    assert of("same", 1.0, 1.0) == "not above its control"
    assert of("worse", 1.0, 0.3) == "fails"


def test_steps_must_be_the_chains_own(tmp_path):
    def of(name, own, other):
        return verdict(
            tmp_path / name, "steps-spelled-out", ways={"spelled out": (0, 1, own), "other steps": (0, 1, other)}
        )

    assert of("little", 0.3, 0.05) == "only qualitative"
    assert of("none", 0.0, 0.0) == "not above its control"
    assert of("any", 0.6, 0.6) == "not above its control"
    assert of("worse", 0.3, 0.6) == "fails"


@pytest.mark.parametrize("steps", ["none", "own", "other"])
def test_no_held_out_composition_is_trained(steps):
    one = study.Taught(TINY, study.Condition("any", 1, steps=steps), seed=1)
    lesson, entity = one.lesson(), TINY.entity
    composed = one.facts.relations[1]
    asked = {tuple(row[: entity + 1]) for row in lesson.training.tokens.tolist() if row[entity] == composed}
    assert not asked & {tuple(row) for row in one.facts.test.prompt.tolist()}
    assert len(asked) == len(one.facts.compositions)
    spelled = one.compositions.tokens
    ends = one.facts.compositions.tokens[:, -entity:]
    assert torch.equal(spelled[:, -entity:], ends)
    if steps != "none":
        middles, own = spelled[:, entity + 1 : 2 * entity + 1], one.facts.with_steps().tokens
        same = (middles == own[:, entity + 1 : 2 * entity + 1]).all(-1)
        assert same.all() if steps == "own" else not same.any()


class Lookup:
    """A decoder that answers as told: next token by the last two."""

    members = 1

    def __init__(self, table):
        self.table = table

    def __call__(self, tokens):
        logits = torch.zeros(*tokens.shape, 100)
        for row, words in enumerate(tokens[0].tolist()):
            logits[0, row, -1, self.table.get(tuple(words[-2:]), 99)] = 1.0
        return logits


def test_a_rollout_goes_by_its_own_answers():
    config = study.ChainOfThoughtDecoderConfig(seeds=2, chains=14, width=8)
    networks = study.ChainNetworks(config, [study.Condition(study.BASE, 1)])
    facts = networks.chains
    first, second = facts.steps
    table = {tuple(row[:2]): row[2] for row in (first + second).tokens.tolist()}
    reached = networks.answered(Lookup(table), [0])
    assert reached[0, :2].tolist() == [0.0, 1.0]
    wrong = dict(table)
    wrong[tuple(first.tokens[0, :2].tolist())] = int(first.tokens[1, 2])  # one chain goes astray at its first step
    assert abs(networks.answered(Lookup(wrong), [0])[0, 1].item() - (1 - 1 / len(facts.test))) < 1e-6
