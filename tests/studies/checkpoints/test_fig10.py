"""Figure 10 on networks small enough for a test, on a folder, and where something is missing."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from every_study import says_what_is_seen
from pins import pin
from records import altered, changed, found, verdicts

from joma.claims.contract import Finding, silent
from joma.claims.execute import execute, plain_config
from joma.runs import Run
from joma.studies.checkpoints import fig10
from joma.studies.checkpoints.fig10 import STUDY, Fig10Config

pytest.importorskip("transformers")

SMALL = Fig10Config(
    characters=120_000,
    texts=80,
    length=24,
    contexts=10,
    batch=8,
    steps=40,
    width=16,
    layers=1,
    vocabulary=150,
    seeds=2,
    seed=2,
)
NOT, OPEN, LITTLE = "not above its control", "undecided", "only qualitative"
HOLDS_PATTERNS, IS_LEARNED = "neurons-hold-unrelated-patterns", "superposition-is-learned"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    shares = []
    found = execute(STUDY, SMALL, tmp_path_factory.mktemp("out"), progress=lambda share, doing: shares.append(share))
    assert shares == sorted(shares)
    with Run.open(found.run) as run:
        pin(STUDY, SMALL, run)
    return found


def test_it_runs_judges_and_draws(result):
    pytest.importorskip("matplotlib")
    assert [f.claim.name for f in result.findings] == [HOLDS_PATTERNS, IS_LEARNED]
    assert result.pictures[0].name == "unrelated-contexts"
    for picture in result.pictures:
        says_what_is_seen(picture)
    share = 100 * np.mean([finding.main.effect for finding in result.findings])
    assert result.pictures[0].caption.startswith(f"{share:.3g} % of the neurons hold two or more unrelated patterns")
    with Run.open(result.run) as run:
        shares = {
            name: [np.mean(run.value(f"{place}{name}") >= 2) for place in ("", "seed 1/")]
            for name in ("trained/patterns", "trained/shuffled_patterns", "untrained/patterns")
        }
    for finding, control in zip(result.findings, ("trained/shuffled_patterns", "untrained/patterns"), strict=True):
        assert finding.main.seeds == 2
        assert finding.main.effect == pytest.approx(np.mean(shares["trained/patterns"]))
        assert finding.main.control_effect == pytest.approx(np.mean(shares[control]))
        assert finding.details["neurons"] == {"of each network": 64}


@pytest.mark.long
def test_each_network_has_its_own_seed(result, tmp_path):
    alone = execute(STUDY, dataclasses.replace(SMALL, seed=3, seeds=1), tmp_path, pictures=False)
    with Run.open(result.run) as run, Run.open(alone.run) as second:
        for name in ("losses", "trained/patterns", "untrained/z", "trained/shuffled_score"):
            np.testing.assert_array_equal(run.value(f"seed 1/{name}"), second.value(name))
        assert not np.array_equal(run.value("losses"), run.value("seed 1/losses"))


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(result, tmp_path):
    class Killed(Exception):
        pass

    def kill(share, doing):
        if share > 0.6:
            raise Killed

    with Run.create(tmp_path / "run.sqlite", study=STUDY.name, config=plain_config(SMALL)) as run:
        with pytest.raises(Killed):
            STUDY.run(SMALL, run, kill)
        assert "trained/z" in run
        STUDY.run(SMALL, run, silent)
        with Run.open(result.run) as whole:
            for name in run.names():
                np.testing.assert_array_equal(run.value(name), whole.value(name), err_msg=name)


class Falling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, **inputs):
        return SimpleNamespace(loss=self.weight * 1)


def test_the_rate_rises_over_twenty_steps_and_falls_to_nothing():
    config, weight, wanted = dataclasses.replace(SMALL, steps=30), 1.0, []
    for step in range(30):
        rate = 3e-3 * min((step + 1) / 20, 1 - step / 30)
        wanted.append(weight)
        weight = weight * (1 - 0.01 * rate) - rate  # decay, and one step
    assert fig10._train(Falling(), torch.arange(100), config, silent) == pytest.approx(wanted, rel=1e-6)


def test_neurons_are_shown_in_the_order_of_their_second_pattern(monkeypatch):
    """Groups of 4 and 2 contexts, of 3 and 3, and one of 6, which is a single pattern and not shown."""
    monkeypatch.setattr(fig10, "SPAN", 3)
    group = torch.tensor([[0, 1, 0, 1, 0, 0], [2, 0, 0, 2, 2, 0], [0] * 6])
    texts, positions = torch.tensor([[0, 1, 0, 1, 0, 1]] * 3), torch.tensor([[0, 1, 2, 3, 1, 2]] * 3)
    found = SimpleNamespace(patterns=torch.tensor([2, 2, 1]), group=group, texts=texts, positions=positions)
    keys, weights = torch.arange(4).expand(2, 4, 4), torch.arange(32.0).reshape(2, 4, 4)
    layer = fig10.Layer(torch.zeros(2, 3), torch.zeros(2, 3), keys, weights)
    shown = fig10._shown([found], [layer], [list("abcd"), list("efgh")])
    assert shown["neuron"].tolist() == [[0, 1], [0, 0]]
    assert shown["group"].tolist() == [[0, 0, 1, 1]] * 2
    # The first two of each group. Neuron 1: contexts 1 and 2, then 0 and 3. Neuron 0: 0 and 2, then 1 and 3.
    assert json.loads(shown["words"].tobytes()) == [
        [["e", "f"], ["a", "b", "c"], ["a"], ["f", "g", "h"]],
        [["a"], ["a", "b", "c"], ["e", "f"], ["f", "g", "h"]],
    ]
    assert shown["weight"].shape == (2, 4, fig10.SPAN)
    assert shown["weight"][0, 0, -3:].tolist() == [0.0, 20.0, 21.0]  # text 1, query 1, keys 0 and 1


def written(path, trained, untrained, shuffled, *, loss=2.0, vocabulary=150):
    """A record of 100 neurons a network: how many hold two patterns, network by network."""
    config = plain_config(dataclasses.replace(SMALL, seeds=len(trained), vocabulary=vocabulary))
    run = Run.create(path, study=STUDY.name, config=config, version=STUDY.version)
    for number, counts in enumerate(zip(trained, untrained, shuffled, strict=True)):
        place = f"seed {number}/" if number else ""
        names = ("trained/patterns", "untrained/patterns", "trained/shuffled_patterns")
        for name, many in zip(names, counts, strict=True):
            run.keep(place + name, lambda n=many: np.array([2] * n + [1] * (100 - n)))
        run.keep(f"{place}losses", lambda: np.full(30, loss))
        for network in ("trained", "untrained"):
            run.keep(f"{place}{network}/z", lambda: np.full(100, -1.0))
    return run


THREE = ([30, 31, 29], [10, 11, 9], [0, 1, 0])  # Trained, untrained, shuffled: of a record in which both claims hold


@pytest.mark.parametrize(
    ("trained", "untrained", "shuffled", "expected"),
    [
        (*THREE, ["holds", "holds"]),
        # Each control turns its own claim.
        ([30, 31, 29] * 2, [30] * 6, [0, 1, 0] * 2, ["holds", NOT]),
        ([30, 31, 29] * 2, [10, 11, 9] * 2, [30] * 6, [NOT, "holds"]),
        ([30, 31, 29], [40, 41, 39], [0, 1, 0], ["holds", "fails"]),
        ([10, 11, 9], [1, 1, 0], [40, 41, 39], ["fails", "holds"]),
        ([13, 14, 12], [10, 11, 9], [10, 11, 9], [LITTLE, LITTLE]),  # above, by less than what matters
        # As far apart in the mean, but with networks that differ.
        ([60, 15, 15], [10, 11, 9], [0, 1, 0], [OPEN, OPEN]),
        ([30], [10], [0], [OPEN, OPEN]),
        ([30, 31, 29], [97, 98, 99], [97, 98, 99], ["fails", "fails"]),
        ([99, 98, 99], [97, 98, 99], [0, 1, 0], ["holds", OPEN]),  # no room below 100 %
    ],
)
def test_verdicts_follow_the_recorded_numbers(tmp_path, trained, untrained, shuffled, expected):
    with written(tmp_path / "run.sqlite", trained, untrained, shuffled) as run:
        assert list(verdicts(STUDY, run).values()) == expected
        for finding in STUDY.judge(run):
            assert Finding.from_json(json.loads(json.dumps(finding.as_json()))).verdict == finding.verdict


def test_seeds_are_compared_pair_by_pair(tmp_path):
    with written(tmp_path / "run.sqlite", [20, 40, 60], [10, 31, 49], [0, 0, 0]) as run:
        assert verdicts(STUDY, run)[IS_LEARNED] == "holds"


def test_networks_that_did_not_learn_are_left_out_or_nothing_is_judged(tmp_path):
    with written(tmp_path / "a.sqlite", [30, 31, 29, 0], [10, 11, 9, 90], [0, 1, 0, 90]) as run:
        assert list(verdicts(STUDY, run).values()) == [OPEN, OPEN]
        with altered(run, "seed 3/losses", lambda x: x * 0 + 5.0) as copy:  # guessing loses 5.01
            for finding in STUDY.judge(copy):
                assert finding.verdict == "holds"
                assert finding.main.seeds == 3
                assert finding.details["left out because they did not learn"] == {"networks": 1}
        for end in (5.0, np.nan):
            spoilt = changed(run, lambda name, step, x, end=end: x * 0 + end if "losses" in name else x)
            assert set(verdicts(STUDY, spoilt).values()) == {"not run"}
            assert "no network learned" in found(STUDY, spoilt, fig10.UNRELATED).reason


def _lose(folder, ending):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.endswith(ending)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def test_a_model_folder_is_read_beside_its_untrained_twin(tmp_path):
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["self", "return", "import", "def", "(", ")", ":", ".", "=", ",", "[UNK]"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(tmp_path / "model")
    layout = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(layout).save_pretrained(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("def f ( self ) : return self . x = y , import z\n" * 400)
    config = dataclasses.replace(SMALL, model=str(tmp_path / "model"), text=str(text), seeds=1)
    result = execute(STUDY, config, tmp_path, pictures=False)
    assert result.findings[0].details["neurons"] == {"of each network": 48}
    assert {finding.verdict for finding in result.findings} == {OPEN}  # it was trained once
    with pytest.raises(ValueError, match="seeds must be 1 with a model"):
        dataclasses.replace(config, seeds=3)
    short = dataclasses.replace(config, texts=4000)
    with pytest.raises(ValueError, match="tokens do not hold 4000 texts of 24"):
        execute(STUDY, short, tmp_path)
    _lose(tmp_path / "model", "mlp.down_proj.weight")
    lacking = execute(STUDY, config, tmp_path / "again", pictures=False)
    assert {finding.verdict for finding in lacking.findings} == {"not run"}
    assert "lack model.layers.0.mlp.down_proj.weight" in lacking.findings[0].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "/nowhere/at/all", "seeds": 1}, "/nowhere/at/all could not be read"),
        ({"device": "cuda"}, "device cuda needs a CUDA GPU, and torch sees none here"),
    ],
)
def test_what_is_missing_is_named_with_a_command(tmp_path, change, reason):
    if "device" in change and torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    result = execute(STUDY, dataclasses.replace(SMALL, **change), tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert reason in result.findings[0].measured
    assert "joma run fig10" in result.findings[0].measured
