"""What a monitor reads from a probe: numbers of each layer where the model runs, and how many queries it had."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from joma.probes import collect_plain


class Attending(nn.Module):
    """Takes queries and keys as they are; values are the keys."""

    def forward(self, q, k, mask=None):
        return scaled_dot_product_attention(q, k, k, attn_mask=mask, scale=1.0)


class Two(nn.Module):
    """The later module attends first."""

    def __init__(self):
        super().__init__()
        self.one, self.other = Attending(), Attending()

    def forward(self, q, k, mask=None):
        return self.other(2 * q, k, mask) + self.one(q, k, mask)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_each_layer_has_the_largest_of_its_own_logits_over_all_calls():
    model, batches = Two(), [(numbers(2, 3, 5, 4, seed=at), numbers(2, 3, 6, 4, seed=at + 9)) for at in range(3)]
    with collect_plain(model) as probe:
        for q, k in batches:
            model(q, k)
    largest = torch.stack([(q @ k.mT).amax((0, 2, 3)) for q, k in batches]).amax(0)
    found = probe.by_layer("largest_logit")
    assert list(found) == ["one", "other"]
    torch.testing.assert_close(found["one"].double(), largest)
    torch.testing.assert_close(found["other"].double(), 2 * largest)
    entropy = torch.cat([torch.special.entr((q @ k.mT).softmax(-1)).sum(-1) for q, k in batches]).mean((0, 2))
    torch.testing.assert_close(probe.by_layer("entropy")["one"].double(), entropy)


def test_a_head_without_a_query_that_counts_has_no_largest_logit():
    q, mask = numbers(2, 2, 3, 4), torch.ones(2, 2, 3, 3, dtype=torch.bool)
    mask[:, 1] = False
    with collect_plain(model := Attending()) as probe:
        model(q, q, mask)
    (found,) = probe.by_layer("largest_logit").values()
    assert found.isnan().tolist() == [False, True]


def test_the_most_queries_of_one_call_are_known():
    with collect_plain(model := Two()) as probe:
        for queries in (4, 7, 5):
            model(numbers(2, 3, queries, 4), numbers(2, 3, 9, 4))
    assert probe.queries == {"one": 7, "other": 7}
