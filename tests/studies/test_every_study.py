"""What is asked of every study, of its small run: findings survive JSON, figures have labels and an alternative text, a
run that was stopped ends with the same numbers, and a config refuses what the bounds of its fields do not allow.

To see what a changed bound says, and to keep it: `JOMA_PIN=keep pytest tests/studies/test_every_study.py -k bounds`.
"""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
from every_study import draws_labelled_figures, ends_the_same_after_an_interrupt, findings_survive_json
from records import verdicts

from joma.claims.config import Above, Least, OneOf, Values, Within, _bounds
from joma.claims.contract import silent
from joma.studies import load, names

pytestmark = pytest.mark.usefixtures("no_other_text")
BOUNDS = Path(__file__).with_name("bounds.json")
VERDICTS = json.loads(Path(__file__).with_name("small_verdicts.json").read_text(encoding="utf-8"))
"""Of small runs that come to the same verdicts on every machine: of theorems and lemmas."""


CHECKPOINTS = ("fig7", "fig10")  # They train and scan whole series: their own tests ask all this of one that they share


@pytest.mark.parametrize("name", [name for name in names() if name not in CHECKPOINTS])
def test_findings_survive_json(name, small_run):
    findings_survive_json(load(name), small_run(name))


@pytest.mark.parametrize("name", VERDICTS)
def test_a_small_run_comes_to_the_verdicts_that_are_kept(name, small_run):
    assert verdicts(load(name), small_run(name)) == VERDICTS[name]


OWN = (*CHECKPOINTS, "kv-cache", "layer-lottery", "rebound-cause", "rebound-onset")
"""Their small runs learn nothing that could be drawn: their own tests ask this of a record that is made up."""
MAPS = ("dropout", "embeddings", "inductive-bias", "mlp-rank", "nonlinearity", "norm", "optimizer", "python-hierarchy",
        "residual", "table1", "text-order")  # fmt: skip
"""Some panels of theirs are maps or tables, whose rows and columns say what they are."""


@pytest.mark.parametrize("name", [name for name in names() if name not in OWN])
def test_figures_are_labelled_and_described(name, small_run):
    draws_labelled_figures(load(name), small_run(name), axes=name not in MAPS)


ALIKE = ("dropout", "embeddings", "mlp-rank", "norm", "optimizer", "residual")
"""What carries out nonlinearity carries out these: they are stopped in the same way."""


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in names() if name not in (*CHECKPOINTS, *ALIKE)])
def test_a_run_that_was_stopped_ends_with_the_same_numbers(name, small_run, tmp_path):
    ends_the_same_after_an_interrupt(load(name), small_run.config(name), small_run(name), tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in names() if name not in CHECKPOINTS])
def test_a_finished_run_is_not_carried_out_again(name, small_run):
    load(name).run(small_run.config(name), small_run(name), silent)


def not_allowed(bound, value):
    """Values as near to the bound as possible, and outside; of a tuple, its first entry is."""
    several = isinstance(value, tuple)
    first = value[0] if several else value
    if isinstance(bound, Values):
        few = [value[: bound.count - 1]] if bound.count > 1 and len(value) >= bound.count else []
        return [*few, tuple(reversed(value)) if bound.rising and len(value) > 1 else (first,) * max(2, len(value))]
    step = 1 if isinstance(first, int) else 1e-9
    match bound:
        case OneOf():
            outside = ["none of them"]
        case Least(low):
            outside = [low - step]
        case Above(low):
            outside = [type(first)(low)]
        case Within(low, high, open=open_ends):
            outside = [type(first)(low), type(first)(high)] if open_ends else [low - step, high + step]
    return [(one, *value[1:]) if several else one for one in outside]


def refused(config, name, value):
    with pytest.raises(ValueError) as refusal:
        dataclasses.replace(config, **{name: value})
    return str(refusal.value)


@pytest.mark.parametrize("name", names())
def test_a_config_refuses_what_the_bounds_of_its_fields_do_not_allow(name):
    kept, config = json.loads(BOUNDS.read_text(encoding="utf-8")), load(name).quick
    sentences = [
        refused(config, field, value)
        for field, bounds in _bounds(type(config)).items()
        for bound in bounds
        for value in not_allowed(bound, getattr(config, field))
    ]
    if os.environ.get("JOMA_PIN") == "keep":
        kept[name] = sentences
        BOUNDS.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    assert sentences == kept.get(name, [])


@pytest.mark.parametrize("name", names())
def test_a_config_refuses_what_no_study_can_mean(name):
    config = load(name).quick
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int) and not isinstance(value, bool):
            assert re.match(rf"{field.name} must be (at least|from|above) ", refused(config, field.name, -1))
        if field.name == "device":
            assert "abacus" in refused(config, "device", "abacus")
