"""What orders a series: fractions of epochs, tokens and dates, as names tell them."""

import pytest
from checkpoint_series import scan
from safetensors.torch import save_file
from trainer_files import found_in, llama

from joma.host.errors import BadInput
from joma.runs import Run
from joma.scan import open_series
from joma.scan.sources.series import mark_in, moment_in
from joma.scan.sweep.record import stored_scan


def named(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        save_file(llama(), folder / name / "model.safetensors")
    return folder


def test_epochs_with_fractions(tmp_path):
    series = found_in(named(tmp_path, "epoch_0.5", "epoch_1", "epoch_1.25"))
    assert (series.axis, series.steps, series.epochs) == ("milliepoch", [500, 1000, 1250], [None, 1, None])
    assert series.notes == ("epochs have fractions here, so they are counted in parts of 1,000: milliepochs",)
    status, found = scan(tmp_path, "--keep-suspicious", out=tmp_path / "out")
    assert (status, found["axis"], found["steps"]) == (0, "milliepoch", [500, 1000, 1250])
    assert found_in(named(tmp_path / "more", "epoch_1.001", "epoch_2")).steps == [1001, 2000]  # 1000 * 1.001 < 1001
    assert moment_in("epoch_3.2024").epoch is None
    assert moment_in("epoch=0.5-step=70").step == 70


@pytest.mark.parametrize(("axis", "names", "steps"), [
    ("tokens", ["tokens_100M", "1.5B_tokens", "tokens=4B"], [100_000_000, 1_500_000_000, 4_000_000_000]),
    ("tokens", ["step9-tokens1B", "step3-tokens2B"], [10**9, 2 * 10**9]),
    ("date", ["2026-05-02", "20260501", "run_2026-05-01T12-30-07"], [1777593600, 1777638607, 1777680000]),
])  # fmt: skip
def test_folders_by_tokens_and_by_date(axis, names, steps, tmp_path):
    folder = named(tmp_path / "run", *names, "final")
    series = found_in(folder, axis=axis)
    assert (series.axis, series.steps) == (axis, steps)
    assert "final" in series.notes[0]
    status, found = scan(folder, "--axis", axis, "--keep-suspicious", "--steps", f"{steps[0]}:", out=tmp_path / "out")
    assert (status, found["axis"], found["steps"]) == (0, axis, steps)
    with Run.open(found["run"]) as run:
        assert (stored_scan(run).axis, stored_scan(run).steps) == (axis, steps)


def test_two_axes_of_one_folder_do_not_share_a_run(tmp_path):
    folder = named(tmp_path / "run", "step9-tokens1B", "step3-tokens2T")
    by_step = scan(folder, "--keep-suspicious", out=tmp_path / "out")[1]
    by_tokens = scan(folder, "--keep-suspicious", "--axis", "tokens", out=tmp_path / "out")[1]
    assert (by_step["steps"], by_tokens["steps"]) == ([3, 9], [10**9, 2 * 10**12])
    assert by_step["run"] != by_tokens["run"]


def test_an_axis_that_the_names_do_not_speak_of(tmp_path):
    folder = named(tmp_path, "step1", "step2")
    for axis, sentence in (("tokens", "no checkpoint that is named by tokens"), ("epoch", "is ordered by step"),
                           ("pages", "axis must be one of step, epoch, tokens, date")):  # fmt: skip
        with pytest.raises(BadInput, match=sentence) as caught:
            found_in(folder, axis=axis)
        assert caught.value.argument == "axis"
    assert found_in(folder, axis="step").steps == [1, 2]
    for elsewhere in ("owner/name", "s3://bucket/run"):
        with pytest.raises(BadInput, match="axis date is for folders on this machine"):
            open_series(elsewhere, downloads=tmp_path, axis="date")


@pytest.mark.parametrize(
    "name", ["2026-13-01", "2026-05-011", "tokens", "12tokens34", "tokens1.5", "1B_tokens-2B_tokens"]
)
def test_names_without_one_mark(name):
    assert mark_in(name, "tokens") is None
    assert mark_in(name, "date") is None
