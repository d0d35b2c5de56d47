"""Sentences of a page: a number and its unit stay on one line, and nothing else is changed."""

from html import unescape

import pytest

from joma.report.markup import prose

NO_BREAK = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    "text",
    [
        "by 0.50~nats [0.33, 0.67] at paper scale",
        "98.4~% [96.3, 100.4] at 99~%; control 0.002~nats².",
        "in 3~min 20~s, over 5~seeds",
        "1.3~doublings of time, 12~GB, 40,000~steps, 2~standard deviations",
        "1~layer of 3~layers",
    ],
)
def test_a_number_stays_with_its_unit(text):
    assert prose(text.replace("~", " ")) == text.replace("~", NO_BREAK)


@pytest.mark.parametrize(
    "text", ["2 of 3", "step 5 sees", "Theorem 2 holds", "3 stepsons", "5 bitsy", "a s", "1 shape"]
)
def test_other_words_behind_numbers_may_stand_in_the_next_line(text):
    assert prose(text) == text


def test_what_it_says_does_not_change():
    text = 'a < b & "c" by 0.5 nats'
    assert prose(text).startswith("a &lt; b &amp; &quot;c&quot;")
    assert unescape(prose(text)).replace(NO_BREAK, " ") == text
