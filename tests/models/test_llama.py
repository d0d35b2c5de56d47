"""The plain LLaMA: the numbers of transformers', causality, seeds, refusals."""

import pytest
import torch

from joma.models import Llama, LlamaConfig

SMALL = LlamaConfig(vocabulary=41, width=24, mlp=56, heads=3, layers=2, context=16)
THEIRS = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "before_attention": "input_layernorm",
    "before_mlp": "post_attention_layernorm",
    **{name: f"self_attn.{name[0]}_proj" for name in ("query", "key", "value", "out")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


def their_name(name):
    if not name.startswith("blocks."):
        return THEIRS[name]
    _, layer, part, weight = name.split(".")
    return f"model.layers.{layer}.{THEIRS[part]}.{weight}"


def tokens(length=16):
    return torch.randint(SMALL.vocabulary, (3, length), generator=torch.Generator().manual_seed(1))


def test_same_weights_same_logits_as_transformers():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=SMALL.vocabulary,
            hidden_size=SMALL.width,
            intermediate_size=SMALL.mlp,
            num_attention_heads=SMALL.heads,
            num_hidden_layers=SMALL.layers,
            max_position_embeddings=SMALL.context,
            rms_norm_eps=SMALL.eps,
            tie_word_embeddings=False,
        )
    ).double()
    ours = Llama(SMALL, seed=3).double()
    with torch.no_grad():
        for weight in ours.parameters():
            weight += 0.3 * torch.randn_like(weight)  # large weights: an error in a norm or a position would show
    theirs.load_state_dict({their_name(name): weight for name, weight in ours.state_dict().items()}, strict=True)
    expected = theirs(tokens()).logits
    # Their rotary angles are float32, and RMSNorm casts to float32: what is left is that rounding.
    torch.testing.assert_close(ours(tokens()), expected, rtol=2e-5, atol=2e-5)
    assert expected.std() > 0.5


def test_no_token_sees_those_after_it():
    llama, text = Llama(SMALL), tokens()
    later = text.clone()
    later[:, 10:] = 0
    same = (llama(text) - llama(later)).abs().amax((0, 2))
    assert same[:10].max() < 1e-6 < 1e-4 < same[10:].max()


def test_positions_matter():
    llama = Llama(SMALL)
    text = torch.tensor([[1, 2, 3, 4]])
    assert not torch.allclose(llama(text)[:, -1], llama(text[:, [1, 0, 2, 3]])[:, -1], atol=1e-5)


def test_a_seed_decides_the_weights():
    first, again, other = Llama(SMALL, seed=5), Llama(SMALL, seed=4), Llama(SMALL, seed=4)
    again.initialise(5)
    for one, two, three in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert one.ndim == 1 or not torch.equal(one, three)
    assert first.head.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_the_default_has_sixty_million_parameters(monkeypatch):
    monkeypatch.setattr(Llama, "initialise", lambda self, seed: None)  # takes seconds at this size
    with torch.device("meta"):
        assert repr(Llama(LlamaConfig())) == "Llama(58,073,600 parameters, 8 layers)"


def test_words():
    assert repr(Llama(SMALL)).startswith("Llama(14,")
    with pytest.raises(ValueError, match="at most 16 long, the context, got 17"):
        Llama(SMALL)(tokens(17))
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        LlamaConfig(layers=0)
    with pytest.raises(ValueError, match="theta and eps must be positive"):
        LlamaConfig(theta=0.0)
