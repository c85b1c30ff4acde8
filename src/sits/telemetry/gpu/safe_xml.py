"""XML from anywhere, read into plain nodes: nothing of it is fetched, expanded or followed.

Rules: a document that declares an entity is refused (there is no honest use of one in these files; a few lines of them can expand to
gigabytes); an external DOCTYPE is not loaded; size, depth and number of nodes are bounded.  expat reads in linear time.

Deliberately absent: namespaces, comments, processing instructions, and writing.
"""

from xml.parsers import expat

import msgspec

from sits.core.errors import CallerError

BYTES_MAX = 32 * 2**20
DEPTH_MAX = 200
NODES_MAX = 500_000


class Node(msgspec.Struct):
    """One element: its attributes, its text (stripped), its children in order."""

    tag: str
    attributes: dict[str, str]
    children: list["Node"]
    text: str = ""

    def all(self, tag: str) -> list["Node"]:
        """The children called `tag`."""
        return [child for child in self.children if child.tag == tag]

    def first(self, path: str) -> "Node | None":
        """The first node under `a/b/c`."""
        node: Node | None = self
        for tag in path.split("/"):
            node = next((child for child in node.children if child.tag == tag), None) if node else None
        return node

    def at(self, path: str) -> str | None:
        """The text under `a/b/c`, None where there is none."""
        node = self.first(path)
        return node.text or None if node else None

    def walk(self) -> "list[Node]":
        """The node itself and all below, in the order of the document."""
        found, todo = [], [self]
        while todo:
            node = todo.pop()
            found.append(node)
            todo += reversed(node.children)
        return found


class _Builder:
    def __init__(self) -> None:
        self.root = Node("", {}, [])
        self.open = [self.root]
        self.texts: list[list[str]] = [[]]
        self.count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) > DEPTH_MAX or self.count > NODES_MAX:
            raise _refused(f"it nests deeper than {DEPTH_MAX} or has more than {NODES_MAX} elements")
        node = Node(tag, dict(attributes), [])
        self.open[-1].children.append(node)
        self.open.append(node)
        self.texts.append([])

    def end(self, _tag: str) -> None:
        self.open.pop().text = "".join(self.texts.pop()).strip()

    def data(self, text: str) -> None:
        self.texts[-1].append(text)


def read_xml(text: str) -> Node:
    """The root element.

    Raises:
        CallerError: it is no XML, declares entities, or is beyond the bounds.

    """
    if len(text) > BYTES_MAX:
        raise _refused(f"it is longer than {BYTES_MAX} characters")
    builder = _Builder()
    parser = expat.ParserCreate("utf-8")
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = _no_entities
    parser.ExternalEntityRefHandler = lambda *_: 0
    try:
        parser.Parse(text.encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        raise _refused(f"line {error.lineno}: {expat.ErrorString(error.code)}") from None
    return builder.root.children[0]


def _no_entities(*_: object) -> None:
    raise _refused("it declares entities")


def _refused(why: str) -> CallerError:
    return CallerError(f"this XML cannot be read: {why}", field="xml", hint="is the file whole?")
