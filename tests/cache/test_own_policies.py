"""Policies of your own: they mean what they say in masks, blocks and streams, and what they must not say is refused."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from slow_cache import slow_losses
from tiny_models import fresh

from joma.cache import CacheError, Call, Choice, _memory, evaluate, evicting, keep_best, losses, query_by_query, rule
from joma.cache.costs import measure
from joma.cache.drawing import draw
from joma.cache.own import must_be_choice
from joma.figures.style import house_style
from joma.host.errors import BadInput
from joma.runs import Run

BUDGET = 10


def last_keys(call):
    """A window, as anybody would write it."""
    seen = call.causal & (call.place > call.own - call.rule.budget)
    return Choice(seen, seen[-1])


def small_keys(call):
    return keep_best(call, -call.key.norm(dim=-1))


@query_by_query
def heavy_keys(call):
    scores = call.remembered()
    kept = torch.ones_like(scores, dtype=torch.bool)
    if call.k_len > call.rule.budget:
        left = scores[..., call.rule.sinks : call.k_len - call.rule.recent]
        kept.scatter_(-1, left.argmin(-1, keepdim=True) + call.rule.sinks, False)
    logits = call.logits[..., 0, :].masked_fill(~kept[:, :, None], -torch.inf)
    return Choice(kept=kept, scores=scores + logits.softmax(-1).sum(2))


@query_by_query
def every_second(call):
    kept = (call.place >= call.k_len - call.rule.budget).expand(*call.key.shape[:2], -1)
    seen = kept & ((call.place % 2 == 0) | (call.place == call.k_len - 1))
    return Choice(seen[:, :, None], kept)


def streamed(model, tokens, policy, sizes, keep=BUDGET, **options):
    with torch.no_grad(), evicting(model, policy, keep, **options) as cache:
        logits = torch.cat([model(input_ids=one, past_key_values=cache).logits for one in tokens.split(sizes, 1)], 1)
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none"), cache


@pytest.mark.parametrize(("own", "name"), [(last_keys, "window"), (heavy_keys, "h2o")])
def test_what_joma_has_can_be_written_by_anybody(models, tokens, own, name):
    model = models["gpt_neox"]
    options = {} if name == "window" else {"sinks": 2, "recent": 0.3}
    wanted = losses(model, tokens, name, BUDGET, **options)
    torch.testing.assert_close(losses(model, tokens, own, BUDGET, **options), wanted, rtol=0, atol=1e-12)
    found, cache = streamed(model, tokens, own, [3, 13, *[1] * 24], **options)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert torch.equal(cache.positions(1), streamed(model, tokens, name, [3, 13, *[1] * 24], **options)[1].positions(1))
    assert repr(cache) == f"EvictingCache({own.__name__}, budget 10: 10 keys of 40)"


@pytest.mark.parametrize("options", [{}, {"sinks": 3, "recent": 0.2}])
def test_scores_of_keys_keep_the_best(models, tokens, options):
    """Against the oracle, which removes the key of the lowest worth, one at a time."""
    settled = rule(small_keys, BUDGET, 40, **options)
    given = {"sinks": settled.sinks, "recent": settled.recent}
    wanted = slow_losses(models["gpt_neox"], tokens, lambda key: -key.norm().item(), BUDGET, **given)
    found = losses(models["gpt_neox"], tokens, small_keys, BUDGET, **options)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    assert (found - losses(models["gpt_neox"], tokens)).abs().max() > 0.1


@pytest.mark.parametrize("policy", [small_keys, heavy_keys, every_second])
def test_masks_blocks_and_streams_say_the_same(models, tokens, policy, monkeypatch):
    model = models["gpt2"]
    whole = losses(model, tokens, policy, BUDGET)
    torch.testing.assert_close(streamed(model, tokens, policy, [11, *[1] * 29])[0], whole, rtol=0, atol=1e-12)
    monkeypatch.setattr(_memory, "NUMBERS", 4 * 40 * 7)
    torch.testing.assert_close(losses(model, tokens, policy, BUDGET), whole, rtol=0, atol=1e-12)


def test_a_policy_of_one_query_is_asked_about_one():
    asked = []

    @query_by_query
    def ask(call):
        asked.append((call.q_len, call.k_len, call.seen, call.scores.shape[-1], call.key[0, 0, :, 0].tolist()))
        kept = (call.place > 0) | (call.place == call.k_len - 1)  # the first goes, but the own key stays
        return Choice(kept=kept)

    key = torch.arange(7.0).view(1, 1, 7, 1)
    choice = ask(Call(rule(ask, 3, 9), key[:, :, 3:], key, 1.0, torch.zeros(1, 1, 3), seen=5))
    assert asked == [
        (1, 4, 5, 3, [0.0, 1, 2, 3]), (1, 4, 6, 3, [1.0, 2, 3, 4]), (1, 4, 7, 3, [2.0, 3, 4, 5]),
        (1, 4, 8, 3, [3.0, 4, 5, 6]),
    ]  # fmt: skip
    assert choice.kept[0, 0].tolist() == [False] * 4 + [True] * 3
    assert choice.seen[0, 0].int().tolist() == [
        [0, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1],
    ]  # fmt: skip


def test_costs_table_and_figure_have_its_name(models, tokens):
    found = evaluate(models["gpt_neox"], tokens, policies=[small_keys, "window", last_keys], budgets=[BUDGET, 0.5])
    assert list(found.of) == ["small_keys", "window", "last_keys"]
    added = {name: [cost.added for cost in several] for name, several in found.of.items()}
    assert added["last_keys"] == added["window"] != added["small_keys"]
    assert [line.split()[0] for line in found.table().splitlines()] == ["policy", *found.of]
    with house_style():
        lines = draw(found).axes[0].get_lines()
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in lines}
    assert len({looks[name] for name in found.of}) == 3


@dataclass
class Newest:
    """A policy with a number of its own; it has no hash, as objects that can change have none."""

    share: float

    def __call__(self, call):
        seen = call.causal & (call.place > call.own - round(self.share * call.rule.budget))
        return Choice(seen, seen[-1])


def test_an_object_can_be_a_policy(models, tokens):
    found = evaluate(models["gpt2"], tokens, policies=[Newest(0.5)], budgets=[BUDGET])
    wanted = losses(models["gpt2"], tokens, "window", BUDGET // 2) - losses(models["gpt2"], tokens)
    assert found.of["Newest"][0].added == pytest.approx(wanted[:, 20:].mean().item(), abs=1e-9)


def test_a_policy_may_read_its_prompt_in_full(models, tokens):
    """As snapkv does: until the prompt ends more may be seen and kept, and afterwards not."""

    def prompt_and_window(call):
        later = call.seen + call.own - call.n_kept >= call.rule.prompt
        seen = call.causal & (~later | (call.place > call.own - call.rule.budget))
        return Choice(
            seen, call.place >= (call.k_len - call.rule.budget) * (call.seen + call.q_len >= call.rule.prompt)
        )

    whole = losses(models["gpt2"], tokens, prompt_and_window, BUDGET, prompt=25)
    full = losses(models["gpt2"], tokens)
    torch.testing.assert_close(whole[:, :25], full[:, :25], rtol=0, atol=1e-12)
    assert (whole[:, 25:] - full[:, 25:]).abs().max() > 0.1
    found, cache = streamed(models["gpt2"], tokens, prompt_and_window, [25, *[1] * 15])
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    assert cache.positions().shape[-1] == BUDGET


KEY = torch.arange(12.0).view(1, 2, 6, 1)
ALL = torch.ones(1, 2, 6, dtype=torch.bool)
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
UNEVEN = torch.tensor([[True] * 2 + [False] * 4, [False] * 5 + [True]])[None]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (ALL, "policy bad must return a joma.cache.Choice, got Tensor"),
        (None, "policy bad must return a joma.cache.Choice, got NoneType"),
        (Choice(kept=torch.tensor([0, 1])), "policy bad: kept must be a tensor of True and False, .* got torch.int64"),
        (Choice(kept=[True]), "policy bad: kept must be a tensor of True and False, one for each key, got list"),
        (Choice(kept=ALL[..., :5]), r"kept must be \(batch, key-value heads, keys\) = \(1, 2, 6\), got \(1, 2, 5\)"),
        (Choice(kept=ALL[..., :1]), r"kept must be .* = \(1, 2, 6\), got \(1, 2, 1\)"),
        (Choice(kept=ALL[None]), r"kept must be .* = \(1, 2, 6\), got \(1, 1, 2, 6\)"),
        (Choice(kept=ALL[0, 0, 0]), r"kept must be .* = \(1, 2, 6\), got \(\)"),
        (Choice(kept=ALL), "policy bad keeps 6 keys in a head, and the budget is 3"),
        (Choice(kept=UNEVEN), "policy bad must keep as many keys in every head and sequence, and keeps from 1 to 2"),
        (Choice(seen=CAUSAL.float()), "policy bad: seen must be a tensor of True and False, .* got torch.float32"),
        (Choice(seen=CAUSAL[:4]), r"\(batch, key-value heads, queries, keys\) = \(1, 2, 6, 6\), got \(4, 6\)"),
        (Choice(seen=ALL.expand(3, 2, 6)[:, None]), r"seen must be .* got \(3, 1, 2, 6\)"),
        (Choice(seen=~CAUSAL | CAUSAL), "policy bad lets a query see a key that comes after it"),
        (Choice(seen=CAUSAL.tril(-1)), "policy bad hides a query's own key from it"),
        (Choice(seen=CAUSAL), "policy bad lets a query see 6 keys, and the budget is 3"),
        (Choice(), "policy bad lets a query see 6 keys, and the budget is 3"),
        (Choice(scores=torch.zeros(1, 2, 5)), r"scores must be .* = \(1, 2, 6\), got \(1, 2, 5\)"),
        (Choice(scores=torch.zeros(1, 1, 6)), r"scores must be .* = \(1, 2, 6\), got \(1, 1, 6\)"),
        (Choice(scores=torch.tensor([[[0.0] * 5 + [torch.nan]] * 2])), "policy bad: scores must be numbers, got NaN"),
        (Choice(scores=torch.zeros(1, 2, 6, dtype=torch.long)), "scores must be floating-point numbers, got"),
        (Choice(scores=1.0), "policy bad: scores must be a tensor, got float"),
        (Choice(scores=torch.zeros(1, 2, 6, device="meta")), "scores must be on cpu, where the keys are, got meta"),
    ],
)  # fmt: skip
def test_a_bad_answer_gets_one_sentence(answer, sentence):
    def bad(call):
        return answer

    keeps = Choice(CAUSAL & ~CAUSAL.tril(-3)) if isinstance(answer, Choice) and answer.seen is None else None
    if keeps is not None and (answer.kept is not None or answer.scores is not None):
        answer = Choice(keeps.seen, answer.kept, answer.scores)  # nothing else is wrong with it
    settled = rule(bad, 3, 6, prompt=1)
    call = Call(settled, KEY, KEY, 1.0, torch.zeros(1, 2, 0))
    with pytest.raises(CacheError, match=sentence) as caught:
        must_be_choice(call, bad(call))
    assert "\n" not in str(caught.value)


def test_more_than_the_budget_is_kept_only_before_the_prompt_ends():
    longer, ended = (rule(small_keys, 3, 9, prompt=prompt) for prompt in (7, 6))
    must_be_choice(Call(longer, KEY, KEY, 1.0, torch.zeros(1, 2, 0)), Choice(kept=ALL))
    must_be_choice(Call(ended, KEY, KEY, 1.0, torch.zeros(1, 2, 0)), Choice(kept=ALL & (torch.arange(6) > 2)))
    with pytest.raises(CacheError, match="policy small_keys keeps 6 keys in a head, and the budget is 3"):
        must_be_choice(Call(ended, KEY, KEY, 1.0, torch.zeros(1, 2, 0)), Choice(kept=ALL))


def test_a_bad_answer_is_refused_wherever_the_policy_is_used(models, tokens):
    def everything(call):
        return Choice()

    sentence = "policy everything lets a query see 40 keys, and the budget is 10"
    for use in (
        partial(losses, models["gpt2"], tokens, everything, BUDGET),
        partial(evaluate, models["gpt2"], tokens, policies=[everything], budgets=[BUDGET]),
        partial(losses, models["gpt2"], tokens, query_by_query(everything), BUDGET),
    ):
        with pytest.raises(CacheError, match=sentence.replace("40", r"\d+")):
            use()
    with pytest.raises(CacheError, match="lets a query see 11 keys"):
        streamed(models["gpt2"], tokens, everything, [8, *[1] * 32])
    with pytest.raises(CacheError, match="policy vague: scores must be numbers, got NaN"):
        losses(models["gpt2"], tokens, vague, BUDGET)
    assert torch.equal(losses(models["gpt2"], tokens, everything, 1.0), losses(models["gpt2"], tokens))
    assert torch.equal(losses(models["gpt2"], tokens, vague, 1.0), losses(models["gpt2"], tokens))  # it is not asked


def vague(call):
    return keep_best(call, call.key.norm(dim=-1) * torch.nan)


def test_the_answer_keeps_the_type_of_scores_and_masks_may_be_broadcast():
    settled = rule(small_keys, 3, 6, prompt=1)
    call = Call(settled, KEY, KEY, 1.0, torch.zeros(1, 2, 0, dtype=torch.float64))
    seen = CAUSAL & ~CAUSAL.tril(-3)
    for one in (seen, seen[None], seen[None, None], seen.expand(1, 2, 6, 6)):
        for kept in (seen[-1], seen[-1][None], seen[-1].expand(1, 2, 6)):
            found = must_be_choice(call, Choice(one, kept, torch.zeros(1, 2, 6)))
            assert found.scores.dtype == torch.float64


def twice(call):
    return small_keys(call)


twice.__name__ = "small_keys"


def test_names_tell_policies_apart(models, tokens, tmp_path):
    def window(call): ...

    with pytest.raises(BadInput, match="policy 'window' is joma's own: give a function of yours another name"):
        losses(models["gpt2"], tokens, window, BUDGET)
    with pytest.raises(BadInput, match="two policies are called 'small_keys': give one of them another __name__"):
        evaluate(models["gpt2"], tokens, policies=[small_keys, twice], budgets=[BUDGET])
    with pytest.raises(BadInput, match=r"policy must be one of full, .*, or a function, got 7"):
        losses(models["gpt2"], tokens, 7, BUDGET)
    assert losses(models["gpt2"], tokens, partial(small_keys), BUDGET).isfinite().all()
    with (
        Run.create(tmp_path / "a.sqlite", study="cache", config={}) as run,
        pytest.raises(BadInput, match="and small_keys is a function, which can change: leave the run away"),
    ):
        measure(models["gpt2"], tokens, ["window", small_keys], [BUDGET], run)
    fresh("gpt2").save_pretrained(tmp_path / "model")
    with pytest.raises(BadInput, match="out keeps losses by the name of a policy, and small_keys is a function"):
        evaluate(tmp_path / "model", tokens, policies=[small_keys], budgets=[BUDGET], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
