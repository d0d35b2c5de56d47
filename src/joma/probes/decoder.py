"""What is looked at in a `joma.models.Decoder` while it trains: many members at once, nothing waits for the host.

Every function gives (members, ...). A member whose weights are no longer finite gets NaN and disturbs no other, so
that a sweep with a diverging rate goes on. Where `joma.measure` has the same quantity, a test compares the two.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.host.arguments import Number, as_numbers, as_tensor
from joma.measure.attention import attention_stats
from joma.measure.correlation import pearson
from joma.measure.spread import Factors, Spread, SpreadSums, factors, spread_sums
from joma.models.decoder import Decoder
from joma.probes._sparsity import KEEP, of_products

CrossEntropy = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of features, output matrix, output bias and targets, as `joma.training.cross_entropy` takes and gives them."""

AT_ONCE = 1 << 27
"""Logits over the vocabulary that exist at one time; what they need decides how many sequences are read together."""
DOUBLINGS = 22
"""Squarings of a Gram matrix: 2^22 power iterations, after which the largest eigenvalue is right to 2e-5."""
WORDS = 512
"""Vectors of the vocabulary that are compared with one another."""


def ensemble_entropy(decoder: Decoder, tokens: Number) -> Tensor:
    """Mean over queries and sequences of -sum a ln a, (members, layers, heads), of one batch in one pass.

    tokens: (sequences, length), or (members, sequences, length) where every member reads its own. For texts of any
    length see `joma.probes.attention_entropy`.
    """
    ids = as_tensor(tokens, "tokens")
    total, look = _entropies(decoder, ids.device)
    decoder.features(ids, look=look)
    return total / math.prod(ids.shape[-2:])


def ensemble_sparsity(decoder: Decoder, tokens: Number, *, keep: int = KEEP) -> tuple[Tensor, ...]:
    """Means over queries and sequences: entropy, then the fields of `AttentionSparsity`, each (members, layers, heads).

    tokens: as in `ensemble_entropy`, with whose entropy this one agrees up to rounding. keep: the number of keys of
    `top_keys`. For texts of any length see `joma.probes.attention_sparsity`.

    >>> from joma.models import DecoderConfig
    >>> decoder = Decoder(DecoderConfig(vocabulary=9, width=8, mlp=8, layers=2), seeds=[0, 1, 2])
    >>> entropy, top_tenth, *_ = ensemble_sparsity(decoder, torch.zeros(4, 10, dtype=torch.long))
    >>> entropy.shape, top_tenth.shape
    (torch.Size([3, 2, 1]), torch.Size([3, 2, 1]))
    """
    config = decoder.config
    if (kind := config.attention) in ("sigmoid", "relu"):
        raise ValueError(f"{kind} attention weighs each key for itself: its masses do not sum to one and have no share")
    found: list[Tensor] = []  # of each layer (statistics, members, heads)
    products: dict[str, Tensor] = {}

    def look(layer: int, name: str, value: Tensor) -> None:
        if name in ("query", "key"):  # members as further heads: each has its sinks
            products[name] = value.detach().transpose(0, 1).flatten(1, 2)
        if name != "key":
            return
        options: dict[str, Any] = {"causal": config.causal}
        if config.attention == "off-by-one":
            options["sinks"] = 0.0
        elif config.attention == "learned-sink":
            options["sinks"] = _weight(decoder, "sink")[:, layer].detach().flatten()
        q, k = products["query"], products["key"]
        with torch.no_grad():
            stats = attention_stats(q, k, **options)
            every = (stats.entropy, *of_products(q, k, stats, keep, options))
            means = [each.expand_as(stats.entropy).mean((0, 2), dtype=torch.float64) for each in every]
        found.append(torch.stack(means).view(len(means), decoder.members, config.heads))

    decoder.features(as_tensor(tokens, "tokens"), look=look)
    return tuple(torch.stack(found, 2).unbind())


def ensemble_spread(decoder: Decoder, tokens: Number) -> tuple[Spread, Factors]:
    """How far logits spread over keys and why, of one batch in one pass: fields (members, layers, heads).

    `mean_share` and `rank` of the factors are those of what a layer reads, (members, layers). Decoders have no rotary
    positions, so that the factors exist. tokens: as in `ensemble_entropy`. For texts of any length see
    `joma.probes.attention_spread`.
    """
    config = decoder.config
    if config.qk_norm or config.positions in ("rotary", "alibi"):
        has = "qk_norm" if config.qk_norm else f"{config.positions} positions"
        raise ValueError(f"factors are those of logits that are bilinear in the input: this decoder has {has}")
    inputs: list[Tensor] = []
    spread = spread_of_layers(decoder, layer_sums(decoder, tokens, inputs))
    query, key, _ = (part.detach() for part in _weight(decoder, "qkv").split(decoder.config.width, dim=-1))
    bias = _weight(decoder, "qkv_bias").detach()[..., : decoder.config.width]
    w_q, w_k = (w.unflatten(-1, (decoder.config.heads, -1)).permute(0, 1, 3, 4, 2) for w in (query, key))
    b_q = bias.unflatten(-1, (decoder.config.heads, -1))  # (members, layers, heads, head width)
    each = [
        factors(w_q[m, at], w_k[m, at], x[m], variance=spread.variance[m, at], b_q=b_q[m, at], finite=False)
        for m in range(decoder.members)
        for at, x in enumerate(inputs)
    ]
    shape = (decoder.members, decoder.config.layers)
    return spread, Factors(*(torch.stack(parts).unflatten(0, shape) for parts in zip(*each, strict=True)))


def layer_sums(decoder: Decoder, tokens: Number, inputs: list[Tensor] | None = None) -> list[SpreadSums]:
    """The sums of `joma.measure.spread` of every layer, with the heads of all members as heads.

    inputs: a list that gets what every layer reads, (members, sequences, length, width).
    """
    found: list[SpreadSums] = []
    query: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "input" and inputs is not None:
            inputs.append(value.detach())
        elif name == "query":
            query.append(value.detach().transpose(0, 1).flatten(1, 2))
        elif name == "key":
            key = value.detach().transpose(0, 1).flatten(1, 2)
            found.append(spread_sums(query.pop(), key, causal=decoder.config.causal, finite=False))

    decoder.features(as_tensor(tokens, "tokens"), look=look)
    return found


def spread_of_layers(decoder: Decoder, layers: list[SpreadSums]) -> Spread:
    """The spread of such sums, each field (members, layers, heads)."""
    each = zip(*(sums.spread for sums in layers), strict=True)
    return Spread(*(torch.stack(parts).unflatten(1, (decoder.members, -1)).transpose(0, 1) for parts in each))


def validation(decoder: Decoder, inputs: Number, targets: Number, cross_entropy: CrossEntropy) -> dict[str, Tensor]:
    """Loss (members,) and attention entropy (members, layers, heads) on a whole text, in one pass, piece by piece.

    inputs, targets: (sequences, length), every sequence with what follows each of its tokens. Both are means.

    >>> from joma.models import DecoderConfig
    >>> from joma.training import cross_entropy
    >>> decoder = Decoder(DecoderConfig(vocabulary=9, width=8, mlp=8), seeds=[0, 1])
    >>> text = torch.arange(22).view(2, 11) % 9
    >>> found = validation(decoder, text[:, :-1], text[:, 1:], cross_entropy)
    >>> found["loss"].shape, found["entropy"].shape
    (torch.Size([2]), torch.Size([2, 1, 1]))
    """
    inputs, targets = as_tensor(inputs, "inputs"), as_tensor(targets, "targets")
    length = inputs.shape[-1]
    together = max(1, AT_ONCE // (length * decoder.out.shape[1]))
    entropy, look = _entropies(decoder, inputs.device)
    loss = torch.zeros(decoder.members, device=inputs.device, dtype=torch.float64)
    for tokens, following in zip(inputs.split(together), targets.split(together), strict=True):
        features = decoder.features(tokens, look=look).flatten(1, 2)
        right = following.flatten()[None]
        for member in range(decoder.members):  # so that the logits of one member exist at a time
            one = slice(member, member + 1)
            found = cross_entropy(features[one], decoder.out[one], decoder.out_bias[one], right)
            loss[one] += found.double() * right.numel()
    return {"loss": loss / inputs.numel(), "entropy": entropy / inputs.numel()}


def _entropies(decoder: Decoder, device: torch.device) -> tuple[Tensor, Callable[[int, str, Tensor], None]]:
    """A tensor (members, layers, heads), and what adds to it the entropy of all queries that pass by."""
    config = decoder.config
    total = torch.zeros(decoder.members, config.layers, config.heads, device=device, dtype=torch.float64)

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "attention":  # (members, batch, heads, queries, keys)
            total[:, layer] += torch.special.entr(value).sum((1, 3, 4), dtype=torch.float64)

    return total, look


def weight_ranks(decoder: Decoder) -> dict[str, Tensor]:
    """Stable ranks: of the MLP's lower matrix, `up` (members, layers), and of W_q W_k^T, `query_key` (..., heads).

    Without an MLP there is no `up`.
    """
    config = decoder.config
    query, key, _ = _weight(decoder, "qkv").split(config.width, dim=-1)  # (members, layers, width, width)
    heads = [part.unflatten(-1, (config.heads, -1)).movedim(-2, 2) for part in (query, key)]
    ranks = {"query_key": stable_ranks(heads[0].double() @ heads[1].double().mT)}
    return {"up": stable_ranks(_weight(decoder, "up")), **ranks} if config.mlp else ranks


def gradient_rank(decoder: Decoder, loss: Callable[[Decoder], Tensor]) -> Tensor:
    """Stable rank of the gradient by the MLP's lower matrix, (members, layers). loss: of one batch, (members,)."""
    with torch.enable_grad():
        return stable_ranks(torch.autograd.grad(loss(decoder).sum(), [_weight(decoder, "up")])[0])


def embedding_coherence(decoder: Decoder) -> Tensor:
    """Mean |cos| between the vectors of different words, (members,): of all, or of `WORDS` that are drawn once.

    >>> from joma.models import DecoderConfig
    >>> decoder = Decoder(DecoderConfig(vocabulary=8, width=8, mlp=8, embeddings="orthonormal"), seeds=[0])
    >>> bool(embedding_coherence(decoder) < 1e-6)
    True
    """
    words = decoder.config.vocabulary
    chosen = torch.arange(words)
    if words > WORDS:
        chosen = torch.randperm(words, generator=torch.Generator().manual_seed(0))[:WORDS]
    direction = F.normalize(decoder.embedding[:, chosen.to(decoder.embedding.device)].double(), dim=-1)
    cosines, count = (direction @ direction.mT).abs(), len(chosen)
    return (cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(-1)) / (count * (count - 1))


def stable_ranks(w: Number) -> Tensor:
    """|w|_F^2 / |w|_2^2 of every matrix (..., rows, columns), by repeated squaring of its Gram matrix; 0 for zeros.

    Of G = w w^T / |w|_F^2, tr G^(p+1) / tr G^p lies below the largest eigenvalue by less than side / (e p) of it,
    p = 2^DOUBLINGS, at most 2e-5 for a side of 256: matrix products alone, where an eigenvalue solver would take its
    matrices one by one and make the host wait. NaN stays NaN.
    """
    w = as_numbers(w, "w").detach().double()
    gram, power = _powers(w if w.shape[-2] <= w.shape[-1] else w.mT)
    largest = (power * gram).sum((-2, -1))  # tr(G^p G), tr G^p being 1
    return torch.where(largest == 0, 0.0, 1 / torch.where(largest == 0, 1.0, largest))


def leading_inputs(w: Number) -> Tensor:
    """Of every matrix (..., inputs, outputs) the unit vector x of inputs for which |x w| is largest, (..., inputs).

    Its sign has no meaning. It is found as in `stable_ranks`; where the two largest singular values are equal to 1e-7,
    it is a mixture of theirs. NaN stays NaN.
    """
    _, power = _powers(as_numbers(w, "w").detach().double())
    most = power.diagonal(dim1=-2, dim2=-1).argmax(-1)  # of x x^T, the column of the largest entry loses least
    column = power.take_along_dim(most[..., None, None], -1).squeeze(-1)
    return F.normalize(column, dim=-1)


def _powers(w: Tensor) -> tuple[Tensor, Tensor]:
    """G = w w^T / |w|_F^2 and G^p / tr G^p, p = 2^DOUBLINGS."""
    size = torch.linalg.vector_norm(w, dim=(-2, -1), keepdim=True)
    w = w / torch.where(size == 0, 1.0, size)
    gram = w @ w.mT
    power = gram
    for _ in range(DOUBLINGS):
        power = power @ power
        trace = power.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        power = power / torch.where(trace == 0, 1.0, trace)
    return gram, power


def logit_terms(decoder: Decoder, frequency: Number) -> tuple[Tensor, Tensor] | None:
    """What Theorem 1 ties together in the first layer: logits and squares, each (members, vocabulary), or None.

    logits: of every key word, averaged over queries by their `frequency` (vocabulary,): words that share an MLP share
    its invariant, so that only this mean can follow from it. squares: sum_k v_k^2, v = E W_v W_o diag(scale) W_up, how
    the hidden nodes see a word that is attended to. Both in the basis that is being learned.

    None where they do not exist: several heads, no MLP, a norm before attention (its effect depends on the place),
    norms of heads, gates, or positions that act on logits.
    """
    config = decoder.config
    not_bilinear = config.qk_norm or config.vo_norm or config.gate != "none"
    if config.heads > 1 or config.mlp == 0 or config.norm.startswith("pre") or not_bilinear:
        return None
    if config.positions in ("rotary", "alibi"):
        return None
    frequency = as_numbers(frequency, "frequency")
    words = decoder.embedding * math.sqrt(config.width)
    query, key, value = _weight(decoder, "qkv")[:, 0].split(config.width, dim=-1)
    bias = _weight(decoder, "qkv_bias")[:, 0, : config.width]
    mean = torch.einsum("v,mvw->mw", frequency.to(words), words)
    if config.positions == "sinusoidal":
        mean = mean + decoder.sinusoids.mean(0)
    elif config.positions == "learned":
        mean = mean + decoder.position.mean(1)
    asked = torch.einsum("mw,mwu->mu", mean, query) + bias
    logits = torch.einsum("mvw,mw->mv", words, torch.einsum("mwu,mu->mw", key, asked)) / math.sqrt(config.width)
    through = value @ _weight(decoder, "projection")[:, 0] if config.projection else value
    if config.norm != "none":
        through = through * _weight(decoder, "attention_scale")[:, 0, None]
    seen = words @ (through @ _weight(decoder, "up")[:, 0])
    return logits, seen.square().sum(-1)


def logit_estimate(
    decoder: Decoder, start: tuple[Tensor, Tensor], frequency: Number, *, words: int
) -> dict[str, Tensor]:
    """How far the first layer's logits moved as Theorem 1 says: correlations over the most frequent words, (members,).

    `theorem`: with (S - |V|^2 b)/2, S_l = sum_k v_lk^2, b the words' frequency; `squares`: with S/2 alone; `frequency`:
    with the logarithm of the words' frequency, which needs no theorem. All `words` of them must occur. start:
    `logit_terms` of the untrained network. Nothing where `logit_terms` has nothing to say.
    """
    now = logit_terms(decoder, frequency)
    if now is None:
        return {}
    moved, grown = (after.double() - before.double() for after, before in zip(now, start, strict=True))
    frequency = as_numbers(frequency, "frequency").to(moved)
    often = frequency.topk(words).indices
    predicted = grown - grown.sum(-1, keepdim=True) * frequency
    return {
        "theorem": pearson(predicted[:, often], moved[:, often]),
        "squares": pearson(grown[:, often], moved[:, often]),
        "frequency": pearson(frequency[often].log()[None], moved[:, often]),
    }


def _weight(decoder: Decoder, name: str) -> Tensor:
    found: Tensor = getattr(decoder, name)
    return found
