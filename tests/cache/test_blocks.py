"""Many queries in few bytes: blocks of them keep what one after another keeps, and no tensor has all of them.

The oracle goes token by token, with lists.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from later import some_now
from live_bytes import LiveBytes
from slow_cache import Head, chosen
from tiny_models import TOKENS, fresh

from joma.cache import POLICIES, _memory, evicting
from joma.cache._layers import HeldLayer
from joma.cache.policies import FUNCTIONS, POOL, TIE, Call, best, h2o_oracle
from joma.cache.rules import Rule

STREAMED = [one for one in POLICIES if one not in ("full", "h2o-oracle")]
SIZES = st.tuples(st.integers(2, 24), st.integers(1, 12), st.integers(0, 4), st.integers(1, 12), st.integers(1, 25))


def drawn(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(SIZES, st.sampled_from(["h2o", "snapkv", "window", "sinks"]), st.integers(0, 10_000))
def test_blocks_of_queries_keep_what_one_after_another_keeps(sizes, policy, seed):
    length, budget, sinks, recent, at_once = sizes
    recent = min(recent, budget) if policy in ("h2o", "snapkv") else budget
    sinks = min(sinks, budget - recent) if policy != "sinks" else min(sinks, budget - 1)
    recent = budget - sinks if policy == "sinks" else recent
    prompt = max(recent, length // 2)
    query, key, value = drawn(seed, 4, length, 3), drawn(seed + 1, 2, length, 3), drawn(seed + 2, 2, length, 3)
    held = HeldLayer(Rule(policy, budget, sinks, recent, prompt), prompt, lambda: None)
    keys, _ = held.update(key[None], value[None])
    oracles = []
    for head in range(2):
        one = Head(query[2 * head : 2 * head + 2], key[head], value[head], 0.7, policy, budget)
        one.sinks, one.recent, one.prompt, one.frequencies = sinks, recent, prompt, None
        oracles.append(one)
    for call, values in held.calls(query[None], keys, 0.7, 0, at_once=at_once):
        held.settle(FUNCTIONS[policy](call))
        assert values.shape[2] == call.k_len
        assert call.q_len <= at_once
        for head, one in enumerate(oracles):
            one.read_until(held.seen)
            if held.seen >= prompt or policy != "snapkv":  # the oracle drops the prompt's keys at the token after it
                assert held.positions[0, head].tolist() == one.kept()
    assert held.seen == length
    torch.testing.assert_close(held.keys[0, 0], key[0][held.positions[0, 0]])


@pytest.mark.parametrize("policy", some_now(STREAMED, every=2))
@pytest.mark.parametrize("kind", ["gpt_neox"])
def test_a_long_prompt_is_read_in_blocks(models, tokens, kind, policy, monkeypatch):
    def read():
        with torch.no_grad(), evicting(models[kind], policy, 10, prompt=20) as held:
            first = models[kind](input_ids=tokens[:, :33], past_key_values=held).logits
            return torch.cat([first, models[kind](input_ids=tokens[:, 33:], past_key_values=held).logits], 1), held

    whole, one = read()
    for block in (1, 7):
        monkeypatch.setattr(_memory, "NUMBERS", 2 * 4 * 33 * block)
        found, other = read()
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
        assert torch.equal(one.positions(1), other.positions(1))


def most_bytes(policy, length, keep):
    text = torch.randint(TOKENS, (1, length), generator=torch.Generator().manual_seed(0))
    model = fresh("llama").eval()
    with torch.no_grad(), LiveBytes() as mode, evicting(model, policy, keep) as held:
        model(input_ids=text, past_key_values=held)
    return mode.most


@pytest.mark.parametrize("policy", ["h2o", *some_now(["snapkv", "random", "sinks", "top-k"], every=4)[1:]])
def test_bytes_of_a_long_prompt_do_not_grow_with_its_square(policy, monkeypatch):
    """Llama's 4 heads: all queries and all keys of 256 tokens are 1 MiB in float32, of 512 tokens 4 MiB."""
    monkeypatch.setattr(_memory, "NUMBERS", 4 * 256 * 16)
    few, many = most_bytes(policy, 256, 32), most_bytes(policy, 512, 32)
    assert few < 0.5 * 2**20
    assert many < 2.2 * few


def test_h2o_needs_less_than_two_maps_where_it_takes_all_queries_at_once():
    """It held two and a half: 21 GB for 32 heads at 8,192 tokens. There it now takes 1,024 queries at a time."""
    assert 2**20 < most_bytes("h2o", 256, 32) < 1.9 * 2**20  # a map of 4 heads and 256 tokens is 1 MiB
    query, key = torch.empty(1, 32, 8192, 1, device="meta"), torch.empty(1, 8, 8192, 1, device="meta")
    at_once = _memory.queries_at_once(query, key)
    assert 1 <= at_once <= 1024
    assert at_once * 32 * 8192 * 4 <= 2**30


@pytest.mark.parametrize(("free", "at_once"), [(None, 1024), (1 << 34, 1024), (1 << 31, 512), (1 << 29, 128), (0, 64)])
def test_blocks_are_smaller_where_little_memory_is_free(monkeypatch, free, at_once):
    monkeypatch.setattr(_memory, "free_memory", lambda device: free)
    query, key = torch.empty(1, 32, 8192, 1, device="meta"), torch.empty(1, 8, 8192, 1, device="meta")
    assert _memory.queries_at_once(query, key) == at_once
    assert _memory.queries_at_once(query.double(), key) == (at_once if free in (None, 1 << 34, 0) else at_once // 2)


def test_memory_is_asked_for_only_where_much_is_needed(monkeypatch):
    monkeypatch.setattr(_memory, "free_memory", lambda device: pytest.fail("asked"))
    assert _memory.queries_at_once(torch.empty(1, 4, 1, 8), torch.empty(1, 2, 4096, 8)) >= 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 10_000))
def test_of_equal_scores_the_earlier_key_is_kept(scores, count, seed):
    """Whatever rounding adds to them."""
    count = min(count, len(scores))
    exact = torch.tensor(scores, dtype=torch.float64)
    rounded = exact * (1 + TIE / 10 * (2 * torch.rand(len(scores), generator=torch.Generator().manual_seed(seed)) - 1))
    order = sorted(range(len(scores)), key=lambda j: -scores[j])[:count]  # which keeps the order of equals
    for given_scores in (exact, rounded, rounded.float()):
        assert best(given_scores, count).nonzero().flatten().tolist() == sorted(order)
    assert chosen(scores, count) == sorted(order)


def test_scores_that_differ_by_more_than_rounding_are_not_equal():
    assert best(torch.tensor([1.0, 1.0 + 3 * TIE]), 1).tolist() == [False, True]
    assert best(torch.tensor([1.0, 1.0 + TIE / 2]), 1).tolist() == [True, False]
    assert best(torch.tensor([[0.0, 0.0, 1e-30], [2.0, torch.inf, torch.inf]]), 1).tolist() == [
        [False, False, True],
        [False, True, False],
    ]


def test_snapkv_decides_by_the_earlier_key_where_rounding_would(monkeypatch):
    """All attention is on key 3, so that it and two neighbours on either side have one smoothed score."""
    key = torch.zeros(1, 1, 20, 2)
    key[0, 0, 3, 0] = 40.0
    query = torch.tensor([1.0, 0.0]).expand(1, 1, 20, 2)
    settled = Rule("snapkv", 5, 0, 2, 20)
    noise = 1 + 1e-6 * torch.randn(1, 1, 20, 1, generator=torch.Generator().manual_seed(0))
    for change in (1.0, noise, 1 / noise):
        choice = FUNCTIONS["snapkv"](Call(settled, query, key * change, 1.0, torch.zeros(1, 1, 0)))
        assert choice.kept[0, 0].nonzero().flatten().tolist() == [1, 2, 3, 18, 19]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 9), st.integers(1, 8), st.integers(0, 3), st.integers(0, 10_000))
def test_ranks_are_counted_as_if_every_key_were_compared_with_every_other(q_len, n_kept, recent, sinks, seed):
    k_len, budget = n_kept + q_len, recent + sinks + 2
    weights = drawn(seed, 1, 2, q_len).abs()
    call = Call(
        Rule("h2o-oracle", budget, sinks, recent, 0), drawn(seed, 1, 2, q_len, 3), drawn(seed, 1, 2, k_len, 3), 1.0,
        drawn(seed + 1, 1, 2, n_kept).abs(), seen=n_kept, weights=weights,
    )  # fmt: skip
    seen = h2o_oracle(call).seen
    scores = torch.cat([call.scores, weights], -1)
    for head in range(2):
        for query in range(q_len if seen is not None else 0):
            own = n_kept + query
            old = [j for j in range(own - recent + 1) if j >= sinks]
            first = list(range(min(sinks, max(own - recent + 1, 0))))
            heavy = sorted(old, key=lambda j: -scores[0, head, j])[: budget - recent - len(first)]
            wanted = {*first, *heavy, *range(max(own - recent + 1, 0), own + 1)}
            assert set(seen[0, head, query].nonzero().flatten().tolist()) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_around_one_heavy_key_snapkv_keeps_the_earlier_neighbours(dtype):
    """In a model that copies, one key has nearly all scores: exact order would let rounding choose."""
    for seed in range(20):
        scores = 1e-7 * torch.rand(24, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        scores[10] = 1.0
        smooth = torch.nn.functional.avg_pool1d(scores[None], POOL, stride=1, padding=POOL // 2)[0]
        for count in (1, 3, 5):
            assert best(smooth, count).nonzero().flatten().tolist() == list(range(8, 8 + count))
