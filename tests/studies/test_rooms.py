"""Studies by name: their order, and what is said of a name that is none."""

import pytest

from joma import studies
from joma.host.errors import BadInput


def test_studies_are_in_the_order_of_the_paper_and_numbers_count():
    names = studies.names()
    assert names.index("fig7") < names.index("fig10")
    assert [studies.room(name) for name in ("thm1", "Thm2_Rank", "fig7")] == ["invariant", "linear", "checkpoints"]
    assert names.index("thm1") < names.index("thm2") < names.index("fig7") < names.index("cdag") < len(names)


def test_the_name_of_a_claim_is_told_from_a_misspelt_study():
    with pytest.raises(BadInput, match="'thm2/winner' names a claim, and here a study is needed: `joma verify thm2`"):
        studies.room("thm2/winner")
    with pytest.raises(BadInput, match="no study is called 'thm22'; did you mean 'thm2'"):
        studies.room("thm22/winner")
