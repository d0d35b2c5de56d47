"""Dropout on and off."""

from small_ablations import must_need, must_show

from joma.studies.ablations import dropout


def test_the_rebound_comes_without_dropout_or_not(small_run):
    must_show(small_run("dropout"), dropout.WITHOUT, "no_dropout")


def test_the_rebound_needs_dropout_or_not(small_run):
    must_need(small_run("dropout"), dropout.BY_DROPOUT, "dropout", "no_dropout")
