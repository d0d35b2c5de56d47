"""The ledger: a versioned file that reads back, and a graph of claims without loose ends or circles."""

import json
from graphlib import TopologicalSorter

import pytest

from joma import studies
from joma.claims.claim import Claim
from joma.claims.execute import Result, plain_config
from joma.claims.ledger import findings_json, read_findings, verdicts_named, with_q
from joma.claims.verdicts import by_effect
from joma.host.errors import BadInput
from joma.measure.intervals import compare


def test_what_is_written_reads_back(toy, tmp_path):
    from joma.claims.execute import execute

    study, _ = toy
    result = execute(study, study.quick, tmp_path, pictures=False)
    path = tmp_path / "findings.json"
    path.write_text(json.dumps(findings_json([result])))
    (found,) = read_findings(path)
    assert found == result.findings[0]
    assert (found.id, found.verdict) == ("toy/all-ones", "holds")
    assert found.provenance.record == result.run.name
    assert len(found.provenance.config_sha256) == 64
    assert found.command.startswith("joma verify toy")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as findings"),
        ("[]", "does not hold findings of version"),
        ('{"studies": []}', "does not hold findings of version"),
        ('{"schema": "joma-findings", "version": 2, "studies": [{"findings": [{}]}]}', "is damaged"),
        ('{"schema": "joma-findings", "version": 2, "studies": 3}', "is damaged"),
        ('{"schema": "joma-findings", "version": 99, "studies": []}', "does not hold findings of version"),
    ],
)
def test_a_file_that_is_something_else_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "findings.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_findings(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="cannot be read as findings"):
        read_findings(tmp_path / "none.json")


def test_a_broken_study_is_in_the_ledger(toy):
    study, _ = toy
    result = Result(study, plain_config(study.quick), 0.0, [], [], "joma verify toy", None, "ValueError: no room")
    assert findings_json([result])["studies"][0]["error"] == "ValueError: no room"


def test_q_is_of_all_studies_of_one_command(toy):
    """Two studies with one claim each: the clearer p counts twice, the other once."""
    study, _ = toy
    clear, weak = ([0.3, 0.31, 0.29, 0.3, 0.3], [0.3, -0.1, 0.2, 0.1, 0.1])
    found = [by_effect(Claim(f"claim-{at}", "JoMA Fig. 6", "More.", matters=0.05), compare(values), expected="more")
             for at, values in enumerate((clear, weak))]  # fmt: skip
    results = [Result(study, {}, 0.0, [one], [], "joma verify toy", None) for one in found]
    together = with_q(results)
    assert [one.findings[0].q for one in together] == pytest.approx([2 * found[0].p, found[1].p])
    assert [one.findings[0].claim.name for one in together] == ["claim-0", "claim-1"]
    assert [one.findings[0].q for one in results] == [None, None]


def test_verdicts_by_name():
    assert verdicts_named("Fails, not-above-its-control") == ("not above its control", "fails")
    with pytest.raises(BadInput, match="a verdict is one of holds"):
        verdicts_named("wrong")
    with pytest.raises(BadInput, match="name at least one"):
        verdicts_named(" , ")


def test_the_claims_of_all_studies_form_a_graph():
    uses = {f"{name}/{claim.name}": claim.uses for name in studies.names() for claim in studies.load(name).claims}
    order = [*TopologicalSorter(uses).static_order()]  # a circle raises
    assert sorted(order) == sorted(uses)  # all that is used is there
    assert sum(map(len, uses.values())) >= 30  # a ledger in which nothing rests on anything would be no graph
