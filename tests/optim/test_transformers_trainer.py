"""GaLore inside transformers' own Trainer: trains, saves, resumes; 8-bit inner optimizers where installed."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from joma.optim import GaLore
from joma.optim.transformers_trainer import FromModel, galore_for

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

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
    size = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 6, "learning_rate": 0.02}
    return transformers.TrainingArguments(output_dir=str(folder), weight_decay=0.1, **{**plain, **size, **more})


def trained(network: nn.Module, said, resume: bool = False, **how):
    trainer = transformers.Trainer(network, said, train_dataset=TEXT, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the Trainer's own parts
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def galore_of(trainer) -> GaLore:
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def by_hand(steps: int = 6) -> nn.Module:
    """The same training without the Trainer: its batches, accumulation, clipping and linear schedule."""
    network = model()
    optimizer = FromModel()(network, rank=4, refresh=2, lr=0.02, weight_decay=0.1)
    torch.manual_seed(42)
    order = order_of_trainer()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * (1 - step / steps)
        for place in range(2):
            rows = torch.stack([TEXT[at]["input_ids"] for at in order[step][place]])
            (network(rows, labels=rows).loss / 2).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return network


def order_of_trainer() -> list[list[list[int]]]:
    """Which rows the Trainer reads: taken from its own loader."""
    seen: list[int] = []

    class Watched(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(TEXT)

        def __getitem__(self, at: int):
            seen.append(at)
            return TEXT[at]

    network = model()
    how = {"optimizers": (torch.optim.SGD(network.parameters(), 0.0), None)}
    trainer = transformers.Trainer(network, arguments(Path("unused")), train_dataset=Watched(), **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    return [[seen[8 * step + 4 * half :][:4] for half in range(2)] for step in range(6)]


@pytest.mark.parametrize("way", ["optimizers", "factory"])
def test_the_trainer_trains_as_a_loop_does(tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    network, said = model(), arguments(tmp_path)
    if way == "optimizers":
        how = {"optimizers": (galore_for(network, said, rank=4, refresh=2), None)}
    else:
        chosen = {"rank": 4, "refresh": 2, "lr": 0.02, "weight_decay": 0.1}
        how = {"optimizer_cls_and_kwargs": (FromModel, chosen)}
    trainer = trained(network, said, **how)
    assert isinstance(galore_of(trainer), GaLore)
    assert len(galore_of(trainer).matrices) == 14  # 7 in each of 2 layers; embeddings and head pass
    for mine, theirs in zip(network.parameters(), by_hand().parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_training_resumes_where_it_was(tmp_path):
    whole, said = model(), arguments(tmp_path, save_strategy="steps", save_steps=3)
    trained(whole, said, optimizers=(galore_for(whole, said, rank=4, refresh=2), None))
    assert (tmp_path / "checkpoint-3" / "optimizer.pt").is_file()
    (tmp_path / "checkpoint-6").rename(tmp_path / "done")
    again = model()
    trained(again, said, resume=True, optimizers=(galore_for(again, said, rank=4, refresh=2), None))
    for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


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
    """An 8-bit AdamW and its options; skipped with a reason where the package is not installed."""
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
    make = lambda **more: GaLore(network, inner, rank=64, refresh=3, lr=0.01, **options, **more)
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
    turning = make(on_move="rotate")
    for _ in range(3):
        turning.step()
    with pytest.raises(ValueError, match="cannot turn the quantised state"):
        turning.step()
