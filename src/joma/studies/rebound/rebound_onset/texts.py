"""One text under several vocabularies: fewer words, or frequent words split into labels of their own.

All texts have the same positions, and all numbers lie below the size of one table. So networks of one shape read all of
them, and train together.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp

import torch
from torch import Tensor

from joma.data.text import Corpus, CorpusError


def flattened(text: Corpus, labels: int, *, seed: int = 0) -> Corpus:
    """The text with its frequent words split: `labels` in all, none of them much more frequent than the others.

    A word that occurs c times gets ceil(c / most) labels, for the smallest `most` that needs no more than `labels` in
    all; each occurrence takes one of them by chance. What the word is stays as it was, how frequent its labels are not.
    """
    counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary))
    if labels < len(counts):
        raise CorpusError(f"labels must be at least {len(counts)}, one per word, got {labels}")
    low, high = 1, max(1, int(counts.max()))  # the smallest `most` lies between; `high` needs one label per word
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if int(_shares(counts, middle).sum()) <= labels else (middle + 1, high)
    shares = _shares(counts, high)
    further = len(counts) + (shares - 1).cumsum(0) - (shares - 1)  # where the labels after a word's first begin
    generator = torch.Generator().manual_seed(seed)

    def relabelled(tokens: Tensor) -> Tensor:
        words = tokens.long()
        chosen = (torch.rand(len(words), generator=generator, dtype=torch.float64) * shares[words]).long()
        return torch.where(chosen == 0, words, further[words] + chosen - 1).int()

    names = [f"{text.vocabulary[word]}/{i}" for word in range(len(counts)) for i in range(1, int(shares[word]))]
    tokens = {split: relabelled(ids) for split, ids in text.tokens.items()}
    return replace(text, vocabulary=(*text.vocabulary, *names), tokens=tokens)


def _shares(counts: Tensor, most: int) -> Tensor:
    return (-(-counts // most)).clamp(min=1)


def effective_words(text: Corpus) -> float:
    """exp of the entropy of the words' frequencies: so many words, were all as frequent."""
    counts = torch.bincount(text.tokens["train"].long()).double()
    return exp(float(torch.special.entr(counts / counts.sum()).sum()))


def by_frequency(text: Corpus, classes: int, groupings: int) -> tuple[Tensor, Tensor]:
    """Words in classes of equal weight in the text, from frequent to rare, and the frequency of each class.

    (1 + groupings, words) long, the class of every word, -1 for <unk>: first by frequency; the other rows shuffle the
    words, as controls. (classes,) float64: how frequent the word is, by its geometric mean over occurrences.
    """
    counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).double()
    known = torch.tensor([word != "<unk>" for word in text.vocabulary])
    counts = torch.where(known, counts, 0.0)
    generator = torch.Generator().manual_seed(0)
    orders = [counts.argsort(descending=True, stable=True)]
    orders += [torch.randperm(len(counts), generator=generator) for _ in range(groupings)]
    found = torch.stack([_equal_weight(counts, order, classes) for order in orders])
    found[:, ~known] = -1
    share = counts / counts.sum()
    log = torch.where(share > 0, share.log(), 0.0)
    members = [(found[0] == one).double() * share for one in range(classes)]
    return found, torch.stack([(weight * log).sum() / weight.sum() for weight in members]).exp()


def _equal_weight(counts: Tensor, order: Tensor, classes: int) -> Tensor:
    """Words in this order, cut where a class has its part of all occurrences; by the middle of each word's own."""
    sorted_counts = counts[order]
    middle = (sorted_counts.cumsum(0) - sorted_counts / 2) / counts.sum()
    place = torch.empty(len(order), dtype=torch.long)
    place[order] = (middle * classes).long().clamp(max=classes - 1)
    return place
