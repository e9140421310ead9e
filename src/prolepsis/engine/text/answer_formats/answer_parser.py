"""Splits the text of a growing answer into content, reasoning and tool calls, however it comes in parts."""

from collections.abc import Sequence
from typing import Literal

from prolepsis.engine.text.answer_formats.call_reader import CallReader, Piece, PieceKind
from prolepsis.engine.text.answer_formats.fenced import FencedCalls, Fits
from prolepsis.engine.text.answer_formats.formats import AnswerFormats, Thinking
from prolepsis.engine.text.answer_formats.schemas import Function


class AnswerParser:
    """One answer's text, piece by piece. White space next to a mark belongs to the mark and is dropped.

    A call that cannot be read is given back as content, marks and all. Without `parallel`, what follows the first call
    is content. Where calls are `required`, what the answer's end cuts before a call's arguments is dropped. Without
    `functions` none is looked for. With `fits`, an answer that is nothing but calls in fences, or bare, is calls too
    where models with the form write such.
    """

    def __init__(
        self,
        formats: AnswerFormats,
        thinking: Thinking = Thinking.NONE,
        functions: Sequence[Function] = (),
        *,
        parallel: bool = True,
        required: bool = False,
        fits: Fits | None = None,
    ) -> None:
        self.num_calls = 0
        self._form = formats.tools if functions else None
        self._call_mark = self._form.mark.strip() if self._form is not None else ""
        """Without the white space around it, which is dropped."""
        self._reasoning = formats.reasoning if thinking is not Thinking.NONE else None
        self._frames = formats.reasoning.frames if formats.reasoning is not None else ()
        self._functions = {function.name: function for function in functions}
        self._parallel = parallel
        self._required = required
        is_fenced = self._form is not None and self._form.fenced
        self._fenced = FencedCalls(self._functions, fits, parallel=parallel) if fits is not None and is_fenced else None
        """Until the answer is something else."""
        self._state: Literal["start", "text", "thought", "calls"] = "start"
        self._may_think = thinking is Thinking.POSSIBLE
        self._passes = thinking is Thinking.NONE and not functions and not self._frames
        self._held = ""
        self._space = ""  # white space before the last mark
        self._after_mark = False
        self._calls: CallReader | None = None
        if thinking is Thinking.OPENED:
            self._open("thought")
        elif not self._may_think and not self._may_be_calls:
            self._state = "text"

    @property
    def _at_start(self) -> bool:
        return self._form is not None and self._form.at_start

    @property
    def _may_be_calls(self) -> bool:
        return self._at_start or self._fenced is not None

    def push(self, text: str) -> list[Piece]:
        """Take more text and return what it makes certain."""
        if self._passes:
            return [Piece("content", text)] if text else []
        self._held += text
        return self._read(ended=False)

    def finish(self) -> list[Piece]:
        """Return what was held back: the answer ended."""
        return self._read(ended=True)

    def _read(self, *, ended: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._step(pieces, ended=ended):
            pass
        return _joined(pieces)

    def _step(self, pieces: list[Piece], *, ended: bool) -> bool:
        """Read as far as the present state goes; True if another state follows."""
        match self._state:
            case "start":
                return self._start(pieces, ended=ended)
            case "thought":
                assert self._reasoning is not None, "only what may reason is inside of it"
                return self._text(pieces, "reasoning", (self._reasoning.end,), ended=ended)
            case "text":
                return self._text(pieces, "content", self._marks(), ended=ended)
            case "calls":
                calls = self._calls
                assert calls is not None, "a mark began them"
                self._held = calls.read(self._held, pieces, ended=ended)
                self.num_calls = calls.num_calls
                if not calls.done:
                    return False
                self._state, self._after_mark = "text", not calls.refused
                if calls.refused:
                    self._add(pieces, "content", self._space + calls.refused)
                return True

    def _start(self, pieces: list[Piece], *, ended: bool) -> bool:
        """The answer may open with reasoning, or be calls as a whole."""
        text = self._held.lstrip()
        start = self._reasoning.start if self._may_think and self._reasoning is not None else ""
        if start and text.startswith(start):
            self._held = text[len(start) :]
            self._may_think = False
            self._open("thought")
            return True
        mark = self._call_mark if self._at_start else ""
        if not ended and any(len(text) < len(marker) and marker.startswith(text) for marker in (start, mark)):
            return False
        if mark and text.startswith(mark):
            self._held = text
            self._begin_calls()
            return True
        calls = self._fenced.read(self._held, ended=ended) if self._fenced is not None else None
        if calls is None:
            self._state, self._fenced = "text", None
            return True
        if ended:
            self._held, self.num_calls = "", len(calls)
            pieces += [piece for number, call in enumerate(calls) for piece in call.pieces(number)]
        return False

    def _marks(self) -> tuple[str, ...]:
        """Return the texts that end a part of the content."""
        marks = self._frames
        if self._form is not None and not self._form.at_start and (self._parallel or not self.num_calls):
            marks = (self._call_mark, *marks)
        if self._reasoning is not None and self._reasoning.anywhere:
            marks = (self._reasoning.start, *marks)
        return marks

    def _text(self, pieces: list[Piece], kind: PieceKind, marks: Sequence[str], *, ended: bool) -> bool:
        if self._after_mark:
            self._held = self._held.lstrip()
            self._after_mark = not self._held
        first = min(((at, -len(mark), mark) for mark in marks if (at := self._held.find(mark)) >= 0), default=None)
        begun = len(self._held) - max((_begun(self._held, mark) for mark in marks), default=0)
        if first is not None and (ended or first[0] < begun):
            return self._mark(pieces, kind, first[0], first[2])
        is_cut = ended and self._required and self._form is not None and self._call_mark in marks
        holds = bool(marks) and (is_cut or not ended)
        kept = len(self._held) - len(self._held[:begun].rstrip()) if holds else 0
        self._add(pieces, kind, self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _mark(self, pieces: list[Piece], kind: PieceKind, at: int, mark: str) -> bool:
        before = self._held[:at].rstrip()
        self._add(pieces, kind, before)
        self._space = self._held[len(before) : at]
        self._held = self._held[at:]
        if mark == self._call_mark and kind == "content":
            self._begin_calls()
            return True
        self._held = self._held[len(mark) :]
        reopens = kind == "content" and self._reasoning is not None and mark == self._reasoning.start
        at_start = kind == "reasoning" and self._may_be_calls and not self.num_calls
        self._open("thought" if reopens else "start" if at_start else "text")
        return True

    def _open(self, state: Literal["start", "text", "thought"]) -> None:
        self._state, self._after_mark = state, True

    def _begin_calls(self) -> None:
        assert self._form is not None, "a mark of calls is looked for where there is a form"
        self._state = "calls"
        self._calls = CallReader(
            self._form, self._functions, self.num_calls, parallel=self._parallel, required=self._required
        )

    def _add(self, pieces: list[Piece], kind: PieceKind, text: str) -> None:
        if text:
            pieces.append(Piece(kind, text))


def _begun(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may yet turn out to be the beginning of `mark`."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and last.kind == piece.kind != "call" and last.call == piece.call:
            joined[-1] = Piece(piece.kind, last.text + piece.text, piece.call)
        else:
            joined.append(piece)
    return joined
