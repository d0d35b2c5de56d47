"""Stores and web servers that really answer."""

import pytest
from object_server import Site, Traffic, environment, put, s3_server, web_server
from patience import PATIENCE

from joma.host import limits, stores


@pytest.fixture(autouse=True)
def quick_stores(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "JOMA_ALLOW_HTTP", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(stores, "PAUSE", 0.001)
    monkeypatch.setattr(stores, "LONGEST_PAUSE", 0.002)
    monkeypatch.setattr(limits, "STORE_SECONDS", float(PATIENCE))


@pytest.fixture
def traffic():
    return Traffic()


@pytest.fixture
def s3(traffic, monkeypatch):
    with s3_server(traffic) as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)

        def store(key, content):
            put(address, key, content)
            return f"s3://bucket/{key}"

        yield store


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def web(site):
    with web_server(site) as address:
        yield address
