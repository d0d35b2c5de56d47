"""The spread of logits over a series: numbers of the probe, one reading of the text, and a page with the split."""

import numpy as np
from checkpoint_series import WORDS, save_model, scan

from joma.figures import scans as drawn
from joma.figures.style import BLUE, GREY, ORANGE
from joma.measure.registry import MEASURES
from joma.report.scans import spread as pictures
from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve, Scan


def test_a_model_whose_queries_are_not_seen_is_refused_before_it_is_read(tokens, tmp_path):
    from transformers import GPTJConfig, GPTJForCausalLM

    config = GPTJConfig(vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=16, rotary_dim=4)
    save_model(GPTJForCausalLM(config), tmp_path / "series" / "step0")
    status, found = scan(tmp_path / "series", "--measures", "entropy,spread", "--text", tokens, out=tmp_path / "out")
    assert status == 3
    assert "sees no queries" in found["refused"]["spread"]
    assert list(found["curves"]) == ["entropy"]


def made(values, steps):
    values = np.asarray(values, dtype=float)
    rows = tuple(Row(at, None, f"layer {at}") for at in range(values.shape[1]))
    curves = {
        f"spread/{name}": Curve("spread", name, rows, ("0",), values[:, :, at, None], heads=True)
        for at, name in enumerate(MEASURES["spread"].columns)
    }
    return Scan("series", steps, [], curves)


def captured(monkeypatch, scan):
    seen = {}

    def draw(name, caption, alt, function, shown, **options):
        seen.update(caption=caption, alt=alt, function=function, shown=shown, figure=function(shown, **options))

    monkeypatch.setattr(pictures, "draw_picture", draw)
    pictures.split_picture(scan, list(scan.curves.values()))
    return seen


def test_areas_are_stacked_up_and_down(monkeypatch):
    values = [[[1.5, 1.0, 1.0, -0.5], [0.5, 0.1, 0.4, 0.0]], [[4.0, 2.0, 1.0, 1.0], [6.0, 1.0, 4.0, 1.0]]]
    seen = captured(monkeypatch, made(values, [0, 100]))
    assert seen["function"] is drawn.areas_over_steps
    assert "Largest in the end, layer 1: the variance rises from 0.5 to 6" in seen["caption"]
    assert "in the end shared 1, specific 4, cross 1." in seen["caption"]
    first = seen["figure"].axes[0]
    tops = [area.get_paths()[0].vertices[:, 1] for area in first.collections]
    assert [round(float(top.max()), 9) for top in tops[:3]] == [2.0, 3.0, 4.0]
    assert min(float(top.min()) for top in tops) == -0.5
    assert first.get_lines()[-1].get_ydata().tolist() == [1.5, 4.0]


def test_one_checkpoint_has_bars(monkeypatch):
    seen = captured(monkeypatch, made([[[1.5, 1.0, 1.0, -0.5], [0.5, 0.1, 0.4, 0.0]]], [7]))
    assert seen["function"] is drawn.stacked_parts
    assert "layer 0: the variance is 1.5; shared 1, specific 1, cross −0.5." in seen["caption"]


def test_a_step_without_numbers_is_a_gap(monkeypatch):
    values = np.ones((3, 1, 4))
    values[1] = np.nan
    values[2] = 2.0
    seen = captured(monkeypatch, made(values, [0, 10, 20]))
    assert "in the end shared 2" in seen["caption"]
    assert {"shared": BLUE, "specific": ORANGE, "cross": GREY} == pictures.COLOURS


def test_of_many_layers_the_first_and_the_last_have_a_panel(monkeypatch):
    seen = captured(monkeypatch, made(np.ones((2, 11, 4)), [0, 10]))
    assert [panel.title for panel in seen["shown"]] == [f"layer {at}" for at in (0, 2, 4, 6, 8, 10)]
