"""What the tests of all studies share."""

from small_runs import small_run  # noqa: F401
