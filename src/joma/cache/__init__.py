"""What a smaller cache costs: eviction policies for the keys and values that a Transformer keeps while it reads."""

from joma.cache._losses import losses
from joma.cache.costs import Cost, Costs
from joma.cache.evaluation import evaluate
from joma.cache.own import Policy, keep_best, query_by_query
from joma.cache.policies import Call, Choice
from joma.cache.rules import POLICIES, CacheError, Rule, rule
from joma.cache.stream import evicting

__all__ = [
    "POLICIES", "CacheError", "Call", "Choice", "Cost", "Costs", "Policy", "Rule", "evaluate", "evicting", "keep_best",
    "losses", "query_by_query", "rule",
]  # fmt: skip
