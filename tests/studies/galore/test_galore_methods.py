"""The methods of `galore-table` by themselves: their networks, their optimizers, their rates."""

import numpy as np
import pytest
import torch

from joma.claims.execute import plain_config
from joma.studies.galore.galore_table import networks as names
from joma.studies.galore.galore_table.networks import (
    Adapted,
    Factored,
    merge_and_restart,
    network_of,
    optimizers_of,
    rate_share,
    restarts_at,
    rewarmed,
    set_rates,
    start,
    trained,
)
from joma.studies.galore.galore_table.study import operations_per_token

TINY = names.GaloreTableConfig(vocabulary=64, width=16, mlp=24, heads=2, context=16, at_once=2, rank=4)


def test_unscaled_galore_has_one_rate_for_all_weights():
    network = network_of("plain", TINY)
    scales = {}
    for method in (names.GALORE, names.UNSCALED):
        (optimizer,) = optimizers_of(method, network, TINY, 0.01, 0)
        scales[method] = {group["scale"] for group in optimizer.param_groups if "scale" in group}
    assert scales == {names.GALORE: {0.25}, names.UNSCALED: {1.0}}


def test_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    network, tokens = network_of("plain", TINY), torch.zeros(2, TINY.context, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(tokens).sum().backward()
    attention = 6 * TINY.layers * TINY.context * TINY.width  # half of each square product is masked
    products = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    assert products / tokens.numel() == operations_per_token(plain_config(TINY)) - attention


def test_the_rate_warms_up_and_falls_to_a_tenth():
    shares = [rate_share(step, 100) for step in range(100)]
    assert max(shares) == shares[9] == 1
    assert shares[-1] == pytest.approx(0.1)
    assert np.diff(shares[9:]).max() < 0
    again = [rewarmed(step, 100, 4) for step in range(100)]
    assert restarts_at(100, 4) == {25, 50, 75}
    assert again[25] == shares[25] / 2
    assert again[:25] == shares[:25]
    assert again[40] == shares[40]


def test_blocks_of_the_scaled_kind_have_a_smaller_rate():
    network = network_of("plain", TINY)
    (optimizer,) = optimizers_of(names.SCALED, network, TINY, 0.01, 0)
    set_rates([optimizer], 0.02)
    blocks, others = optimizer.param_groups
    assert (blocks["lr"], others["lr"]) == (0.02 * TINY.share, 0.02)
    assert len(blocks["params"]) == 7 * TINY.layers
    assert sum(len(group["params"]) for group in (blocks, others)) == len(trained(network))


def test_factors_have_the_spread_of_the_matrix_and_adapters_begin_at_nothing():
    plain = torch.nn.Linear(300, 200, bias=False)
    source = torch.Generator().manual_seed(0)
    factored, adapted = Factored(plain, 50), Adapted(plain, 50, 25.0)
    factored.restart(source)
    adapted.restart(source)
    assert (factored.up @ factored.down).std().item() == pytest.approx(0.02, rel=0.1)
    x = torch.randn(4, 300)
    torch.testing.assert_close(adapted(x), plain(x))
    adapted.up.data.normal_()
    torch.testing.assert_close(adapted(x), x @ (plain.weight + 0.5 * adapted.up @ adapted.down).T, rtol=1e-4, atol=1e-4)


def test_a_restart_keeps_the_function_and_begins_new_factors():
    network = network_of("adapted", TINY)
    start(network, 3)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("up"):
                weight.normal_()
    tokens = torch.zeros(1, 5, dtype=torch.long)
    before, factor = network(tokens).detach(), network.blocks[0].query.down.clone()
    merge_and_restart(network, torch.Generator().manual_seed(1))
    torch.testing.assert_close(network(tokens), before, rtol=1e-4, atol=1e-4)
    assert not network.blocks[0].query.up.any()
    assert not torch.equal(factor, network.blocks[0].query.down)


def test_only_factors_and_the_rest_are_trained():
    trained_names = {name for name, weight in network_of("adapted", TINY).named_parameters() if weight.requires_grad}
    assert "blocks.0.query.down" in trained_names
    assert "embedding.weight" in trained_names
    assert "blocks.0.query.weight" not in trained_names
