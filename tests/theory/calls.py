"""One good call of every public function of joma.theory, and how a test asks the same of all of them."""

import pytest
from theory.calls_of_dynamics import LINEAR, SALIENCE
from theory.calls_of_galore import GALORE
from theory.calls_of_isotropic import ISOTROPIC, RADIAL
from theory.calls_of_reversal import REVERSAL
from theory.calls_of_scan_snap import SCAN_SNAP
from theory.calls_of_spread import SPREAD
from theory.calls_of_structure import ATTENTION, CDAG, HIERARCHY, INVARIANT

CALLS = {
    "attention": ATTENTION,
    "cdag": CDAG,
    "galore": GALORE,
    "hierarchy": HIERARCHY,
    "invariant": INVARIANT,
    "isotropic": ISOTROPIC,
    "linear": LINEAR,
    "radial": RADIAL,
    "reversal": REVERSAL,
    "salience": SALIENCE,
    "scan_snap": SCAN_SNAP,
    "spread": SPREAD,
}
"""By the module that makes the function public."""


def of_every_call(rooms, *, slow_later=False):
    """Turn a test of one call into a test of all calls of a room, one after another. What fails is named.

    rooms: {room: calls}. One item per room and not per call: to collect thousands takes longer than to run them.
    slow_later: for tests that make dozens of each call; those that are slow are an item of their own, a long one.
    """
    items = list(rooms)
    if slow_later:
        slow = {f"{room}, slow": [call for call in calls if call.slow] for room, calls in rooms.items()}
        slow = {room: calls for room, calls in slow.items() if calls}
        rooms = {room: [call for call in calls if not call.slow] for room, calls in rooms.items()} | slow
        items += [pytest.param(room, marks=pytest.mark.long) for room in slow]

    def decorated(test):
        @pytest.mark.parametrize("room", items)
        def every(room):
            assert rooms[room]
            for call in rooms[room]:
                try:
                    test(call)
                except BaseException as error:
                    error.add_note(f"in the call of {room}.{call}")
                    raise

        every.__name__, every.__doc__ = test.__name__, test.__doc__
        return every

    return decorated
