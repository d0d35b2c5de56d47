"""A monitor inside transformers' Trainer: the same weights as without, the same steps, and it resumes."""

import warnings

import pytest
import torch
from networks import PROBE, TEXT, gpt2, made, same

from joma.host.errors import JomaError
from joma.monitor import LargestLogit, graphs
from joma.runs import Run

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
ROWS = [{"input_ids": row, "labels": row} for row in TEXT.flatten(0, 1)]


def trained(folder, *callbacks, resume=False, **more):
    said = transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "logging_strategy": "no",
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "max_steps": 4,
        }
        | more,
    )
    model = made(gpt2)
    trainer = transformers.Trainer(model, said, train_dataset=ROWS, callbacks=list(callbacks))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the Trainer's own parts
        trainer.train(resume_from_checkpoint=resume)
    return {name: each.clone() for name, each in model.state_dict().items()}, trainer


def callback(**options):
    from joma.monitor.callbacks.transformers import MonitorCallback

    return MonitorCallback(**{"probe": {"input_ids": PROBE}, "every": 2} | options)


def test_the_trainer_ends_with_the_same_weights_and_counts_steps_of_the_optimizer(tmp_path):
    plain, _ = trained(tmp_path)
    watched, _ = trained(tmp_path, callback(out=tmp_path / "run.joma"))
    assert same(plain, watched)
    with Run.open(tmp_path / "run.joma") as run:
        assert run.steps("entropy").tolist() == [0, 2, 4]
        assert run.dims("entropy")["layer"] == ("transformer.h.0.attn", "transformer.h.1.attn")


@pytest.mark.parametrize("options", [{"probe": "step"}, {"probe": None, "inside": True}], ids=["step", "inside"])
def test_batches_of_the_trainer_are_measured_and_training_is_the_same(options, tmp_path):
    how = {"max_steps": 6, "learning_rate": 1e-2}
    plain, _ = trained(tmp_path, **how)
    measures = ["entropy", "gradient_stable_rank"]
    watched, _ = trained(tmp_path, callback(every=1, out=tmp_path / "run.joma", measures=measures, **options), **how)
    assert same(plain, watched)
    with Run.open(tmp_path / "run.joma") as run:
        assert run.steps("entropy").tolist() == ([1, 3, 5] if "inside" in options else [1, 2, 3, 4, 5, 6])
        assert run.steps("gradient_stable_rank").tolist() == [1, 2, 3, 4, 5, 6]


def test_the_record_has_the_loss_that_the_trainer_logs(tmp_path):
    logging = {"logging_strategy": "steps", "logging_steps": 3, "max_steps": 7}
    _, trainer = trained(tmp_path, callback(out=tmp_path / "run.joma", measures=["norm"]), **logging)
    said = {each["step"]: each["loss"] for each in trainer.state.log_history if "loss" in each}
    with Run.open(tmp_path / "run.joma") as run:
        assert dict(zip(run.steps("loss").tolist(), run.array("loss").tolist(), strict=True)) == said
    assert list(said) == [3, 6]


def test_a_trainer_that_resumes_goes_on_in_the_record(tmp_path):
    out = tmp_path / "run.joma"
    saving = {"save_strategy": "steps", "save_steps": 3}
    trained(tmp_path, callback(out=out), **saving)
    trained(tmp_path, callback(out=out), resume=str(tmp_path / "checkpoint-3"), max_steps=6, **saving)
    with Run.open(out) as run:
        assert run.steps("entropy").tolist() == [0, 2, 4, 6]
    with pytest.raises(JomaError, match="it has steps up to 6 and this training begins anew"):
        trained(tmp_path, callback(out=out))


def test_an_alarm_stops_the_trainer_in_its_own_way(tmp_path, log):
    class Spoil(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **given):
            if state.global_step == 1:
                with torch.no_grad():
                    model.transformer.h[0].attn.c_attn.weight.mul_(1e4)

    watch = callback(alarms=[LargestLogit()], on_alarm="stop", every=1)
    _, trainer = trained(tmp_path, Spoil(), watch)
    assert trainer.state.global_step == 2
    assert log[0].startswith("training stops: step 2: largest_logit of transformer.h.0.attn, head ")
    assert watch.monitor is None


def test_an_alarm_in_numbers_that_come_after_the_last_step_does_not_break_the_trainer(tmp_path, log, monkeypatch):
    class Late:
        def query(self):
            return False

        def synchronize(self):
            pass

    monkeypatch.setattr(graphs, "_sent", lambda flat: (flat, Late()))
    _, trainer = trained(tmp_path, callback(alarms=[LargestLogit(1e-9)], on_alarm="stop"))
    assert trainer.state.global_step == 4
    assert log[0].startswith("found after the last step: step 0: largest_logit of transformer.h.0.attn, head 0, is ")


def test_what_the_trainer_knows_is_not_given():
    with pytest.raises(JomaError, match="takes model from the Trainer"):
        callback(model=made(gpt2))


def test_qk_clip_acts_in_the_trainer_after_every_step(tmp_path):
    """Below the threshold nothing changes; above it no head ends with more than what the last step can add."""
    from joma.optim import QKClip

    how = {"max_steps": 3, "learning_rate": 0.1, "gradient_accumulation_steps": 1}
    plain, trainer = trained(tmp_path, **how)
    idle = callback(probe=None, inside=True, every=1, qk_clip=1e6)
    untouched, _ = trained(tmp_path, idle, **how)
    assert same(plain, untouched)
    assert idle.clip is None
    assert trainer.model.config._attn_implementation == "sdpa"
    clipped, after = trained(tmp_path, callback(probe=None, inside=True, every=1, qk_clip=0.05), **how)
    assert not same(plain, clipped)
    most = [QKClip(each.model, 0.05, probe={"input_ids": PROBE}) for each in (trainer, after)]
    for each in most:
        each.step()
    before, now = (max(float(row.max()) for row in each.largest.values()) for each in most)
    assert now < before / 2
