"""The one-layer model of Scan and Snap: decoder logits Y and attention logits Z in place of embeddings.

    c = x o exp(z_q),   f = c / |c|,   logits of the next token = Y^T f

x are the frequencies of the tokens in a sequence, q its last token, the query. `joma.theory.scan_snap` has the flow
that SGD follows in expectation. Many of them are trained at once: every parameter's first dimension is the member.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.host.arguments import Number, as_numbers, as_tensor, floating, integer, number
from joma.host.words import counted
from joma.theory._bilinear_flow import Norm, attended_unchecked, must_be_a_norm, pulled_back


class Bilinear(nn.Module):
    """Members of one shape, each initialised from its own seed, computed together.

    Trained are `y` (members, tokens, outputs) and `scaled_z` (members, queries, tokens). The attention logits are
    z = sqrt(ratio) scaled_z: so one learning rate r for all parameters trains Y with eta_Y = r and Z with
    eta_Z = r ratio, as SGD does with two rates.

    >>> model = Bilinear(tokens=5, outputs=2, seeds=[0, 1, 2], ratio=0.1)
    >>> model(torch.tensor([[0, 0, 3], [1, 4, 4]])).shape  # two sequences of three tokens
    torch.Size([3, 2, 2])
    """

    y: Tensor
    scaled_z: Tensor
    seeds: Tensor
    root: Tensor

    def __init__(
        self,
        tokens: int,
        outputs: int,
        seeds: Sequence[int],
        *,
        queries: int = 1,
        ratio: Number = 1.0,
        norm: Norm = "unit",
        spread: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Sizes and kind of the model, one member per entry of `seeds`.

        - tokens: how many may stand in a sequence
        - outputs: how many may follow it
        - seeds: one per member
        - queries: how many may end a sequence
        - ratio: eta_Z / eta_Y, one number or one per member
        - norm: what c is divided by, as in `joma.theory.scan_snap.attended`
        - spread: Y and Z start as Gaussian numbers of that size, drawn from the member's seed; 0 starts at zero
        - dtype: of the parameters
        """
        super().__init__()
        for name, size in (("tokens", tokens), ("outputs", outputs), ("queries", queries)):
            integer(size, name, 1)
        seeds = [int(seed) for seed in seeds]
        if not seeds:
            raise ValueError("a bilinear model needs at least one member: seeds is empty")
        must_be_a_norm(norm)
        number(spread, "spread", least=0)
        self.tokens, self.outputs, self.queries, self.norm, self.members = tokens, outputs, queries, norm, len(seeds)
        ratios = as_numbers(ratio, "ratio").double()
        if ratios.ndim > 1 or ratios.numel() not in (1, len(seeds)):
            raise ValueError(f"ratio must be one number or one per member, {len(seeds)}, got {tuple(ratios.shape)}")
        if not ((ratios >= 0) & ratios.isfinite()).all():
            raise ValueError(f"ratio must be finite and not negative, got {ratios.min().item():g}")
        root = ratios.expand(len(seeds))[:, None, None].sqrt().to(dtype)
        y, z = [], []
        for seed in seeds:
            draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            y.append(spread * draw(tokens, outputs))
            z.append(spread * draw(queries, tokens))
        self.y = nn.Parameter(torch.stack(y).to(dtype))
        self.scaled_z = nn.Parameter(torch.where(root > 0, torch.stack(z).to(dtype) / root, 0.0))
        self.register_buffer("root", root)
        self.register_buffer("seeds", torch.tensor([seed & 0x7FFFFFFF for seed in seeds], dtype=torch.int32))

    def __repr__(self) -> str:
        sizes = f"{self.tokens} tokens, {counted(self.queries, 'query', 'queries')}, {self.outputs} outputs"
        return f"Bilinear({counted(self.members, 'member')}: {sizes}, norm {self.norm!r})"

    @property
    def z(self) -> Tensor:
        """The attention logits, (members, queries, tokens)."""
        return self.root * self.scaled_z

    def forward(self, sequences: Number, query: Number | None = None) -> Tensor:
        """Logits of what follows, (members, batch, outputs).

        sequences: (batch, length) or (members, batch, length) whole numbers, the tokens in any order; or, of floating
        type, (..., batch, tokens), how often each occurs. query: (batch,) or (members, batch); 0 unless given.
        """
        return torch.bmm(self.attended(sequences, query), self.y)

    def attended(self, sequences: Number, query: Number | None = None) -> Tensor:
        """f of every sequence, (members, batch, tokens); arguments as in `forward`."""
        x = self._frequencies(as_tensor(sequences, "sequences"))
        x = x.expand(self.members, *x.shape[-2:])
        asked = torch.zeros((), dtype=torch.long, device=x.device) if query is None else as_tensor(query, "query")
        if asked.device.type == "cpu" and not ((asked >= 0) & (asked < self.queries)).all():
            raise ValueError(f"query must lie between 0 and {self.queries - 1}, got {asked.min()} to {asked.max()}")
        rows = asked.expand(x.shape[:2])[..., None].expand(x.shape)
        return attended_unchecked(x, self.z.gather(1, rows), self.norm)

    def _frequencies(self, sequences: Tensor) -> Tensor:
        if sequences.ndim not in (2, 3) or (sequences.ndim == 3 and len(sequences) not in (1, self.members)):
            wanted = f"(batch, length) or ({self.members} members, batch, length)"
            raise ValueError(f"sequences must have shape {wanted}, got {tuple(sequences.shape)}")
        if sequences.is_floating_point():
            if sequences.shape[-1] != self.tokens:
                got = f"{sequences.shape[-1]}; tokens themselves are whole numbers"
                raise ValueError(f"sequences of frequencies must have {self.tokens} of them, got {got}")
            return sequences.to(self.y.dtype)
        if sequences.device.type == "cpu" and not ((sequences >= 0) & (sequences < self.tokens)).all():
            got = f"{sequences.min()} to {sequences.max()}"
            raise ValueError(f"sequences must hold tokens from 0 to {self.tokens - 1}, got {got}")
        counts = self.y.new_zeros(*sequences.shape[:-1], self.tokens)
        return counts.scatter_add_(-1, sequences, torch.ones_like(sequences, dtype=counts.dtype)) / sequences.shape[-1]


def bilinear_loss(model: Bilinear, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of every member, (members,).

    batch: sequences, what follows them, and their query where there are several; as `Bilinear.forward` takes them.
    `noise` is what `joma.training.Ensemble` hands to every loss; nothing is dropped here.

    >>> model = Bilinear(tokens=5, outputs=2, seeds=[0, 1])
    >>> bilinear_loss(model, (torch.tensor([[0, 0, 3]]), torch.tensor([1])))
    tensor([0.6931, 0.6931], grad_fn=<MeanBackward1>)
    """
    sequences, following, *query = batch
    logits = model(sequences, *query)
    targets = following.expand(logits.shape[:2])
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(-1)


@torch.no_grad()
def step_by_step(
    model: Bilinear, frequencies: Number, following: Number, query: Number | None = None, *, rate: Number
) -> None:
    """SGD with batches of one sequence, in place: as many steps as `frequencies` has, without autograd.

    frequencies: (steps, members, tokens), one sequence per step and member; following: (steps, members) what follows
    it; query: (steps, members), 0 unless given. rate: eta_Y, one number or one per member; eta_Z is rate times the
    model's ratio. The same numbers as autograd on `bilinear_loss` gives, to rounding, and several times faster.

    >>> model = Bilinear(tokens=2, outputs=2, seeds=[0], dtype=torch.float64)
    >>> step_by_step(model, [[[1.0, 0.0]]], [[1]], rate=1.0)
    >>> model.y
    Parameter containing:
    tensor([[[-0.5000,  0.5000],
             [ 0.0000,  0.0000]]], dtype=torch.float64, requires_grad=True)
    """
    x = floating(as_numbers(frequencies, "frequencies"), "frequencies").to(model.y)
    if x.ndim != 3 or x.shape[1:] != (model.members, model.tokens):
        wanted = f"(steps, {model.members}, {model.tokens})"
        raise ValueError(f"frequencies must have shape {wanted}, got {tuple(x.shape)}")
    after = as_tensor(following, "following")
    asked = torch.zeros_like(after) if query is None else as_tensor(query, "query")
    for name, given, most in (("following", after, model.outputs), ("query", asked, model.queries)):
        if given.shape != x.shape[:2] or not ((given >= 0) & (given < most)).all():
            wanted = f"{tuple(x.shape[:2])} and lie between 0 and {most - 1}"
            raise ValueError(f"{name} must have shape {wanted}, got {tuple(given.shape)}")
    fast = as_numbers(rate, "rate").to(model.y).expand(model.members)
    slow = (fast * model.root.flatten().square())[:, None]
    y, z, member = model.y, model.z.clone(), torch.arange(model.members)
    for now, right, row in zip(x, after, asked, strict=True):
        f = attended_unchecked(now, z[member, row], model.norm)
        error = -torch.bmm(f[:, None], y)[:, 0].softmax(-1)
        error[member, right] += 1
        z[member, row] += slow * pulled_back(f, torch.bmm(y, error[..., None])[..., 0], model.norm)
        y.baddbmm_(f[..., None], (fast[:, None] * error)[:, None])
    model.scaled_z.copy_(torch.where(model.root > 0, z / model.root, 0.0))
