"""Arguments of the measures of sparsity: how many keys, which queries, above what."""

from __future__ import annotations

from numbers import Integral, Real

from torch import Tensor

from joma.host.arguments import integer, number, shown


def part_of(count: Tensor, share: float) -> Tensor:
    """A share of some keys as a number of keys: rounded up, though not because 0.28 * 25 is above 7 in binary."""
    return (count.double() * share - 1e-9).ceil().long().clamp(min=1)


def checked_threshold(threshold: float) -> float:
    """A probability."""
    least = number(threshold, "threshold")
    if not 0 <= least <= 1:
        raise ValueError(f"threshold must lie in [0, 1], got {least:g}")
    return least


def checked_keep(keep: object, keys: int) -> int | float:
    """A number of keys, or a share of them."""
    if not isinstance(keep, bool) and isinstance(keep, Integral) and 1 <= int(keep) <= keys:
        return int(keep)
    if isinstance(keep, Real) and not isinstance(keep, Integral) and 0 < float(keep) <= 1:
        return float(keep)
    wanted = f"a whole number from 1 to the number of keys, {keys}, or a share above 0.0 and at most 1.0"
    raise ValueError(f"keep must be {wanted}, got {shown(keep)}")


def at_most(value: int, name: str, most: int, meaning: str) -> int:
    """A whole number from 1 to `most`."""
    found = integer(value, name, 1)
    if found > most:
        raise ValueError(f"{name} must be at most {meaning}, {most}, got {found}")
    return found


def checked_queries(queries: tuple[int, int] | None, count: int) -> slice:
    """Which of the queries: all, unless given."""
    if queries is None:
        return slice(0, count)
    try:
        start, stop = (integer(each, "queries", 0) for each in queries)
        good = start < stop <= count
    except (TypeError, ValueError):
        good = False
    if not good:
        wanted = f"(start, stop) with 0 <= start < stop <= {count}, the number of queries"
        raise ValueError(f"queries must be {wanted}, got {shown(queries)}")
    return slice(start, stop)
