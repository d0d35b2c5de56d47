"""What the log says: pytest's own plugin for logs is off."""

import logging

import pytest


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def log():
    handler, logger = Lines(), logging.getLogger("joma.monitor")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)
