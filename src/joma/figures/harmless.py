"""Whether the text of a picture is a drawing and nothing else: pages hold pictures as they are.

A picture that comes from a shard may be a stranger's. A page forbids scripts and connections, but not a `<meta>` that
leads elsewhere, or a form. So nothing passes here but what matplotlib writes.
"""

import re
import xml.etree.ElementTree as Tree
from io import StringIO

_TAGS = {
    "http://www.w3.org/2000/svg": "svg g defs use path text tspan rect image clipPath pattern style metadata title",
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#": "RDF Bag li",
    "http://creativecommons.org/ns#": "Work Agent",
    "http://purl.org/dc/elements/1.1/": "type format title subject creator date",
}
"""By namespace, the elements."""
_ALLOWED = frozenset(f"{{{space}}}{name}" for space, names in _TAGS.items() for name in names.split())
_LINK = "{http://www.w3.org/1999/xlink}href"
_PLAIN = """id x y d style transform clip-path width height role aria-label viewBox version type patternUnits fill
fill-opacity stroke stroke-width stroke-linecap stroke-linejoin opacity href"""
_ATTRIBUTES = {*_PLAIN.split(), _LINK, "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}resource"}
_STYLED = ("style", "clip-path", "fill", "stroke", "transform")
_LEADS = re.compile(r"#[\w.:-]+|data:image/png;base64,[\sA-Za-z0-9+/=]*")
_NUMBER = r"-?\d{1,6}(?:\.\d{1,12})?"
_BOX = re.compile(rf"{_NUMBER} {_NUMBER} 0*[1-9]\d{{0,5}}(?:\.\d{{1,12}})? 0*[1-9]\d{{0,5}}(?:\.\d{{1,12}})?")
_ELSEWHERE = re.compile(r"url\((?!['\"]?#)|@|\\", re.IGNORECASE)  # of a style: what it takes from outside
_OTHER_TO_A_BROWSER = re.compile(r"<\?|<!(?!--)|<!---?>")
"""What XML reads in another way than a page does: declarations, and comments that end at once."""
_DEEPEST = 40  # elements inside one another


def is_drawing(svg: str) -> bool:
    """Whether a text is one SVG of shapes, text and images that it holds itself.

    >>> is_drawing('<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>')
    True
    >>> is_drawing('<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'), is_drawing("<meta>")
    (False, False)
    """
    if not svg.startswith("<svg") or _OTHER_TO_A_BROWSER.search(svg):
        return False
    depth = 0
    try:
        for event, element in Tree.iterparse(StringIO(svg), ("start", "end")):
            depth += 1 if event == "start" else -1
            if depth > _DEEPEST or (event == "end" and not _draws(element)):
                return False
    except (Tree.ParseError, ValueError):  # also a text that cannot be encoded
        return False
    return True


def _draws(element: Tree.Element) -> bool:
    given = element.attrib
    style = element.text if element.tag.endswith("}style") else ""
    return (
        element.tag in _ALLOWED
        and given.keys() <= _ATTRIBUTES
        and all(_LEADS.fullmatch(given[name]) for name in (_LINK, "href") if name in given)
        and ("viewBox" not in given or _BOX.fullmatch(given["viewBox"]) is not None)
        and not any(map(_ELSEWHERE.search, [style or "", *(given.get(name, "") for name in _STYLED)]))
    )
