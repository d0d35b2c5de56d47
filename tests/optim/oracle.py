"""GaLore with Adam or SGD inside, once more: slow, in float64, one matrix and one entry of the theory at a time."""

import numpy as np


class SlowGaLore:
    """One matrix. `like` gives the signs of the singular vectors, which an SVD leaves open."""

    apart = 1e-6  # from the singular vectors, at most

    def __init__(self, weight, *, rank, refresh, scale, lr, decay=0.0, on_move="keep", momentum=None):
        self.weight = np.array(weight, dtype=np.float64)
        self.rank, self.refresh, self.scale, self.lr = rank, refresh, scale, lr
        self.decay, self.on_move, self.momentum = decay, on_move, momentum
        self.count = 0
        self.basis = None
        self.forget()

    def forget(self):
        self.first = self.second = 0.0
        self.age = 0

    def step(self, gradient, like):
        gradient = np.array(gradient, dtype=np.float64)
        rows, columns = self.weight.shape
        left = rows < columns
        if not left:  # the shorter side is then the rows
            gradient, self.weight = gradient.T, self.weight.T
        if self.count % self.refresh == 0:
            self.move(gradient, np.array(like, dtype=np.float64))
        compact = self.basis.T @ gradient
        self.weight = self.weight - self.lr * self.decay * self.weight
        self.weight = self.weight + self.scale * self.basis @ self.inner(compact)
        if not left:
            self.weight = self.weight.T
        self.count += 1

    def move(self, gradient, like):
        vectors = np.linalg.svd(gradient, full_matrices=False)[0][:, : self.rank]
        overlap = (vectors * like).sum(0)
        assert np.allclose(np.abs(overlap), 1, atol=self.apart), "these are not the leading singular vectors"
        old, self.basis = self.basis, self.kept(vectors * np.sign(overlap))
        if old is None or self.on_move == "keep":
            return
        if self.on_move == "reset":
            self.forget()
            return
        turn = self.basis.T @ old
        moved = np.zeros_like(self.second)
        for i in range(self.rank):
            for j in range(self.rank):
                moved[i] += turn[i, j] ** 2 * self.second[j]
            moved[i] += (1 - (turn[i] ** 2).sum()) * self.second.mean(0)
        self.first, self.second = turn @ self.first, moved

    def kept(self, vectors):
        return vectors

    def inner(self, gradient):
        """What Adam, or SGD with momentum, would add to a parameter that is zero."""
        self.age += 1
        if self.momentum is not None:
            self.first = self.momentum * self.first + gradient
            return -self.lr * self.first
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        root = np.sqrt(self.second / (1 - 0.999**self.age)) + 1e-8
        return -self.lr * self.first / (1 - 0.9**self.age) / root


class SlowPublished(SlowGaLore):
    """In the conventions of galore-torch 1.0: epsilon before the bias correction, decay after the update."""

    def step(self, gradient, like):
        decay, self.decay = self.decay, 0.0
        super().step(gradient, like)
        self.decay = decay
        self.weight = self.weight - self.lr * decay * self.weight

    def inner(self, gradient):
        self.age += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        rate = self.lr * np.sqrt(1 - 0.999**self.age) / (1 - 0.9**self.age)
        return -rate * self.first / (np.sqrt(self.second) + 1e-6)
