"""The oracle: every policy again, one token, one head and one list of held positions at a time, with plain tensors.

It shares no line with joma.cache. It can also be told to make the mistakes that others made, so that a test can show
that they would be seen.
"""

import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F

NAME = "slow_oracle"


def slow_losses(model, tokens, policy, budget, **options):
    with _attending(model, policy, budget, options), torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")


@contextmanager
def _attending(model, policy, budget, options):
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    layers = {}

    def attention(module, query, key, value, mask, scaling=None, dropout=0.0, **_):
        layer = layers.setdefault(module, len(layers))
        out = torch.zeros_like(query)
        group = query.shape[1] // key.shape[1]
        for row in range(len(query)):
            for head in range(key.shape[1]):
                mine = slice(head * group, (head + 1) * group)
                one = Head(query[row, mine], key[row, head], value[row, head], scaling, policy, budget, **options)
                one.frequencies = _frequencies(model, module, query.shape[-1], options.get("wrong"))
                one.place = (layer, row, head)
                out[row, mine] = one.read()
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation_internal
    model.config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        model.config._attn_implementation_internal = before


def _frequencies(model, module, width, wrong=""):
    """Of the pairs of coordinates that a layer turns, by the formulas of the papers; None where it turns none."""
    rope, config = getattr(model.config, "rope_parameters", None), model.config
    if not rope:
        return None
    if "rope_type" not in rope:  # each type of layer has its own
        kinds = config.layer_types
        kind = kinds[module.layer_idx]
        rope = rope[next(one for one in kinds if one != kind) if wrong == "angles of the other layers" else kind]
    base, share = rope["rope_theta"], rope.get("partial_rotary_factor", 1.0)
    turned = width if rope["rope_type"] == "proportional" else int(width * share)
    found = base ** (-torch.arange(turned // 2, dtype=torch.float64) * 2 / turned)
    if rope["rope_type"] == "proportional":  # Gemma 4: the others of the width do not turn
        found[int(share * width / 2) :] = 0
    if rope["rope_type"] == "linear":
        found = found / rope["factor"]
    if rope["rope_type"] == "yarn":
        low, high = (
            turned * math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (32, 1)
        )
        low, high = max(math.floor(low), 0), min(math.ceil(high), turned - 1)
        ramp = ((torch.arange(turned // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        found = found / rope["factor"] * ramp + found * (1 - ramp)
    return found


def chosen(scores, count):
    if not count:
        return []
    least = sorted(scores)[-count]
    sure = [j for j, score in enumerate(scores) if score > least * (1 + 1e-4)]
    equal = [j for j, score in enumerate(scores) if j not in sure and score >= least * (1 - 1e-4)]
    return sorted(sure + equal[: count - len(sure)])


class Head:
    """One key-value head of one sequence with its query heads: query (group, tokens, width), key (tokens, width)."""

    def __init__(self, query, key, value, scale, policy, budget, *, sinks=0, recent=0, prompt=0, draw=None, wrong=""):
        self.query, self.key, self.value, self.scale = query, key, value, scale
        self.policy, self.budget, self.sinks, self.recent, self.prompt = policy, budget, sinks, recent, prompt
        self.draw, self.wrong = draw, wrong
        self.length = key.shape[0]
        self.score = [0.0] * self.length
        self.held, self.read_so_far = [], 0

    def read(self):
        if self.policy == "h2o-oracle":
            for t in range(self.length):
                self.gain(t, range(t + 1))
        return torch.stack(self.read_until(self.length), 1)

    def read_until(self, end):
        """What the queries before `end` read that have not yet."""
        rows = []
        for t in range(self.read_so_far, end):
            self.held.append(t)
            self.evict(t)
            seen = self.best(t) if self.policy == "top-k" else self.held
            weights = self.weights(t, seen)
            rows.append(weights @ self.value[seen])
            if self.policy in ("h2o", "snapkv") and self.counts(t):
                self.gain(t, seen)
        self.read_so_far = max(end, self.read_so_far)
        return rows

    def kept(self):
        if self.policy == "snapkv" and self.read_so_far == self.prompt:
            self.snap(self.prompt)
            late = range(max(self.prompt - self.budget + len(self.chosen), 0), self.prompt)
            self.held = sorted({*self.chosen, *late})
        return self.held

    def counts(self, t):
        if self.policy == "snapkv":
            return self.prompt - self.recent <= t < self.prompt
        if self.wrong == "early scores frozen":
            return t < self.budget
        return True

    def gain(self, t, seen):
        seen = list(seen)
        weights = self.weights(t, seen)
        weights = weights[:1] if self.wrong == "first head of a group alone" else weights
        if self.wrong == "scored by the last queries":  # as SnapKV would: what was gained before is forgotten
            self.score = [score * (t % self.recent != 0) for score in self.score]
        for j, weight in zip(seen, weights.sum(0).tolist(), strict=True):
            self.score[j] += weight

    def evict(self, t):
        if self.policy == "snapkv" and t >= self.prompt:
            self.snap(t)
        if self.policy in ("full", "top-k", "snapkv"):
            return
        limit = self.budget + (self.wrong == "one key too many")
        while len(self.held) > limit:
            old = self.held[: len(self.held) - self.recent]
            if self.wrong != "sinks dropped":
                old = [j for j in old if j >= self.sinks]
            self.held.remove(min(old, key=self.worth))

    def worth(self, j):
        if callable(self.policy):
            return self.policy(self.key[j])
        if self.policy in ("h2o", "h2o-oracle"):
            return self.score[j]
        return self.draw(*self.place, j) if self.policy == "random" else j  # window, sinks

    def snap(self, t):
        if t == self.prompt:
            before = self.prompt - self.recent
            padded = [0.0, 0.0, *self.score[:before], 0.0, 0.0]
            smooth = [sum(padded[j : j + 5]) / 5 for j in range(before)]
            smooth[: self.sinks] = [math.inf] * min(self.sinks, before)
            self.chosen = chosen(smooth, min(self.budget - self.recent, before))
        late = self.budget - len(self.chosen)
        last = [j for j in range(t + 1) if j > t - late and j not in self.chosen]
        self.held = sorted(self.chosen + last)

    def best(self, t):
        weights = self.weights(t, self.held).sum(0)
        return sorted(weights.topk(min(self.budget, t + 1)).indices.tolist())

    def weights(self, t, seen):
        query, key = self.query[:, t], self.key[seen]
        if self.policy == "sinks" and self.frequencies is not None and self.wrong != "positions of the text":
            query = self.turned(query, torch.full((len(query),), len(seen) - 1 - t))
            key = self.turned(key, torch.arange(len(seen)) - torch.tensor(seen))
        return (query @ key.T * self.scale).softmax(-1)

    def turned(self, x, by):
        half = len(self.frequencies)
        angle = by[:, None].double() * self.frequencies
        a, b, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], 1)
