"""YAML text -> plain data that still knows its lines, and the words of a mistake in it.

Knows nothing of studies: it parses, and answers on which line a path such as ("phases", 0, "window") stands.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from qkscope.errors import printable

Loc = tuple[str | int, ...]

# A study of a thousand checkpoints has some 50,000 nodes; aliases can make billions out of a few lines.
TEXT_LIMIT, NODE_LIMIT, DEPTH_LIMIT = 8_000_000, 500_000, 40
_DEEP = f"nested more than {DEPTH_LIMIT} deep, or an alias that contains itself"


@dataclass(frozen=True)
class Mistake:
    """Something wrong in a file: where (a path into the data; the line once known) and what."""

    loc: Loc
    what: str
    line: int | None = None
    unknown_key: bool = False
    """The rest of the file can be checked as if it were not there."""


class Marked:
    """Parsed YAML: `data` as plain Python, `line(loc)` for messages, `mistakes` of the YAML itself."""

    def __init__(self, text: str) -> None:
        self.data: Any = None
        self.mistakes: list[Mistake] = []
        self._root: yaml.Node | None = None
        try:
            if len(text) > TEXT_LIMIT:
                raise ValueError(f"{len(text):,} characters; expected at most {TEXT_LIMIT:,}")
            loader = _Loader(text)
            self._root = loader.get_single_node()
            if self._root is not None:
                _check_size(self._root)
                self.mistakes.extend(_duplicate_keys(self._root))
                self.data = loader.construct_document(self._root)
                self.mistakes.extend(_unprintable(self.data, ()))
        # An odd scalar (an impossible date, a base-60 number) fails inside PyYAML with any of these.
        except (
            yaml.YAMLError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            self.data = None
            self.mistakes.append(_syntax_mistake(error))

    def line(self, loc: Loc) -> int:
        """1-based line of the deepest part of `loc` that the file holds."""
        node, line = self._root, 1
        for part in loc:
            found = _child(node, part)
            if found is None:
                continue
            line, node = found
        return line


class _Loader(yaml.SafeLoader):
    """Gives up on deep nesting while it reads: PyYAML takes time by the square of the depth."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise ValueError(_DEEP)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _check_size(root: yaml.Node) -> None:
    """Refuse what would grow when aliases are written out."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, depth: int) -> int:
        if depth > DEPTH_LIMIT:
            raise ValueError(_DEEP)
        if id(node) not in sizes:
            pairs = node.value if isinstance(node, yaml.CollectionNode) else []
            children = [child for pair in pairs for child in (pair if isinstance(pair, tuple) else (pair,))]
            sizes[id(node)] = 1 + sum(size(child, depth + 1) for child in children)
        return sizes[id(node)]

    if size(root, 0) > NODE_LIMIT:
        raise ValueError(f"more than {NODE_LIMIT:,} values once its aliases are expanded")


def _unprintable(data: Any, loc: Loc) -> Iterator[Mistake]:
    """Texts with characters that have no place in a name or path: control characters, half a pair of them."""
    if isinstance(data, str) and printable(data) != data:
        yield Mistake(loc, f"contains a character that cannot be printed: {data[:60]!a}")
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in children:
        yield from _unprintable(key, loc) if isinstance(key, str) else ()
        yield from _unprintable(value, (*loc, key if isinstance(key, int) else str(key)))


def _syntax_mistake(error: Exception) -> Mistake:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    context = getattr(error, "context", None)
    what = f"not valid YAML: {problem}" + (f" {context}" if context else "")
    return Mistake((), printable(" ".join(what.split()))[:300], mark.line + 1 if mark is not None else 1)


def _child(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    """Line and value of a mapping's key or a sequence's item."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None


def _duplicate_keys(root: yaml.Node) -> list[Mistake]:
    """Keys given twice, of which YAML silently keeps the last."""
    mistakes = []
    for loc, node in _mappings(root, (), set()):
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                what = f"the key is given twice (first on line {first[key.value]})"
                mistakes.append(Mistake((*loc, key.value), what, line))
            first.setdefault(key.value, line)
    return mistakes


def _mappings(node: yaml.Node, loc: Loc, seen: set[int]) -> Iterator[tuple[Loc, yaml.MappingNode]]:
    # An alias can point to a node that contains it: visit each node once.
    if id(node) in seen:
        return
    seen.add(id(node))
    children: Sequence[tuple[str | int, yaml.Node]] = ()
    if isinstance(node, yaml.MappingNode):
        yield loc, node
        children = [(str(key.value), value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = list(enumerate(node.value))
    for part, child in children:
        yield from _mappings(child, (*loc, part), seen)


def found_in_short(value: object) -> str:
    """A value as a mistake names it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "keys and values"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def did_you_mean(word: object, known: Iterable[str], otherwise: Iterable[str] = ()) -> str:
    """The known word that this one is near to, or all `otherwise`, in brackets."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]}?)"
    rest = ", ".join(otherwise)
    return f" (known here: {rest})" if rest else ""
