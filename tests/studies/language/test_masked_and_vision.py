"""Masked language models and vision Transformers: what they read, their loss, and that judges can be turned."""

import numpy as np
import pytest
import torch
from records import found, verdicts
from small_language_models import SMALL, by_hand, down_and_up, untrained

from joma.claims.contract import silent
from joma.data.stroke_digits import stroke_digits
from joma.data.text import streams
from joma.host.seeds import generator
from joma.models import Decoder, DecoderConfig
from joma.recipes.language import corpus
from joma.studies.language import masked_and_vision as study
from joma.studies.language.masked_and_vision import STUDY, MaskedAndVisionConfig

pytestmark = pytest.mark.usefixtures("no_other_text")
CONFIG = MaskedAndVisionConfig(**SMALL, layers=(1, 2), seeds=5)
SEEDS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None]
CLAIMS = [f"{kind}-{name}" for kind in study.KINDS for name in ("one-layer", "top-layers", "bottom-layers")]


@pytest.fixture(scope="module")
def trained(small_run):
    return small_run("masked-and-vision")


def test_an_untrained_network_tells_nothing(trained):
    assert set(verdicts(STUDY, untrained(trained)).values()) == {"not run"}


def test_masks_replace_words_as_bert_does():
    words, count = 50, 3
    tokens = torch.arange(20_000 * 20).view(20_000, 20) % words
    shown, places, right = study.mask(tokens, count, words, generator(0, "test"))
    chosen = torch.zeros_like(tokens, dtype=torch.bool).scatter(-1, places, True)
    assert (chosen.sum(-1) == count).all()
    assert torch.equal(shown[~chosen], tokens[~chosen])
    assert torch.equal(right, torch.stack([row[at] for row, at in zip(tokens, places, strict=True)]))
    said = shown.gather(-1, places)
    shares = [
        (said == words).float().mean(),
        ((said != words) & (said != right)).float().mean(),
        (said == right).float().mean(),
    ]
    # Of the random words one in fifty is the right one; 60,000 draws know a share to 0.004 (two standard errors)
    assert torch.tensor(shares).tolist() == pytest.approx([0.8, 0.1 * 49 / 50, 0.1 + 0.1 / 50], abs=0.005)
    assert torch.bincount(places.flatten(), minlength=20).double().std() / 3000 < 0.03  # every place as often


def test_the_loss_is_that_of_the_words_to_be_filled_in():
    decoder = Decoder(DecoderConfig(8, outputs=7, width=8, mlp=8, causal=False), seeds=[0, 1]).double()
    shown = torch.tensor([[7, 1, 2, 3], [4, 5, 7, 0]])
    places, right = torch.tensor([[0, 3], [2, 1]]), torch.tensor([[6, 3], [2, 5]])
    logs = decoder(shown).log_softmax(-1)
    slow = torch.stack(
        [-sum(logs[m, s, places[s, k], right[s, k]] for s in (0, 1) for k in (0, 1)) / 4 for m in (0, 1)]
    )
    torch.testing.assert_close(study.masked_loss(decoder, (shown, places, right)), slow, check_dtype=False)


def test_every_step_and_seed_has_masks_of_its_own_and_all_read_the_same_words(monkeypatch, data_folder):
    config = MaskedAndVisionConfig(**SMALL, data=str(data_folder), seeds=3)
    text, kept = corpus(config), {}

    def keep(variants, *_, adapt, **__):
        for name, one in variants.items():
            plain = study.grid.ensemble(one, 3, networks=None, batch=None, loss=None, optimizer=one.optimizer)
            kept[name] = (one, adapt(name, plain))

    monkeypatch.setattr(study, "train_variants", keep)
    study.train_masked(config, text, None, silent)
    ((variant, ensemble),) = kept.values()
    assert (variant.decoder.vocabulary, variant.decoder.outputs, variant.decoder.causal) == (41, 40, False)
    shown, places, right = ensemble.batch(2, [0, 1, 2])
    read = streams(text.tokens["train"].long(), config.streams)[:, 12:18]
    assert shown.shape == (3, 4, 6)
    for member, again in enumerate(shown):
        assert torch.equal(again.scatter(-1, places[member], right[member]), read)
    assert not torch.equal(places[0], places[1])
    assert not torch.equal(places[0], ensemble.batch(3, [0, 1, 2])[1][0])
    assert torch.equal(ensemble.batch(2, [1])[0][0], shown[1])  # whatever group a member is trained in


@pytest.mark.parametrize("size", [2, 3])
def test_patches_are_numbered_by_their_pixels(size):
    pixels = stroke_digits(3, side=12, generator=generator(1, "test")).pixels
    found_ones = study.patches(pixels, size)
    across = 12 // size
    for image in range(3):
        for row in range(across):
            for column in range(across):
                part = pixels[image, row * size : (row + 1) * size, column * size : (column + 1) * size].flatten() > 0.5
                wanted = sum(2**at for at, black in enumerate(part.tolist()) if black)
                assert found_ones[image, row * across + column] == wanted
    tokens, digits = study.images(MaskedAndVisionConfig(side=12, patch=size), 5, "held out")
    assert tokens.shape == (5, across**2 + 1)
    assert (tokens[:, -1] == 2**size**2).all()
    assert digits.max() < 10
    other = study.images(MaskedAndVisionConfig(side=12, patch=size), 5, "to train on")[0]
    assert not torch.equal(tokens, other)


def test_sides_that_patches_do_not_fill_are_refused():
    with pytest.raises(ValueError, match="side must be a multiple of patch, 3, got 10"):
        MaskedAndVisionConfig(side=10)


def made(tmp_path, **entropies):
    """A record of both kinds at two depths, with these entropies; others come back."""
    back = down_and_up(np.ones((5, 1)), 0.5 + 0.01 * SEEDS)
    depths = {f"{kind} L{n}": np.repeat(back, n, axis=2) for kind in study.KINDS for n in (1, 2)}
    variants = {n: ((0.02,), [2.0] * 5, entropies.get(n.replace(" ", "_"), one), [], {}) for n, one in depths.items()}
    return by_hand(tmp_path / "run.sqlite", STUDY, CONFIG, variants, layers=np.array(CONFIG.layers))


@pytest.mark.parametrize("kind", study.KINDS)
def test_each_kind_is_judged_by_its_own_networks(tmp_path, kind):
    still = np.full((5, 13, 1), 2.0) + 0.001 * SEEDS[:, None]
    rising = np.stack([np.full((5, 13), 1.0), np.linspace(1.0, 2.0, 13) + 0.01 * SEEDS], axis=-1)
    run = made(tmp_path, **{f"{kind}_L1": still, f"{kind}_L2": rising})
    (other,) = set(study.KINDS) - {kind}
    of = verdicts(STUDY, run)
    assert (of[f"{kind}-one-layer"], of[f"{kind}-bottom-layers"]) == ("not above its control", "holds")
    assert (of[f"{other}-one-layer"], of[f"{other}-top-layers"]) == ("holds", "holds")
    assert set(found(STUDY, run, f"{kind}-top-layers").printed.effects) == {"L = 2, layer 2"}


def test_one_layer_alone_leaves_the_others_to_paper_scale(tmp_path):
    back = down_and_up(np.ones((5, 1)), 0.5 + 0.01 * SEEDS)
    variants = {f"{kind} L1": ((0.02,), [2.0] * 5, back, [], {}) for kind in study.KINDS}
    config = MaskedAndVisionConfig(**SMALL, seeds=5)
    run = by_hand(tmp_path / "run.sqlite", STUDY, config, variants, layers=np.array([1]))
    assert [verdicts(STUDY, run)[name] for name in CLAIMS] == ["holds", "at paper scale", "at paper scale"] * 2
