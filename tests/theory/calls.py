"""One good call of every public function of joma.theory."""

from theory.calls_of_dynamics import LINEAR, SALIENCE
from theory.calls_of_isotropic import ISOTROPIC, RADIAL
from theory.calls_of_structure import ATTENTION, CDAG, HIERARCHY, INVARIANT

CALLS = {
    "attention": ATTENTION,
    "cdag": CDAG,
    "hierarchy": HIERARCHY,
    "invariant": INVARIANT,
    "isotropic": ISOTROPIC,
    "linear": LINEAR,
    "radial": RADIAL,
    "salience": SALIENCE,
}
"""By the module that makes the function public."""
