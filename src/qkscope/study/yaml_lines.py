"""YAML text -> plain data, and the line of each path in it, such as ("phases", 0, "window")."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
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
    """Something wrong in a file: where (a path into the data, and a line if known) and what."""

    loc: Loc
    what: str
    line: int | None = None
    unknown_key: bool = False
    """The rest of the file can be checked as if it were not there."""


class LocatedYaml:
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
                self.mistakes.extend(_duplicate_keys(self._root, (), set()))
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
            # The first of a key given twice; a missing key does not change the line.
            found: list[tuple[yaml.Node, yaml.Node]] = []
            if isinstance(node, yaml.MappingNode):
                found = [(k, v) for k, v in node.value if k.value == str(part)]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part >= 0:
                found = [(item, item) for item in node.value[part : part + 1]]
            if found:
                key, node = found[0]
                line = key.start_mark.line + 1
        return line


class _Loader(yaml.SafeLoader):
    """Refuses deep nesting while it reads: the time PyYAML takes grows with the square of the depth."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise ValueError(_DEEP)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _check_size(root: yaml.Node) -> None:
    """Refuse data that is too large or deep once its aliases are expanded."""
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
    """Texts with characters that names and paths cannot have: control characters and half surrogate pairs."""
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


def _duplicate_keys(node: yaml.Node, loc: Loc, seen: set[int]) -> Iterator[Mistake]:
    """Keys given twice, of which YAML silently keeps the last."""
    if id(node) in seen:  # an alias can point to a node that contains it
        return
    seen.add(id(node))
    first: dict[str, int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in first:
                    what = f"the key is given twice (first on line {first[key.value]})"
                    yield Mistake((*loc, key.value), what, line)
                first.setdefault(key.value, line)
            yield from _duplicate_keys(value, (*loc, str(key.value)), seen)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _duplicate_keys(item, (*loc, i), seen)


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
