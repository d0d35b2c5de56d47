"""Depth against width, what is trained: equal counts, trees with a known best reader, texts and their halves."""

import itertools

import numpy as np
import pytest
import torch

from joma.data.errors import CorpusError
from joma.data.text import Corpus
from joma.models.decoder import Decoder
from joma.studies.depth_width.depth_width.networks import (
    embeddings_of,
    find_shape,
    operations_of,
    parameters_of,
)
from joma.studies.depth_width.depth_width.run import TextReader, Tree, TreeReader, flattened, shuffled


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 8, 16, 30])
@pytest.mark.parametrize(
    ("parameters", "vocabulary", "outputs", "multiple"),
    [(50_000, 100, None, 2), (400_000, 129, 8, 2), (4_000_000, 2048, None, 8)],
)
def test_every_shape_has_the_count_that_was_asked_for(parameters, vocabulary, outputs, multiple, layers):
    shape = find_shape(parameters, layers, vocabulary=vocabulary, outputs=outputs, context=16, multiple=multiple)
    assert (shape.layers, shape.width % multiple, shape.norm) == (layers, 0, "pre-layer")
    assert 0.99 <= parameters_of(shape) / parameters <= 1.01
    assert 2.5 <= shape.mlp / shape.width <= 5.5


@pytest.mark.parametrize("outputs", [None, 3])
def test_the_count_is_that_of_the_network(outputs):
    shape = find_shape(5_000, 3, vocabulary=20, outputs=outputs, context=8)
    network = Decoder(shape, [0])
    assert sum(p.numel() for p in network.parameters()) == parameters_of(shape)
    assert network.embedding.numel() + network.out.numel() == embeddings_of(shape)


def test_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    shape = find_shape(5_000, 3, vocabulary=20, context=8)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        Decoder(shape, [0])(torch.zeros(2, 8, dtype=torch.long), look=lambda *_: None)
    assert operations_of(shape) == 3 * counter.get_total_flops() / 16


def test_deeper_is_thinner():
    shapes = [find_shape(50_000, layers, vocabulary=100, context=16) for layers in (1, 2, 4, 8)]
    assert [shape.width for shape in shapes] == sorted((shape.width for shape in shapes), reverse=True)
    shares = [embeddings_of(shape) / parameters_of(shape) for shape in shapes]
    assert shares == sorted(shares, reverse=True)


def enumerated(tree, on):
    """P[class | tokens] by summing over all latents."""
    copies = (1 + tree.rho) / 2
    leaves = on.reshape(tree.classes, -1).tolist()

    def below(node, levels, tokens):
        if not levels:
            return copies if tokens[0] == node else 1 - copies
        parts = np.split(np.array(tokens), levels[0]) if len(levels) > 0 else []
        total = 1.0
        for part in parts:
            states = (0, 1) if len(levels) > 1 else (int(part[0]),)
            total *= sum(
                (copies if state == node else 1 - copies) * (below(state, levels[1:], part) if len(levels) > 1 else 1)
                for state in states
            )
        return total

    def of_class(k):
        return np.prod(
            [
                sum(
                    (copies if latent == (c == k) else 1 - copies) * below(latent, tree.branching, leaves[c])
                    for latent in (0, 1)
                )
                for c in range(tree.classes)
            ]
        )

    likely = np.array([of_class(k) for k in range(tree.classes)])
    return likely / likely.sum()


@pytest.mark.parametrize("branching", [(3,), (2, 2), (2, 1, 2)])
def test_the_best_reader_is_the_sum_over_all_latents(branching):
    tree = Tree(3, branching, 0.7)
    drawn = tree.hblt.sample(10, generator=torch.Generator().manual_seed(0))
    known = tree.log_posterior(drawn.on).exp().numpy()
    np.testing.assert_allclose(known, [enumerated(tree, on.int().numpy()) for on in drawn.on], rtol=1e-10)


def test_the_flat_tree_says_as_much_with_as_many_tokens():
    deep = Tree(4, (2, 2, 2), 0.9)
    flat = flattened(deep, 4_000)
    assert (flat.depth, flat.hblt.tokens, deep.depth) == (2, deep.hblt.tokens, 4)
    assert flat.uncertainty(4_000) == pytest.approx(deep.uncertainty(4_000), abs=0.01)
    assert flat.rho < deep.rho


def test_no_reader_is_better_than_the_best():
    deep = Tree(4, (2, 2), 0.9)
    reader = TreeReader([deep, flattened(deep, 3_000)], seed=0, seeds=2, batch=4, valid_samples=5, device="cpu")
    ideal = reader.ideal(3_000)
    assert (ideal[:, 0] < ideal[:, 1]).all()
    assert (ideal[:, 1] < reader.known_without()).all()


def test_seeds_and_halves_of_trees_differ():
    tree = Tree(3, (2, 2), 0.9)
    reader = TreeReader([tree], seed=0, seeds=2, batch=40, valid_samples=40, device="cpu")
    tokens, labels = reader.batch(3)
    assert tokens.shape == (2, 40, 12)
    assert labels.shape == (2, 40)
    assert not torch.equal(tokens[0], tokens[1])
    draws = [tokens, reader.batch(4)[0], *(half[0] for half in reader.halves())]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    assert torch.equal(reader.batch(3)[0], tokens)


def corpus(count=200):
    return Corpus("count", tuple(map(str, range(count))), dict.fromkeys(("train", "valid"), torch.arange(count)), "")


def test_shuffled_text_keeps_the_words_of_every_sequence():
    text = corpus(203)
    mixed = shuffled(text, 8).tokens["train"]
    assert not torch.equal(mixed, text.tokens["train"])
    for block in range(25):
        assert mixed[8 * block : 8 * block + 8].sort().values.tolist() == list(range(8 * block, 8 * block + 8))
    assert mixed[200:].tolist() == [200, 201, 202]


def reader_of(text, **changes):
    return TextReader([text], **{"seeds": 3, "batch": 2, "length": 8, "valid_sequences": 5, "device": "cpu", **changes})


def test_what_follows_is_the_next_word_and_every_seed_begins_elsewhere():
    reader = reader_of(corpus())
    firsts = set()
    for step in range(reader.epochs(0)):
        inputs, following = reader.batch(step)
        assert inputs.shape == (3, 2, 8)
        assert torch.equal(following, inputs + 1)
        firsts.add(tuple(inputs[:, 0, 0].tolist()))
    assert all(len(set(seeds)) == 3 for seeds in firsts)
    assert {seeds[0] for seeds in firsts} == {seeds[2] for seeds in firsts}  # in the end all read the same
    assert torch.equal(reader.batch(0)[0], reader.batch(reader.epochs(0))[0])


def test_the_halves_share_no_sequence():
    (one, targets), (other, _) = reader_of(corpus()).halves()
    assert one.shape == (3, 5, 8)
    assert torch.equal(targets, one + 1)
    assert not set(one.flatten().tolist()) & set(other.flatten().tolist())


def test_frequencies_are_what_a_reader_knows_without_learning():
    assert reader_of(corpus()).known_without() == pytest.approx(np.log(200), rel=1e-12)


@pytest.mark.parametrize(
    ("length", "batch", "why"),
    [(110, 2, "be below 100"), (150, 2, "be below 100"), (110, 1, "leave two sequences of the validation text")],
)
def test_a_text_that_is_too_short_is_refused(length, batch, why):
    with pytest.raises(CorpusError, match=f"length must {why}"):
        reader_of(corpus(), length=length, batch=batch)
