"""Findings in other people's formats, against what those formats publish."""

import csv
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from kept_records import RECORDS, needs_records

from joma.claims.claim import Claim
from joma.claims.exports import chain_draft, croissant
from joma.claims.finding import Provenance
from joma.claims.ledger import claims_csv, ledger_of, read_findings
from joma.claims.rules import VERDICTS
from joma.claims.verdicts import by_effect, by_residual, not_run, only_at_paper_scale
from joma.cli.main import main
from joma.measure.intervals import compare

FIELDS = {
    "01_quote": ("paper", "quotation", "quotation-end", "comment"),
    "02_aida": ("aida", "topic", "project", "dataset", "publication"),
    "03_claim": ("claim", "label", "aida", "forrtType", "source"),
    "04_study": ("study", "label", "type", "claim", "scope", "methodology", "deviation", "keyword", "discipline"),
    "05_outcome": ("outcome", "label", "study", "repo", "date", "validationStatus", "confidenceLevel", "conclusion",
                   "evidence", "limitations"),
    "06_citation": ("work", "cites", "cited"),
}  # fmt: skip
"""Fields of the public templates of FORRT's nanopublications (fields.snapshot.json of forrt-replication-template)."""
CARRIED = [("01_quote", "02_aida", "project"), ("02_aida", "03_claim", "aida"), ("03_claim", "04_study", "claim"),
           ("04_study", "05_outcome", "study"), ("05_outcome", "06_citation", "work")]  # fmt: skip
OUTCOMES = {
    "holds": "Validated", "holds as corrected": "PartiallySupported", "only qualitative": "PartiallySupported",
    "mixed": "PartiallySupported", "not above its control": "Contradicted", "undecided": "Inconclusive",
    "fails": "Contradicted", "at paper scale": "NotTested", "not run": "NotTested",
}  # fmt: skip
CLAIM = Claim("better", "a paper, Table 1", "It is better", matters=0.1)


def effect(*shifts, claim=CLAIM):
    cases = {str(at): compare([shift, shift + 0.01, shift - 0.01, shift, shift + 0.02], 0.0) for at, shift in
             enumerate(shifts)}  # fmt: skip
    return by_effect(claim, cases, expected="more")


CORRECTED = Claim("grows", "JoMA Thm 2", "It grows.", corrected="It grows slowly.")
FOUND = {
    "holds": effect(0.5),
    "holds as corrected": by_residual(CORRECTED, printed=1.0, corrected=0.0, tolerance=0.1, expected="zero"),
    "only qualitative": effect(0.05),
    "mixed": effect(0.5, -0.5),
    "not above its control": by_effect(CLAIM, compare([0.01, -0.01] * 5, 0.0)),
    "undecided": by_effect(CLAIM, compare([1.0, -1.0, 0.5], 0.0)),
    "fails": effect(-0.5),
    "at paper scale": only_at_paper_scale(CLAIM, "more", "it is small", "joma verify a --scale paper"),
    "not run": not_run(CLAIM, "more", "there is no GPU", "joma verify a"),
}


def steps(finding):
    draft = chain_draft(finding)
    return {step["step"]: step for step in draft["steps"]}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_draft_has_the_fields_of_the_public_templates_alone(verdict):
    finding = replace(FOUND[verdict], study="mine", provenance=Provenance(created="2026-11-19T10:00:00+00:00"))
    assert finding.verdict == verdict
    found = steps(finding)
    assert list(found) == list(FIELDS)
    for name, step in found.items():
        named = {*step["prefill"], *step["manual"]}
        assert named <= {*FIELDS[name]}
        assert all(isinstance(value, str) and value.strip() for value in step["prefill"].values())
        assert re.fullmatch(r"https://w3id\.org/np/RA[\w-]{43}", step["template_uri"])
        assert step["published_uri"] is None
    outcome = found["05_outcome"]["prefill"]
    assert outcome["validationStatus"] == f"https://w3id.org/sciencelive/o/terms/{OUTCOMES[verdict]}"
    assert outcome["date"] == "2026-11-19"
    assert verdict in outcome["conclusion"]
    assert outcome["evidence"] == str(finding.measured)
    assert re.fullmatch(r"[\S ]{5,500}\.", found["02_aida"]["prefill"]["aida"])
    assert re.fullmatch(r"[\s\S]{5,800}", found["01_quote"]["prefill"]["comment"])
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", found["03_claim"]["prefill"]["claim"])


def test_the_chain_hands_each_published_address_to_the_next_step():
    draft = chain_draft(FOUND["holds"])
    assert (draft["schema_version"], draft["kind"], draft["chain_shape"]) == (
        "1.0",
        "forrt-chain-draft",
        "paper-rooted",
    )
    assert [(one["from"], one["into"], one["field"]) for one in draft["carry_forward"]] == CARRIED
    assert draft["source"] == {}
    assert chain_draft(replace(FOUND["holds"], provenance=Provenance(commit="ab")))["source"] == {"commit": "ab"}


def test_the_method_says_seeds_level_and_what_matters():
    method = steps(replace(FOUND["holds"], command="joma judge a.csv"))["04_study"]["prefill"]["methodology"]
    assert "of 5 seeds" in method
    assert "at 95 %" in method
    assert "is 0.1. Repeat it with: joma judge a.csv" in method
    assert "size shown" in steps(FOUND["holds"])["05_outcome"]["prefill"]["limitations"]
    assert "limitations" not in steps(FOUND["holds as corrected"])["05_outcome"]["prefill"]


def test_croissant_describes_the_table_that_is_written():
    findings = list(FOUND.values())
    text, about = claims_csv(findings), croissant(findings, table="t.csv")
    header, *rows = csv.reader(text.splitlines())
    (file,), (records,) = about["distribution"], about["recordSet"]
    assert file["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert (file["@id"], file["contentUrl"], file["encodingFormat"]) == ("t.csv", "t.csv", "text/csv")
    assert [field["source"]["extract"]["column"] for field in records["field"]] == header
    assert {field["source"]["fileObject"]["@id"] for field in records["field"]} == {"t.csv"}
    for field, cells in zip(records["field"], zip(*rows, strict=True), strict=True):
        assert field["description"]
        numbers = field["dataType"] == "sc:Float"
        if numbers:
            [float(cell) for cell in cells if cell]
        else:
            assert any(cell and not re.fullmatch(r"[-+.\de]+", cell) for cell in cells) or field["name"] == "unit"
    assert about["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert about["@context"]["cr"] == "http://mlcommons.org/croissant/"
    assert {"recordSet", "field", "extract", "column", "fileObject", "dataType"} <= about["@context"].keys()


def test_the_ends_of_an_interval_are_told_apart():
    fields = {field["name"]: field["description"] for field in croissant([])["recordSet"][0]["field"]}
    assert fields["interval_low"].startswith("lower end of the interval of the effect")
    assert fields["difference_interval_high"].startswith("upper end of the interval of the difference")


@pytest.fixture
def ledger(tmp_path):
    several = [replace(FOUND[verdict], study=f"a-{at}") for at, verdict in enumerate(VERDICTS)]
    (tmp_path / "findings.json").write_text(json.dumps(ledger_of(several)))
    return tmp_path / "findings.json"


def test_the_command_writes_each_format_and_replaces_what_it_wrote(ledger, capsys):
    for _ in range(2):
        for to in ("claims", "croissant"):
            assert main(["export", str(ledger), "--to", to]) == 0
        assert main(["export", str(ledger), "--to", "forrt", "--claim", "a-0/better"]) == 0
    table, about, chain = (ledger.with_name(name) for name in ("claims.csv", "croissant.json", "chain-draft.json"))
    assert len(list(csv.reader(table.read_text().splitlines()))) == len(VERDICTS) + 1
    described = json.loads(about.read_text())["distribution"][0]
    assert described["sha256"] == hashlib.sha256(table.read_bytes()).hexdigest()
    assert json.loads(chain.read_text())["_comment"].endswith("a-0/better.")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--to", "forrt"], "name one claim of "),
        (["--to", "forrt", "--claim", "a-0/bettre"], "has no claim 'a-0/bettre'; did you mean 'a-0/better'"),
        (["--to", "claims", "--claim", "a-0/better"], "--claim is for --to forrt"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(ledger, capsys, given, sentence):
    assert main(["export", str(ledger), *given]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_findings_are_exported_without_torch(ledger):
    given = ["export", str(ledger), "--to", "claims"]
    code = f"import sys; sys.modules['torch'] = None; from joma.cli.main import main; sys.exit(main({given}))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ledger.with_name("claims.csv").is_file()


@needs_records
def test_every_kept_claim_has_a_draft():
    for file in sorted(RECORDS.glob("*/findings.json"))[::6]:
        for finding in read_findings(file):
            found = steps(finding)
            assert re.fullmatch(r"[\S ]{5,500}\.", found["02_aida"]["prefill"]["aida"]), finding.id
