"""Values that a probability or a share cannot leave, so that no reader is shown an interval from −1 to 5 %.

An interval is the mean ± its error, so it may reach beyond them. It is stored and judged as computed: cutting it would
move its middle, and with it the verdict. Only where it is shown are its ends cut, and a cut end says so.
"""

import re

Limits = tuple[float | None, float | None]
"""The lowest and the highest value there can be; None where there is none."""
_COUNTED = (
    "attention|common|distinct|edges|held-out|keys|neurons|nodes|pairs|rivals?|runs|the energy|the neurons|the steps"
)
_FROM_0_TO_1 = re.compile(rf"probability of |attention o[fn] |(?!.*minus)[\w ]*accuracy|share of ({_COUNTED})\b")
_UP_TO_1 = re.compile(r"skill over |share of (the output|.* (lost|missing)\b)")


def limits_of(what: str, unit: str) -> Limits:
    """The limits of a quantity by its name: shares of things that are counted, and probabilities, lie from 0 to 1.

    A share of a change may be negative: entropy that rises is a negative share lost.

    >>> limits_of("probability of the reverse", "%"), limits_of("share of the entropy that is lost", "%")
    ((0.0, 1.0), (None, 1.0))
    >>> limits_of("share of the drop that comes back", "%"), limits_of("rebound", "nats")
    ((None, None), (None, None))
    """
    if unit != "%":
        return None, None
    if _FROM_0_TO_1.match(what):
        return 0.0, 1.0
    return None, 1.0 if _UP_TO_1.match(what) else None


def cut(ends: tuple[float, float], limits: Limits) -> tuple[float, float]:
    """The ends of an interval within the limits. One that lies beyond them altogether is left as it is.

    >>> cut((-0.006, 0.054), (0.0, 1.0)), cut((1.1, 1.2), (0.0, 1.0))
    ((0.0, 0.054), (1.1, 1.2))
    """
    low, high = ends
    least = low if limits[0] is None else limits[0]
    most = high if limits[1] is None else limits[1]
    return ends if low > most or high < least else (max(low, least), min(high, most))
