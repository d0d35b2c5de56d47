"""How a study says what it found: now `joma.claims.verdicts`. The name stays for code written for version 0.1."""

from joma.claims.verdicts import *  # noqa: F403
