"""Residual connections on and off."""

import pytest
from small_ablations import must_need
from small_runs import small

from joma.claims.execute import execute
from joma.studies.ablations import residual


def test_what_the_residual_connection_is_needed_for(small_run):
    run = small_run("residual")
    must_need(run, residual.REBOUND, "residual", "no_residual")
    must_need(run, residual.DROP, "residual", "no_residual", part="drop")


def test_a_finished_run_of_another_text_is_not_shown_as_that_of_this_one(data_folder, tmp_path):
    config = small("residual", data=str(tmp_path))
    (tmp_path / "wikitext-2").mkdir()
    for split in ("train", "valid", "test"):
        text = (data_folder / "wikitext-2" / f"{split}.txt").read_text(encoding="utf-8")
        (tmp_path / "wikitext-2" / f"{split}.txt").write_text(text, encoding="utf-8")
    first = execute(residual.STUDY, config, tmp_path / "out", pictures=False)
    assert execute(residual.STUDY, config, tmp_path / "out", pictures=False).findings == first.findings
    with (tmp_path / "wikitext-2" / "train.txt").open("a", encoding="utf-8") as stream:
        stream.write("one line more\n" * 30)
    with pytest.raises(ValueError, match="from another text: wikitext-2 has changed; start anew \\(fresh\\)"):
        execute(residual.STUDY, config, tmp_path / "out", pictures=False)
    (tmp_path / "wikitext-2" / "train.txt").unlink()  # the text is gone, what was found in it is not
    (tmp_path / "wikitext-2").rename(tmp_path / "elsewhere")
    assert execute(residual.STUDY, config, tmp_path / "out", pictures=False).findings == first.findings
