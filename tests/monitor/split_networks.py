"""A small network whose projections can be split over processes, and slow numbers of it in float64."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, LENGTH, WIDTH, HEADS = 17, 6, 16, 4
TEXT = torch.randint(TOKENS, (12, 4, LENGTH), generator=torch.Generator().manual_seed(1))
PROBE = torch.randint(TOKENS, (5, LENGTH), generator=torch.Generator().manual_seed(2))


class Attention(nn.Module):
    """Causal; it has as many heads as its queries have room for, all of them or those of one process."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """With dropout, and a counter that a pass changes."""

    def __init__(self):
        super().__init__()
        self.attn, self.drop = Attention(), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(WIDTH, 22), nn.Linear(22, WIDTH)
        self.register_buffer("load", torch.zeros(()))

    def forward(self, x):
        self.load += 1
        x = x + self.drop(self.attn(x)) * (1 + 0.01 * self.load)
        return x + self.down(F.gelu(self.up(x)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, TOKENS)  # 17 rows: no two processes have equally many
        self.broken = False

    def forward(self, ids):
        if self.broken:
            raise RuntimeError("this pass is broken")
        x = self.embed(ids)
        for block in self.h:
            x = block(x)
        return self.head(x)


def network():
    """Heads differ, so that a mixed-up one would show."""
    torch.manual_seed(0)
    model = Network()
    with torch.no_grad():
        for at, block in enumerate(model.h):
            block.attn.q.weight.mul_(torch.linspace(1, 9, WIDTH)[:, None] * (1 + at))
    return model


def loss(model, ids):
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def slow_attention(model, ids):
    """{layer: {measure: (heads,)}}, from queries and keys in float64, one query after the other."""
    seen, found = {}, {}
    hooks = [
        block.attn.register_forward_pre_hook(lambda _, given, at=at: seen.__setitem__(at, given[0]))
        for at, block in enumerate(model.h)
    ]
    model.eval()
    model(ids)
    for hook in hooks:
        hook.remove()
    for at, block in enumerate(model.h):
        q, k = (
            part(seen[at]).unflatten(-1, (HEADS, -1)).transpose(1, 2).double() for part in (block.attn.q, block.attn.k)
        )
        found[f"h.{at}.attn"] = _slow(q * q.shape[-1] ** -0.5, k)
    return found


def _slow(q, k):
    mean = q.mean((0, 2))  # of a head
    parts = {
        name: [] for name in ("entropy", "largest_logit", "sink_mass", "effective_keys", "variance", "shared", "cross")
    }
    for query in range(q.shape[2]):
        keys = k[:, :, : query + 1]
        logits = torch.einsum("bhd,bhkd->bhk", q[:, :, query], keys)
        weights = logits.softmax(-1)
        entropy = torch.special.entr(weights).sum(-1)
        parts["entropy"].append(entropy)
        parts["largest_logit"].append(logits.amax(-1))
        parts["sink_mass"].append(weights[..., 0])
        parts["effective_keys"].append(entropy.exp())
        parts["variance"].append(logits.var(-1, correction=0))
        common = torch.einsum("hd,bhkd->bhk", mean, keys)
        parts["shared"].append(common.var(-1, correction=0))
        own = logits - common
        both = (common - common.mean(-1, keepdim=True)) * (own - own.mean(-1, keepdim=True))
        parts["cross"].append(2 * both.mean(-1))
    found = {name: torch.stack(each, -1).mean((0, 2)) for name, each in parts.items() if name != "largest_logit"}
    found["largest_logit"] = torch.stack(parts["largest_logit"], -1).amax((0, 2))
    return {f"spread/{name}" if name in ("variance", "shared", "cross") else name: each for name, each in found.items()}


def slow_matrices(now, before):
    found = {"stable_rank": {}, "norm": {}, "update_ratio": {}}
    for name in (name for name, each in now.items() if each.ndim == 2 and name != "embed.weight"):
        w, sigma = now[name].double(), torch.linalg.svdvals(now[name].double())
        found["stable_rank"][name] = float(sigma.square().sum() / sigma[0] ** 2)
        found["norm"][name] = float(w.norm())
        found["update_ratio"][name] = float((w - before[name].double()).norm() / w.norm())
    return found
