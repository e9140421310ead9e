"""Takes up an answer that another engine began: sequences get its tokens as output, as if preempted after them.

What follows is the preemption's path: the tokens are computed like a prompt, and the next is sampled at its position.
"""

from collections.abc import Sequence

from prolepsis.core.continuation import Continuation
from prolepsis.core.errors import ContextTooLong, GrammarFailed, InvalidParameter
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.ending import Ending, find_ending
from prolepsis.engine.request import Request, SequenceState
from prolepsis.engine.text.grammar.matcher import CompiledGrammar

_PARAM = "continue_from"


def check_continuation(
    source: GenerateRequest, continuation: Continuation, max_model_len: int, vocab_size: int
) -> None:
    """Raise `UserError` for tokens that cannot be output of the request; reads nothing that changes."""
    if source.is_replay:
        raise _refused("was given with emitted", "one of them")
    if len(continuation.emitted) != source.n:
        raise _refused(f"is of {len(continuation.emitted)} samples", f"of all {source.n}")
    most, length = source.params.max_tokens, len(source.prompt_token_ids)
    for index, tokens in enumerate(continuation.emitted):
        if len(tokens) > most:
            raise _refused(f"has {len(tokens)} tokens of sample {index}", f"at most max_tokens ({most})")
        if length + len(tokens) > max_model_len:
            message = f"{length} in the prompt and {len(tokens)} in {_PARAM}"
            raise ContextTooLong.of(max_model_len, message, param=_PARAM)
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < vocab_size:
                raise _refused(f"holds token {token}", f"0 to {vocab_size - 1}")


def take_up(request: Request, continuation: Continuation, max_model_len: int, grammar: CompiledGrammar | None) -> None:
    """Give the sequences of a request just opened the tokens emitted before, and end those that these end.

    Raises `InvalidParameter` for tokens that the engine would not have emitted, or where nothing is left to emit.
    """
    for sequence, tokens in zip(request.sequences, continuation.emitted, strict=True):
        sequence.is_scored &= not any(continuation.emitted)  # they came with the first tokens
        ending = _follow(sequence, tokens, max_model_len, grammar)
        if ending is not None and ending.num_tokens < len(tokens):
            where = f"continues after sample {sequence.index} ended with token {ending.num_tokens - 1}"
            raise _refused(where, "nothing after its end")
        sequence.tokens += tokens
        if sequence.history is not None:
            sequence.history.append(tokens)
        sequence.ended = ending is not None
    if not request.live:
        raise _refused("has ended already, each of its samples", "a sample that has not ended")
    request.stats.num_continued_tokens = sum(map(len, continuation.emitted))


def _follow(
    sequence: SequenceState, tokens: Sequence[int], max_model_len: int, grammar: CompiledGrammar | None
) -> Ending | None:
    """Let stop strings and grammar take in the tokens, and return where these end the sequence."""
    try:
        ending = find_ending(sequence, tokens, max_model_len)
        if sequence.matcher is not None:
            sequence.matcher.advance(tokens)
    except GrammarFailed:
        assert grammar is not None, "a matcher has a grammar"
        num_accepted = grammar.matcher(ignore_eos=sequence.params.ignore_eos).accepted(tokens)
        if num_accepted == len(tokens):
            raise
        wrong = f"holds token {tokens[num_accepted]} as number {num_accepted} of sample {sequence.index}"
        raise _refused(wrong, "what the request's grammar accepts there") from None
    return ending


def _refused(given: str, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{_PARAM} {given}; allowed: {allowed}", param=_PARAM)
