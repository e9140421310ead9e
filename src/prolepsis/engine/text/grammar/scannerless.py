"""Rules over characters as lark, whose lexer takes the longest match: parts are lexemes only where that loses no text.

A lexeme goes on past the end of another one where a character that may follow that one also continues it; texts would
be lost so. Lexemes are as large as recursion allows at first; those that go on so are taken apart, down to characters.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from operator import or_

from prolepsis.core.errors import InvalidGrammar
from prolepsis.engine.text.grammar.gbnf import Alternation, Chars, Part, Repeat, RuleName, Sequence, Token
from prolepsis.engine.text.grammar.patterns import MAX_NESTED

MOST_PLACES = 10_000  # characters that one lexeme has states for
MOST_STEPS = 20_000  # of the search for lexemes that go on; that takes up to some seconds
_Places = frozenset[int]


def lark(rules: Mapping[str, Part]) -> str:
    """Return lark for the texts of the rule `root`; raises `InvalidGrammar` for rules that take too long to compare."""
    return _Lexing({name: _looped(name, part) for name, part in rules.items()}).lark()


@dataclass(frozen=True, slots=True)
class _Ends:
    """The places with which the texts of a part begin and end, and whether one is empty."""

    empty: bool
    first: _Places = frozenset()
    last: _Places = frozenset()


class _Links:
    """The places of some parts, and which may follow which."""

    def __init__(self, known: Callable[[Part], _Ends | None], count: Callable[[int], None]) -> None:
        """`known`: the ends of parts that are not entered."""
        self.follows = defaultdict[int, set[int]](set)
        self._known = known
        self._count = count

    def ends(self, part: Part) -> _Ends:
        """Return the ends of a part, and note what follows what inside."""
        if (found := self._known(part)) is not None:
            return found
        if isinstance(part, Repeat):
            one = self.ends(part.part)
            self._add(one.last if part.most != 1 else _Places(), one.first)
            return _Ends(one.empty or not part.least, one.first, one.last)
        assert isinstance(part, Alternation | Sequence), "all others are known"
        ones = [self.ends(inner) for inner in part.parts]
        if isinstance(part, Alternation):
            firsts, lasts = [one.first for one in ones], [one.last for one in ones]
            return _Ends(any(one.empty for one in ones), _Places().union(*firsts), _Places().union(*lasts))
        whole = _Ends(empty=True)
        for one in ones:
            self._add(whole.last, one.first)
            first = whole.first | one.first if whole.empty else whole.first
            last = whole.last | one.last if one.empty else one.last
            whole = _Ends(whole.empty and one.empty, first, last)
        return whole

    def _add(self, last: _Places, first: _Places) -> None:
        self._count(len(last) * len(first) // 25)
        for place in last:
            self.follows[place] |= first


class _Automaton:
    """The texts of one lexeme, without bounds of repetitions. A state is the places read last; none are the start."""

    def __init__(
        self, part: Part, rules: Mapping[str, Part], masks: Mapping[Part, int], count: Callable[[int], None]
    ) -> None:
        self._masks = list[int]()

        def known(part: Part) -> _Ends | None:
            if isinstance(part, RuleName):
                return links.ends(rules[part.name])
            if part not in masks:
                return None
            self._masks.append(masks[part])
            place = frozenset((len(self._masks) - 1,))
            return _Ends(False, place, place)

        links = _Links(known, count)
        self.ends, self._follows = links.ends(part), links.follows
        self._moves = dict[_Places, dict[_Places, int]]()

    def moves(self, state: _Places = frozenset()) -> dict[_Places, int]:
        """Return the states behind one, each with the characters that lead there, as bits."""
        if state not in self._moves:
            places = _Places().union(*(self._follows[one] for one in state)) if state else self.ends.first
            found = self._moves[state] = dict[_Places, int]()
            groups = [-1]
            for mask in {self._masks[place] for place in places}:
                groups = [part for group in groups for part in (group & mask, group & ~mask) if part]
            for group in groups:
                if led := frozenset(place for place in places if self._masks[place] & group):
                    found[led] = found.get(led, 0) | group
        return self._moves[state]

    def allowed(self, state: _Places = frozenset()) -> int:
        """Return the characters that may come behind a state."""
        return sum(self.moves(state).values())  # they are apart


class _Lexing:
    """Finds what of some rules is a lexeme."""

    def __init__(self, rules: Mapping[str, Part]) -> None:
        self._apart = set[Part]()
        self._sizes, times = dict[str, int](), dict[str, int]()
        names = {name: [one.name for one in _all(part) if isinstance(one, RuleName)] for name, part in rules.items()}
        sorter = TopologicalSorter(names)
        with suppress(CycleError):  # rules of a cycle, and those that name one, never get ready
            sorter.prepare()
        while ready := sorter.get_ready():
            self._sizes |= {name: self._size(rules[name]) for name in ready}
            times |= {name: _times(rules[name], times) for name in ready}
            sorter.done(*ready)
        if max(_times(part, times) for part in rules.values()) > MAX_NESTED:
            raise InvalidGrammar(f"the grammar repeats inside of repetitions; allowed: {MAX_NESTED} times in all")
        self._rules = {name: self._grouped(part) for name, part in rules.items()}
        chars = [one for part in rules.values() for one in _all(part) if isinstance(one, Chars)]
        edges = sorted({edge for one in chars for low, high in one.ranges for edge in (low, high + 1)})
        bits = {edge: 1 << i for i, edge in enumerate(edges)}
        self._masks: Mapping[Part, int] = {
            one: sum(bits[high + 1] - bits[low] for low, high in one.ranges) for one in chars
        }
        """The characters of each class as bits; one bit is a range that no class divides."""
        self._automata, self._num_steps = dict[Part, _Automaton](), 0
        self._compared = dict[tuple[_Automaton, _Automaton], int]()
        self._terminals = dict[str, str]()  # names of lexemes by their lark
        self._named = dict[tuple[str, bool], str]()  # short names of rules, and of those inside of lexemes

    def lark(self) -> str:
        while found := self._going_on():
            self._apart |= found
        lines = [f"start: {self._written(self._rules['root'])}"]
        while len(lines) <= len(self._named):
            (name, inside), short = list(self._named.items())[len(lines) - 1]
            lines.append(f"{short}: {self._written(self._rules[name], inside=inside)}")
        return "\n".join(["%llguidance {}", *lines, *(f"{name}: {text}" for text, name in self._terminals.items())])

    def _size(self, part: Part) -> int:
        """Return how many characters a part has states for; of one that is no lexeme, more than there may be."""
        if isinstance(part, Sequence | Alternation):
            return min(sum(map(self._size, part.parts)), MOST_PLACES + 1)
        if isinstance(part, Repeat):
            return min(self._size(part.part) * max(part.most or part.least, 1), MOST_PLACES + 1)
        return 1 if isinstance(part, Chars) else self._sizes.get(getattr(part, "name", ""), MOST_PLACES + 1)

    def _is_lexeme(self, part: Part) -> bool:
        return isinstance(part, Chars) or (part not in self._apart and 0 < self._size(part) <= MOST_PLACES)

    def _grouped(self, part: Part) -> Part:
        """Return a part in which neighbours that can be one lexeme are one."""
        if isinstance(part, Chars | Token | RuleName) or self._is_lexeme(part):
            return part
        if isinstance(part, Repeat):
            return Repeat(self._grouped(part.part), part.least, part.most)
        made, whole = list[Part](), type(part)
        inner = sorted(part.parts, key=self._is_lexeme) if whole is Alternation else part.parts
        for together, group in groupby(inner, self._is_lexeme):
            parts = tuple(group)
            made += [whole(parts)] if together and len(parts) > 1 else map(self._grouped, parts)
        return whole(tuple(made))

    def _going_on(self) -> set[Part]:
        """Return the lexemes that go on past the end of one."""
        parts, follows = self._followed()
        automata = {place: self._automaton(part) for place, part in enumerate(parts) if not isinstance(part, Token)}
        starts = {place: one.allowed() for place, one in automata.items()}
        behind = {a: reduce(or_, (starts[b] for b in follows[a] & automata.keys()), 0) for a in automata}
        self._count(len(automata) ** 2 // 50)
        pairs = ((a, b) for a in automata for b in automata if behind[a] and starts[a] & starts[b])
        return {parts[b] for a, b in pairs if behind[a] & self._past(automata[a], automata[b])}

    def _followed(self) -> tuple[list[Part], Mapping[int, set[int]]]:
        places, known_ends, before = dict[Part, int](), {"root": _Ends(empty=False)}, dict[str, _Ends]()

        def known(part: Part) -> _Ends | None:
            if isinstance(part, Token) or self._is_lexeme(part):
                place = frozenset((places.setdefault(part, len(places)),))
                return _Ends(not isinstance(part, Token) and self._automaton(part).ends.empty, place, place)
            return known_ends.setdefault(part.name, _Ends(empty=False)) if isinstance(part, RuleName) else None

        links = _Links(known, self._count)
        while known_ends != before:  # rules name each other: until nothing is added
            before = dict(known_ends)
            for name in reversed(before):
                known_ends[name] = links.ends(self._rules[name])
                self._count(5)
        return list(places), links.follows

    def _automaton(self, part: Part) -> _Automaton:
        if part not in self._automata:
            self._automata[part] = _Automaton(part, self._rules, self._masks, self._count)
        return self._automata[part]

    def _past(self, ended: _Automaton, other: _Automaton) -> int:
        """Return the characters with which `other` goes on where a text of `ended` may end."""
        if (ended, other) in self._compared:
            return self._compared[ended, other]
        found, seen, waiting = 0, set[tuple[_Places, _Places]](), [(frozenset[int](), frozenset[int]())]
        while waiting:
            x, y = waiting.pop()
            moves = other.moves(y).items()
            new = {(a, b) for a, to_a in ended.moves(x).items() for b, to_b in moves if to_a & to_b} - seen
            for a, b in new:
                found |= other.allowed(b) if a & ended.ends.last else 0
                self._count()
            seen |= new
            waiting += new
        self._compared[ended, other] = found
        return found

    def _count(self, steps: int = 1) -> None:
        self._num_steps += steps
        if self._num_steps >= MOST_STEPS:
            raise InvalidGrammar(
                "the grammar can be read in too many ways; allowed: fewer rules, or more different ones"
            )

    def _written(self, part: Part, *, inside: bool = False) -> str:
        """Return a part as lark, in a rule or inside of a lexeme."""
        if not inside and self._is_lexeme(part):
            return self._terminals.setdefault(self._written(part, inside=True), f"T{len(self._terminals)}")
        if isinstance(part, RuleName):
            return self._named.setdefault((part.name, inside), f"{'R' if inside else 'r'}{len(self._named)}")
        if isinstance(part, Token | Chars):
            return part.name if isinstance(part, Token) else _class(part)
        if isinstance(part, Repeat):
            most = "" if part.most is None else part.most
            return f"({self._written(part.part, inside=inside)}){{{part.least},{most}}}"
        if isinstance(part, Alternation):
            return f"({' | '.join(self._written(one, inside=inside) for one in part.parts)})"
        texts = list[str]()
        for is_text, group in groupby(part.parts, lambda one: inside and _char(one) != ""):
            together = json.dumps("".join(map(_char, parts := list(group))), ensure_ascii=False)
            texts += [together] if is_text else (self._written(one, inside=inside) for one in parts)
        return " ".join(texts) or '""'


def _char(part: Part) -> str:
    """Return the only character of a part; of others nothing."""
    low, high = part.ranges[0] if isinstance(part, Chars) and len(part.ranges) == 1 else (0, 1)
    return chr(low) if low == high else ""


def _class(chars: Chars) -> str:
    return "/[" + "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in chars.ranges) + "]/"


def _all(part: Part) -> list[Part]:
    found = [part]
    for one in found:
        found += [one.part] if isinstance(one, Repeat) else one.parts if isinstance(one, Sequence | Alternation) else []
    return found


def _times(part: Part, known: Mapping[str, int]) -> int:
    """Return how often the most repeated part inside may come."""
    if isinstance(part, Repeat):
        return _times(part.part, known) * max(part.most or part.least, 1)
    if isinstance(part, Sequence | Alternation):
        return max((_times(one, known) for one in part.parts), default=1)
    return known.get(part.name, 1) if isinstance(part, RuleName) else 1


def _looped(name: str, part: Part) -> Part:
    """Return a rule that names itself only at the ends of its ways as a repetition: one item however long the text."""
    again, others = list[Part](), list[Part]()
    for way in _ways(part, name):
        is_again = isinstance(way[-1] if way else None, RuleName) and _names(way[-1], name)
        (again if is_again else others).append(Sequence(way[:-1] if is_again else way))
    if not again or not others or any(_names(one, name) for one in again + others):
        return part
    return Sequence((Repeat(Alternation(tuple(again)), 0, None), Alternation(tuple(others))))


def _ways(part: Part, name: str) -> Iterator[tuple[Part, ...]]:
    """Yield the choices of a rule, also those at its end in which it is named."""
    if isinstance(part, Alternation):
        for one in part.parts:
            yield from _ways(one, name)
    elif isinstance(part, Repeat) and (part.least, part.most) == (0, 1):
        yield ()
        yield from _ways(part.part, name)
    elif isinstance(part, Sequence) and part.parts and _names(part.parts[-1], name):
        yield from ((*part.parts[:-1], *way) for way in _ways(part.parts[-1], name))
    else:
        yield part.parts if isinstance(part, Sequence) else (part,)


def _names(part: Part, name: str) -> bool:
    return any(isinstance(one, RuleName) and one.name == name for one in _all(part))
