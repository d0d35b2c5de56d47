"""A monitor inside Lightning's Trainer: the same weights as without, the same steps, and it resumes."""

import warnings

import numpy as np
import pytest
import torch
from networks import PROBE, TEXT, same
from torch.utils.data import DataLoader

from joma.host.errors import JomaError
from joma.monitor import LargestLogit
from joma.runs import Run

ROWS = TEXT.flatten(0, 1)


def trained(folder, *callbacks, resume=None, module=None, **more):
    """Lightning is loaded here and not above: it takes seven seconds, which every worker would spend on collecting."""
    import lightning.pytorch as lightning

    torch.manual_seed(7)
    module = network() if module is None else module
    options = {
        "max_steps": 4, "accumulate_grad_batches": 2, "num_sanity_val_steps": 2, "val_check_interval": 4,
        "check_val_every_n_epoch": None,
    }  # fmt: skip
    quiet = {
        "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "barebones": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Lightning's own parts
        trainer = lightning.Trainer(default_root_dir=folder, callbacks=list(callbacks), **quiet | options | more)
        loaders = DataLoader(ROWS, batch_size=4), DataLoader(ROWS[:8], batch_size=4)
        trainer.fit(module, *loaders, ckpt_path=resume, weights_only=True)
    weights = {name: each.clone() for name, each in module.state_dict().items()}
    return weights | {"random": torch.rand(4)}, trainer


def network(**options):
    from lightning_parts import Network

    return Network(**options)


def callback(**options):
    from joma.monitor.callbacks.lightning import MonitorCallback

    return MonitorCallback(**{"probe": PROBE, "every": 2} | options)


def test_the_trainer_ends_with_the_same_weights_and_counts_steps_of_the_optimizer(tmp_path):
    from lightning_parts import Checked

    plain, _ = trained(tmp_path)
    watch = callback(out=tmp_path / "run.joma")
    checked = Checked(watch)
    watched, trainer = trained(tmp_path, watch, checked)
    assert trainer.global_step == 4
    assert same(plain, watched)
    assert checked.seen == [None, 2, 4]  # the sanity check comes before training, and validation changes no count
    assert watch.monitor is None
    with Run.open(tmp_path / "run.joma") as run:
        assert run.steps("entropy").tolist() == [0, 2, 4]
        assert run.dims("entropy")["layer"] == ("net.h.0.attn", "net.h.1.attn")
        of_batches = np.array(checked.losses).reshape(2, 4).mean(1)  # two steps of two batches each
        np.testing.assert_allclose(run.array("loss"), of_batches, rtol=1e-6)


def test_a_training_that_resumes_goes_on_in_the_record(tmp_path, log):
    out, at_3 = tmp_path / "run.joma", tmp_path / "at_3.ckpt"
    _, first = trained(tmp_path, callback(out=out), max_steps=3)
    first.save_checkpoint(at_3)
    kept = torch.load(at_3, weights_only=True)["callbacks"]["MonitorCallback"]
    assert kept["out"] == str(out)
    watched, _ = trained(tmp_path, callback(out=out), max_steps=7, resume=at_3)
    plain, _ = trained(tmp_path, max_steps=7, resume=at_3)
    assert same(plain, watched)
    with Run.open(out) as run:
        assert run.steps("entropy").tolist() == [0, 2, 4, 6]
    assert log == []
    trained(tmp_path, callback(out=tmp_path / "other.joma"), max_steps=5, resume=at_3)
    assert log == [f"step 3: the checkpoint was recorded in {out}, and training continues in {tmp_path / 'other.joma'}"]
    with Run.open(tmp_path / "other.joma") as run:
        assert run.steps("entropy").tolist() == [3, 4]
    with pytest.raises(JomaError, match="it has steps up to 7 and this training begins anew"):
        trained(tmp_path, callback(out=out))


def test_a_checkpoint_in_the_midst_of_training_knows_the_step(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    save = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    trained(tmp_path, callback(out=tmp_path / "run.joma"), save, enable_checkpointing=True)
    (path,) = tmp_path.glob("*step=3.ckpt")
    assert torch.load(path, weights_only=True)["callbacks"]["MonitorCallback"]["step"] == 3


def test_an_alarm_stops_the_trainer_in_its_own_way(tmp_path, log):
    watch = callback(alarms=[LargestLogit()], on_alarm="stop", every=1)
    _, trainer = trained(tmp_path, watch, module=network(spoil_at=3), max_steps=10)
    assert trainer.global_step == 2  # batches 2 and 3 make the second step
    assert log[0].startswith("training stops: step 2: largest_logit of net.h.1.attn, head ")
    assert watch.monitor is None


def test_an_error_of_the_users_own_is_the_one_that_is_seen_and_the_record_says_it(tmp_path):
    watch = callback(out=tmp_path / "run.joma")
    with pytest.raises(RuntimeError, match="something of the user's own"):
        trained(tmp_path, watch, module=network(fail_at=5))
    assert watch.monitor is None
    with Run.open(tmp_path / "run.joma") as run:
        assert run.steps("entropy").tolist() == [0, 2]
        assert "something of the user's own" in run.reason


def test_a_part_can_be_what_reads_the_batch(tmp_path):
    watch = callback(part="net", out=tmp_path / "run.joma")
    trained(tmp_path, watch)
    with Run.open(tmp_path / "run.joma") as run:
        assert run.dims("entropy")["layer"] == ("h.0.attn", "h.1.attn")
    with pytest.raises(JomaError, match="part must be a submodule of Network, which has net; got 'nett'"):
        trained(tmp_path, callback(part="nett"))


def test_qk_clip_acts_after_every_step(tmp_path):
    plain, _ = trained(tmp_path)
    idle, _ = trained(tmp_path, callback(part="net", qk_clip=1e6))
    clipped, _ = trained(tmp_path, callback(part="net", qk_clip={"threshold": 1e-6}))
    assert same(plain, idle)
    name = "net.h.0.attn.qkv.weight"
    assert clipped[name][:16].abs().mean() < plain[name][:16].abs().mean() / 10
    assert clipped[name][16:].abs().mean() > plain[name][16:].abs().mean() / 2
