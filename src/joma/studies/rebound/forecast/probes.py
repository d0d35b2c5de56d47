"""What attention does with words, in every layer of many networks at once, and its entropy if their logits moved.

A word is taken as the token of the theory, in every layer. Rarer words than those that are followed count as one class,
the last.

    logits      of the keys that are this word, less the mean of their row, which softmax does not see; mean over rows
    squares     sum_k v_k^2 where the word stands, v = x W_v W_o diag(scale) W_up: how the MLP's nodes see what is
                attended to; mean over places
    attention   the mass on the word, mean over rows: b of Theorem 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.data.text import Corpus
from joma.models.decoder import Decoder


@dataclass(frozen=True)
class Words:
    """Sequences to read, and the words that are followed in them."""

    tokens: Tensor
    """(sequences, length)."""
    classes: Tensor
    """(sequences, length): which word stands there, from 0 on by frequency; all others are the last class."""
    sizes: Tensor
    """How many words of the vocabulary are in each class, (classes,)."""

    @property
    def shares(self) -> Tensor:
        """The part of all keys of all rows that each class is, (classes,). With it the mean of `logits` is 0."""
        rows = self.rows()
        return rows / rows.sum()

    def rows(self) -> Tensor:
        """How often rows see each class, (classes,); the first row has no choice and does not count."""
        seen = torch.arange(self.classes.shape[1], 0, -1, device=self.classes.device)  # how many rows see each key
        seen[0] -= 1
        return self.by_class(seen.expand(1, *self.classes.shape))[0]

    def by_class(self, values: Tensor) -> Tensor:
        """Sums of (members, sequences, length) over the places of each class, (members, classes)."""
        total = torch.zeros(len(values), len(self.sizes), dtype=torch.float64, device=values.device)
        return total.index_add_(1, self.classes.flatten(), values.flatten(1).double())


def words_of(text: Corpus, tokens: Tensor, count: int) -> Words:
    """The `count` most frequent words of the training text in these sequences."""
    frequency = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary))
    often = frequency.topk(count).indices
    classes = torch.full((len(frequency),), count, dtype=torch.long)
    classes[often] = torch.arange(count)
    sizes = torch.ones(count + 1, dtype=torch.float64)
    sizes[-1] = max(len(frequency) - count, 1)
    return Words(tokens, classes.to(tokens.device)[tokens], sizes.to(tokens.device))


def look_at_words(decoder: Decoder, words: Words) -> dict[str, Tensor]:
    """logits, squares and attention of the words, (members, layers, classes) each."""
    found: dict[str, list[Tensor]] = {"logits": [], "squares": [], "attention": []}
    width, length = decoder.config.width, words.tokens.shape[1]
    streams = [decoder.embedding[:, words.tokens] * math.sqrt(width) + decoder.sinusoids[:length]]  # read by layer 1

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "logits":
            found["logits"].append(_mean_logits(value.mean(2), words))
        elif name == "attention":  # (members, sequences, heads, queries, keys)
            mass = words.by_class(value[..., 1:, :].mean(2).sum(-2))
            found["attention"].append(mass / (words.classes.numel() - len(words.classes)))
        elif name == "stream":
            streams.append(value)

    decoder.features(words.tokens, look=look)
    places = words.by_class(torch.ones(1, *words.classes.shape, device=words.classes.device))
    for layer, x in enumerate(streams[:-1]):
        found["squares"].append(words.by_class(_squares(decoder, layer, x)) / places.clamp(min=1))
    return {name: torch.stack(layers, 1) for name, layers in found.items()}


def entropy_after(decoder: Decoder, words: Words, shift: Tensor) -> Tensor:
    """Attention entropy of every layer if the logits of the words moved by shift (members, layers, classes).

    Each layer by itself: what it reads stays as it is. (members, layers).
    """
    total = torch.zeros(shift.shape[:2], dtype=torch.float64, device=shift.device)

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "logits":
            moved = shift[:, layer].to(value)[:, words.classes][:, :, None, None]  # of the keys
            total[:, layer] = torch.special.entr((value + moved).softmax(-1)).sum(-1).mean((1, 2, 3))

    decoder.features(words.tokens, look=look)
    return total


def _mean_logits(logits: Tensor, words: Words) -> Tensor:
    """(members, sequences, queries, keys), -inf where a query does not see -> (members, classes)."""
    seen = logits.isfinite()
    logits = logits.masked_fill(~seen, 0.0)
    centred = (logits - logits.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)) * seen
    return words.by_class(centred[:, :, 1:].sum(2)) / words.rows().clamp(min=1)


def _squares(decoder: Decoder, layer: int, x: Tensor) -> Tensor:
    weight: dict[str, Tensor] = {name: part[:, layer] for name, part in decoder.named_parameters() if part.ndim > 2}
    value = weight["qkv"].split(decoder.config.width, dim=-1)[2]
    through = value @ weight["projection"] * weight["attention_scale"][:, None] @ weight["up"]
    return torch.einsum("mslw,mwk->mslk", x, through).square().sum(-1)
