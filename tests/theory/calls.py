"""One good call of every public function of joma.theory."""

from theory.calls_of_dynamics import LINEAR, SALIENCE
from theory.calls_of_galore import GALORE
from theory.calls_of_isotropic import ISOTROPIC, RADIAL
from theory.calls_of_reversal import REVERSAL
from theory.calls_of_scan_snap import SCAN_SNAP
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
}
"""By the module that makes the function public."""
