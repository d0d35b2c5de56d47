"""What decoders of facts read and say, against plain loops."""

import pytest
import torch

from joma.data.statements import Statements
from joma.models import Decoder, DecoderConfig
from joma.studies.reversal import _decoders as examples

FACTS = Statements(torch.tensor([[0, 1, 8, 2, 3], [4, 5, 9, 6, 7]]), 2)
MASK = 10


def test_a_causal_decoder_is_asked_one_position_before():
    asked = examples.next_tokens(FACTS)
    assert asked.tokens.tolist() == [[0, 1, 8, 2], [4, 5, 9, 6]]
    assert asked.targets.tolist() == [[-1, -1, 2, 3], [-1, -1, 6, 7]]


def test_a_masked_entity_is_asked_where_it_stood():
    end, start = (examples.masked(FACTS, MASK, end=end) for end in (True, False))
    assert end.tokens[0].tolist() == [0, 1, 8, MASK, MASK]
    assert end.targets[0].tolist() == [-1, -1, -1, 2, 3]
    assert start.tokens[0].tolist() == [MASK, MASK, 8, 2, 3]
    assert start.targets[0].tolist() == [0, 1, -1, -1, -1]
    assert len(examples.trained(FACTS, "any order", MASK)) == 4
    assert len(examples.trained(FACTS, "fill the end", MASK)) == 2


def test_every_prompt_meets_every_answer():
    crossed = examples.crossed(FACTS)
    assert crossed.tokens[:, -1].tolist() == [3, 7, 3, 7]
    assert crossed.tokens[:, 0].tolist() == [0, 0, 4, 4]


@pytest.mark.parametrize("at_once", [2**17, 20], ids=["all rows at once", "two at once"])
def test_answers_are_products_of_probabilities(at_once, monkeypatch):
    monkeypatch.setattr(examples, "AT_ONCE", at_once)
    decoder = Decoder(DecoderConfig(vocabulary=11, width=8, mlp=8, context=5, norm="pre-layer"), seeds=[0, 1])
    asked = examples.next_tokens(FACTS) + examples.next_tokens(Statements(torch.tensor([[0, 8, 5]]), 1))
    table = examples.Tables.of([asked, asked], 5, "cpu")
    log, right = examples.answers(decoder, *table.of_members([0, 1]))
    for member in range(2):
        for row, (prompt, answer) in enumerate((([0, 1, 8], [2, 3]), ([4, 5, 9], [6, 7]), ([0, 8], [5]))):
            told, likely = 0.0, True
            for token in answer:
                scores = decoder(torch.tensor([prompt]))[member, 0, -1].log_softmax(-1)
                told, likely = told + scores[token].item(), likely and scores.argmax().item() == token
                prompt = [*prompt, token]
            assert abs(log[member, row].item() - told) < 1e-5
            assert right[member, row].item() == likely
    best = decoder(torch.tensor([[0, 8]]))[0, 0, -1].argmax()
    sure = examples.next_tokens(Statements(torch.tensor([[0, 8, int(best)]]), 1)).widened(5)
    assert examples.answers(decoder, sure.tokens[None], sure.targets[None])[1][0].item() == 1.0


def test_rows_without_a_question_are_left_out():
    decoder = Decoder(DecoderConfig(vocabulary=11, width=8, mlp=8, context=4), seeds=[0, 1])
    one, none = examples.next_tokens(FACTS), examples.next_tokens(Statements(FACTS.tokens[:0], 2))
    table = examples.Tables.of([one, none], 4, "cpu")
    means = examples.means(decoder, {"facts": table}, [0, 1])
    assert means["probability"].isfinite().tolist() == [[True], [False]]


def test_ranks_count_rivals_of_the_same_relation():
    log = torch.tensor([[[3.0, 1.0, 9.0], [2.0, 2.0, 9.0], [0.0, 0.0, 5.0]]])
    alike = torch.tensor([[[True, True, False], [True, True, False], [False, False, True]]])
    beaten, chosen = examples.ranks(log, alike)
    assert beaten.tolist() == [0.75]  # one won, one even; the third has no rival
    torch.testing.assert_close(chosen, torch.tensor([2 / 3]))
    everyone = torch.ones(1, 3, 3, dtype=torch.bool)
    assert examples.ranks(log, everyone)[0].tolist() == [3.5 / 6]
