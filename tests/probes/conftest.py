import pytest


@pytest.fixture(autouse=True)
def quiet_transformers():
    """Small configs do not fit the default special tokens; transformers says so at length."""
    hf = pytest.importorskip("transformers")
    before = hf.logging.get_verbosity()
    hf.logging.set_verbosity_error()
    yield
    hf.logging.set_verbosity(before)
