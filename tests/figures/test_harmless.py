"""A picture from outside is a drawing or is refused; what joma draws itself always passes."""

import numpy as np
import pytest

from joma.figures.harmless import is_drawing
from joma.figures.style import house_style, panels, to_svg

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 10 10">'
LEADING = [
    "<script>1</script>", "<meta http-equiv='refresh' content='0;url=https://a.b'/>", "<foreignObject/>",
    "<a xlink:href='https://a.b'><text>x</text></a>", "<use xlink:href='https://a.b#x'/>", "<use href='//a.b#x'/>",
    "<image href='https://a.b/x.png'/>", "<image href='data:image/svg+xml;base64,AAAA'/>", "<path onload='x()'/>",
    "<path style='fill:url(https://a.b)'/>", "<path style=\"fill:URL( 'https://a.b')\"/>", "<style>@import 'x'</style>",
    "<style>*{background:u\\72l(https://a.b)}</style>", "<animate attributeName='href'/>", "<set/>",
    "<metadata xmlns='http://www.w3.org/1999/xhtml'><meta/></metadata>", "<iframe/>", "<form action='https://a.b'/>",
    *(f"<path {name}='url(https://a.b)'/>" for name in ("fill", "stroke", "clip-path")),
    "<!--><meta http-equiv='refresh'>-->", "<![CDATA[<meta>]]>", "<?php ?>", "<g>" * 50 + "</g>" * 50,
]  # fmt: skip


@pytest.mark.parametrize("inside", LEADING)
def test_what_leads_elsewhere_is_no_drawing(inside):
    assert is_drawing(f"{HEAD}<path d='M0 0'/></svg>")
    assert not is_drawing(f"{HEAD}{inside}</svg>")


@pytest.mark.parametrize(
    "text",
    ["", "<meta>", "<svg", f"{HEAD}</svg><meta/>", f"<!DOCTYPE svg>{HEAD}</svg>", f" {HEAD}</svg>",
     HEAD.replace("10 10", "0 0") + "</svg>", HEAD.replace("10 10", "1.2.3 1") + "</svg>",
     f"{HEAD}<text>\ud800</text></svg>"],
)  # fmt: skip
def test_what_is_no_whole_picture_is_none(text):
    assert not is_drawing(text)


def test_what_matplotlib_draws_passes():
    with house_style():
        figure, (left, right) = panels(2)
        left.plot([0, 1], [0, 1], "o--", label=r"$\alpha_1$ (a\b @ c)")
        left.bar([0, 1], [1, 2], hatch="//")
        left.fill_between([0, 1], [0, 0], [1, 1], alpha=0.3)
        right.imshow(np.eye(3))
        right.scatter([0, 1], [0, 1])
        right.annotate("<here & there>", (0, 0), arrowprops={"arrowstyle": "->"})
        left.legend()
        assert is_drawing(to_svg(figure, title='what "is" seen (at @ \\ x) < 3'))
