"""Digits of seven strokes: what is drawn, what varies, what chance decides, and what is refused."""

import pytest
import torch

from joma.data.stroke_digits import CHUNK, CLASSES, DIGITS, stroke_digits


def digits(count=500, **options):
    return stroke_digits(count, generator=torch.Generator().manual_seed(0), **{"side": 12, **options})


def test_the_same_generator_draws_the_same_images():
    one, two = digits(), digits()
    assert torch.equal(one.pixels, two.pixels)
    assert torch.equal(one.labels, two.labels)


def test_all_digits_come_about_equally_often():
    counts = digits(5000, side=8).labels.bincount(minlength=CLASSES)
    assert counts.min() > 400
    assert counts.max() < 600


def test_digits_have_different_strokes():
    assert len(set(DIGITS)) == CLASSES


def test_more_strokes_take_more_ink():
    images = digits(2000, noise=0.0)
    ink = torch.stack([images.pixels[images.labels == digit].mean() for digit in range(CLASSES)])
    assert ink.argmax() == 8
    assert ink.argmin() == 1


def test_without_variation_the_nearest_mean_tells_every_digit():
    learn, fresh = (
        digits(1000, noise=0.0, vary=0.0),
        stroke_digits(300, side=12, generator=torch.Generator().manual_seed(1), noise=0.0, vary=0.0),
    )
    means = torch.stack([learn.pixels[learn.labels == digit].mean(0) for digit in range(CLASSES)]).flatten(1)
    told = torch.cdist(fresh.pixels.flatten(1), means).argmin(1)
    assert (told == fresh.labels).float().mean() > 0.97


def test_noise_is_added_to_every_pixel():
    clean, noisy = digits(noise=0.0), digits(noise=0.5)
    assert (noisy.pixels - clean.pixels).std().sub(0.5).abs() < 0.01


def test_variation_moves_digits():
    def spread(vary):
        images = digits(noise=0.0, vary=vary)
        return images.pixels[images.labels == 8].std(0).mean()

    assert spread(1.0) > 1.5 * spread(0.0)


def test_more_images_than_one_chunk():
    images = digits(CHUNK + 5, side=8)
    assert len(images.pixels) == len(images.labels) == CHUNK + 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"side": 7}, "side must be at least 8 pixels"),
        ({"noise": -0.1}, "noise must be finite and not negative, got -0.1"),
        ({"vary": float("nan")}, "vary must be finite and not negative, got nan"),
        ({"count": 0}, "count must be"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        digits(**options)
