"""The look of figures: now `joma.figures.style`. The name stays for code written for version 0.1."""

from joma.figures.style import *  # noqa: F403
