"""What a policy may keep: its name and its budget, settled from what a user asks for, or refused in one sentence."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from joma.host.errors import BadInput
from joma.host.words import brief_repr, counted

POLICIES = ("full", "window", "sinks", "h2o", "h2o-oracle", "snapkv", "random", "top-k")
"""The names that `losses` and `joma cache` take; `joma.cache.policies` says what each does.

`losses`, `evicting` and `evaluate` take functions of your own beside them (`joma.cache.own`).
"""
SINKS = {"sinks": 4, "random": 4}  # that a policy protects unless given: the others are as published, and protect none


class CacheError(BadInput):
    """A model whose cache cannot be cut, or a cache that is used as it must not be; the sentence says why."""


@brief_repr
@dataclass(frozen=True)
class Rule:
    """A policy with its numbers.

    - policy: one of `POLICIES`, or the name of a function
    - budget: keys that a query may see in each key-value head, its own included
    - sinks: the first tokens, never evicted
    - recent: the last tokens, the query's own included, never evicted; the full budget in `window`, `top-k` and `full`
    - prompt: tokens that `snapkv` reads at full attention before it chooses
    - seed: of the policy `random`
    - function: a policy of your own, from a `joma.cache.Call` to a `joma.cache.Choice`; None for those of `POLICIES`

    >>> rule("h2o", 0.2, 100)
    Rule(policy='h2o', budget=20, sinks=0, recent=10, prompt=50)
    """

    policy: str
    budget: int
    sinks: int
    recent: int
    prompt: int
    seed: int = 0
    function: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)


def rule(
    policy: str | Callable[[Any], Any], keep: float, seq_len: int, *, sinks: int | None = None, recent: float = 0.5,
    prompt: float = 0.5, seed: int = 0,
) -> Rule:  # fmt: skip
    """The rule for sequences of `seq_len` tokens.

    Protected keys come out of the budget: first the recent ones, at least the query's own, then as many sinks as fit.

    - policy: one of `POLICIES`, or a function from a `joma.cache.Call` to a `joma.cache.Choice`
    - keep: a share of the sequence, or a number of keys where it is an integer
    - seq_len: tokens per sequence
    - sinks: the first tokens that are never evicted; None: 4 in `sinks` and `random`, else none
    - recent: the share of the budget that goes to the last tokens
    - prompt: what `snapkv` reads before it chooses, as a share or a number of tokens
    - seed: of `random`
    """
    name = name_of(policy)
    if sinks is not None and not (is_integer(sinks) and sinks >= 0):
        raise BadInput(f"sinks must be a whole number, at least 0, got {sinks}")
    if not (is_integer(seed) and 0 <= seed < 2**63):
        raise BadInput(f"seed must be a whole number from 0 to 2**63 - 1, got {seed}")
    if not is_number(recent) or not 0 <= recent <= 1:
        raise BadInput(f"recent is a share of the budget, from 0 to 1, got {recent}")
    budget = budget_of(keep, seq_len)
    if not is_number(prompt) or not prompt > 0:
        raise BadInput(f"prompt must be a share of the length or a number of tokens above 0, got {prompt}")
    first = SINKS.get(name, 0) if sinks is None else sinks
    last = max(1, min(budget, round(recent * budget)))
    read = int(prompt) if is_integer(prompt) else max(1, round(prompt * seq_len)) if prompt < 1 else seq_len
    if read >= seq_len and seq_len > 1:
        raise BadInput(f"prompt must leave tokens after it: {counted(read, 'token')} of {seq_len}")
    read = min(read, seq_len)
    if name in ("full", "window", "top-k"):  # these protect nothing: all that they keep are chosen alike
        last = budget
    elif name == "sinks":
        last = max(1, budget - first)
    elif name == "snapkv":
        last = min(last, read)
    return Rule(name, budget, min(first, budget - last), last, read, seed, None if isinstance(policy, str) else policy)


def name_of(policy: str | Callable[[Any], Any]) -> str:
    """The name of a policy: its own, or that of a function or of an object's class; BadInput where it is no policy."""
    if isinstance(policy, str) or not callable(policy):
        if policy in POLICIES:
            return policy
        raise BadInput(f"policy must be one of {', '.join(POLICIES)}, or a function, got {policy!r}")
    name = str(getattr(policy, "__name__", type(policy).__name__))
    if name in POLICIES:
        raise BadInput(f"policy {name!r} is joma's own: give a function of yours another name, or name it as {name!r}")
    return name


def must_be_distinct(policies: Iterable[str | Callable[[Any], Any]]) -> None:
    """Refuse two functions of one name: what they cost is told by name."""
    functions: dict[str, Any] = {}
    for one in policies:
        if not isinstance(one, str) and functions.setdefault(name_of(one), one) is not one:
            raise BadInput(f"two policies are called {name_of(one)!r}: give one of them another __name__")


def budget_of(keep: float, seq_len: int) -> int:
    """Keys per key-value head: an integer as it is, a share of the sequence rounded up.

    >>> budget_of(0.1, 512), budget_of(64, 512), budget_of(1.0, 512), budget_of(1, 512)
    (52, 64, 512, 1)
    """
    if not is_number(keep) or not (is_integer(keep) or math.isfinite(keep)):
        raise BadInput(f"keep must be a share of the length or a number of keys, got {keep}")
    if not is_integer(seq_len) or seq_len < 1:
        raise BadInput(f"seq_len must be a number of tokens, at least 1, got {seq_len}")
    if is_integer(keep):
        if not 1 <= keep <= seq_len:
            raise BadInput(f"keep must be from 1 to {seq_len} keys, the length of a sequence, got {keep}")
        return int(keep)
    if not 0 < keep <= 1:
        raise BadInput(f"keep is a share above 0 and at most 1, or a whole number of keys, got {keep}")
    return max(1, math.ceil(keep * seq_len - 1e-9))  # 0.28 * 25 is a little more than 7, as numbers are rounded


def is_integer(number: object) -> bool:
    """Whether a number counts something: an integer of Python or numpy."""
    return isinstance(number, Integral) and not isinstance(number, bool)


def is_number(number: object) -> bool:
    """Whether it is one real number of Python or numpy; True and False are none."""
    return isinstance(number, Real) and not isinstance(number, bool)
