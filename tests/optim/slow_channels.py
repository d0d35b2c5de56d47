"""APOLLO and Fira once more, from their papers: slow, in float64, one matrix and one channel at a time."""

import numpy as np


class Slow:
    """One matrix, kept wide: rows are the shorter side. The projection is given, because it is drawn."""

    apart = 1e-6  # from orthonormal, at most

    def __init__(self, weight, *, lr, scale=1.0, growth=None, decay=0.0, betas=(0.9, 0.999), eps=1e-8):
        weight = np.array(weight, dtype=np.float64)
        self.tall = weight.shape[0] >= weight.shape[1]
        self.wide = weight.T if self.tall else weight
        self.lr, self.scale, self.growth, self.decay, self.betas, self.eps = lr, scale, growth, decay, betas, eps
        self.first = self.second = 0.0
        self.age, self.last = 0, None

    @property
    def weight(self):
        return self.wide.T if self.tall else self.wide

    def step(self, gradient, basis, lr=None):
        rate = self.lr if lr is None else lr
        gradient, basis = np.array(gradient, dtype=np.float64), np.array(basis, dtype=np.float64)
        assert np.allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=self.apart)
        gradient = gradient.T if self.tall else gradient
        step = self.direction(gradient, basis)
        self.wide = (1 - rate * self.decay) * self.wide - rate * self.scale * step

    def adam(self, seen):
        b1, b2 = self.betas
        self.age += 1
        self.first = b1 * self.first + (1 - b1) * seen
        self.second = b2 * self.second + (1 - b2) * seen**2
        return (self.first / (1 - b1**self.age)) / (np.sqrt(self.second / (1 - b2**self.age)) + self.eps)

    def limited(self, step):
        norm = np.sqrt((step**2).sum())
        if self.growth is not None and self.last is not None and norm > self.growth * self.last:
            step = step / norm * self.growth * self.last
        self.last = np.sqrt((step**2).sum())
        return step


def lengths(made, seen):
    found = []
    for column in range(made.shape[1]):
        found.append(np.sqrt((made[:, column] ** 2).sum()) / np.sqrt((seen[:, column] ** 2).sum()))
    return np.array(found)


class SlowApollo(Slow):
    """`eps` of Adam is so small here that the size of the projection does not matter to it."""

    def __init__(self, *given, whole=False, **options):
        super().__init__(*given, **options)
        self.whole = whole

    def direction(self, gradient, basis):
        shorter, rank = basis.shape
        seen = np.sqrt(shorter / rank) * basis.T @ gradient  # as long as the gradient, on average
        made = self.adam(seen)
        if self.whole:
            step = gradient * (np.sqrt((made**2).sum()) / np.sqrt((seen**2).sum()))
        else:
            step = gradient * lengths(made, seen)
        return self.limited(step)


class SlowFira(Slow):
    def direction(self, gradient, basis):
        seen = basis.T @ gradient
        made = self.adam(seen)
        rest = (gradient - basis @ seen) * lengths(made, seen)
        return basis @ made + self.limited(rest)
