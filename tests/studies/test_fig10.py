"""Figure 10 on a network small enough for a test, on a folder, and where something is missing."""

import dataclasses

import pytest

from joma.studies.execute import execute
from joma.studies.pattern_superposition import STUDY, Config

pytest.importorskip("transformers")

SMALL = Config(
    characters=120_000, texts=80, length=24, contexts=10, batch=8, steps=6, width=16, layers=1, vocabulary=150
)


def test_it_runs_judges_and_draws(tmp_path):
    pytest.importorskip("matplotlib")
    shares = []
    result = execute(STUDY, SMALL, tmp_path, progress=lambda share, doing: shares.append(share))
    assert shares == sorted(shares)
    assert [f.claim.name for f in result.findings] == ["neurons-hold-unrelated-patterns", "superposition-is-learned"]
    for finding in result.findings:
        assert finding.verdict in ("holds", "not above its control")
        assert "of 64 neurons" in finding.measured
    assert result.pictures[0].name == "unrelated-contexts"
    again = execute(STUDY, SMALL, tmp_path, fresh=True)
    assert [f.as_json() for f in again.findings] == [f.as_json() for f in result.findings]


def test_verdicts_follow_the_recorded_numbers(tmp_path):
    from joma.runs import Run

    path = tmp_path / "run.sqlite"
    with Run.create(path, study="fig10", config={}) as run:
        for network, many in (("trained", 30), ("untrained", 29)):
            run.keep(f"{network}/patterns", lambda n=many: [2] * n + [1] * (100 - n))
            run.keep(f"{network}/z", lambda: [-1.0] * 100)
            run.keep(f"{network}/shuffled_patterns", lambda: [2] * 10 + [0] * 90)
    with Run.open(path) as run:
        assert [f.verdict for f in STUDY.judge(run)] == ["holds", "not above its control"]


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
    config = dataclasses.replace(SMALL, model=str(tmp_path / "model"), text=str(text))
    result = execute(STUDY, config, tmp_path, pictures=False)
    assert "of 48 neurons" in result.findings[0].measured
    short = dataclasses.replace(config, texts=4000)
    with pytest.raises(ValueError, match="tokens do not hold 4000 texts of 24"):
        execute(STUDY, short, tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"model": "/nowhere/at/all"}, "/nowhere/at/all could not be read"), ({"device": "cuda"}, "torch sees no CUDA")],
)
def test_what_is_missing_is_named_with_a_command(tmp_path, change, reason):
    import torch

    if "device" in change and torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    result = execute(STUDY, dataclasses.replace(SMALL, **change), tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert reason in result.findings[0].measured
    assert "joma run fig10" in result.findings[0].measured
