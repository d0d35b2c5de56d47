"""The contract of a study: now `joma.claims.contract`. The name stays for code written for version 0.1."""

from joma.claims.contract import *  # noqa: F403
