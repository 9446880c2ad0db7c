"""YAML text -> plain data that still knows its lines.

Knows nothing of studies: it parses, and answers on which line a path such as ("phases", 0, "window") stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Mistake:
    """Something wrong in a file: where (a path into the data; the line once known) and what."""

    loc: Loc
    what: str
    line: int | None = None


class Marked:
    """Parsed YAML: `data` as plain Python, `line(loc)` for messages, `mistakes` of the YAML itself."""

    def __init__(self, text: str) -> None:
        self.data: Any = None
        self.mistakes: list[Mistake] = []
        self._root: yaml.Node | None = None
        loader = yaml.SafeLoader(text)
        try:
            self._root = loader.get_single_node()
            if self._root is not None:
                self.mistakes.extend(_duplicate_keys(self._root))
                self.data = loader.construct_document(self._root)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.data = None
            self.mistakes.append(_syntax_mistake(error))
        finally:
            loader.dispose()

    def line(self, loc: Loc) -> int:
        """1-based line of the deepest part of `loc` that the file holds."""
        node, line = self._root, 1
        for part in loc:
            found = _child(node, part)
            if found is None:
                continue
            line, node = found
        return line


def _syntax_mistake(error: Exception) -> Mistake:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    context = getattr(error, "context", None)
    what = f"not valid YAML: {problem}" + (f" {context}" if context else "")
    return Mistake((), what.replace("\n", " "), mark.line + 1 if mark is not None else 1)


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
    """YAML keeps the last of two equal keys without a word: say it instead."""
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
