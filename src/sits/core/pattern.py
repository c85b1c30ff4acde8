r"""Regular expressions whose matching time is linear in the text, whatever the pattern and the text.

Header values are chosen by callers, so a backtracking matcher hands them the gateway's CPU: `(a+)+b`, and already
`.*x.*y`, take quadratic to exponential time on a hostile value.  Here a pattern becomes a position automaton
(Glushkov 1961) whose sets of positions are made into states the first time a text needs them (as RE2 does): one
table look-up a byte, no way back.  Bytes the pattern does not tell apart share a column of the table.

Rules: a pattern must match the *whole* value; write `.*x.*` to search.  It works on bytes: text outside ASCII is its
UTF-8, and `.` is any byte.  Known: literals, `.`, `[a-z]`, `[^...]`, `\d \w \s` and their capitals, `\xNN`, `\n \r \t`,
groups, `|`, `? * + {m,n}` (lazy forms mean the same), `^` first and `$` last, `(?i)` first.  A pattern that needs more than
`POSITIONS_MAX` positions is refused; a value longer than `VALUE_MAX` matches nothing.

Deliberately absent: captures, back-references, look-around, word boundaries (none of them is regular, or none helps
a yes-or-no question).  Chosen over google-re2: that wheel is 1.6 MB and takes 3-6 us a call, this about 0.05 us a byte.
"""

from typing import Any, NamedTuple

from sits.core.errors import ConfigError

POSITIONS_MAX = 1_000
PARTS_MAX = 20_000
STATES_MAX = 500
"""States kept at a time; more are forgotten and made again when needed."""

VALUE_MAX = 4_096
PATTERN_MAX = 1_000

_ANY = (1 << 256) - 1
_DIGIT = sum(1 << byte for byte in b"0123456789")
_WORD = sum(1 << byte for byte in b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_SPACE = sum(1 << byte for byte in b" \t\n\r\f\v")
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE, "D": _ANY ^ _DIGIT, "W": _ANY ^ _WORD, "S": _ANY ^ _SPACE}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


class Pattern:
    """A compiled pattern.

    Raises:
        ConfigError: it is not a pattern, or not one of those known here.

    >>> Pattern("(eu|us)-[a-z]+-[0-9]{1,2}").matches(b"eu-west-1")
    True
    >>> Pattern("a+").matches(b"xaax"), Pattern("(?i).*AA.*").matches(b"xaax")
    (False, True)

    """

    __slots__ = ("_auto", "_columns", "_kinds", "_start", "_states", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._auto = _Automaton(_Parser(text).whole())
        self._kinds = _kinds(set(self._auto.masks))
        table = bytearray(256)
        for column, kind in enumerate(self._kinds):
            for byte in range(256):
                if kind >> byte & 1:
                    table[byte] = column
        self._columns = bytes(table)
        self._states: dict[int, list[Any]] = {}
        self._start = self._state(self._auto.first, accept=self._auto.nullable)

    def matches(self, value: bytes) -> bool:
        """Whether the whole of `value` is of this pattern."""
        if len(value) > VALUE_MAX:
            return False
        row = self._start
        for column in value.translate(self._columns):
            after = row[column]
            if after is None:
                after = self._step(row, column)
            if not after:
                return False
            row = after
        accept: bool = row[-1]
        return accept

    def _state(self, ahead: int, *, accept: bool) -> list[Any]:
        """A row of the table: what each column leads to (None = not looked at yet, False = nowhere); last, the set.

        `ahead` are the positions the next byte may take.
        """
        return [*[None] * len(self._kinds), ahead, accept]

    def _step(self, row: list[Any], column: int) -> "list[Any] | bool":
        """Where `column` leads from `row`, remembered."""
        auto, kind = self._auto, self._kinds[column]
        rest, ahead, taken = row[-2], 0, 0
        while rest:
            low = rest & -rest
            position = low.bit_length() - 1
            if auto.masks[position] & kind:
                ahead |= auto.follow[position]
                taken |= low
            rest ^= low
        if not taken:
            row[column] = False
            return False
        accept = bool(taken & auto.last)
        key = ahead << 1 | accept
        found = self._states.get(key)
        if found is None:
            if len(self._states) >= STATES_MAX:
                self._forget()
            found = self._states[key] = self._state(ahead, accept=accept)
        row[column] = found
        return found

    def _forget(self) -> None:
        """Drop all states but the first; rows are emptied too, for they refer to each other in circles."""
        columns = len(self._kinds)
        for row in (self._start, *self._states.values()):
            row[:columns] = [None] * columns
        self._states.clear()


def _kinds(masks: set[int]) -> list[int]:
    """The coarsest partition of the 256 bytes whose parts each lie wholly inside or outside every mask."""
    kinds = [_ANY]
    for mask in sorted(masks):
        kinds = [part for kind in kinds for part in (kind & mask, kind & ~mask) if part]
    return kinds


class _Node(NamedTuple):
    """Part of a pattern: a `set` of bytes, a `cat`enation, an `alt`ernation, or a `rep`etition."""

    kind: str
    mask: int = 0
    parts: "tuple[_Node, ...]" = ()
    low: int = 0
    high: int = -1


class _Automaton:
    """The position automaton: a bit a position, `follow` what may come after it."""

    def __init__(self, node: _Node) -> None:
        self.masks: list[int] = []
        self.follow: list[int] = []
        self._parts = 0
        self.nullable, self.first, self.last = self._add(node)

    def _add(self, node: _Node) -> tuple[bool, int, int]:
        """Whether `node` may be empty, its first and its last positions."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise _bad(f"the pattern expands to more than {PARTS_MAX} parts", "repeat less, or shorter")
        if node.kind == "set":
            if len(self.masks) >= POSITIONS_MAX:
                raise _bad(
                    f"the pattern expands to more than {POSITIONS_MAX} positions", "repeat less, or shorter"
                )
            self.masks.append(node.mask)
            self.follow.append(0)
            bit = 1 << (len(self.masks) - 1)
            return False, bit, bit
        if node.kind == "alt":
            found = [self._add(part) for part in node.parts]
            nullable, first, last = False, 0, 0
            for may, head, tail in found:
                nullable, first, last = nullable or may, first | head, last | tail
            return nullable, first, last
        if node.kind == "cat":
            return self._chain(node.parts)
        return self._repeat(node)

    def _chain(self, parts: "tuple[_Node, ...]") -> tuple[bool, int, int]:
        nullable, first, last = True, 0, 0
        for part in parts:
            may, head, tail = self._add(part)
            self._link(last, head)
            first |= head if nullable else 0
            last = tail | (last if may else 0)
            nullable = nullable and may
        return nullable, first, last

    def _repeat(self, node: _Node) -> tuple[bool, int, int]:
        """`x{2,4}` is `xx x? x?`; `x{2,}` is `xx x*`."""
        inner = node.parts[0]
        if node.high < 0 and node.low <= 1:
            may, first, last = self._add(inner)
            self._link(last, first)
            return may or not node.low, first, last
        if node.high == 1 and not node.low:
            return (True, *self._add(inner)[1:])
        rest = (_Node("rep", parts=(inner,)),) if node.high < 0 else ()
        maybe = _Node("rep", parts=(inner,), high=1)
        return self._chain((inner,) * node.low + (maybe,) * max(0, node.high - node.low) + rest)

    def _link(self, before: int, after: int) -> None:
        while before:
            low = before & -before
            self.follow[low.bit_length() - 1] |= after
            before ^= low


class _Parser:
    """Reads one pattern, left to right."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_MAX:
            raise _bad(f"the pattern is longer than {PATTERN_MAX} characters", "shorten it")
        self.fold = text.startswith("(?i)")
        self.text = text[4:] if self.fold else text
        self.at = 0
        self.depth = 0

    def whole(self) -> _Node:
        if self.text.startswith("^"):
            self.at = 1
        node = self._alternatives()
        if self.at < len(self.text):
            raise _bad("a ')' closes no group", "write \\) for the character")
        return node

    def _peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _alternatives(self) -> _Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Node("alt", parts=tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (sign := self._peek()) not in ("", "|", ")"):
            if sign == "$" and self.at == len(self.text) - 1 and not self.depth:
                self.at += 1
                break
            parts.append(self._quantified(self._atom()))
        return _Node("cat", parts=tuple(parts))

    def _atom(self) -> _Node:
        sign = self._peek()
        self.at += 1
        if sign == "(":
            return self._group()
        if sign == "[":
            return _Node("set", self._class())
        if sign == ".":
            return _Node("set", _ANY)
        if sign == "\\":
            escaped = self._escape()
            return _Node("set", self._folded(escaped)) if isinstance(escaped, int) else self._literal(escaped)
        if sign in "^$":
            raise _bad(
                f"{sign!r} stands inside the pattern", "the whole value is matched; write '.*' to search"
            )
        if sign in "*+?{":
            raise _bad(f"{sign!r} repeats nothing", f"write \\{sign} for the character")
        return self._literal(sign)

    def _literal(self, character: str) -> _Node:
        encoded = character.encode("utf-8", "surrogateescape")
        if len(encoded) == 1:
            return _Node("set", self._folded(1 << encoded[0]))
        return _Node("cat", parts=tuple(_Node("set", 1 << byte) for byte in encoded))

    def _group(self) -> _Node:
        if self._peek() == "?":
            if not self.text.startswith("?:", self.at):
                kind = self.text[self.at - 1 : self.at + 2]
                raise _bad(
                    f"{kind!r} is not supported", "groups are (...) or (?:...), '(?i)' only stands first"
                )
            self.at += 2
        self.depth += 1
        if self.depth > 50:
            raise _bad("groups are nested more than 50 deep", "flatten the pattern")
        node = self._alternatives()
        self.depth -= 1
        if self._peek() != ")":
            raise _bad("a '(' is not closed", "write \\( for the character")
        self.at += 1
        return node

    def _quantified(self, node: _Node) -> _Node:
        while (sign := self._peek()) and sign in "*+?{":
            if sign == "{":
                low, high = self._counts()
            else:
                self.at += 1
                low, high = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[sign]
            node = _Node("rep", parts=(node,), low=low, high=high)
            if self._peek() == "?":
                self.at += 1
            elif self._peek() and self._peek() in "*+{":
                raise _bad("a repetition is repeated", "put a group around it: (...)")
        return node

    def _counts(self) -> tuple[int, int]:
        end = self.text.find("}", self.at)
        inside = self.text[self.at + 1 : end] if end > 0 else ""
        low, comma, high = inside.partition(",")
        numbers = (low, high) if comma and high else (low,)
        if not all(one.isascii() and one.isdigit() and len(one) < 5 for one in numbers):
            raise _bad("'{' opens no count", "write {2}, {2,} or {2,5}, or \\{ for the character")
        self.at = end + 1
        least, most = int(low), int(high) if high else (-1 if comma else int(low))
        if 0 <= most < least:
            raise _bad(f"the count {{{inside}}} runs backwards", "the smaller number comes first")
        if max(least, most) > POSITIONS_MAX:
            raise _bad(
                f"the pattern expands to more than {POSITIONS_MAX} positions", "repeat less, or shorter"
            )
        return least, most

    def _escape(self) -> int | str:
        """What follows a backslash: a set of bytes, or a character."""
        sign = self._peek()
        self.at += 1
        if sign in _CLASSES and sign:
            return _CLASSES[sign]
        if sign in _CONTROLS and sign:
            return _CONTROLS[sign]
        if sign == "x":
            digits = self.text[self.at : self.at + 2]
            self.at += 2
            try:
                return 1 << bytes.fromhex(digits)[0]
            except (ValueError, IndexError):
                raise _bad(f"'\\x{digits}' is not a byte", "write two digits, like \\x2f") from None
        if not sign or sign.isalnum():
            raise _bad(
                f"'\\{sign}' is not supported",
                "known: \\d \\w \\s \\D \\W \\S \\xNN \\n \\r \\t and \\ + sign",
            )
        return sign

    def _class(self) -> int:
        """The set of bytes between brackets."""
        negated = self._peek() == "^"
        self.at += negated
        mask, first = 0, True
        while (sign := self._peek()) != "]" or first:
            if not sign:
                raise _bad("a '[' is not closed", "write \\[ for the character")
            first = False
            low = self._member()
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                mask |= self._span(low, self._member())
            else:
                mask |= low if isinstance(low, int) else 1 << self._byte(low)
        self.at += 1
        mask = self._folded(mask)
        return _ANY ^ mask if negated else mask

    def _member(self) -> int | str:
        sign = self._peek()
        self.at += 1
        return self._escape() if sign == "\\" else sign

    def _span(self, low: int | str, high: int | str) -> int:
        ends = [one if isinstance(one, int) else 1 << self._byte(one) for one in (low, high)]
        if any(end & (end - 1) for end in ends) or ends[0] > ends[1]:
            raise _bad("a range in brackets runs backwards or has no end", "write it like [a-z]")
        return (ends[1] << 1) - ends[0]

    def _byte(self, character: str) -> int:
        if not character or not character.isascii():
            raise _bad(f"{character!r} stands in brackets", "only ASCII does; write alternatives: (?:ä|ö)")
        return ord(character)

    def _folded(self, mask: int) -> int:
        """With both cases of every letter in it, under `(?i)`."""
        if self.fold:
            upper = (mask >> 65) & 0x3FFFFFF
            lower = (mask >> 97) & 0x3FFFFFF
            mask |= (upper << 97) | (lower << 65)
        return mask


def _bad(message: str, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint)
