import pytest


@pytest.fixture(autouse=True)
def quiet_transformers():
    hf = pytest.importorskip("transformers")
    before = hf.logging.get_verbosity()
    hf.logging.set_verbosity_error()
    yield
    hf.logging.set_verbosity(before)
