"""Attention of decoders under SGD: what is recorded, what is judged, and that its judges can be turned."""

import numpy as np
import pytest
import torch
from records import carried_out, changed, found, verdicts

from joma.data.text import python_corpus
from joma.models import Decoder, DecoderConfig
from joma.recipes.language.curves import steps_of
from joma.studies.scan_snap import scan_snap_decoder as study
from joma.studies.scan_snap.scan_snap_decoder import (
    SHUFFLED,
    TEXT,
    ScanSnapDecoderConfig,
    lowest_attention,
    maps,
    moved,
    shuffled,
)

pytestmark = pytest.mark.usefixtures("no_other_text")
SMALL = {
    "corpus": "wikitext-2", "vocabulary": 40, "width": 8, "mlp": 8, "streams": 4, "valid_streams": 3, "length": 6,
    "sequence": 5, "valid_sequences": 8, "steps": 48, "every": 12, "dropout": 0.0, "depths": (1, 2),
    "maps_at": (12, 24),
}  # fmt: skip
SEEDS = 3


@pytest.fixture(scope="module")
def config(data_folder):
    return ScanSnapDecoderConfig(**SMALL, data=str(data_folder))


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return carried_out(study.STUDY, config, tmp_path_factory.mktemp("decoder") / "run.sqlite")


def test_both_texts_start_from_the_same_networks_and_part(run):
    assert steps_of(run, "1 layer").tolist() == [0, 12, 24, 36, 48]
    first, last = maps(run, 1, 0), maps(run, 1, 48)
    assert first.shape == (2, SEEDS, 6, 6)
    np.testing.assert_allclose(first[TEXT], first[SHUFFLED], atol=1e-6)  # other places of one batch
    assert np.abs(last[TEXT] - last[SHUFFLED]).max() > 1e-3
    np.testing.assert_allclose(first.sum(-1), 1, atol=1e-5)
    assert np.triu(first[0, 0], 1).max() == 0


def test_the_text_is_learned_and_its_shuffled_twin_is_not(run):
    loss = run.array("1 layer/valid/loss")[-1].reshape(2, SEEDS)
    frequencies = float(run.value("1 layer/loss by frequency"))
    assert (loss[TEXT] < frequencies - 0.05).all()
    assert (loss[SHUFFLED] > frequencies - 0.05).all()


def test_shuffling_keeps_frequencies_and_the_other_splits():
    text = python_corpus(60, tokens=20_000)
    mixed = shuffled(text, 1)
    assert not torch.equal(mixed.tokens["train"], text.tokens["train"])
    assert torch.equal(mixed.tokens["train"].sort().values, text.tokens["train"].sort().values)
    assert torch.equal(mixed.tokens["valid"], text.tokens["valid"])


def test_the_lowest_layer_is_looked_at():
    decoder = Decoder(DecoderConfig(vocabulary=9, width=8, mlp=8, layers=2, heads=2), seeds=[0, 1])
    tokens, seen = torch.arange(6)[None], {}
    decoder.features(tokens, look=lambda layer, name, value: seen.setdefault((layer, name), value))
    torch.testing.assert_close(lowest_attention(decoder, tokens), seen[0, "attention"][:, 0].mean(1))


def pretended(run, *, entropy, moves, losses=(2.0, 4.0)):
    """A record in which entropy (texts, points) and movement from point to point (points - 1) are these.

    Attention moves from key to key of the last query, the only one that has a choice here.
    """
    points = [0, 12, 24, 36, 48]
    place = dict(zip(points, np.cumsum([0, *moves]), strict=True))
    noise = 1e-3 * np.array([-1.0, 0.0, 1.0])

    def change(name, step, value):
        if name.endswith("valid/entropy"):
            own = np.stack([noise, np.roll(noise, 1)])  # of either text
            rows = np.array(entropy)[:, points.index(step), None] * (1 + own * (step > 0))
            return np.broadcast_to(rows.reshape(-1, 1, 1), value.shape).copy()
        if name.endswith("valid/loss"):
            return np.repeat(np.array(losses) if step else np.array([5.0, 5.0]), SEEDS)
        if name.endswith("loss by frequency"):
            return np.array(3.5)
        if name.endswith("/map"):
            made = np.zeros(value.shape)
            made[:, 1:, 0], made[:, 1:, 1] = 1 - place[step], place[step]
            made[:, :, 0] += noise.repeat(2)[:, None] * place[step]
            return made
        return value

    return changed(run, change)


FLAT = [2.0] * 5


@pytest.mark.parametrize(
    ("entropy", "verdict"),
    [
        (([2.0, 1.6, 1.0, 0.9, 0.8], FLAT), "holds"),
        (([2.0, 1.95, 1.94, 1.9, 1.9], FLAT), "only qualitative"),
        ((FLAT, FLAT), "not above its control"),
        (([2.0, 1.6, 1.0, 0.9, 0.8], [2.0, 1.6, 1.0, 0.9, 0.8]), "not above its control"),
        (([2.0, 2.4, 2.6, 2.6, 2.6], FLAT), "fails"),
    ],
)
def test_sparseness_is_judged_beside_the_twin(run, entropy, verdict):
    copy = pretended(run, entropy=entropy, moves=[0.3, 0.3, 0.0, 0.0])
    assert verdicts(study.STUDY, copy)["attention-becomes-sparse"] == verdict


@pytest.mark.parametrize(
    ("moves", "verdict"),
    [
        ([0.3, 0.3, 0.01, 0.01], "holds"),
        ([0.3, 0.3, 0.1, 0.1], "only qualitative"),
        ([0.05, 0.05, 0.3, 0.3], "fails"),
    ],
)
def test_freezing_is_judged_by_what_moves_late(run, moves, verdict):
    copy = pretended(run, entropy=(FLAT, FLAT), moves=moves)
    assert verdicts(study.STUDY, copy)["attention-freezes"] == verdict
    assert moved(copy, 1, 0, 24)[TEXT].mean() == pytest.approx(sum(moves[:2]), abs=0.01)


def test_networks_that_learn_nothing_do_not_count(run):
    copy = pretended(run, entropy=(FLAT, FLAT), moves=[0.1] * 4, losses=(3.48, 3.6))
    seen = verdicts(study.STUDY, copy)
    assert {name for name, verdict in seen.items() if verdict == "not run"} == seen.keys() - {"common-words-tell-less"}
    reason = found(study.STUDY, copy, "attention-becomes-sparse").reason
    assert "learned no more than how frequent words are" in reason


def test_factors_are_those_of_counting_by_hand(monkeypatch):
    """Two queries, four words before them, three after them, in pieces of 600 tokens."""
    for name, value in {"QUERIES": 2, "CONTEXT": 4, "NEXT": 3, "PARTS": 2}.items():
        monkeypatch.setattr(study, name, value)
    source = torch.Generator().manual_seed(0)
    tokens = torch.multinomial(torch.tensor([0.3, 0.05, 0.25, 0.1, 0.2, 0.1]), 1200, replacement=True, generator=source)
    seen = study.factors(tokens.int(), 5)
    words = torch.bincount(tokens[tokens > 0]).argsort(descending=True).tolist()
    for part, piece in enumerate(tokens.view(2, 600).tolist()):
        for query in range(2):
            at = [t for t in range(5, 599) if piece[t] == words[query]]
            names = [*words[:3], None]
            after = [
                [float(name == (piece[t + 1] if piece[t + 1] in words[:3] else None)) for name in names] for t in at
            ]
            g = np.array(after) - np.mean(after, 0)
            for place, word in enumerate(words[:4]):
                met = np.array([word in piece[t - 5 : t] for t in at])
                half = (len(at) + 1) // 2
                first, second = g[:half][met[:half]].mean(0), g[half:][met[half:]].mean(0)
                assert seen["co-occurrence"][part, query, place].item() == pytest.approx(met.mean())
                assert seen["discriminancy"][part, query, place].item() == pytest.approx(first @ second)


@pytest.mark.parametrize(
    ("common", "others", "random", "verdict"),
    [
        (0.01, 0.04, 0.0, "holds"),
        (0.01, 0.015, 0.0, "only qualitative"),
        (0.04, 0.01, 0.0, "fails"),
        (0.01, 0.04, 0.05, "not above its control"),
    ],
)
def test_what_common_words_tell_is_judged_beside_others(run, common, others, random, verdict):
    noise = 1 + 0.01 * np.linspace(-1, 1, study.PARTS)[:, None, None]
    often = np.broadcast_to(np.linspace(0.1, 0.9, 20), (study.PARTS, 2, 20))
    text = np.where(often > 0.73, common, others) ** 2 * noise
    made = {"text/co-occurrence": often, "shuffled/co-occurrence": often, "text/discriminancy": text,
            "shuffled/discriminancy": 0 * text + random**2 * np.roll(noise, 1, 0)}  # fmt: skip
    copy = changed(run, lambda name, step, value: made.get(name, value))
    assert verdicts(study.STUDY, copy)["common-words-tell-less"] == verdict


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depths": ()}, "depths must not be empty"),
        ({"maps_at": ()}, "maps_at must not be empty"),
        ({"steps": 40}, "steps must be at least 48, twice the last of maps_at"),
    ],
)
def test_bad_options_get_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ScanSnapDecoderConfig(**{**SMALL, **options})
