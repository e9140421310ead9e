"""Requests of a workload, what they are like, and what their traffic classes let proposers expect, as JSON values."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import accumulate, groupby, pairwise
from math import log, log2
from pathlib import Path
from typing import Any

from prolepsis.control.statistics.percentile import percentile
from prolepsis.control.web.body_reader import parse_body
from prolepsis.core.bands import length_band
from prolepsis.core.errors import ConfigError, UserError
from prolepsis.core.facts import traffic_class_of
from prolepsis.core.files import numbered_lines, read_text
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.traffic_sums import ratio
from prolepsis.engine.drafting.proposers.prompt_lookup import NgramIndex
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.lab.rehearsal.trace import BlockNumbers, MeasuredTimes, TraceLine, read_trace
from prolepsis.server.preparing.asked import tool_use
from prolepsis.server.preparing.bodies import ChatBody
from prolepsis.server.preparing.conversation import chat_tokens

LOOKUPS = {"5 to 2": (5, 4, 3, 2), **{str(n): (n,) for n in range(1, 6)}}
"""Last tokens that are looked up: as the proposer prompt_lookup does, the longest n-gram first, then so many."""
LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
RULES = json.loads((files(__package__) / "rules.json").read_text("utf-8"))  # by kind of traffic: what others measured
_TRACE = re.compile(
    rb'{\s*"(?:format|metadata)"|{\s*$|.*"benchmarks":|.*"input_length"|[^{]'
)  # how traces begin, and lines with texts do not
_CODE = re.compile(r"^ *```(\w*)|[;{]$|^ *(?:#include|def \w+\(|import \w+$|from \S+ import|const \w+ =)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProfiledRequest:
    """A request of a traffic class, or of a file's category. Not told: an output of 0, a route or text of ''."""

    line: TraceLine
    category: str
    prompt_ids: Sequence[int] = ()
    answer_ids: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[float] = ()  # of the answer's tokens, by the target


def read_requests(file: Path, tokenizer: Callable[[], Tokenizer]) -> tuple[list[ProfiledRequest], float | None]:
    """Return requests and the share of their prompts that came before; raises `ConfigError` with the line at fault."""
    if not file.is_file() or _TRACE.match(file.read_bytes()):  # `read_trace` says that there is none
        lines, block_size = (trace := read_trace(file)).lines, trace.block_size
        return [ProfiledRequest(row, traffic_class_of(row.facts())) for row in lines], shared_prefix(lines, block_size)
    requests, reader, blocks = list[ProfiledRequest](), tokenizer(), BlockNumbers()
    for number, text in numbered_lines(read_text(file, "file")):
        try:
            requests.append(_request(json.loads(text), reader, blocks))
        except (UserError, ValueError, LookupError, TypeError, AttributeError) as error:  # a line may hold anything
            reason = str(error).rstrip(".")
            raise ConfigError(f"{file}, line {number}: {reason}; needed: prompt or messages", param="file") from None
    return requests, shared_prefix([request.line for request in requests], PAGE_SIZE)


def _request(given: Mapping[str, Any], tokenizer: Tokenizer, blocks: BlockNumbers) -> ProfiledRequest:
    body = {**given, **given.get("body", {})}  # of a line of a batch
    if "prompt_token_ids" in body:
        ids, answer_ids = [*map(int, body["prompt_token_ids"])], [*map(int, body["tokens"][0])]
        text = tokenizer.decode([*ids, *answer_ids])
    else:
        messages = list(body.get("messages") or [{"role": "user", "content": body["prompt"]}])
        messages += [{"role": "assistant", "content": body["answer"]}] if "answer" in body else []
        chat = parse_body(json.dumps({"messages": messages, "tools": body.get("tools")}).encode(), ChatBody)
        answer = chat.messages.pop().content if chat.messages[-1].role == "assistant" else ""
        ids = [*chat_tokens(chat, tool_use(chat.tools, None, None), tokenizer)]
        answer_ids = tokenizer.encode(answer or "", add_special_tokens=False)
        text = "\n".join([*(message.content or "" for message in chat.messages), answer or ""])
    form = (body.get("response_format") or {"type": "text"})["type"]
    took = MeasuredTimes(first_token_s=0.0, total_s=float(body.get("total_s", 0.0)), num_steps=0)
    line = TraceLine(at=float(body.get("at", 0.0)), prompt=len(ids), output=len(answer_ids), measured=took)
    line = replace(line, tier="background" if "body" in given else "standard", tools=bool(body.get("tools")))
    line = replace(line, structured="none" if form == "text" else str(form), route="/v1/chat/completions")
    line = replace(line, blocks=blocks.of([*ids, *answer_ids], ""))
    category = body.get("category") or traffic_class_of(line.facts())
    return ProfiledRequest(line, category, ids, answer_ids, text, [*_logprobs(body.get("logprobs"))])


def _logprobs(kept: Any) -> Iterator[float]:
    """Yield the log-probabilities of a line: a list, or what replies of chats or completions have."""
    if isinstance(kept, Mapping):
        kept = kept.get("content") or kept.get("token_logprobs")  # a request's own is true or a number
    for item in kept if isinstance(kept, list) else ():
        if item is not None:  # what nothing stands before has none
            yield float(item["logprob"] if isinstance(item, Mapping) else item)


def served_requests(records: Sequence[Mapping[str, Any]]) -> tuple[list[ProfiledRequest], float | None]:
    """Return the same of a server's records (`request_record`), the drafts of a proposer as if they were one."""
    requests = []
    for row in records:
        took = MeasuredTimes(first_token_s=0.0, total_s=row["total_s"], num_steps=row["num_steps"])
        drafts: dict[str, tuple[RecordedDraft, ...]] = {
            name: (RecordedDraft(0, 0, 0, parents=(-1,) * own["num_draft_tokens"], path=(0,) * own["num_accepted"]),)
            for name, own in {**row["shadow"], **row["proposers"]}.items()
        }
        prompt, output, at = row["num_prompt_tokens"], row["num_output_tokens"], row["ended_at"] - took.total_s
        line = TraceLine(at=at, prompt=prompt, output=output, measured=took, drafts=drafts)
        requests.append(ProfiledRequest(line, row["traffic_class"] or "none"))
    return requests, ratio(sum(row["num_cached_tokens"] for row in records), sum(item.line.prompt for item in requests))


def report(requests: Sequence[ProfiledRequest], evidence: str) -> dict[str, Any]:
    """Return figures of all requests and of each class, and what to expect; `evidence`: where drafts were counted."""
    names = dict.fromkeys(request.category for request in requests)
    of_class = {name: profile_of([request for request in requests if request.category == name]) for name in names}
    classes = [{"traffic_class": name, "kind": kind_of(name, figures), **figures} for name, figures in of_class.items()]
    rows = [{"traffic_class": stats["traffic_class"], **row} for stats in classes for row in outlook(stats, evidence)]
    rules = [{"kind": kind, **rule} for kind in dict.fromkeys(row["kind"] for row in classes) for rule in RULES[kind]]
    lengths = [*by_length(requests)]
    return {**profile_of(requests), "lengths": lengths, "classes": classes, "outlook": rows, "rules": rules}


def by_length(requests: Sequence[ProfiledRequest]) -> Iterator[dict[str, Any]]:
    """Yield answers, the acceptance of their drafts and their entropy by length, as far as that is told."""
    answered = sorted((item for item in requests if item.line.output), key=lambda item: item.line.output)
    for band, group in groupby(answered, lambda item: length_band(item.line.output)):
        of_band = [*group]
        drafts = [draft for item in of_band for own in item.line.drafts.values() for draft in own]
        accepted = ratio(sum(len(draft.path) for draft in drafts), sum(len(draft.parents) for draft in drafts))
        counts = {"num_requests": len(of_band), "num_tokens": sum(item.line.output for item in of_band)}
        yield {"answers": band.removeprefix("answer_"), **counts, "accepted": accepted, "entropy": entropy(of_band)}


def outlook(figures: Mapping[str, Any], evidence: str) -> Iterator[dict[str, str]]:
    """Yield for proposers of a class what to expect, why and by which evidence of its own, the strongest first."""
    for name, own in figures["drafts"].items():
        because, share = f"{own['right']} of {own['drafted']} draft tokens were right", own["right"] / own["drafted"]
        yield {"proposers": name, "expect": f"{share:.0%} accepted", "because": because, "evidence": evidence}
    for hits in figures["overlap"][:1]:
        because = f"{hits['share']:.0%} of the answers' tokens follow as before, {hits['run_length'] or 0:.1f} in a row"
        expected = {"expect": f"up to {hits['tokens_a_pass']:.2f} tokens a pass", "because": because}
        yield {"proposers": "prompt_lookup", **expected, "evidence": "by overlap of your answers"}


def kind_of(name: str, figures: Mapping[str, Any]) -> str:
    """Return the kind of traffic (of `RULES`) of a traffic class, by its name, load, forms and median lengths."""
    kinds = {
        "batch": "/background/" in name or "/batch/" in name or figures["at_once"].get("mean", 0.0) >= 8.0,
        "agent loops": (figures["tools_share"] or 0.0) > 0.5,
        "structured": (figures["structured_share"] or 0.0) > 0.5 or "/structured/" in name,
        "code": (figures["code_share"] or 0.0) > 0.5,
        "summaries": figures["prompt_tokens"]["p50"] >= max(256, 3 * figures["answer_tokens"].get("p50", 0)),
        "long answers": figures["answer_tokens"].get("p50", 0) > 500,
    }
    return next((kind for kind, holds in kinds.items() if holds), "short chat")


def profile_of(requests: Sequence[ProfiledRequest]) -> dict[str, Any]:
    """Return the figures of one request or more; null or empty: not told."""
    lines, texts = [request.line for request in requests], [request.text for request in requests if request.text]
    routed, answered = [line for line in lines if line.route], [request for request in requests if request.answer_ids]
    letters = (unicodedata.name(letter, "other") for text in texts for letter in text if letter.isalpha())
    scripts = Counter(name.split()[0].lower() for name in letters)
    prompts, answers = [line.prompt for line in lines], [line.output for line in lines if line.output]
    drafted, right = Counter[str](), Counter[str]()
    for name, draft in ((name, draft) for line in lines for name, own in line.drafts.items() for draft in own):
        drafted[name], right[name] = drafted[name] + len(draft.parents), right[name] + len(draft.path)
    return {
        "num_requests": len(requests),
        "prompt_tokens": {name: percentile(prompts, share) for name, share in LEVELS.items()},
        "answer_tokens": {name: percentile(answers, share) for name, share in LEVELS.items() if answers},
        "structured_share": ratio(sum(line.structured != "none" for line in routed), len(routed)),
        "tools_share": ratio(sum(line.tools for line in routed), len(routed)),
        "code_share": ratio(sum(bool(_CODE.search(text)) for text in texts), len(texts)),
        "code_blocks": Counter(name for text in texts for name in _CODE.findall(text) if name),
        "letters": {name: number / scripts.total() for name, number in scripts.most_common(5)},
        "requests_a_second": ratio(len(lines) - 1, max(line.at for line in lines) - min(line.at for line in lines)),
        "at_once": at_once(lines),
        "entropy": entropy(requests),
        "overlap": [overlap(answered, name) for name in LOOKUPS if answered],
        "drafts": {name: {"drafted": own, "right": right[name]} for name, own in sorted(drafted.items()) if own},
    }


def entropy(requests: Sequence[ProfiledRequest]) -> dict[str, float | None]:
    """Return bits a token of the answers together; null: not known.

    `unigram`: by how often each token comes; `bigram`: the same, given the token before, unless most pairs came once;
    `target`: the mean surprise of the target, by the log-probabilities that it gave. Few tokens make the first two low.
    """
    tokens = Counter(token for request in requests for token in request.answer_ids)
    pairs = Counter(pair for request in requests for pair in pairwise(request.answer_ids))
    first = Counter(token for request in requests for token in request.answer_ids[:-1])
    logprobs = [logprob for request in requests for logprob in request.logprobs]
    are_repeated = 2 * sum(number for number in pairs.values() if number > 1) >= pairs.total() > 0
    return {
        "unigram": _bits(tokens) if tokens else None,
        "bigram": max(0.0, _bits(pairs) - _bits(first)) if are_repeated else None,
        "target": sum(-logprob for logprob in logprobs) / len(logprobs) / log(2.0) if logprobs else None,
    }


def _bits(counts: Counter[Any]) -> float:
    """Return the entropy of counts, in bits."""
    total = counts.total()
    return sum(number / total * log2(total / number) for number in counts.values())


def overlap(requests: Sequence[ProfiledRequest], lookup: str) -> dict[str, Any]:
    """Return which share of one answer or more a lookup of tokens would have guessed, in prompt and answer so far.

    `run_length`: mean number of right guesses in a row; `tokens_a_pass`: at most, with drafts as long as their runs.
    """
    num_tokens, num_right, num_runs, num_last = sum(len(request.answer_ids) for request in requests), 0, 0, 0
    for request in requests:
        index, context, was_right = NgramIndex(LOOKUPS[lookup]), list(request.prompt_ids), False
        for token in request.answer_ids:
            index.extend(context)
            place, size = index.find(context)
            is_right = size > 0 and context[place] == token
            num_right, num_runs = num_right + is_right, num_runs + (is_right > was_right)
            context.append(token)
            was_right = is_right
        num_last += was_right  # a run that ends the answer has no other token behind it
    figures = {"last_tokens": lookup, "share": num_right / num_tokens, "run_length": ratio(num_right, num_runs)}
    return {**figures, "tokens_a_pass": num_tokens / (num_tokens - num_right + num_last)}


def shared_prefix(lines: Sequence[TraceLine], block_size: int) -> float | None:
    """Return the share of prompt tokens in full blocks that came before, in order; None where no block is known."""
    seen, num_shared = set[int](), 0
    for line in lines:
        own = line.blocks[: line.prompt // block_size]
        num_shared += block_size * next((i for i, block in enumerate(own) if block not in seen), len(own))
        seen.update(line.blocks)
    return num_shared / sum(line.prompt for line in lines) if seen else None


def at_once(lines: Sequence[TraceLine]) -> dict[str, float]:
    """Return how many requests ran at once, on average from the first arrival to the last end, and at most."""
    spans = [(line.at, line.at + line.measured.total_s) for line in lines if line.measured and line.measured.total_s]
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))  # ends before arrivals
    if not spans:
        return {}
    mean = sum(end - start for start, end in spans) / (changes[-1][0] - changes[0][0])
    return {"mean": mean, "most": max(accumulate(number for _, number in changes))}
