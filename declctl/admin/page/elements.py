"""A tree of HTML elements, which is written in two ways: as HTML, and as JSON.

The server writes the first view of the page as HTML. The script of the page receives each later view as JSON,
and changes only the elements that differ. Both treat a text as a text: `html` escapes it, and the script
assigns it to `textContent`. So the texts of objects, handlers and servers never become markup.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from typing import NamedTuple, TypeAlias, Union

from declctl.kit.text import visible

Child: TypeAlias = Union["Element", str]
_VOID = frozenset({"br"})  # elements without an end tag


class Element(NamedTuple):
    """One element. In JSON it is an array of three: tag, attributes, children."""

    tag: str
    attributes: Mapping[str, str]
    children: Sequence[Child]


def element(tag: str, *children: Child | None, **attributes: object) -> Element:
    """An element with its children and attributes.

    An underscore in the name of an attribute becomes a hyphen, and one at the end is left out: `class_`. True
    stands for an attribute without a value. None and False leave an attribute or a child out.

    The attribute `data_key` names an element among its siblings: the script of the page finds the element
    again by this name when siblings come and go.
    """
    named = {
        _attribute(name): "" if value is True else visible(str(value))
        for name, value in attributes.items()
        if value is not None and value is not False
    }
    # Characters that change the direction of writing could make a text look like another one.
    shown = [visible(each) if isinstance(each, str) else each for each in children if each is not None]
    return Element(tag, named, shown)


@cache  # for the life of the process: the names stand in this package
def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def html(nodes: Iterable[Child]) -> str:
    """The nodes as HTML, without white space between elements: the script counts on that."""
    return "".join(escape(node) if isinstance(node, str) else _html(node) for node in nodes)


def _html(node: Element) -> str:
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in node.attributes.items())
    start = f"<{node.tag}{attributes}>"
    return start if node.tag in _VOID else f"{start}{html(node.children)}</{node.tag}>"
