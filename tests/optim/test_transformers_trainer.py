"""GaLore inside transformers' own Trainer: trains, saves, resumes; 8-bit inner optimizers where installed."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from joma.optim import FromModel, GaLore, galore_for

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

STEPS = 5
TEXT = [
    {"input_ids": row, "labels": row} for row in torch.randint(60, (48, 12), generator=torch.Generator().manual_seed(0))
]


def model() -> nn.Module:
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(shape)


def arguments(folder: Path, **more):
    plain = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    size = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "learning_rate": 0.02,
    }
    return transformers.TrainingArguments(output_dir=str(folder), weight_decay=0.1, **{**plain, **size, **more})


class Text(torch.utils.data.Dataset):
    """Knows which rows were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(TEXT)

    def __getitem__(self, at: int):
        self.read.append(at)
        return TEXT[at]


def trained(network: nn.Module, said, resume: bool = False, **how):
    trainer = transformers.Trainer(network, said, train_dataset=Text(), **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the Trainer's own parts
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def galore_of(trainer) -> GaLore:
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def by_hand(read: list[int]) -> nn.Module:
    """The same training without the Trainer: accumulation, clipping, linear schedule; biases and norms not decayed."""
    network = model()
    named = [*network.named_parameters()]
    groups = [
        {"params": [(name, each) for name, each in named if each.ndim == 2], "weight_decay": 0.1},
        {"params": [(name, each) for name, each in named if each.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = GaLore(groups, rank=4, refresh=2, lr=0.02)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * (1 - step / STEPS)
        for half in (read[8 * step : 8 * step + 4], read[8 * step + 4 : 8 * step + 8]):
            rows = torch.stack([TEXT[at]["input_ids"] for at in half])
            (network(rows, labels=rows).loss / 2).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return network


@pytest.mark.long
def test_the_trainer_trains_as_a_loop_does_and_resumes_in_the_other_way(tmp_path):
    """One training serves both ways of making GaLore: the second goes on from what the first one saved."""
    whole, said = model(), arguments(tmp_path, save_strategy="steps", save_steps=3)
    first = trained(whole, said, optimizers=(galore_for(whole, said, rank=4, refresh=2), None))
    read = first.train_dataset.read
    assert sorted(set(read)) != read  # in an order of its own
    for mine, theirs in zip(whole.parameters(), by_hand(read).parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert (tmp_path / "checkpoint-3" / "optimizer.pt").is_file()
    (tmp_path / f"checkpoint-{STEPS}").rename(tmp_path / "done")
    again, chosen = model(), {"rank": 4, "refresh": 2, "lr": 0.02, "weight_decay": 0.1}
    second = trained(again, said, resume=True, optimizer_cls_and_kwargs=(FromModel, chosen))
    for trainer in (first, second):
        assert isinstance(galore_of(trainer), GaLore)
        assert len(galore_of(trainer).matrices) == 14  # 7 in each of 2 layers; embeddings and head pass
        assert {matrix.count for matrix in galore_of(trainer).matrices} == {STEPS}
    for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_trainer_makes_it_with_the_options_it_is_given(tmp_path):
    """Before anything is loaded: a state would bring the options it was saved with."""
    chosen = {"rank": 4, "refresh": 2, "lr": 0.02, "weight_decay": 0.1, "scale": 0.5}
    trainer = transformers.Trainer(model(), arguments(tmp_path), optimizer_cls_and_kwargs=(FromModel, chosen))
    decayed, others = trainer.create_optimizer().param_groups
    assert {key: decayed[key] for key in chosen} == chosen
    assert {key: others[key] for key in chosen} == chosen | {"weight_decay": 0.0}
    assert {each.ndim for each in decayed["params"]} == {2}
    assert {each.ndim for each in others["params"]} == {1}


def test_arguments_reach_the_inner_optimizer_as_far_as_it_knows_them(tmp_path):
    said = arguments(tmp_path, adam_beta2=0.95)
    network = model()
    adam = galore_for(network, said, rank=4)
    assert adam.inner.param_groups[0]["betas"] == (0.9, 0.95)
    assert [group["weight_decay"] for group in adam.param_groups] == [0.1, 0.0]
    assert galore_for(network, said, torch.optim.SGD, rank=4, lr=0.5).param_groups[0]["lr"] == 0.5


def test_fsdp_needs_the_factory(tmp_path):
    said = arguments(tmp_path)
    said.fsdp = ["full_shard"]
    with pytest.raises(ValueError, match="give optimizer_cls_and_kwargs"):
        galore_for(model(), said, rank=4)


def eight_bit(kind: str):
    if kind == "torchao":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytest.importorskip("torchao.optim", reason="torchao is not installed").AdamW8bit, {}
    return pytest.importorskip("bitsandbytes").optim.AdamW8bit, {"min_8bit_size": 256}


@pytest.mark.parametrize("kind", ["torchao", "bitsandbytes"])
def test_an_8_bit_inner_optimizer_trains_resumes_and_is_small(kind, tmp_path):
    inner, options = eight_bit(kind)
    torch.compiler.set_stance("force_eager")  # torchao compiles its step; here that would only take time
    try:
        _eight_bit(inner, options, tmp_path)
    finally:
        torch.compiler.set_stance("default")


def _eight_bit(inner, options, tmp_path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.Linear(384, 256))
    x = torch.randn(32, 256)
    loss = lambda: (network(x) - x).square().mean()
    make = lambda **more: GaLore(network, inner, **{"rank": 64, "refresh": 3, "lr": 0.01, **options, **more})
    optimizer, first = make(), loss().item()
    for _ in range(10):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.8 * first
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    again = make()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    before = [each.detach().clone() for each in network.parameters()]
    optimizer.step()
    after = [each.detach().clone() for each in network.parameters()]
    with torch.no_grad():
        for each, old in zip(network.parameters(), before, strict=True):
            each.copy_(old)
    again.step()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), after, strict=True))
    turning = make(on_move="rotate", refresh=1)
    turning.step()
    with pytest.raises(ValueError, match="cannot turn the quantised state"):
        turning.step()
