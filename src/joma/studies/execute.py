"""Carrying a study out: now `joma.claims.execute`. The name stays for code written for version 0.1."""

from joma.claims.execute import *  # noqa: F403
from joma.studies.stored import stored_result, stored_runs  # noqa: F401
