"""Superposition: against tf-idf written out with dictionaries, and on neurons whose patterns are known."""

from collections import Counter
from itertools import combinations
from math import log, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from later import some_now

from joma.measure.superposition import peaks, superposition


def draw(seed, texts=30, length=9, neurons=12, vocabulary=40, m=4):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (texts, length), generator=generator)
    activations = torch.randn(texts, length, neurons, generator=generator)
    attention = torch.rand(texts, length, length, generator=generator).tril() + torch.eye(length)
    strongest = (attention / attention.sum(-1, keepdim=True)).topk(m, dim=-1)
    return activations, tokens, strongest.indices, strongest.values


def slow_score(activations, tokens, keys, weights, neuron, contexts):
    """One minus the mean cosine, with a dictionary a context."""
    texts = len(tokens)
    top = sorted(range(texts), key=lambda t: -float(activations[t, :, neuron].max()))[:contexts]
    containing = Counter(token for text in tokens.tolist() for token in set(text))
    bags = []
    for text in top:
        query = int(activations[text, :, neuron].argmax())
        bag = Counter()
        if keys is None:
            bag.update(tokens[text, : query + 1].tolist())
        else:
            for key, weight in zip(keys[text, query].tolist(), weights[text, query].tolist(), strict=True):
                bag[int(tokens[text, key])] += weight
        bags.append({token: tf * log(texts / containing[token]) for token, tf in bag.items()})
    cosines = []
    for a, b in combinations(bags, 2):
        size = sqrt(sum(x * x for x in a.values()) * sum(x * x for x in b.values()))
        cosines.append(sum(a[token] * b.get(token, 0.0) for token in a) / size if size else 0.0)
    return 1 - sum(cosines) / len(cosines), top


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), contexts=st.integers(3, 12), attended=st.booleans(), vocabulary=st.integers(2, 60))
def test_scores_are_those_of_dictionaries(seed, contexts, attended, vocabulary):
    activations, tokens, keys, weights = draw(seed, vocabulary=vocabulary)
    keys, weights = (keys, weights) if attended else (None, None)
    found = superposition(*peaks(activations), tokens, keys=keys, weights=weights, contexts=contexts)
    for neuron in (0, 7):
        score, top = slow_score(activations, tokens, keys, weights, neuron, contexts)
        assert found.texts[neuron].tolist() == top
        assert found.score[neuron] == pytest.approx(score, abs=1e-5)
    assert found.positions.shape == (12, contexts)


def planted(patterns, *, neurons=250, per=6, noise=40):
    """Neuron n fires on `patterns` topics of its own; every topic has words of its own, and `per` texts."""
    generator = torch.Generator().manual_seed(0)
    topics = neurons * patterns
    words = torch.arange(topics * 5).view(topics, 5)
    topic = torch.arange(topics).repeat_interleave(per)
    own = words[topic][:, torch.randperm(5, generator=generator)[:4]]
    filler = torch.randint(topics * 5, topics * 5 + noise, (len(topic), 3), generator=generator)
    tokens = torch.cat([filler, own], 1)
    height = 0.1 * torch.rand(len(topic), neurons, generator=generator)
    height[torch.arange(len(topic)), topic % neurons] += 1
    return height, torch.full(height.shape, tokens.shape[1] - 1), tokens


@pytest.mark.parametrize("patterns", some_now([2, 1, 3], every=3))
def test_planted_patterns_are_counted(patterns):
    found = superposition(*planted(patterns), contexts=6 * patterns)
    assert (found.patterns == patterns).float().mean() > 0.9
    assert (found.z < -3).all(), "contexts of a topic resemble each other more than shuffled ones"
    assert (found.shuffled_patterns >= 2).float().mean() < 0.1
    labels = [len(set(row)) for row in found.group.tolist()]
    assert sum(labels) / len(labels) == pytest.approx(patterns, abs=0.3)


def test_neurons_that_fire_anywhere_look_like_shuffled_ones():
    activations, tokens, keys, weights = draw(1, texts=400, neurons=60, vocabulary=200)
    found = superposition(*peaks(activations), tokens, keys=keys, weights=weights)
    assert found.z.mean().abs() < 0.4
    assert 0.6 < found.z.std() < 1.5


def test_same_seed_same_numbers_and_another_seed_another_shuffle():
    activations, tokens, keys, weights = draw(2)
    once, again, other = (
        superposition(*peaks(activations), tokens, keys=keys, weights=weights, contexts=5, seed=s) for s in (0, 0, 1)
    )
    assert torch.equal(once.z, again.z)
    assert torch.equal(once.score, other.score)
    assert not torch.equal(once.z, other.z)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"contexts": 2}, "contexts must be a whole number of at least 3, got 2"),
    ({"contexts": 31}, "contexts must be at most the number of texts, 30, got 31"),
    ({"keys": None}, "keys and weights come together"),
    ({"keys": torch.zeros(30, 4, dtype=torch.long)}, r"keys must be \(texts, length, m\)"),
    ({"keys": torch.zeros(30, 9, 0, dtype=torch.long), "weights": torch.zeros(30, 9, 0)}, "keys must be"),
    ({"height": torch.full((30, 12), torch.nan)}, "height contains NaN"),
    ({"height": torch.zeros(30)}, r"must both be \(texts, neurons\)"),
    ({"position": torch.full((30, 12), 9)}, "position must be from 0 to 8"),
    ({"tokens": torch.zeros(29, 9, dtype=torch.long)}, r"tokens must be ids .* of the same 30 texts"),
])  # fmt: skip
def test_bad_input_gets_one_sentence(change, sentence):
    activations, tokens, keys, weights = draw(0)
    height, position = peaks(activations)
    arguments = {"height": height, "position": position, "tokens": tokens, "keys": keys, "weights": weights} | change
    with pytest.raises(ValueError, match=sentence):
        superposition(**arguments)
    with pytest.raises(ValueError, match="activations must be"):
        peaks(torch.zeros(3, 4))
