"""What attention gets in place of what it would get: one object for every layer, with three places to step in.

    class Colder(Change):
        def ask(self, query): return 2 * query

    decoder.features(tokens, change=[Change(), Colder()])  # the second of two layers

Numbers that a change needs are tensors of the object. On a GPU all blocks of a network are compiled as one and
captured, so what is to be different later is written into those tensors.
"""

from torch import Tensor


class Change:
    """What one layer's attention gets. This one changes nothing: a subclass has its own `read`, `ask` or `score`.

    >>> import torch
    >>> x = torch.ones(2)
    >>> Change().read(x) is x and Change().ask(x) is x
    True
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def read(self, x: Tensor) -> Tensor:
        """What queries, keys and values are made of, (members, batch, length, width), after a norm before it."""
        return x

    def ask(self, query: Tensor) -> Tensor:
        """The queries, (members, batch, heads, length, head width)."""
        return query

    def score(self, logits: Tensor, query: Tensor, key: Tensor, tokens: Tensor) -> Tensor:
        """The logits before the mask, (members, batch, heads, queries, keys).

        query, key: what they were made of, (members, batch, heads, length, head width), after `ask`. tokens: (members
        or 1, batch, length).
        """
        return logits

    @property
    def scores(self) -> bool:
        """Whether it looks at logits, which then have to be formed."""
        return type(self).score is not Change.score
