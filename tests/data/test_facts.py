"""Facts and chains: what trains, what is tested, and that the second is never in the first."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.data.facts import Statements, chains, reversals

SETTINGS = settings(max_examples=40, deadline=None)


def rows(statements) -> list[tuple[int, ...]]:
    return [tuple(row) for row in statements.tokens.tolist()]


def turned(row, facts):
    entity, (there, back) = facts.entity, facts.relations
    return (*row[entity + 1 :], back if row[entity] == there else there, *row[:entity])


cases = st.fixed_dictionaries(
    {
        "pairs": st.integers(1, 30),
        "both": st.floats(0, 1),
        "entity": st.integers(1, 3),
        "seed": st.integers(0, 1000),
        "identity": st.booleans(),
    }
)


@SETTINGS
@given(cases)
def test_what_is_tested_is_the_reverse_of_what_trains_and_never_trains(case):
    facts = reversals(**case)
    train, test, one_way = (rows(part) for part in (facts.train, facts.test, facts.one_way))
    assert test == [turned(row, facts) for row in one_way]
    assert not set(test) & set(train)
    assert set(one_way) <= set(train)
    assert len(set(train)) == len(train)
    assert int(facts.both.sum()) == round(case["both"] * case["pairs"])
    assert len(test) == case["pairs"] - int(facts.both.sum())
    assert sum(row[facts.entity] == facts.relations[0] for row in one_way) == len(test) // 2


@SETTINGS
@given(cases)
def test_entities_are_different_and_made_of_different_words(case):
    facts = reversals(**case)
    entities = [tuple(one) for one in torch.cat([facts.first, facts.second, *facts.fresh.unbind(1)]).tolist()]
    assert len(set(entities)) == len(entities) == 4 * case["pairs"]
    assert all(len(set(one)) == case["entity"] and max(one) < facts.words for one in entities)
    assert facts.relations == (facts.vocabulary - 2, facts.vocabulary - 1)


def test_the_authors_sizes():
    facts = reversals(200)
    assert (facts.vocabulary, len(facts.train), len(facts.test)) == (802, 340, 60)
    assert facts.uniform.entity == 1 / 400
    assert facts.uniform.vocabulary == 1 / 802
    assert repr(facts) == "Reversals(pairs=200, both=140, entity=1, vocabulary=802)"


@pytest.mark.parametrize("make", [lambda seed: reversals(20, entity=2, seed=seed), lambda seed: chains(20, seed=seed)])
def test_a_seed_gives_the_same_facts_and_another_one_others(make):
    one, same, other = make(3), make(3), make(4)
    assert torch.equal(one.train.tokens, same.train.tokens)
    assert torch.equal(one.shuffled(5).tokens, same.shuffled(5).tokens)
    assert not torch.equal(one.train.tokens, other.train.tokens)


@SETTINGS
@given(cases)
def test_a_shuffled_answer_is_never_right_and_all_answers_stay(case):
    facts = reversals(**case)
    if len(facts.test) < 2:
        return
    other = facts.shuffled(case["seed"])
    assert torch.equal(other.prompt, facts.test.prompt)
    assert not (other.target == facts.test.target).all(-1).any()
    assert sorted(other.target.tolist()) == sorted(facts.test.target.tolist())


def test_the_text_read_backwards_holds_the_answer_but_not_the_tested_statement():
    facts = reversals(20, both=0.5, entity=2)
    back = rows(facts.reversed_text())
    assert back == [(*row[3:], row[2], *row[:2]) for row in rows(facts.train)]
    assert not set(back) & set(rows(facts.test))
    known = {(row[:2], row[3:]) for row in back}
    assert all((row[:2], row[3:]) in known for row in rows(facts.test))


def test_reverses_of_other_pairs_leave_the_tested_ones_alone():
    facts = reversals(20, both=0.5)
    more = facts.with_reverses(0.4)
    assert len(more.test) == 6
    assert set(rows(more.test)) < set(rows(facts.test))
    assert set(rows(more.train)) - set(rows(facts.train)) == set(rows(facts.test)) - set(rows(more.test))
    assert set(rows(facts.with_reverses(0.8).test)) < set(rows(more.test))
    assert len(facts.with_reverses(1).test) == 0


def test_identities_say_of_every_entity_that_it_is_itself():
    facts = reversals(5, entity=2)
    assert all(row[:2] == row[3:] for row in rows(facts.identities()))
    assert len(facts.identities()) == 20
    assert len(reversals(5, entity=2, identity=True).train) == len(facts.train) + 20


@SETTINGS
@given(st.integers(1, 20), st.floats(0, 1), st.integers(1, 3), st.integers(3, 5), st.integers(0, 99))
def test_chains_train_every_step_and_the_compositions_not_held_out(count, held_out, entity, length, seed):
    facts = chains(count, held_out=held_out, entity=entity, length=length, seed=seed)
    tested = round(held_out * count)
    train = rows(facts.train)
    assert len(facts.test) == tested
    assert len(set(train)) == len(train) == count * (length - 1) + count - tested
    assert not set(rows(facts.test)) & set(train)
    assert all(set(rows(step)) <= set(train) for step in facts.steps)
    assert len(facts.steps) == length - 1


def test_steps_lead_from_the_prompt_to_the_answer_of_the_test():
    facts = chains(10, held_out=0.5, entity=2, length=4)
    at = facts.test.prompt[:, :2]
    for step in facts.steps:
        assert torch.equal(step.prompt[:, :2], at)
        assert (step.tokens[:, 2] == facts.relations[0]).all()
        at = step.target
    assert torch.equal(at, facts.test.target)
    assert (facts.test.tokens[:, 2] == facts.relations[1]).all()


def test_a_composition_spelled_out_walks_the_chain():
    facts = chains(4, held_out=0.5, vocabulary=26)
    (a, b, c), (step, composed) = facts.entities[~facts.held_out][0].flatten().tolist(), facts.relations
    spelled = facts.with_steps()
    assert rows(spelled)[0] == (a, composed, b, step, c)
    assert torch.equal(spelled.prompt, facts.compositions.prompt)
    assert torch.equal(facts.with_steps(held_out=True).prompt, facts.test.prompt)
    seen = set(facts.entities.flatten().tolist())
    assert not seen & set(facts.fresh.flatten().tolist())


def test_a_vocabulary_of_any_size():
    facts = reversals(3, entity=3, vocabulary=10**8)
    assert facts.first.shape == (3, 3)
    assert int(facts.train.tokens.max()) == 10**8 - 1
    tight = reversals(6, entity=2, vocabulary=6)  # all 12 sequences of 2 out of 4 words
    assert len(set(map(tuple, torch.cat([tight.first, tight.second]).tolist()))) == 12
    assert len(tight.unseen) == 0


def test_statements_are_drawn_as_often_as_asked():
    three = Statements(torch.tensor([[0, 8, 1], [2, 8, 3], [4, 8, 5]]), 1)
    shares = torch.bincount(three.draw(20_000, frequencies=[0.5, 0.2, 0.3]), minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.5, 0.2, 0.3]), atol=0.02)
    equal = torch.bincount(three.draw(20_000, seed=1), minlength=3) / 20_000
    assert torch.allclose(equal, torch.full((3,), 1 / 3), atol=0.02)
    assert torch.equal(three.draw(9, seed=2), three.draw(9, seed=2))


SIMPLE = Statements(torch.tensor([[0, 8, 1], [2, 8, 3]]), 1)
test_bad_input_gets_its_sentence = refusals(
    (lambda: reversals(3, vocabulary=7), r"vocabulary must allow 6 different entities for 3 pairs, got 7: 5 words"),
    (lambda: chains(2, entity=2, vocabulary=4), "vocabulary must allow 6 different entities for 2 chains of 3, got 4"),
    (lambda: chains(3, length=1), "length must be at least 3: a shorter chain has nothing to compose, got 1"),
    (lambda: chains(3, length=2), "length must be at least 3: .* got 2"),
    (lambda: chains(3, held_out=1.5), "held_out must be a share between 0 and 1, got 1.5"),
    (lambda: reversals(3, both=-0.1), "both must be a share between 0 and 1, got -0.1"),
    (lambda: reversals(3, both=float("nan")), "both must be a share between 0 and 1, got nan"),
    (lambda: reversals(3).with_reverses(2), "share must be a share between 0 and 1, got 2"),
    (lambda: reversals(3, entity=4), "entity must be 1, 2 or 3 tokens, got 4"),
    (lambda: chains(3, entity=0), "entity must be 1, 2 or 3 tokens, got 0"),
    (lambda: reversals(0), "pairs must be a whole number of at least 1, got 0"),
    (lambda: reversals(3, seed=-1), "seed must be a whole number of at least 0, got -1"),
    (lambda: reversals(3, seed=2**63), r"seed must be below 2\^63, got 9223372036854775808"),
    (lambda: reversals(3, both=1).shuffled(), "two tested statements to exchange their answers, got 0"),
    (lambda: SIMPLE.draw(3, frequencies=[0.5, 0.4]), "frequencies must sum to one, got 0.9"),
    (lambda: SIMPLE.draw(3, frequencies=[1.5, -0.5]), "frequencies must not be negative, got -0.5"),
    (lambda: SIMPLE.draw(3, frequencies=[1.0]), r"frequencies must have shape \(2,\)"),
    (lambda: Statements(torch.tensor([[0, 1]]), 2), "answer must be below 2, the length, got 2"),
    (lambda: Statements(torch.tensor([0, 1]), 1), r"tokens must be int64 of shape \(n, length\)"),
    (lambda: SIMPLE + reversals(3, entity=2).train, "one length and answer"),
    (lambda: reversals(3, both=1).test.draw(1), "there must be a statement to draw from, got none"),
)
