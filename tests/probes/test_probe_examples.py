"""The training loop of docs/probes.md, run as it stands."""

import re
from pathlib import Path

from joma.runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "probes.md"


def test_a_training_loop_records_the_entropy_of_each_measured_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Run.create" in block)
    exec(block, names := {})
    with Run.open("training.sqlite") as run:
        assert run.status == "finished"
        assert run.steps("entropy").tolist() == run.steps("stable_rank").tolist() == list(range(0, 201, 10))
        entropy, rank = run.array("entropy"), run.array("stable_rank")
    assert entropy.shape == (21, 2, 2)
    assert rank.shape == (21, 2)
    assert entropy[-1].mean() < 0.7 * entropy.mean() < 0.7 * entropy[0].mean()  # the step's own, not the mean so far
    assert names["probe"].calls == 2  # one a layer
