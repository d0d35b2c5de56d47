"""What models read: hierarchies with their latents, text, Python source with its syntax, facts, images."""

from joma.data.ahead import Ahead
from joma.data.facts import Chains, Reversals, chains, reversals
from joma.data.hierarchy import HBLT
from joma.data.hypercube import Hypercube
from joma.data.latent_sets import TABLE1, LatentSets
from joma.data.python_source import python_tokens
from joma.data.samples import Sample, write_sequences
from joma.data.statements import Statements
from joma.data.stroke_digits import stroke_digits
from joma.data.text import Corpus, download_wikitext, find_corpus, python_corpus, text_file, wikitext

__all__ = [
    "HBLT",
    "TABLE1",
    "Ahead",
    "Chains",
    "Corpus",
    "Hypercube",
    "LatentSets",
    "Reversals",
    "Sample",
    "Statements",
    "chains",
    "download_wikitext",
    "find_corpus",
    "python_corpus",
    "python_tokens",
    "reversals",
    "stroke_digits",
    "text_file",
    "wikitext",
    "write_sequences",
]
