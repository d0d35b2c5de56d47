"""What is said of costs: the window that beats the whole cache by most, and only where it surely does."""

from joma.cache.costs import Cost, _beaten
from joma.cache.rules import rule


def window(budget, added, half_width=0.1):
    return Cost(rule("window", budget, 100), budget / 100, 3.0 + added, added, half_width, 3.1)


def test_the_best_window_is_the_one_that_is_told_of():
    said = _beaten({"window": [window(10, -0.2), window(20, -0.5), window(30, 0.4)], "h2o": [window(40, -0.9)]}, 100, 7)
    assert said.startswith(
        "a window of 20 keys has a loss 0.500 nats lower than the whole cache (95 % interval 0.400 to 0.600, n = 7)"
    )
    for unsure in ([window(10, -0.5, half_width=0.6)], [window(10, 0.5)], [window(10, -0.5, float("nan"))], []):
        assert _beaten({"window": unsure}, 100, 7) is None
    assert _beaten({"h2o": [window(40, -0.9)]}, 100, 7) is None
