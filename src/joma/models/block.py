"""The block of eq. 1 as a torch module: what `joma.theory.flow` describes, trained by an optimizer."""

import torch
from torch import Tensor, nn

from joma.host.arguments import Number, as_tensor, floating
from joma.theory.attention import Attention
from joma.theory.flow import Activation, identity


class JomaBlock(nn.Module):
    """h = phi(W^T (U_C b + u_q)), b = attention of logits z_q and token frequencies x (eq. 1).

    Trained are w (*members, width, nodes) and z (*members, queries, tokens); the embeddings `tokens` (width, tokens)
    and `queries` (width, queries) are fixed, as in the paper. `members` makes an ensemble that one backward pass
    trains: sum the members' losses. Fill w and z to choose the start; they begin at zero.

    >>> block = JomaBlock(torch.eye(4)[:, :3], torch.eye(4)[:, 3:], nodes=2, attention=Attention("softmax"))
    >>> block(torch.full((5, 3), 1 / 3), torch.zeros(5, dtype=torch.long)).shape
    torch.Size([5, 2])
    """

    tokens: Tensor
    queries: Tensor

    def __init__(
        self,
        tokens: Number,
        queries: Number,
        *,
        nodes: int,
        attention: Attention = Attention("exp"),  # noqa: B008 - frozen
        activation: Activation = identity,
        residual: bool = True,
        members: tuple[int, ...] = (),
    ) -> None:
        """Embeddings, sizes and kind of the block; w and z begin at zero.

        - tokens: U_C (width, tokens), fixed embeddings as columns
        - queries: u_m (width, queries), as well
        - nodes: K, hidden nodes
        - attention: how logits become weights
        - activation: phi, a pointwise function
        - residual: whether the query's embedding is added
        - members: leading dimensions of w and z, () for one block
        """
        super().__init__()
        tokens, queries = floating(tokens, "tokens"), floating(queries, "queries")
        if tokens.ndim != 2 or queries.ndim != 2 or tokens.shape[0] != queries.shape[0]:
            got = f"{tuple(tokens.shape)} and {tuple(queries.shape)}"
            raise ValueError(f"tokens and queries must share their width: got {got}")
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        self.register_buffer("tokens", tokens)
        self.register_buffer("queries", queries)
        self.attention, self.activation, self.residual = attention, activation, residual
        self.w = nn.Parameter(tokens.new_zeros(*members, tokens.shape[0], nodes))
        self.z = nn.Parameter(tokens.new_zeros(*members, queries.shape[1], tokens.shape[1]))

    @property
    def v(self) -> Tensor:
        """V = U_C^T W, (*members, tokens, nodes)."""
        return self.tokens.mT @ self.w

    def __repr__(self) -> str:
        (width, tokens), queries, nodes = self.tokens.shape, self.queries.shape[1], self.w.shape[-1]
        members = f", members={tuple(self.w.shape[:-2])}" if self.w.ndim > 2 else ""
        return f"JomaBlock({tokens} tokens, {queries} queries, width {width}, {nodes} nodes, {self.attention}{members})"

    def attend(self, x: Number, query: Number) -> Tensor:
        """b of every sample. x (..., samples, tokens), query (samples,)."""
        return self.attention.weights(self.z[..., as_tensor(query, "query"), :], x)

    def forward(self, x: Number, query: Number) -> Tensor:
        """The hidden nodes, (..., samples, nodes)."""
        query = as_tensor(query, "query")
        f = self.attend(x, query) @ self.tokens.mT
        if self.residual:
            f = f + self.queries.mT[query]
        return self.activation(f @ self.w)

    def sgd(self, *, rate_w: float, rate_z: float, momentum: float = 0.0) -> torch.optim.SGD:
        """Plain SGD with separate rates for the MLP and the attention."""
        groups = [{"params": [self.w], "lr": rate_w}, {"params": [self.z], "lr": rate_z}]
        return torch.optim.SGD(groups, lr=rate_w, momentum=momentum)
