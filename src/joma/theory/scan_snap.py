"""Scan and Snap: how attention of one layer finds the tokens that tell classes of sequences apart (the talk's slides).

A sequence of class n ends in the query m = psi(n), holds token l with probability P(l|n), and is followed by the next
token n. With the pairwise logits Y and Z in place of embeddings, length T -> infinity and no positions,

    c_n = P(.|n) o exp(z_m),   f_n = c_n / |c_n|,   alpha_n = softmax(Y^T f_n)
    Y' = eta_Y E[f_n (e_n - alpha_n)^T],   z_m' = eta_Z E[f_n o (I - f_n f_n^T) Y (e_n - alpha_n); psi(n) = m]

`ScanSnap` follows this flow. The functions are the closed forms of Theorem 3 and the scales of Theorem 4. A token is
distinct if one class has it and common if several do. `joma.models.bilinear` is the same model as a module.

Theorem 3 rests on a premise, z_l' = xi_n f_nl^2 on the distinct tokens of n with one xi_n for all of them. It then says
r_{l/l'}(t) = r_{l/l'}(0) chi_l(t), chi_l = exp(2 int f_nl^2 dB_n), dB_n = xi_n dt. The premise needs eta_Z << eta_Y.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, alongside, at_least_dims, not_negative, positive, real, together, within
from joma.host.words import brief_repr
from joma.theory._bilinear_flow import Norm, Path, ScanSnap, Weights, attended_unchecked, must_be_a_norm
from joma.theory._guard import guarded

__all__ = [
    "GainBounds", "Norm", "Path", "ScanSnap", "Weights", "attended", "clock", "gain_bounds", "gain_factor",
    "late_growth_as_printed", "relative_gain", "transition_time",
]  # fmt: skip


@guarded
def attended(p: Number, z: Number = 0.0, *, norm: Norm = "unit") -> Tensor:
    """f = c / |c|, c = p o e^z: what the layer reads of a sequence with token frequencies p under logits z.

    p: (..., tokens), none negative, not all zero, on any scale; z broadcasts against it. norm: "unit" divides by the
    2-norm, "softmax" by the sum, "none" by nothing. Differentiable in both.

    >>> attended([0.6, 0.8]), attended([0.5, 0.5], [0.0, 1.0], norm="softmax")
    (tensor([0.6000, 0.8000], dtype=torch.float64), tensor([0.2689, 0.7311], dtype=torch.float64))
    """
    must_be_a_norm(norm)
    p, z = together(p=at_least_dims(not_negative(p, "p"), "p", 1, "(..., tokens)"), z=real(z, "z"))
    if not p.shape[-1] or not (p > 0).any(-1).all():
        raise ValueError(f"p must give every sequence at least one token, got one without, shape {tuple(p.shape)}")
    return attended_unchecked(p, z, norm)


@guarded
def relative_gain(c: Number) -> Tensor:
    """r_{l/l'} = c_l^2 / c_l'^2 - 1 of every pair of tokens, (..., tokens, tokens) with l before l'.

    c: (..., tokens), positive; its scale cancels, so f does as well.

    >>> relative_gain([2.0, 1.0])
    tensor([[ 0.0000,  3.0000],
            [-0.7500,  0.0000]], dtype=torch.float64)
    """
    log = at_least_dims(positive(c, "c"), "c", 1, "(..., tokens)").log()
    return torch.expm1(2 * (log[..., :, None] - log[..., None, :]))


@guarded
def gain_factor(f: Number, growth: Number) -> Tensor:
    """chi_l = exp(2 int f_l^2 dB) of Theorem 3 along a path, (..., steps, tokens), by the trapezoidal rule.

    f: (..., steps, tokens) attended vectors; growth: (..., steps), B at the same moments. chi is 1 at the first.

    >>> gain_factor([[1.0], [1.0]], [0.0, 0.5])
    tensor([[1.0000],
            [2.7183]], dtype=torch.float64)
    """
    f = at_least_dims(real(f, "f"), "f", 2, "(..., steps, tokens)")
    growth = at_least_dims(real(growth, "growth"), "growth", 1, "(..., steps)")
    if growth.shape[-1] != f.shape[-2]:
        raise ValueError(f"growth must have {f.shape[-2]} steps like f, got {growth.shape[-1]}")
    f, growth = alongside({"f": 1}, f=f, growth=growth)
    return (2 * _summed(f.square(), growth[..., None])).exp()


def _summed(integrand: Tensor, over: Tensor) -> Tensor:
    """int integrand d(over) from the first step on, (..., steps, tokens)."""
    pieces = (integrand[..., 1:, :] + integrand[..., :-1, :]) / 2 * over.diff(dim=-2)
    return torch.nn.functional.pad(pieces.cumsum(-2), (0, 0, 1, 0))[..., : integrand.shape[-2], :]


@brief_repr
class GainBounds(NamedTuple):
    """What Theorem 3 bounds chi of the dominant token by: low = exp(2 f(0)^2 B) and high = exp(2 B)."""

    low: Tensor
    high: Tensor


@guarded
def gain_bounds(f0: Number, growth: Number) -> GainBounds:
    """exp(2 f0^2 B) <= chi <= exp(2 B) of Theorem 3, f0 the dominant token's part of f at the start, B = growth.

    They follow from f0 <= f <= 1, so they hold where the premise does and f only grows.

    >>> gain_bounds(0.5, [0.0, 1.0])
    GainBounds(low=[1, 1.649], high=[1, 7.389])
    """
    f0, growth = together(f0=within(f0, "f0", 0, 1), growth=real(growth, "growth"))
    if (growth < 0).any():
        raise ValueError(f"growth must not be negative, B only grows, got {growth.min().item():g}")
    return GainBounds((2 * f0.square() * growth).exp(), (2 * growth).exp())


@guarded
def clock(p: Number, z: Number) -> Tensor:
    """(1 - e^(-2 z_l)) / p_l^2, which the premise of Theorem 3 makes the same at all distinct tokens of a class.

    Under z_l' = xi f_l^2 from z = 0, 1/c_l^2 of all distinct tokens falls at one speed. So one number, this one, fixes
    all of them: chi_l = 1 / (1 - p_l^2 clock). It needs no trajectory. p positive; z broadcasts against it.

    >>> clock([0.5, 0.25], [0.14384, 0.03227])  # on a common clock of 1
    tensor([1.0000, 1.0000], dtype=torch.float64)
    """
    p, z = together(p=positive(p, "p"), z=real(z, "z"))
    return -torch.expm1(-2 * z) / p / p


@guarded
def transition_time(classes: Number, vocabulary: Number, rate_y: Number) -> Tensor:
    """K ln M / eta_Y, the scale of the time at which scanning turns into snapping (Theorem 4).

    Until then the logit of the right next token grows like eta_Y t / K against M - 1 others that stay behind. The slide
    prints O(2 K ln M / eta_Y). What the factor is depends on how many tokens are common: measure it.

    >>> transition_time(2, 30, 0.5)
    tensor(13.6048, dtype=torch.float64)
    """
    classes, vocabulary = positive(classes, "classes"), real(vocabulary, "vocabulary")
    if (vocabulary < 2).any():
        raise ValueError(f"vocabulary must be at least 2, got {vocabulary.min().item():g}")
    many, words, rate = together(classes=classes, vocabulary=vocabulary, rate_y=positive(rate_y, "rate_y"))
    return many * words.log() / rate


@guarded
def late_growth_as_printed(
    t: Number, *, classes: Number, vocabulary: Number, rate_y: Number, rate_z: Number, constant: Number
) -> Tensor:
    """B(t) ~ ln(C0 + 2 K (eta_Z / eta_Y) ln^2(M eta_Y t / K)) of Theorem 4, to the letter, C0 the `constant`.

    Caveat: in the flow e^B is affine in ln^2(M eta_Y t / K) to a few percent, but so is B. The slope is not the printed
    2 K eta_Z / eta_Y, but far smaller; it depends on the data and on the rates. The study `scan-snap` measures it.
    All arguments broadcast and are positive.

    >>> late_growth_as_printed(100.0, classes=2, vocabulary=30, rate_y=1.0, rate_z=0.01, constant=1.0)
    tensor(1.1440, dtype=torch.float64)
    """
    given = {"t": t, "classes": classes, "vocabulary": vocabulary, "rate_y": rate_y, "rate_z": rate_z}
    given["constant"] = constant
    at, many, words, fast, slow, start = together(**{name: positive(value, name) for name, value in given.items()})
    log = words.log() + fast.log() + at.log() - many.log()
    return (start + 2 * many * (slow / fast) * log.square()).log()
