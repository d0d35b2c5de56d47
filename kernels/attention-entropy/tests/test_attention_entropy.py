"""The kernel against the attention matrix in float64. Compiled on a GPU, else in Triton's interpreter."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from attention_entropy import attention_entropy  # noqa: E402

BLOCKS = (16, 16, 4, 2) if DEVICE == "cpu" else None
CASES = {
    "causal": {},
    "all keys": {"causal": False},
    "window": {"window": 7},
    "window both ways": {"window": 5, "causal": False},
    "own scale and soft cap": {"scale": 0.4, "softcap": 2.0},
    "bias": {"bias": (2, 2, 21, 21)},
    "alibi": {"bias": (1, 2, 1, 21)},
    "mask": {"mask": (2, 1, 21, 21)},
    "padding": {"key_padding": (2, 21)},
    "packed": {"cu_seqlens": [0, 5, 21]},
}


def drawn(given):
    """Options with tensors in place of their shapes."""
    generator = torch.Generator().manual_seed(0)
    made = {name: value for name, value in given.items() if name in ("causal", "window", "scale", "softcap")}
    if "bias" in given:
        made["bias"] = torch.randn(given["bias"], generator=generator)
    if "mask" in given:
        made["bias"] = torch.rand(given["mask"], generator=generator) > 0.4
    if "key_padding" in given:
        made["key_padding"] = torch.rand(given["key_padding"], generator=generator) > 0.3
    if "cu_seqlens" in given:
        made["cu_seqlens"] = torch.tensor(given["cu_seqlens"])
    return made


def logits(
    q, k, *, causal=True, scale=None, window=None, softcap=None, bias=None, key_padding=None, cu_seqlens=None
):  # fmt: skip
    """s of every query and key in float64, -inf where it is not seen."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q.double() @ k.double().mT * (scale or q.shape[3] ** -0.5)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    queries, keys = s.shape[-2:]
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window:
        seen &= distance.abs() < window
    if cu_seqlens is not None:
        document = torch.bucketize(torch.arange(keys), cu_seqlens, right=True)
        seen &= document[:, None] == document
    seen = seen.expand(s.shape)
    if bias is not None and bias.dtype == torch.bool:
        seen = seen & bias
    elif bias is not None:
        s = s + bias.double()
    if key_padding is not None:
        seen = seen & key_padding[:, None, None]
    return s.masked_fill(~seen, -torch.inf)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16])
def test_statistics_are_those_of_the_matrix(case, dtype):
    given = drawn(CASES[case])
    q = torch.randn(2, 2, 21, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    k = torch.randn(2, 1, 21, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    there = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    found = attention_entropy(q.to(DEVICE), k.to(DEVICE), **there, blocks=BLOCKS)
    s = logits(q, k, **given)
    alone = s.isneginf().all(-1)
    weights = s.softmax(-1).masked_fill(alone[..., None], 0)
    entropy = torch.special.entr(weights).sum(-1)
    first = torch.zeros(21, dtype=torch.long)
    if "cu_seqlens" in given:
        first = given["cu_seqlens"][torch.bucketize(torch.arange(21), given["cu_seqlens"], right=True) - 1]
    wanted = {
        "entropy": entropy,
        "lse": s.logsumexp(-1),
        "largest_logit": s.amax(-1),
        "first_key": weights.gather(-1, first.expand(2, 2, 21)[..., None])[..., 0],
        "own_key": weights.diagonal(dim1=-2, dim2=-1),
        "effective_keys": entropy.exp().masked_fill(alone, 0),
    }
    assert found._fields == tuple(wanted)
    for name, exact in wanted.items():
        one = getattr(found, name)
        tolerance = 5e-5 if dtype == torch.float32 else 5e-3
        torch.testing.assert_close(
            one.double().cpu(), exact, rtol=tolerance, atol=tolerance, msg=lambda said, name=name: f"{name}: {said}"
        )


def drawn_pair(queries, keys, width=16, heads=(1, 1)):
    """q and k of one draw, in float32."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((1, heads[0], queries, width), (1, heads[1], keys, width))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_more_keys_than_queries():
    """The last query is the last key's, as when a text is continued."""
    q, k = drawn_pair(5, 37)
    found = attention_entropy(q.to(DEVICE), k.to(DEVICE), blocks=BLOCKS)
    exact = torch.special.entr(logits(q, k).softmax(-1)).sum(-1)
    torch.testing.assert_close(found.entropy.double().cpu(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [32, 64, 128, 256])
def test_every_width_of_heads(width):
    """A text of several tiles, whose last tile is not full."""
    texts = 37 if DEVICE == "cpu" else 1_037
    q, k = drawn_pair(texts, texts, width, heads=(4, 2))
    found = attention_entropy(q.to(DEVICE), k.to(DEVICE), blocks=BLOCKS)
    s = logits(q, k)
    exact = torch.special.entr(s.softmax(-1)).sum(-1)
    torch.testing.assert_close(found.entropy.double().cpu(), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.largest_logit.double().cpu(), s.amax(-1), rtol=1e-4, atol=1e-4)


def test_wrong_ends_of_documents_give_nan():
    q = torch.randn(1, 1, 8, 16, device=DEVICE)
    assert attention_entropy(q, q, cu_seqlens=torch.tensor([0, 9], device=DEVICE), blocks=BLOCKS).entropy.isnan().all()


@pytest.mark.parametrize(
    ("q", "k", "given", "sentence"),
    [
        ((1, 2, 4, 16), (1, 2, 4, 32), {}, "q and k must be"),
        ((1, 3, 4, 16), (1, 2, 4, 16), {}, "multiple"),
        ((1, 1, 5, 16), (1, 1, 4, 16), {}, "a key for every query"),
        ((1, 1, 4, 0), (1, 1, 4, 0), {}, "empty"),
        ((1, 1, 4, 24), (1, 1, 4, 24), {}, "width of 16"),
        ((1, 1, 4, 16), (1, 1, 4, 16), {"window": 0}, "window"),
        ((1, 1, 4, 16), (1, 1, 4, 16), {"softcap": 0.0}, "softcap"),
        ((1, 1, 4, 16), (1, 1, 4, 16), {"scale": -1.0}, "scale above 0"),
        ((1, 1, 4, 16), (1, 1, 4, 16), {"key_padding": torch.ones(1, 3, dtype=torch.bool)}, "key_padding"),
        ((1, 1, 4, 16), (1, 1, 5, 16), {"cu_seqlens": torch.tensor([0, 5])}, "as many queries as keys"),
        ((1, 1, 4, 16), (1, 1, 4, 16), {"cu_seqlens": torch.tensor([0.0, 4.0])}, "whole numbers"),
    ],
)
def test_what_has_no_meaning_is_refused(q, k, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        attention_entropy(torch.ones(q), torch.ones(k), **given)
