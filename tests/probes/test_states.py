"""What Mamba mixers keep of a text, against how the state of transformers' own layers shrinks when it is pushed."""

import copy

import pytest
import torch

from joma.probes import ProbeError, collect, state_decay

transformers = pytest.importorskip("transformers")

TOKENS = 11
PLAIN = {"vocab_size": TOKENS, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "hidden_size": 16}
FIRST = PLAIN | {"num_hidden_layers": 2, "state_size": 4, "time_step_rank": 2}
SECOND = PLAIN | {"num_hidden_layers": 2, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1}
HEADS = PLAIN | {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL = {"mamba_n_heads": 2, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_expand": 2}
MODELS = {
    "Mamba": FIRST,
    "FalconMamba": FIRST,
    "Jamba": HEADS | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 2,
                      "num_experts": 1, "num_experts_per_tok": 1, "use_mamba_kernels": False},
    "Mamba2": SECOND,
    "FalconH1": HEADS | SMALL | {"mamba_d_ssm": 32, "ssm_multipliers": [0.5, 1.5, 0.7, 1.2, 0.25]},
    "Bamba": HEADS | SMALL | {"attn_layer_indices": [1]},
    "GraniteMoeHybrid": HEADS | SMALL | {"layer_types": ["mamba", "attention"], "num_local_experts": 0},
    "Zamba2": HEADS | {"mamba_d_state": 4, "n_mamba_heads": 2, "mamba_headdim": 16, "mamba_expand": 2,
                       "num_mem_blocks": 1, "layers_block_type": ["mamba", "hybrid"], "num_key_value_heads": 2},
    "NemotronH": HEADS | {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 2, "mamba_head_dim": 16,
                          "n_groups": 1, "ssm_state_size": 4},
}  # fmt: skip


def build(kind, **options):
    """In float64, with steps that differ from token to token."""
    config = getattr(transformers, f"{kind}Config")(**MODELS[kind] | options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(config).eval().double()
    with torch.no_grad():
        for mixer in mixers(model).values():
            mixer.A_log.normal_()
            for part in ("x_proj", "in_proj"):
                if hasattr(mixer, part):
                    getattr(mixer, part).weight.normal_(std=0.4)
            steps = mixer.dt_proj.bias if hasattr(mixer, "dt_proj") else mixer.dt_bias
            steps.normal_(mean=-1.0)
    return model


def mixers(model):
    return {name: module for name, module in model.named_modules() if hasattr(module, "A_log")}


def read_by(model, ids):
    """What every mixer is given."""
    seen, hooks = {}, []
    for name, mixer in mixers(model).items():

        def keep(module, given, options, name=name):
            seen[name] = given[0] if given else options["hidden_states"]

        hooks.append(mixer.register_forward_pre_hook(keep, with_kwargs=True))
    with torch.no_grad():
        model(input_ids=ids)
    for hook in hooks:
        hook.remove()
    return seen


def state(cache, at, kind="recurrent"):
    kept = getattr(cache.layers[at], f"{kind}_states")
    return kept[0] if isinstance(kept, dict) else kept


def shrinking(model, mixer, given):
    """(batch, tokens, channels, states): how much of 1, added to every state before a token, is left after it."""
    cache = transformers.DynamicCache(config=model.config)
    at, left = mixer.layer_idx, []
    with torch.no_grad():
        mixer(given[:, :1], cache_params=cache)  # makes the states
        state(cache, at).zero_()
        state(cache, at, "conv").zero_()
        for step in range(given.shape[1]):
            pushed = copy.deepcopy(cache)
            state(pushed, at).add_(1)
            for each in (cache, pushed):
                mixer(given[:, step : step + 1], cache_params=each)
            left.append(state(pushed, at) - state(cache, at))
    found = torch.stack(left, 1).double()
    return found if found.ndim == 4 else found[:, :, :, 0]  # all of a head shrinks alike


def means(factors):
    length = torch.zeros_like(factors)
    for now in range(factors.shape[1]):
        for before in range(now + 1):
            length[:, now] += factors[:, before + 1 : now + 1].prod(1)
    return factors.mean((0, 1, 3)), length.mean((0, 1, 3))


@pytest.mark.parametrize("kind", MODELS)
def test_decay_and_length_are_those_of_the_layers_themselves(kind):
    model, ids = build(kind), torch.randint(TOKENS, (3, 7), generator=torch.Generator().manual_seed(1))
    found = state_decay(model, ids.flatten(), context=7, batch=2)
    assert found.layers == list(mixers(model))
    for row, (name, given) in enumerate(read_by(model, ids).items()):
        decay, length = means(shrinking(model, model.get_submodule(name), given))
        torch.testing.assert_close(found.decay[row], decay, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.length[row], length, rtol=1e-4, atol=1e-5)
        assert decay.std() > 0.005


@pytest.mark.parametrize("limits", [(0.0, 0.1), (0.6, 2.0)])
def test_steps_are_held_between_their_limits(limits):
    """Two tokens that are alike, read at once: both shrink the state by one factor, the root of what is left."""
    model = build("Mamba2", num_hidden_layers=1, time_step_limit=limits)
    mixer, ids = model.layers[0].mixer, torch.tensor([3, 3])
    given, cache = read_by(model, ids[None])["layers.0.mixer"], transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        mixer(given[:, :1], cache_params=cache)
        pushed = copy.deepcopy(cache)
        state(pushed, 0).add_(1)
        for each in (cache, pushed):
            mixer(given, cache_params=each)
    left = state(pushed, 0) - state(cache, 0)
    torch.testing.assert_close(state_decay(model, ids).decay[0], left[0, :, 0, 0].double().sqrt(), rtol=1e-4, atol=1e-5)


def test_nothing_is_left_on_the_model_and_what_has_no_state_is_refused_by_name():
    model = build("Mamba").train()
    state_decay(model, torch.arange(8) % TOKENS)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    with (
        pytest.raises(
            ProbeError, match=r"no attention call that can be seen: its mixers have no softmax to read; joma\."
        ),
        collect(model),
    ):
        model(torch.arange(8)[None] % TOKENS)
    with pytest.raises(ProbeError, match="GPT2Model has no state space that is known: BambaMixer, FalconH1"):
        state_decay(transformers.GPT2Model(transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1)), [1, 2])


def test_layers_with_fewer_channels_end_in_nan(monkeypatch):
    model = build("Mamba")
    model.layers[1].mixer = build("Mamba", hidden_size=16, expand=1).layers[1].mixer
    decay = state_decay(model, torch.arange(8) % TOKENS).decay
    assert decay.shape == (2, 32)
    assert decay.isnan().sum(1).tolist() == [0, 16]
