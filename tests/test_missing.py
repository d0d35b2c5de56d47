"""Tests that lack an optional package are skipped, and those that fail for another reason are not."""

import sys

import missing
import pytest


def raised(error, cause=None):
    try:
        raise error from cause
    except Exception as caught:
        return caught


WANTED = ModuleNotFoundError("no", name="lightning.pytorch")
FOR_WANT_OF = {
    "of the package": raised(WANTED),
    "of a refusal that it caused": raised(ValueError("needs lightning"), WANTED),
}
FOR_ANOTHER_REASON = {
    "a misspelt package": raised(ModuleNotFoundError("no", name="lihgtning")),
    "one of joma's own": raised(ModuleNotFoundError("no", name="joma.lightning")),
    "one that joma cannot do without": raised(ModuleNotFoundError("no", name="torch")),
    "a name that a package has not": raised(ImportError("no", name="lightning")),
    "an assertion": raised(AssertionError()),
}
CASES = [
    *(
        pytest.param(error, there, not there, id=f"{name}, {there}")
        for name, error in FOR_WANT_OF.items()
        for there in (0, 1)
    ),
    *(pytest.param(error, False, False, id=name) for name, error in FOR_ANOTHER_REASON.items()),
]


@pytest.mark.parametrize(("error", "there", "skipped"), CASES)
@pytest.mark.parametrize("hook", [missing.pytest_runtest_setup, missing.pytest_pyfunc_call])
def test_a_test_is_skipped_only_for_want_of_an_optional_package(hook, error, there, skipped, monkeypatch):
    monkeypatch.setattr(missing, "installed", lambda name: bool(there))
    around = hook()
    next(around)
    with pytest.raises(pytest.skip.Exception if skipped else type(error)) as end:
        around.throw(error)
    assert not skipped or str(end.value) == "could not import 'lightning', which is optional"


def test_what_is_installed_is_found(monkeypatch):
    assert missing.installed("pytest")
    assert not missing.installed("no_such_package")
    monkeypatch.setitem(sys.modules, "pandas", None)  # hidden by a test, whose failure is no lack
    assert missing.installed("pandas")
    assert {"matplotlib", "ray", "mlflow", "huggingface_hub"} <= missing.OPTIONAL
    assert not {"torch", "numpy", "joma"} & missing.OPTIONAL
