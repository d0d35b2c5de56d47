"""Pattern superposition: how unrelated are the contexts on which one MLP neuron fires most?

A neuron's contexts are the texts with its largest activations, one context a text, at the position of the peak. Each
context becomes a tf-idf vector of the tokens that its query attends to: tf is the attention a token gets in all, idf
is ln(texts / texts with that token). For the contexts i, j of one neuron

    score = 1 - mean over pairs of cos(x_i, x_j)

is 0 for one pattern repeated and near 1 for contexts with nothing in common. The contexts of all neurons, shuffled
between neurons, say what to expect of unrelated ones: z counts the score in their standard deviations, below 0 where
a neuron's contexts resemble each other.

A neuron that knows two unrelated patterns has a z well below 0 too, half of its pairs being related. `patterns` tells
it from a neuron with one: it counts the groups of at least three contexts held together by triangles of related
pairs, a pair being related when its cosine is above what 99 % of the shuffled pairs reach. (Single pairs would not do:
of 190 pairs two are that close by chance, and would join what does not belong together.) Where many neurons share a
pattern, shuffled pairs are related too, that bar rises, and patterns are rather missed than imagined.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, as_tensor, at_most, described, integer, not_negative, real
from joma.host.words import brief_repr
from joma.measure._gram import magnitude

_RELATED = 0.99  # quantile of shuffled pairs above which a pair is related
_GROUP = 3  # contexts that make a pattern: a triangle
_SETS = 1000  # shuffled sets at most; at least a fifth of that
_NUMBERS = 1 << 24  # entries of the tf-idf vectors at a time


@brief_repr
class Superposition(NamedTuple):
    """What `superposition` found; contexts are ordered by activation, strongest first.

    >>> tokens, height = torch.arange(60)[:, None], torch.arange(60.0)[:, None].repeat(1, 3)
    >>> superposition(height, torch.zeros(60, 3, dtype=torch.long), tokens, contexts=5).texts[0]
    tensor([59, 58, 57, 56, 55])
    """

    score: Tensor
    """(neurons,) one minus the mean cosine between a neuron's contexts."""
    z: Tensor
    """(neurons,) the score in standard deviations of `shuffled_score` from its mean; NaN where those are all equal."""
    patterns: Tensor
    """(neurons,) groups of at least three related contexts."""
    group: Tensor
    """(neurons, contexts) contexts with the same number belong together."""
    texts: Tensor
    """(neurons, contexts) index of the text."""
    positions: Tensor
    """(neurons, contexts) position of the query in that text."""
    shuffled_score: Tensor
    """(sets,) scores of sets of contexts from different neurons: the control."""
    shuffled_patterns: Tensor
    """(sets,) and their groups."""


def peaks(activations: Number) -> tuple[Tensor, Tensor]:
    """(texts, length, neurons) to the largest activation in every text and its position, both (texts, neurons).

    Over many texts, call it batch by batch: only the peaks need to be kept.

    >>> peaks(torch.tensor([[[0.0], [3.0], [1.0]]]))
    (tensor([[3.]]), tensor([[1]]))
    """
    activations = real(activations, "activations")
    if activations.ndim != 3 or 0 in activations.shape:
        raise ValueError(f"activations must be (texts, length, neurons), got {tuple(activations.shape)}")
    largest = activations.max(1)
    return largest.values, largest.indices


def superposition(
    height: Number,
    position: Number,
    tokens: Number,
    *,
    keys: Number | None = None,
    weights: Number | None = None,
    contexts: int = 20,
    seed: int = 0,
) -> Superposition:
    """Score every neuron's `contexts` strongest contexts.

    height, position (texts, neurons): the largest activation of a neuron in each text and where (see `peaks`). tokens
    (texts, length): token ids. keys, weights (texts, length, m): the positions that each query attends to most and
    their attention; without them all tokens up to the query count alike. `seed` shuffles.

    >>> tokens = torch.arange(240)[:, None]  # texts of one word, each its own,
    >>> tokens[:20] = 0  # but the first twenty are alike,
    >>> height = torch.eye(12).repeat_interleave(20, 0)  # and the first of twelve neurons fires on those
    >>> found = superposition(height, torch.zeros(240, 12, dtype=torch.long), tokens)
    >>> found.score[:3], found.patterns[:3]
    (tensor([0., 1., 1.]), tensor([1, 0, 0]))
    """
    height, position, tokens = real(height, "height"), _places(position, "position"), _places(tokens, "tokens")
    keys = None if keys is None else _places(keys, "keys")
    weights = None if weights is None else not_negative(weights, "weights")
    _check(height, position, tokens, keys, weights)
    contexts = at_most(contexts, "contexts", len(height), "the number of texts", low=_GROUP)
    texts = height.topk(contexts, dim=0).indices.T.contiguous()  # (neurons, contexts)
    positions = position.T.gather(1, texts)
    text, query = texts.flatten(), positions.flatten()
    words: Tensor = tokens.unique(return_inverse=True)[1]  # ids may be large
    ids = words[text]  # (neurons * contexts, m) that each context's query attends to, and how much each gets
    mass = (torch.arange(words.shape[1], device=words.device) <= query[:, None]).to(torch.float32)
    if keys is not None and weights is not None:
        ids, mass = ids.gather(1, keys[text, query]), weights[text, query]
        mass = (mass / magnitude(mass.amax(1, keepdim=True))).float()  # in range: only shares count
    count = torch.zeros(int(words.max()) + 1, device=words.device)  # of texts with the token
    for row in words:
        count[row.unique()] += 1
    value = mass * (len(words) / count.clamp(min=1)).log()[ids]
    # All contexts dealt out anew, as often as it takes to have enough sets.
    generator = torch.Generator().manual_seed(integer(seed, "seed", 0) % 2**63)
    deals = [torch.randperm(len(text), generator=generator) for _ in range(max(1, -(-_SETS // (5 * len(texts)))))]
    shuffled = torch.cat(deals).view(-1, contexts)[:_SETS].to(texts.device)  # (sets, contexts)
    shuffled = shuffled[(text[shuffled] != text[shuffled[:, :1]]).any(1)]  # a text is compared with others alone
    control, compared = _cosines(ids, value, text, shuffled)
    related = torch.quantile(control[compared][: 1 << 23], _RELATED)
    own, pairs = _cosines(ids, value, text, torch.arange(len(text), device=text.device).view(texts.shape))
    shuffled_score, score = _score(control, compared), _score(own, pairs)
    group = _groups((own > related) & pairs)
    return Superposition(
        score=score,
        z=(score - shuffled_score.mean()) / shuffled_score.std(),
        patterns=_patterns(group),
        group=group,
        texts=texts,
        positions=positions,
        shuffled_score=shuffled_score,
        shuffled_patterns=_patterns(_groups((control > related) & compared)),
    )


def _check(height: Tensor, position: Tensor, tokens: Tensor, keys: Tensor | None, weights: Tensor | None) -> None:
    if height.ndim != 2 or 0 in height.shape or position.shape != height.shape:
        shapes = f"{tuple(height.shape)}, {tuple(position.shape)}"
        raise ValueError(f"height and position must both be (texts, neurons), neither of them 0, got {shapes}")
    if tokens.ndim != 2 or len(tokens) != len(height) or 0 in tokens.shape:
        wanted = f"(texts, length) of the same {len(height)} texts"
        raise ValueError(f"tokens must be ids {wanted}, got {tuple(tokens.shape)}")
    for name, places in (("position", position), ("keys", keys)):
        if places is not None and bool((places >= tokens.shape[1]).any()):
            raise ValueError(f"{name} must be from 0 to {tokens.shape[1] - 1}, got {int(places.max())}")
    if (keys is None) != (weights is None):
        raise ValueError("keys and weights come together")
    each = () if keys is None else keys.shape[-1:]
    for name, given in (("keys", keys), ("weights", weights)):
        if given is not None and (given.shape != (*tokens.shape, *each) or 0 in given.shape):
            wanted = "(texts, length, m), the first two those of tokens"
            raise ValueError(f"{name} must be {wanted}, got {tuple(given.shape)}")


def _places(given: Number, name: str) -> Tensor:
    found = as_tensor(given, name)
    if found.is_floating_point() or found.dtype == torch.bool or bool((found < 0).any()):
        raise ValueError(f"{name} must be whole numbers from 0 on, got {described(found)}")
    return found.long()


def _cosines(ids: Tensor, value: Tensor, text: Tensor, sets: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines (sets, contexts, contexts) of tf-idf vectors, and which of them compare two different texts."""
    # Two neurons may share a context; a set of shuffled ones may then hold the same text twice, and that pair says
    # nothing about how alike different contexts are.
    vocabulary, compact = ids.unique(return_inverse=True)
    size = max(1, _NUMBERS // (sets.shape[1] * len(vocabulary)))
    parts = []
    for chunk in sets.split(size):
        rows = chunk.flatten()
        x = value.new_zeros(len(rows), len(vocabulary)).scatter_add_(1, compact[rows], value[rows])
        x = torch.nn.functional.normalize(x, dim=1).unflatten(0, chunk.shape)  # a context without words stays 0
        parts.append(x @ x.mT)
    source = text[sets]
    return torch.cat(parts), source[:, :, None] != source[:, None]


def _score(cosine: Tensor, compared: Tensor) -> Tensor:
    return 1 - torch.where(compared, cosine, 0.0).sum((1, 2)) / compared.sum((1, 2))


def _groups(related: Tensor) -> Tensor:
    """(sets, contexts): every context labelled by the first one that triangles of related pairs join it to."""
    sets, contexts, _ = related.shape
    number = related.float()
    linked = related & (number @ number > 0)
    label = torch.arange(contexts, device=linked.device).expand(sets, contexts)
    while True:
        around = torch.where(linked, label[:, None], contexts).amin(-1)
        lower = torch.minimum(label, around)
        if torch.equal(lower, label):
            return label
        label = lower


def _patterns(group: Tensor) -> Tensor:
    sizes = torch.zeros_like(group).scatter_add_(1, group, torch.ones_like(group))
    return (sizes >= _GROUP).sum(1)
