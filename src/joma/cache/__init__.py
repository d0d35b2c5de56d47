"""What a smaller cache costs: eviction policies for the keys and values that a Transformer keeps while it reads."""

from joma.cache.errors import CacheError
from joma.cache.evaluation import losses
from joma.cache.rules import POLICIES, Rule, rule
from joma.cache.stream import evicting

__all__ = ["POLICIES", "CacheError", "Rule", "evicting", "losses", "rule"]
