"""Kernels for CUDA: sums over the keys above a threshold, over the largest, and of what each key receives.

Every mask by position leaves a query one interval of keys, so the kernels read its two ends, low and high, and know
nothing of causal masks, windows or documents. Blocks of keys that all queries of a block see are not masked.

Numbers are in base 2, with m the query's largest logit and l the sum of all e, both from the first pass:
t = s log2(e) - m, e = 2^t, p = e / l. Whether t is above v is clamp((t - v) 2^24, 0, 1), one instruction on a GPU where
a comparison and a choice would be two: it is 1 where t is above v by 6e-8, the rounding of numbers near 1.
"""

import triton
import triton.language as tl

from joma.measure._attention_triton import _LOG2E, _MASKED, _capped

# fmt: off


@triton.jit
def _logits(
    q, k_base, bias_base, pad_base, rows, alive, low, high, shift, start, keys,
    stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
    MASK: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, PAD: tl.constexpr,
    WIDTH: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    """t of the keys start..start+BN; MASK says whether any of them may be hidden by position or range."""
    d = tl.arange(0, WIDTH)
    n = start + tl.arange(0, BN)
    k_ptr = k_base + n[None, :] * stride_kn + d[:, None] * stride_kd
    k = tl.load(k_ptr, mask=n[None, :] < keys, other=0.0) if MASK else tl.load(k_ptr)
    t = _capped(tl.dot(q, k, input_precision=PRECISION), scale2, softcap2, SOFTCAP)
    if BIAS:
        there = alive[:, None] & (n[None, :] < keys)
        b = tl.load(bias_base + rows[:, None] * stride_bm + n[None, :] * stride_bn, mask=there, other=0.0)
        t = tl.maximum(t + b.to(tl.float32) * _LOG2E, _MASKED)
    t = t - shift[:, None]
    if MASK:
        t = tl.where((n[None, :] >= low[:, None]) & (n[None, :] < high[:, None]), t, _MASKED)
    if PAD:
        real = tl.load(pad_base + n * stride_pn, mask=n < keys, other=0)
        t = tl.where(real[None, :] != 0, t, _MASKED)
    return t


@triton.jit
def _over(t, v, ASM: tl.constexpr):
    """1 where t > v, 0 elsewhere."""
    if ASM:
        found = tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, 0f4B800000, $2;", "=f,f,f", [t, (v * -16777216.0)[:, None]], tl.float32, True, 1
        )
    else:
        found = tl.minimum(tl.maximum((t - v[:, None]) * 16777216.0, 0.0), 1.0)
    return found


@triton.jit
def _by_rows(x, BM: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr):
    """Sums over columns, in parts: every eighth column lies in one thread, and no thread then has to ask another."""
    return tl.sum(tl.reshape(x, [BM, BN // PARTS, PARTS]), 1)


@triton.jit
def _sums(
    first_sum, second_sum, cut, cut2, first, last, q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
    stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
    TWO: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, PAD: tl.constexpr,
    WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, ASM: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Add the keys first..last: e where t > cut, and e where t > cut2 (TWO) or how many keys t > cut are."""
    for start in tl.range(first, last, BN):
        t = _logits(
            q, k_base, bias_base, pad_base, rows, alive, low, high, shift, start, keys,
            stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
            MASK, SOFTCAP, BIAS, PAD, WIDTH, BN, PRECISION,
        )
        e = tl.exp2(t)
        over = _over(t, cut, ASM)
        first_sum += _by_rows(e * over, BM, BN, PARTS)
        if TWO:
            second_sum += _by_rows(e * _over(t, cut2, ASM), BM, BN, PARTS)
        else:
            second_sum += _by_rows(over, BM, BN, PARTS)
    return first_sum, second_sum


@triton.jit
def _counts(
    c1, c2, c3, c4, v1, v2, v3, v4, first, last, q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
    stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
    MASK: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, PAD: tl.constexpr,
    WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, ASM: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Count the keys first..last that lie above each of four thresholds; no exponential is needed."""
    for start in tl.range(first, last, BN):
        t = _logits(
            q, k_base, bias_base, pad_base, rows, alive, low, high, shift, start, keys,
            stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
            MASK, SOFTCAP, BIAS, PAD, WIDTH, BN, PRECISION,
        )
        c1 += _by_rows(_over(t, v1, ASM), BM, BN, PARTS)
        c2 += _by_rows(_over(t, v2, ASM), BM, BN, PARTS)
        c3 += _by_rows(_over(t, v3, ASM), BM, BN, PARTS)
        c4 += _by_rows(_over(t, v4, ASM), BM, BN, PARTS)
    return c1, c2, c3, c4


@triton.jit
def _narrowed(lower, upper, below, over, v, c, kept):
    """The bracket of the k-th largest after learning that c keys are above v; `over` and `below` are its counts."""
    is_upper = (c <= kept) & (v < upper)
    upper, over = tl.where(is_upper, v, upper), tl.where(is_upper, c, over)
    is_lower = (c >= kept) & (v > lower)
    return tl.where(is_lower, v, lower), upper, tl.where(is_lower, c, below), over


@triton.jit
def _gap(lower, upper, below, over, kept):
    """How far apart the sums can be that have these counts: j of C weights between the ends are kept."""
    j, count = kept - over, below - over
    return tl.where(count > 0, j * (below - kept) / tl.maximum(count, 1.0) * (tl.exp2(upper) - tl.exp2(lower)), 0.0)


@triton.jit
def _place(Low, High, rows, alive, batch, keys, stride_ib, stride_im, BN: tl.constexpr):
    low = tl.load(Low + batch * stride_ib + rows * stride_im, mask=alive, other=0)
    high = tl.load(High + batch * stride_ib + rows * stride_im, mask=alive, other=0)
    first = tl.min(tl.where(alive, low, keys), 0) // BN * BN
    last = tl.max(tl.where(alive, high, 0), 0)
    full_first = tl.minimum((tl.max(low, 0) + BN - 1) // BN, (last + BN - 1) // BN) * BN
    full_last = tl.maximum(tl.min(tl.where(alive, high, keys), 0) // BN * BN, full_first)
    return low, high, first, last, full_first, full_last


@triton.jit(do_not_specialize=["relative", "sinks"])
def above_kernel(
    Q, K, Bias, Pad, Low, High, First, Shift, Total, Mass, Count, Sink,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_bb, stride_bh, stride_bm, stride_bn, stride_pb, stride_pn, stride_ib, stride_im,
    heads, group, queries, keys, scale2, softcap2, threshold2, relative, sinks,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, PAD: tl.constexpr, WIDTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, ASM: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Mass and number of the keys above a threshold (its logarithm in base 2), and mass on the first `sinks` keys."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # under a causal mask the longest rows start first
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows = block * BM + tl.arange(0, BM)
    alive = rows < queries
    d = tl.arange(0, WIDTH)
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    bias_base = Bias + batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh
    pad_base = Pad + batch.to(tl.int64) * stride_pb
    q = tl.load(q_base + rows[:, None] * stride_qm + d[None, :] * stride_qd, mask=alive[:, None], other=0.0)
    low, high, first, last, full_first, full_last = _place(
        Low, High, rows, alive, batch, keys, stride_ib, stride_im, BN
    )
    at = (batch * heads + head).to(tl.int64) * queries + rows
    shift = tl.load(Shift + at, mask=alive, other=0.0)
    total = tl.load(Total + at, mask=alive, other=1.0)
    cut = threshold2 + tl.where(relative != 0, 0.0, tl.log2(total))
    mass = tl.zeros([BM, PARTS], tl.float32)
    count = tl.zeros([BM, PARTS], tl.float32)
    mass, count = _sums(
        mass, count, cut, cut, first, tl.minimum(full_first, last),
        q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
        stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        False, True, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
    )
    mass, count = _sums(
        mass, count, cut, cut, full_first, full_last,
        q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
        stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        False, False, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
    )
    mass, count = _sums(
        mass, count, cut, cut, full_last, last,
        q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
        stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        False, True, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
    )
    tl.store(Mass + at, tl.minimum(tl.sum(mass, 1) / total, 1.0), mask=alive)
    tl.store(Count + at, (tl.sum(count, 1) + 0.5).to(tl.int64), mask=alive)
    begin = tl.load(First + batch * stride_ib + rows * stride_im, mask=alive, other=0)
    end = tl.minimum(high, begin + sinks)
    sink = tl.zeros([BM], tl.float32)
    for start in tl.range(first // 16 * 16, tl.where(sinks > 0, tl.max(end, 0), 0), 16):
        t = _logits(
            q, k_base, bias_base, pad_base, rows, alive, low, end, shift, start, keys,
            stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
            True, SOFTCAP, BIAS, PAD, WIDTH, 16, PRECISION,
        )
        sink += tl.sum(tl.exp2(t), 1)
    tl.store(Sink + at, tl.minimum(sink / total, 1.0), mask=alive)


@triton.jit
def top_kernel(
    Q, K, Bias, Pad, Low, High, First, Shift, Total, Guess, Spread, Kept, Seen, Top, Gap,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_bb, stride_bh, stride_bm, stride_bn, stride_pb, stride_pn, stride_ib, stride_im,
    heads, group, queries, keys, scale2, softcap2, floor, tolerance, rounds,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, PAD: tl.constexpr, WIDTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, ASM: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The mass of the `Kept` largest keys of every row, and how far it may be off by its certificate.

    Counts at four thresholds per round narrow a bracket of the k-th largest: first around a guess, then at equal
    steps. Between its ends lie C keys, j of them kept, so the sum is known to within j (C - j) / C times the bracket.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows = block * BM + tl.arange(0, BM)
    alive = rows < queries
    d = tl.arange(0, WIDTH)
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    bias_base = Bias + batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh
    pad_base = Pad + batch.to(tl.int64) * stride_pb
    q = tl.load(q_base + rows[:, None] * stride_qm + d[None, :] * stride_qd, mask=alive[:, None], other=0.0)
    low, high, first, last, full_first, full_last = _place(
        Low, High, rows, alive, batch, keys, stride_ib, stride_im, BN
    )
    at = (batch * heads + head).to(tl.int64) * queries + rows
    shift = tl.load(Shift + at, mask=alive, other=0.0)
    kept = tl.load(Kept + at, mask=alive, other=0.0)
    total = tl.load(Total + at, mask=alive, other=1.0)
    guess = tl.load(Guess + at, mask=alive, other=0.0) + tl.log2(total)
    spread = tl.load(Spread + at, mask=alive, other=1.0)
    below = tl.load(Seen + at, mask=alive, other=0.0)
    over = tl.zeros([BM], tl.float32)
    upper = tl.zeros([BM], tl.float32) + 0.001  # no weight is above 2^0, the largest, but for rounding
    lower = tl.log2(total) + floor  # keys below it hold less than the tolerance together
    gap = tl.where(kept > 0, 1.0, 0.0)
    v1, v2, v3, v4 = guess - 0.5 * spread, guess - 0.08 * spread, guess + 0.08 * spread, guess + 0.5 * spread
    number = 0
    while (tl.max(gap, 0) > tolerance) & (number < rounds):
        c1 = tl.zeros([BM, PARTS], tl.float32)
        c2 = tl.zeros([BM, PARTS], tl.float32)
        c3 = tl.zeros([BM, PARTS], tl.float32)
        c4 = tl.zeros([BM, PARTS], tl.float32)
        c1, c2, c3, c4 = _counts(
            c1, c2, c3, c4, v1, v2, v3, v4, first, tl.minimum(full_first, last),
            q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
            stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
            True, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
        )
        c1, c2, c3, c4 = _counts(
            c1, c2, c3, c4, v1, v2, v3, v4, full_first, full_last,
            q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
            stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
            False, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
        )
        c1, c2, c3, c4 = _counts(
            c1, c2, c3, c4, v1, v2, v3, v4, full_last, last,
            q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
            stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
            True, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
        )
        lower, upper, below, over = _narrowed(lower, upper, below, over, v1, tl.sum(c1, 1), kept)
        lower, upper, below, over = _narrowed(lower, upper, below, over, v2, tl.sum(c2, 1), kept)
        lower, upper, below, over = _narrowed(lower, upper, below, over, v3, tl.sum(c3, 1), kept)
        lower, upper, below, over = _narrowed(lower, upper, below, over, v4, tl.sum(c4, 1), kept)
        gap = tl.where(kept > 0, _gap(lower, upper, below, over, kept) / total, 0.0)
        step = (upper - lower) * 0.2
        v1, v2, v3, v4 = lower + step, lower + 2.0 * step, upper - 2.0 * step, upper - step
        number += 1

    above = tl.zeros([BM, PARTS], tl.float32)
    wide = tl.zeros([BM, PARTS], tl.float32)
    above, wide = _sums(
        above, wide, upper, lower, first, tl.minimum(full_first, last),
        q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
        stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        True, True, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
    )
    above, wide = _sums(
        above, wide, upper, lower, full_first, full_last,
        q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
        stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        True, False, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
    )
    above, wide = _sums(
        above, wide, upper, lower, full_last, last,
        q, k_base, bias_base, pad_base, rows, alive, low, high, shift, keys,
        stride_kn, stride_kd, stride_bm, stride_bn, stride_pn, scale2, softcap2,
        True, True, SOFTCAP, BIAS, PAD, WIDTH, BM, BN, PRECISION, ASM, PARTS,
    )
    held = tl.sum(above, 1)
    j, count, mass = kept - over, below - over, tl.sum(wide, 1) - held
    least = tl.maximum(j * mass / tl.maximum(count, 1.0), mass - (below - kept) * tl.exp2(upper))
    most = tl.minimum(j * tl.exp2(upper), mass - (below - kept) * tl.exp2(lower))
    between = tl.where(j > 0, tl.minimum(tl.maximum((least + most) * 0.5, 0.0), mass), 0.0)
    tl.store(Top + at, tl.minimum((held + between) / total, 1.0), mask=alive)
    tl.store(Gap + at, gap, mask=alive)


@triton.jit
def received_kernel(
    Q, K, Pad, Low, High, Shift, First, Last, Score,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_pb, stride_pn, stride_ib, stride_im, stride_fb,
    heads, group, queries, keys, scale2, softcap2,
    SOFTCAP: tl.constexpr, PAD: tl.constexpr, WIDTH: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):
    """Sum of 2^t over the queries first..last of each block of keys; one program per block, so nothing is atomic.

    Keys and queries change places: keys are the rows.
    """
    block = tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    n = block * BN + tl.arange(0, BN)
    inside = n < keys
    d = tl.arange(0, WIDTH)
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    k = tl.load(k_base + n[:, None] * stride_kn + d[None, :] * stride_kd, mask=inside[:, None], other=0.0)
    row_base = (batch * heads + head).to(tl.int64) * queries
    score = tl.zeros([BN], tl.float32)
    first = tl.load(First + batch * stride_fb + block)
    last = tl.load(Last + batch * stride_fb + block)
    for start in tl.range(first, last, BM):
        rows = start + tl.arange(0, BM)
        alive = rows < last
        q = tl.load(q_base + rows[None, :] * stride_qm + d[:, None] * stride_qd, mask=alive[None, :], other=0.0)
        t = _capped(tl.dot(k, q, input_precision=PRECISION), scale2, softcap2, SOFTCAP)
        low = tl.load(Low + batch * stride_ib + rows * stride_im, mask=alive, other=0)
        high = tl.load(High + batch * stride_ib + rows * stride_im, mask=alive, other=0)
        t -= tl.load(Shift + row_base + rows, mask=alive, other=0.0)[None, :]
        seen = (n[:, None] >= low[None, :]) & (n[:, None] < high[None, :])
        score += tl.sum(tl.exp2(tl.where(seen, t, _MASKED)), 1)
    if PAD:
        real = tl.load(Pad + batch.to(tl.int64) * stride_pb + n * stride_pn, mask=inside, other=0)
        score = tl.where(real != 0, score, 0.0)
    tl.store(Score + (batch * heads + head).to(tl.int64) * keys + n, score, mask=inside)

# fmt: on
