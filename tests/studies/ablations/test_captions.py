"""What figures of ablations say: made from the record, so that another record says something else."""

from dataclasses import replace

from small_ablations import curves, record, with_half_width

from joma.figures.style import house_style
from joma.studies.ablations import residual

TWO_LAYERS = replace(residual.STUDY.quick, layers=2)


def drawn(path, whole, without, config=TWO_LAYERS, **more):
    run = record(path, {"residual": whole, "no residual": without}, config=config, **more)
    with house_style():
        return residual.STUDY.draw(run)


def test_the_caption_names_the_variants_that_rebound(tmp_path):
    both, *_ = drawn(tmp_path / "both", curves(0.5, noise=1e-6), curves(0.4, noise=1e-6, draw=1))
    one, *_ = drawn(tmp_path / "one", curves(0.5), curves(0.0, draw=1))
    none, *_ = drawn(tmp_path / "none", curves(0.0), curves(0.0, draw=1))
    assert "beyond chance (99 %), in both variants." in both.caption
    assert "in 1 of 2 variants: “residual”; not in “no residual”." in one.caption
    assert none.caption.startswith("Neither variant shows a drop and a rebound")
    assert "“residual” 1 and 0.5 nats; “no residual” 1 and 0.4 nats" in both.caption
    assert " Drop and rebound (means over layers): " in both.caption
    assert f"mean of {TWO_LAYERS.seeds} seeds while training on Python source" in both.caption


def test_a_rebound_is_named_at_99_percent(tmp_path):
    whole, without = (curves(with_half_width(0.3, 0.29, level, 6), noise=0, seeds=6) for level in (0.99, 0.95))
    lines, _ = drawn(tmp_path / "run", whole, without)
    assert "in 1 of 2 variants: “residual”; not in “no residual”." in lines.caption


def test_the_alternative_text_follows_every_line(tmp_path):
    lines, bars = drawn(tmp_path / "run", curves(0.5, noise=0.0), curves(0.0, noise=0.0))
    assert "in 1 of 2 variants: “residual”; not in “no residual”." in lines.caption  # none at all is not beyond chance
    assert "“residual” falls from 2 to 1 nats at step 20, then rises to 1.5 nats" in lines.description
    assert "“no residual” falls from 2 to 1 nats" in lines.description
    assert "“no residual”: no residual, layer 1 1 nats, layer 2 1 nats. Rebound of" in bars.description
    assert "“residual”: residual, layer 1 0.5 nats, layer 2 0.5 nats;" in bars.description
