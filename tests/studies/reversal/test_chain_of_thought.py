"""The study of chain of thought: its verdicts, and that each follows the numbers of its claim and of its controls."""

import numpy as np
import pytest
from records import found

from joma.data.facts import chains
from joma.studies.reversal import _rows
from joma.studies.reversal.chain_of_thought import STUDY, first_steps_of_trained, seen, walked


def test_what_is_measured(run):
    """SPEC: in model A a row with two answers gives each about a half; in model B both are learned."""
    details = found(STUDY, run, "two-relations-of-one-token").details
    a, b = (details[f"at the end, model {model}"] for model in "AB")
    assert sorted(a.values()) == pytest.approx([0.5, 0.5], abs=0.08)
    assert min(b.values()) > 0.8
    composed = found(STUDY, run, "composition-is-not-learned").details
    assert all(values["mean M p"] < 0.2 for values in composed.values())


def test_a_walk_follows_the_most_likely_token():
    facts = chains(5, length=4, held_out=0.4)
    weights = np.zeros((facts.vocabulary, facts.vocabulary))
    for chain in facts.entities[:, :, 0].numpy():
        weights[chain[:-1], chain[1:]] = 1.0
    every = facts.entities[:, :, 0].numpy()
    assert walked(weights, every, facts, "A") == 1
    weights[every[0, 2], every[0, 3]] = -1.0
    assert walked(weights, every, facts, "A") == 0.8
    weights[facts.relations[0], every[1, 0]] = 0.5
    assert walked(weights, every[1:], facts, "B") == 1
    weights[facts.relations[0], every[1, 0]] = 1.5
    assert walked(weights, every[1:], facts, "B") == 0
    assert walked(weights, every[1:], facts, "A") == 1


def test_numbers_of_one_moment_belong_to_the_held_out_chains():
    facts = chains(17, held_out=0.3, seed=4)
    (end,) = _rows.train([facts.train], model="A", tokens=facts.vocabulary, rate=1.0, moments=[3000], seed=0)
    numbers = seen(end, 0, facts, "A", 1.0)
    assert numbers["first step p"] == pytest.approx(
        np.exp(-_rows.losses_of(end.weights[0], facts.steps[0], "A")).mean()
    )
    assert numbers["reached by two steps"] == 1
    assert numbers["reached at once"] == 0
    assert numbers["answered of two"] == 0.5
    own = first_steps_of_trained(facts)
    assert (own.tokens[:, 0] == facts.compositions.tokens[:, 0]).all()
    assert not set(own.tokens[:, 0].tolist()) & set(facts.test.tokens[:, 0].tolist())
