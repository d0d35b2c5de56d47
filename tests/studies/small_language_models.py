"""What the tests of language models share: sizes that train in a second, and records that pretend."""

from records import changed

from joma.studies import _language_model_findings as findings

SMALL = {
    "corpus": "wikitext-2", "vocabulary": 40, "width": 8, "mlp": 8, "streams": 4, "valid_streams": 3, "length": 6,
    "sequence": 5, "valid_sequences": 8, "steps": 48, "every": 4, "dropout": 0.1,
}  # fmt: skip
SIZES = (40, 3001, 401)
"""Words and tokens of the text in `data_folder`, with the vocabulary of `SMALL`."""


def untrained(run, path):
    """A copy of the run with what it would have recorded if nothing had moved."""

    def still(name, step, value):
        return run.at(name, 0) if name.endswith(("/loss", "/entropy")) or "rank/" in name else value

    return changed(run, path, still)


def as_the_paper(monkeypatch, config):
    """Pretend that the sizes of a recorded config are the paper's, and that the small text is WikiText-2."""
    monkeypatch.setattr(findings, "AS_THE_PAPER", {name: config[name] for name in findings.AS_THE_PAPER})
    monkeypatch.setattr(findings, "SIZES", SIZES)
