"""What tests of formats share: tensors to write, and what a checkpoint must then hold or say."""

import warnings

import pytest
import torch

from joma.scan.errors import CheckpointError


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors_of(place):
    with place.open() as checkpoint:
        found = {name: checkpoint.read(name) for name in checkpoint.names()}
        for name, value in found.items():
            stored = checkpoint.stored(name)
            assert (stored.shape, stored.dtype) == (tuple(value.shape), value.dtype)
        return found


def must_hold(place, expected):
    found = tensors_of(place)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def refusal(call):
    with pytest.raises(CheckpointError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def notes_of(place):
    with place.open() as checkpoint:
        return checkpoint.notes()


def dcp_saved(folder, state):
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder
