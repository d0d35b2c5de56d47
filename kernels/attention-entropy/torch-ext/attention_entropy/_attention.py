# Copied from joma, src/joma/measure/_attention_triton.py (Apache-2.0). Change it there.
"""The path for CUDA: one pass over the keys, online in m, l and a, in base 2.

Per block of queries, for each block of keys, with t = s log2(e) - m and p = 2^t (m the running row maximum):

    m' = max(m, max s),   l' = alpha l + sum p,   a' = alpha (a + l (m - m')) + sum p t,   alpha = 2^(m - m')

and at the end entropy = ln 2 (log2 l - a/l), the sum of two numbers that are never negative. Masked logits are a
large finite number: a row that meets its first real key scales what it gathered before by alpha = 0, so no branch
is needed. The first key's and the own key's logits are two dot products per query, outside the loop.

Which keys a tile of queries visits, and which of them need a mask, `_tiles` says.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._start import start
from ._problem import Problem
from ._tiles import documents, span, tile

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)
_MASKED = tl.constexpr(-1.0e30)
_EMPTY = tl.constexpr(-1.0e29)  # a row maximum below this has met no key
_BY_KEY = tl.constexpr(2)  # a bias that is the same for all queries, as ALiBi's
_SEEN = tl.constexpr(3)  # no bias, but a mask: 0 where a query does not see a key

# fmt: off


@triton.jit
def _capped(s, scale2, softcap2, SOFTCAP: tl.constexpr):
    """Scaled (and soft-capped) logits in base 2."""
    s = s * scale2
    if SOFTCAP:
        x = s / softcap2 * 2.0 * _LOG2E  # tanh(y) = 1 - 2/(e^2y + 1)
        s = softcap2 * (1.0 - 2.0 / (tl.exp2(x) + 1.0))
    return s


@triton.jit
def _walk(
    m, l, a, acc, q, k_base, v_base, bias_base, pad_base, rows, alive, low, high, start, stop, keys,
    stride_kn, stride_kd, stride_vn, stride_vd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
    MASK: tl.constexpr, LEFT: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, PAD: tl.constexpr,
    OUTPUT: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    """Take in the keys start..stop; MASK says whether some query may not see some, LEFT whether any may begin late."""
    d = tl.arange(0, WIDTH)
    for at in tl.range(start, stop, BN):
        n = at + tl.arange(0, BN)
        k_ptr = k_base + n[None, :] * stride_kn + d[:, None] * stride_kd
        k = tl.load(k_ptr, mask=n[None, :] < keys, other=0.0) if MASK else tl.load(k_ptr)
        s = tl.dot(q, k, input_precision=PRECISION)
        plain: tl.constexpr = not (SOFTCAP or BIAS or PAD or MASK)
        if plain:
            m_new = tl.maximum(m, tl.max(s, 1) * scale2)
            t = s * scale2 - m_new[:, None]
        else:
            s = _capped(s, scale2, softcap2, SOFTCAP)
            if BIAS == _BY_KEY:
                b = tl.load(bias_base + n * stride_bn, mask=n < keys, other=0.0)
                s = tl.maximum(s + (b.to(tl.float32) * _LOG2E)[None, :], _MASKED)
            elif BIAS:
                there = alive[:, None] & (n[None, :] < keys)
                b = tl.load(bias_base + rows[:, None] * stride_bm + n[None, :] * stride_bn, mask=there, other=0)
                if BIAS == _SEEN:
                    s = tl.where(b != 0, s, _MASKED)
                else:
                    s = tl.maximum(s + b.to(tl.float32) * _LOG2E, _MASKED)  # a bias of -inf is a mask
            if MASK:
                keep = n[None, :] < high[:, None]
                if LEFT:
                    keep = keep & (n[None, :] >= low[:, None])
                s = tl.where(keep, s, _MASKED)
            if PAD:
                real = tl.load(pad_base + n * stride_pn, mask=n < keys, other=0)
                s = tl.where(real[None, :] != 0, s, _MASKED)
            m_new = tl.maximum(m, tl.max(s, 1))
            t = s - m_new[:, None]
        p = tl.exp2(t)
        alpha = tl.exp2(m - m_new)
        a = alpha * (a + l * (m - m_new)) + tl.sum(p * t, 1)
        l = alpha * l + tl.sum(p, 1)
        if OUTPUT:
            e = tl.arange(0, VWIDTH)
            v_ptr = v_base + n[:, None] * stride_vn + e[None, :] * stride_vd
            v = tl.load(v_ptr, mask=n[:, None] < keys, other=0.0) if MASK else tl.load(v_ptr)
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
        m = m_new
    return m, l, a, acc


@triton.jit
def _one_logit(
    q, k_ptr, k_mask, bias_ptr, pad_ptr, scale2, softcap2,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, PAD: tl.constexpr,
):
    """The logit of one key per query (base 2); masked where `k_mask` is false or the key is padding."""
    k = tl.load(k_ptr, mask=k_mask[:, None], other=0.0)
    s = _capped(tl.sum(q.to(tl.float32) * k.to(tl.float32), 1), scale2, softcap2, SOFTCAP)
    keep = k_mask
    if BIAS == _SEEN:
        keep = keep & (tl.load(bias_ptr, mask=k_mask, other=0) != 0)
    elif BIAS:
        s += tl.load(bias_ptr, mask=k_mask, other=0.0).to(tl.float32) * _LOG2E
    if PAD:
        keep = keep & (tl.load(pad_ptr, mask=k_mask, other=0) != 0)
    return tl.where(keep, s, _MASKED)


@triton.jit
def _attention(
    Q, K, V, Bias, Pad, Begin, End, Entropy, Lse, Max, SinkMass, SelfMass, Effective, Shift, Total, Out,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_bb, stride_bh, stride_bm, stride_bn, stride_pb, stride_pn,
    stride_ob, stride_oh, stride_om, stride_od, stride_db,
    heads, group, queries, keys, offset, window, scale2, softcap2,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    PAD: tl.constexpr, PACKED: tl.constexpr, OUTPUT: tl.constexpr, WIDTH: tl.constexpr, VWIDTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # under a causal mask the longest rows start first
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, begin, low, high, start, full_start, full_stop, stop = tile(
        block, batch, queries, keys, offset, window, Begin, End, stride_db, CAUSAL, WINDOW, PACKED, BM, BN,
    )
    own = rows + offset
    alive = rows < queries
    d = tl.arange(0, WIDTH)
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    v_base = V + batch.to(tl.int64) * stride_vb + (head // group).to(tl.int64) * stride_vh
    bias_base = Bias + batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh
    pad_base = Pad + batch.to(tl.int64) * stride_pb
    q = tl.load(q_base + rows[:, None] * stride_qm + d[None, :] * stride_qd, mask=alive[:, None], other=0.0)

    m = tl.full([BM], _MASKED, tl.float32)
    l = tl.zeros([BM], tl.float32)
    a = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, VWIDTH], tl.float32)
    if WINDOW:
        m, l, a, acc = _walk(
            m, l, a, acc, q, k_base, v_base, bias_base, pad_base, rows, alive, low, high, start,
            tl.minimum(full_start, stop), keys,
            stride_kn, stride_kd, stride_vn, stride_vd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
            True, True, SOFTCAP, BIAS, PAD, OUTPUT, WIDTH, VWIDTH, BN, PRECISION,
        )
    m, l, a, acc = _walk(
        m, l, a, acc, q, k_base, v_base, bias_base, pad_base, rows, alive, low, high, full_start, full_stop, keys,
        stride_kn, stride_kd, stride_vn, stride_vd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        False, False, SOFTCAP, BIAS, PAD, OUTPUT, WIDTH, VWIDTH, BN, PRECISION,
    )
    m, l, a, acc = _walk(
        m, l, a, acc, q, k_base, v_base, bias_base, pad_base, rows, alive, low, high, full_stop, stop, keys,
        stride_kn, stride_kd, stride_vn, stride_vd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        True, WINDOW or PACKED, SOFTCAP, BIAS, PAD, OUTPUT, WIDTH, VWIDTH, BN, PRECISION,
    )

    empty = m <= _EMPTY
    m = tl.where(empty, 0.0, m)
    safe = tl.where(empty, 1.0, l)
    poison = tl.zeros([BM], tl.float32)
    if PACKED:  # a document that begins behind its query: `cu_seqlens` is wrong
        poison = tl.where(begin > own, float("nan"), 0.0)
        empty = empty & (begin <= own)
    log_l = tl.log2(safe)
    entropy = tl.where(empty, 0.0, tl.maximum((log_l - a / safe) * _LN2, 0.0)) + poison  # rounding may leave -1e-7
    lse2 = m + log_l + poison
    nowhere = float("-inf")
    out = (batch * heads + head).to(tl.int64) * queries + rows
    tl.store(Entropy + out, entropy, mask=alive)
    tl.store(Lse + out, tl.where(empty, nowhere, lse2 * _LN2), mask=alive)
    tl.store(Max + out, tl.where(empty, nowhere, m * _LN2 + poison), mask=alive)
    tl.store(Effective + out, tl.where(empty, 0.0, tl.exp2(entropy * _LOG2E)), mask=alive)
    tl.store(Shift + out, m, mask=alive)
    tl.store(Total + out, safe, mask=alive)

    seen = alive & (begin <= own) if PACKED else alive
    if WINDOW:
        seen = seen & (own - begin < window) & (begin - own < window)
    s = _one_logit(
        q, k_base + begin[:, None] * stride_kn + d[None, :] * stride_kd, seen,
        bias_base + rows * stride_bm + begin * stride_bn, pad_base + begin * stride_pn,
        scale2, softcap2, SOFTCAP, BIAS, PAD,
    )
    tl.store(SinkMass + out, tl.where(empty, 0.0, tl.minimum(tl.exp2(s - lse2), 1.0) + poison), mask=alive)
    seen = alive & (own >= 0) & (own < keys)
    s = _one_logit(
        q, k_base + own[:, None] * stride_kn + d[None, :] * stride_kd, seen,
        bias_base + rows * stride_bm + own * stride_bn, pad_base + own * stride_pn,
        scale2, softcap2, SOFTCAP, BIAS, PAD,
    )
    tl.store(SelfMass + out, tl.where(empty, 0.0, tl.minimum(tl.exp2(s - lse2), 1.0) + poison), mask=alive)
    if OUTPUT:
        e = tl.arange(0, VWIDTH)
        o_base = Out + batch.to(tl.int64) * stride_ob + head.to(tl.int64) * stride_oh
        o_ptr = o_base + rows[:, None] * stride_om + e[None, :] * stride_od
        acc = tl.where(empty[:, None], 0.0, acc / safe[:, None] + poison[:, None])
        tl.store(o_ptr, acc.to(Out.dtype.element_ty), mask=alive[:, None])

# fmt: on

_WIDTHS = (16, 32, 64, 128, 256)
_MOST_HEADS = 65_535  # programs in the second dimension of a grid


def covers(problem: Problem) -> bool:
    """Whether the kernel can take this problem; others need the matrix."""
    widths = [problem.q.shape[3]] + ([] if problem.v is None else [problem.v.shape[3]])
    kinds = {t.dtype for t in (problem.q, problem.k, problem.v) if t is not None}
    exact = kinds <= {torch.float32} or kinds <= {torch.bfloat16} or kinds <= {torch.float16}
    known = problem.scale > 0 and problem.keys > 0 and exact and all(width in _WIDTHS for width in widths)
    return known and _within_reach(problem)


def _within_reach(problem: Problem) -> bool:
    """Whether places inside one head are numbers of 32 bits, as the kernels count them, and CUDA takes so many heads.

    A bias for 46,341 queries and as many keys has more.
    """
    batch, heads = problem.q.shape[:2]
    given = [each for each in (problem.q, problem.k, problem.v, problem.bias) if each is not None]
    last = [sum((n - 1) * step for n, step in zip(t.shape[2:], t.stride()[2:], strict=True)) for t in given]
    return max(last) < 2**31 and batch * heads <= _MOST_HEADS


def launch(problem: Problem, blocks: tuple[int, ...] | None = None) -> tuple[Tensor, ...]:
    """The six statistics and, if v was given, the output.

    `blocks`: queries and keys of a tile, warps, stages of loading and, if the compiler needs a limit, registers.
    """
    return with_sums(problem, blocks)[0]


def with_sums(problem: Problem, blocks: tuple[int, ...] | None = None) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """What `launch` gives, and m and l: for further passes, which then divide by the very sum they are a part of."""
    q, k = problem.q, problem.k
    batch, heads, queries, width = q.shape
    output = problem.v is not None
    v = problem.v if problem.v is not None else k
    made = q.new_empty(8, batch, heads, queries, dtype=torch.float32).unbind(0)
    *stats, m, l = made
    entropy = stats[0]
    # Heads of one query side by side, as the model's next product reads them.
    out = v.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2) if output else entropy[..., None]
    # What is absent gets a stand-in that the kernel, compiled without it, never reads.
    bias = _bytes(problem.bias) if problem.bias is not None else entropy[..., None]
    padding = _bytes(problem.key_padding) if problem.key_padding is not None else entropy[:, 0]
    begin, end, stride = documents(problem)
    rows, columns, *tuning = blocks or _blocks(problem)
    start(
        _attention,
        (triton.cdiv(queries, rows), batch * heads),
        (q, k, v, bias, padding, begin, end, *made, out),
        (
            *(*q.stride(), *k.stride(), *v.stride(), *bias.stride(), *padding.stride(), *out.stride()),
            stride,
            *(heads, heads // k.shape[1], queries, problem.keys, problem.offset, problem.window or 0),
            problem.scale * _LOG2E.value,
            (problem.softcap or 1.0) * _LOG2E.value,
        ),
        {
            "CAUSAL": problem.causal,
            "WINDOW": problem.window is not None,
            "SOFTCAP": problem.softcap is not None,
            "BIAS": _kind_of_bias(problem),
            "PAD": problem.key_padding is not None,
            "PACKED": problem.cu_seqlens is not None,
            "OUTPUT": output,
            "WIDTH": width,
            "VWIDTH": v.shape[3] if output else 16,
            "BM": rows,
            "BN": columns,
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",  # TF32 would cost float32 inputs 1e-3 nats
        },
        tuned(*tuning),
    )
    return (*stats, out) if output else tuple(stats), m, l


def tuned(warps: int, stages: int, registers: int | None = None) -> dict[str, int]:
    """What a launch is told about its program. More registers per thread let fewer programs run beside each other."""
    limit = {} if registers is None else {"maxnreg": registers}
    return {"num_warps": warps, "num_stages": stages, **limit}


def _bytes(given: Tensor) -> Tensor:
    """True and False as 1 and 0, where they lie."""
    return given.view(torch.int8) if given.dtype == torch.bool else given


def _kind_of_bias(problem: Problem) -> int:
    if problem.bias is None:
        return 0
    if problem.bias.dtype == torch.bool:
        return int(_SEEN.value)
    return int(_BY_KEY.value) if problem.bias.stride(2) == 0 else 1


def _blocks(problem: Problem) -> tuple[int, ...]:
    """The fastest of 24 shapes tried on an H200 at head widths 64 and 128; float32 has no tensor cores to feed."""
    width = problem.q.shape[3]
    if problem.q.dtype == torch.float32:
        return (64, 32, 4, 2) if width <= 64 else (32, 32, 4, 2)
    if width > 128:
        return (64, 32, 4, 2)
    long = problem.v is None and width == 128 and problem.queries >= 4096 and span(problem) >= 4096
    return (128, 128, 4, 2) if long else (64, 64, 4, 3)
