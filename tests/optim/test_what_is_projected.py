"""Which parameters are projected and which pass: by rank, size, kind and name;"""

import logging

import pytest
import torch
from torch import nn
from training import network, train

from joma.optim import GaLore, Projected, memory


def test_what_is_no_matrix_or_is_named_passes_as_it_would_alone():
    model, alone = network(), network()
    optimizer = GaLore(model, rank=4, lr=0.01)
    passing = [each.name for each in optimizer.passing]
    assert [matrix.name for matrix in optimizer.matrices] == ["layers.0.weight", "layers.2.weight"]
    assert passing == [
        "embed_tokens.weight", "layers.0.bias", "layers.2.bias", "layers.3.weight", "layers.3.bias", "lm_head.weight",
    ]  # fmt: skip
    for one, maker in ((model, optimizer), (alone, torch.optim.AdamW(alone.parameters(), lr=0.01))):
        train(one, maker, 1)
    for name in passing:
        assert torch.equal(model.get_parameter(name), alone.get_parameter(name)), name


def test_a_matrix_is_projected_if_its_shorter_side_is_above_the_rank():
    sides = {"a": (3, 9), "b": (9, 4), "c": (5, 9), "d": (9, 6)}
    given = [(name, nn.Parameter(torch.zeros(shape))) for name, shape in sides.items()]
    chosen = lambda **options: "".join(matrix.name for matrix in GaLore(given, **options).matrices)
    assert [chosen(rank=3), chosen(rank=4), chosen(rank=2)] == ["bcd", "cd", "abcd"]


def test_names_say_what_is_left_out():
    model = network()
    chosen = {"One.Head.weight": True, "heads.weight": False, "a.HEAD_b": True, "wte.x": True, "only.this": True}
    given = [(name, nn.Parameter(torch.zeros(8, 9))) for name in chosen]
    projected = [matrix.name for matrix in GaLore(given, rank=4, skip=["head", "wte", "only.this"]).matrices]
    assert projected == [name for name, skipped in chosen.items() if not skipped]
    assert len(GaLore(model.named_parameters(), rank=4, skip=["layers"]).matrices) == 2
    assert [m.name for m in GaLore(model, rank=4, skip=()).matrices] == [
        "layers.0.weight", "layers.2.weight", "lm_head.weight",
    ]  # fmt: skip


def test_heads_of_attention_and_embeddings_of_time_are_projected():
    """A word counts at an end of the name of the layer that has the weight, not in its midst and not further out."""
    chosen = {
        "blocks.0.multi_head_attention.in_proj_weight": False,
        "multi_head_attention.q_proj.weight": False,
        "time_embedding.linear_1.weight": False,
        "lm_head.weight": True,
        "model.embed_tokens.weight": True,
        "embeddings.word_embeddings.weight": True,
        "tok_embeddings.weight": True,
        "head.0.weight": True,
        "transformer.wte.weight": True,
        "pos_embed": True,
    }
    given = [(name, nn.Parameter(torch.zeros(8, 9))) for name in chosen]
    projected = [matrix.name for matrix in GaLore(given, rank=4).matrices]
    assert projected == [name for name, skipped in chosen.items() if not skipped]


class Language(nn.Module):
    """As models of transformers are: they give their embedding and their head, whatever the names."""

    def __init__(self, *, has_head=True):
        super().__init__()
        self.table, self.up, self.out = nn.Linear(9, 24), nn.Linear(9, 24), nn.Linear(9, 24)
        self.has_head = has_head

    def get_input_embeddings(self):
        return self.table

    def get_output_embeddings(self):
        if not self.has_head:
            raise NotImplementedError
        return self.out


def test_a_model_that_gives_its_embedding_and_its_head_has_them_left_out():
    assert [matrix.name for matrix in GaLore(Language(), rank=4).matrices] == ["up.weight"]
    assert [matrix.name for matrix in GaLore(Language(has_head=False), rank=4).matrices] == ["up.weight", "out.weight"]


@pytest.mark.parametrize("lr", [float, torch.tensor], ids=["number", "tensor"])
def test_a_matrix_with_a_side_of_at_most_the_rank_keeps_the_scale(lr):
    """Its step is `scale` times the inner optimizer's; without, it would be four times that of its neighbours."""
    draw = lambda shape, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    short, long = nn.Parameter(draw((4, 9), 0)), nn.Parameter(draw((6, 9), 1))
    alone, bias = nn.Parameter(short.detach().clone()), nn.Parameter(draw((5,), 2))
    free = nn.Parameter(bias.detach().clone())
    options = {"weight_decay": 0.5}
    optimizer = GaLore([("short", short), ("long", long), ("bias", bias)], rank=4, lr=lr(0.1), **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    assert [matrix.name for matrix in optimizer.matrices] == ["long"]
    plain = torch.optim.Adam([alone], lr=0.1)
    passing = torch.optim.AdamW([free], lr=0.1, **options)
    for step in range(4):
        for one, shape in ((short, (4, 9)), (long, (6, 9)), (bias, (5,))):
            one.grad = draw(shape, 10 + step)
        alone.grad, free.grad = short.grad.clone(), bias.grad.clone()
        for each in (plain, passing):
            each.param_groups[0]["lr"] = 0.1 * 0.9**step
        before = alone.detach().clone()
        plain.step()
        with torch.no_grad():
            moved = 0.25 * (alone - before)
            alone.copy_(before * (1 - 0.1 * 0.9**step * options["weight_decay"]) + moved)
        passing.step()
        optimizer.step()
        scheduler.step()
        torch.testing.assert_close(short, alone, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(bias, free, rtol=1e-7, atol=1e-9)


def test_what_is_skipped_has_the_whole_rate_and_what_is_too_small_a_share():
    given = [(name, nn.Parameter(torch.zeros(3, 9))) for name in ("lm_head.weight", "small")]
    given.append(("up", nn.Parameter(torch.zeros(5, 9))))
    optimizer = GaLore(given, torch.optim.SGD, rank=4, lr=1.0)
    for _, each in given:
        each.grad = torch.ones_like(each)
    optimizer.step()
    assert float(given[0][1].detach().min()) == -1.0
    assert float(given[1][1].detach().min()) == pytest.approx(-0.25, rel=1e-5)


# ---- experts ---------------------------------------------------------------------------------------------------------


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_local_experts": 4, "num_hidden_layers": 2}
    return MixtralForCausalLM(MixtralConfig(vocab_size=40, num_attention_heads=2, num_key_value_heads=2, **sizes))


def test_experts_of_a_mixtral_are_projected_by_default(recwarn):
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = mixtral()
    log, handler, noted = logging.getLogger("joma.optim"), logging.Handler(), []
    handler.emit = lambda record: noted.append(record.getMessage())
    optimizer = GaLore(model, rank=4, lr=0.01)
    experts = [name for name, each in model.named_parameters() if each.ndim == 3]
    assert len(experts) == 4
    found = [matrix.name for matrix in optimizer.matrices]
    assert [f"{name}[{place}]" for name in experts for place in range(4)] == [name for name in found if "[" in name]
    entries = sum(each.numel() for each in model.parameters())
    whole = {name.split("[")[0] for name in found}
    projected = sum(each.numel() for name, each in model.named_parameters() if name in whole)
    line = f"{projected:,} of {entries:,} parameters are projected ({100 * projected / entries:.1f}%)"
    assert projected > 0.85 * entries
    assert str(memory(model, optimizer)).splitlines()[-1] == line
    log.addHandler(handler)
    level = log.level
    log.setLevel("INFO")
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=torch.arange(40)[None], labels=torch.arange(40)[None]).loss.backward()
        optimizer.step()
    log.removeHandler(handler)
    log.setLevel(level)
    assert noted == [f"GaLore: {line}"]
    assert not [one for one in recwarn if "three axes" in str(one.message)]


@pytest.mark.parametrize(
    "options", [{"on_move": "reset"}, {"per_layer": "project"}, {"inner": torch.optim.Adafactor}, {"inner": None}]
)
def test_three_axes_that_pass_are_named_once(options):
    name = "experts.up"
    if "inner" in options and options["inner"] is None:
        name, options = "stacked.up", {}
    given = [(name, nn.Parameter(torch.zeros(3, 8, 9))), ("plain", nn.Parameter(torch.zeros(9, 12)))]
    words = rf"^1 weight with three axes, {name} first, 67% of all parameters, .*Projected\(experts=True\)"
    with pytest.warns(UserWarning, match=words) as noted:
        optimizer = GaLore(given, rank=4, **options)
    assert len(noted) == 1
    assert [matrix.name for matrix in optimizer.matrices] == ["plain"]
    with pytest.warns(UserWarning, match="1 weight with three axes, late first"):
        optimizer.add_param_group({"params": [("late", nn.Parameter(torch.zeros(3, 8, 9)))]})


def test_nobody_is_warned_of_what_was_chosen_or_is_no_expert(recwarn):
    stack = nn.Parameter(torch.zeros(3, 8, 9))
    plain = ("plain", nn.Parameter(torch.zeros(9, 12)))
    GaLore([("experts", stack), plain], rank=4, projected=Projected(experts=False))
    GaLore([("stack", stack), plain], rank=4, projected=Projected(experts=True))
    GaLore([("stack", stack), plain], rank=4, skip=["stack"])
    GaLore([("kernel", nn.Parameter(torch.zeros(16, 8, 3))), plain], rank=4)
    GaLore(nn.Sequential(nn.Conv1d(16, 16, 9), nn.Linear(9, 12)), rank=4)
    assert not [one for one in recwarn if "three axes" in str(one.message)]
    assert len(GaLore([("mlp.experts.up", stack)], rank=4).matrices) == 3
    assert len(GaLore([("moe.shared_experts.up", stack)], rank=4).matrices) == 3
