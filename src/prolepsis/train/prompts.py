"""What the synthesised prompts are about: what openers are filled with."""

import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prolepsis.core.errors import ConfigError
from prolepsis.models.files.tokenizer import Tokenizer
from prolepsis.train.words import Words

_TOPICS = """
bread baking|the water cycle|bicycle repair|the solar system|job interviews|small gardens
the French Revolution|honey bees|electric cars|learning the guitar|public libraries|volcanoes
personal budgets|machine learning|chess openings|the human heart|coral reefs|time zones|email etiquette
coffee roasting|the stock market|photosynthesis|remote work|Roman roads|healthy breakfasts|thunderstorms
dog training|renewable energy|the printing press|yoga|spreadsheets|city parks|penguins
the Great Wall of China|travel on a small budget|antibiotics|jazz|recycling|sleep habits|bridges
the moon landing|online privacy|houseplants|tea ceremonies|marathon training|dinosaurs|public speaking
inflation|the immune system|sailing|medieval castles|weather forecasts|vegetarian cooking|rivers
computer networks|the Olympic Games|note taking|glaciers|birdwatching|mountain hiking|sorting algorithms
museums|a lost letter|a robot that paints|two rival bakers|a lighthouse keeper|a talking cat
an unexpected inheritance|a small fishing village|the last train home|a school play|a new neighbour
climate change|the history of money|a customer complaint|a product launch|a team meeting|a birthday party
moving to a new city|a broken laptop|databases|unit tests|web servers|prime numbers|fractions|probability
geometry|percentages|unit conversion|string handling|file systems|recursion|linked lists|regular expressions
dates and times|the binary search|ancient Egypt|the Amazon rainforest|sharks|whales|the Nile|Mount Everest
Shakespeare|Mozart|Leonardo da Vinci|Marie Curie|Isaac Newton|the Second World War|the Industrial Revolution
the Renaissance|football|tennis|basketball|films of the nineties|science fiction novels|poetry
detective stories|folk music|street photography|oil painting|cloud storage|mobile phones|video games
social media|online shopping|airports|trains|hotels|restaurants|hospitals|nurses|teachers|farmers
fire fighters|architects|lawyers|carpenters|software developers|students|parents|stress|headaches|vitamins
running shoes|swimming|allergies|back pain|first aid|dental care|healthy snacks|rice dishes|soups|chocolate
cheese|salads|pasta|apple pie|olive oil|spices|fermented foods|elections|taxes|the United Nations|insurance
contracts|small businesses|marketing|customer service|negotiation|black holes|gravity|electricity|magnets
atoms|the periodic table|batteries|lasers|DNA|evolution|earthquakes|deserts|kitchen tools|winter coats
camping gear|board games|old clocks|wooden furniture|handmade soap|bicycles|umbrellas|Japan|Brazil|Kenya
Iceland|Canada|India|Italy|Egypt|Australia|Norway|Mexico|Vietnam|London|Paris|Tokyo|Berlin
"""

TOPICS: tuple[str, ...] = tuple(_TOPICS.strip().replace("\n", "|").split("|"))

_NAMES = """
Anna Ben Carla David Elena Farid Grace Hiro Ines Jack Kofi Lena Maria Nora Omar Priya Quinn Rosa Sam Tara
Uma Victor Wei Yusuf Zoe Tom Lucy Peter Sofia Daniel
"""
NAMES: tuple[str, ...] = tuple(_NAMES.split())

_THINGS = """
apples pencils books tickets cookies marbles eggs stickers bottles chairs coins flowers cakes boxes oranges
shirts candles stamps toys bags
"""
THINGS: tuple[str, ...] = tuple(_THINGS.split())

LANGUAGES: tuple[str, ...] = ("German", "French", "Spanish", "Italian", "Portuguese", "English")
PROGRAMMING: tuple[str, ...] = ("Python", "Python", "Python", "JavaScript", "C++", "Java", "SQL", "Bash", "Rust", "Go")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of prompt: its share of all prompts, and the beginnings it is drawn from."""

    name: str
    weight: float
    openers: tuple[str, ...]


KINDS: tuple[Kind, ...] = (
    Kind("open", 1.5, ("",)),
    Kind(
        "chat",
        2.0,
        (
            "Can you ",
            "I am thinking about {topic} and ",
            "What do you think about {topic}?",
            "My friend {name} says that ",
            "Hi! I would like to talk about {topic}. ",
            "Pretend that you are ",
            "Imagine that you ",
            "Give me advice on {topic}. I ",
            "Should I ",
            "Discuss {topic} from the point of view of ",
        ),
    ),
    Kind(
        "how-to",
        1.0,
        ("How do I ", "How can I ", "Explain step by step how to ", "What is the best way to ", "Give me tips for "),
    ),
    Kind(
        "article",
        2.0,
        (
            "Write a short article about {topic}.",
            "Write a news report about {topic}. Mention people, places and dates.",
            "Describe the history of {topic} in three paragraphs.",
            "Write an encyclopedia entry about {topic}.",
            "Write a report about how {name} ",
            "Explain {topic} to a beginner.",
        ),
    ),
    Kind(
        "writing",
        1.0,
        (
            "Write a short story about {topic}.",
            "Write a poem about {topic}.",
            "Write an email to {name} about {topic}.",
            "Compose a blog post about {topic} that ",
            "Write a dialogue between {name} and ",
            "Draft a letter in which {name} ",
            "Write a persuasive speech on ",
        ),
    ),
    Kind(
        "code",
        2.0,
        (
            "Write a {code} function that ",
            "Write a {code} program to ",
            "Implement a {code} class for ",
            "How do you ",
            "What does this {code} code do?\n```\n",
            "Fix the bug in this {code} function:\n```\n",
            "Add a docstring and type hints to this function:\n```python\ndef ",
            "Rename the variables in this code to clearer names:\n```python\ndef ",
        ),
    ),
    Kind(
        "maths",
        2.0,
        (
            "{name} has {number} {thing}. ",
            "{name} buys {number} {thing} for ",
            "A train ",
            "There are {number} {thing} in ",
            "Solve this problem step by step: ",
            "{name} earns ${number} an hour. ",
            "If a {topic} shop sells ",
            "A farmer has {number} ",
            "{name} and {name} share {number} {thing}. How many ",
            "Calculate ",
        ),
    ),
    Kind(
        "question",
        2.0,
        (
            "What is ",
            "Who ",
            "When did ",
            "Where is ",
            "Why do ",
            "How many ",
            "Which ",
            "what is the meaning of ",
            "who wrote ",
            "when was the last time ",
            "What is the difference between ",
        ),
    ),
    Kind(
        "summary",
        3.5,
        (
            "Summarize: {passage}",
            "Summarize the following text in two sentences:\n\n{passage}",
            "Write a brief summary of this article.\n\n{passage}",
            "{passage}\n\nTL;DR",
            "List the key points of the text below.\n\n{passage}",
            "Summarize: {passage} {second} {third}",
            "Summarize this report in a few sentences.\n\n{passage}\n\n{second}\n\n{third}\n\n{fourth}",
        ),
    ),
    Kind(
        "retrieval",
        3.5,
        (
            "Paragraph 1: {passage}\n\nParagraph 2: {second}\n\nAnswer using the paragraphs above.\nQuestion: ",
            "Context:\n{passage}\n\nQuestion: ",
            "Answer the question based on the passage.\n\n{passage}\n\nQuestion: What ",
            "Use the documents to answer.\n[1] {passage}\n[2] {second}\nQuestion: ",
            "[1] {passage}\n[2] {second}\n[3] {third}\n[4] {fourth}\nAnswer from the numbered texts.\nQuestion: ",
            "Passages:\n- {passage}\n- {second}\n- {third}\n- {fourth}\n\nQuery: ",
        ),
    ),
    Kind(
        "translation",
        2.5,
        (
            "Translate {language} to {other}: ",
            "Translate to {language}: {name} ",
            "Translate this sentence into {language}: The ",
            "How do you say in {language}: ",
            "Translate German to English: Die ",
            "Translate German to English: ",
        ),
    ),
    Kind(
        "rewriting",
        1.0,
        (
            "Rewrite this text in simple words:\n\n{passage}",
            "Correct the grammar: ",
            "Make this sentence more formal: ",
            "Rephrase the following: ",
            "Rewrite the text below as a letter:\n\n{passage}",
        ),
    ),
    Kind(
        "extraction",
        2.0,
        (
            "Extract the names, places and dates from this text as JSON:\n\n{passage}",
            "Convert this to JSON with the keys name, age and city: {name}, ",
            "Turn the following list into a JSON array of objects: ",
            "Convert this CSV to JSON:\nname,price,quantity\n",
            "Write a JSON object that describes ",
            "Make a Markdown table of ",
        ),
    ),
    Kind(
        "list",
        1.0,
        ("List ten ", "Give me five ideas for ", "Name three ", "What are the main kinds of ", "Suggest {number} "),
    ),
)

SYSTEM_PROMPTS: tuple[str, ...] = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are an expert programmer. Answer with code and short explanations.",
    "You are a patient teacher who explains step by step.",
    "Answer in JSON.",
    "You are a careful translator.",
    "You are a friendly customer service agent.",
    "Answer in the style of an encyclopedia.",
)


SYSTEM_SHARE = 0.15
GREEDY_SHARE = 0.7
MAX_PASSAGES = 512
PASSAGES = 4
"""Passages of a prompt at most."""
PASSAGE_CHARACTERS = (200, 1200)
GIVEN = "given"
"""Kind of the prompts that the user brought."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """One prompt to be: the target writes on from `opener` where `open`."""

    number: int
    kind: str
    system: str | None
    opener: str
    open: bool
    temperature: float
    """Of the answer; 0 for most."""


class Planner:
    """Draws prompt plans; the same number gives the same plan but for the passages, which the target writes."""

    def __init__(self, seed: int, given: Sequence[str] = (), words: Words | None = None) -> None:
        """`given` are the user's own prompts, `words` what prompts are seeded with beside the topics listed here."""
        self._seed = seed
        self._given = given
        self._words = words or Words()
        self._passages: deque[str] = deque(maxlen=MAX_PASSAGES)

    def plan(self, number: int) -> PromptPlan:
        """Return the plan of prompt `number`; the user's own prompts come first."""
        rng = random.Random(f"{self._seed}/{number}")
        temperature = 0.0 if rng.random() < GREEDY_SHARE else round(rng.uniform(0.7, 1.0), 2)
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_SHARE else None
        if number < len(self._given):
            return PromptPlan(number, GIVEN, None, self._given[number], False, temperature)
        kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
        opener = rng.choice(kind.openers)
        if "{passage}" in opener and len(self._passages) < PASSAGES:
            kind = next(kind for kind in KINDS if kind.name == "article")
            opener = rng.choice(kind.openers)
        is_open = not opener or opener[-1].isspace()
        filled = self._fill(opener, rng) + (self._words.more(rng) if opener.endswith(" ") else "")
        return PromptPlan(number, kind.name, system, filled, is_open, temperature)

    def learn(self, kind: str, text: str) -> None:
        """Take an answer into the passages that later prompts are about."""
        least, most = PASSAGE_CHARACTERS
        if kind in ("article", "question", "how-to") and len(text) >= least:
            self._passages.append(whole_sentences(text[:most]))

    def _fill(self, opener: str, rng: random.Random) -> str:
        language, other = rng.sample(LANGUAGES, 2)
        passages = rng.sample(list(self._passages), PASSAGES) if "{passage}" in opener else ("",) * PASSAGES
        slots = {
            "{topic}": self._words.topic(rng) or rng.choice(TOPICS),
            "{thing}": self._words.thing(rng) or rng.choice(THINGS),
            "{language}": language,
            "{other}": other,
            "{code}": rng.choice(PROGRAMMING),
            "{number}": str(rng.choice((rng.randint(2, 12), rng.randint(10, 99), 10 * rng.randint(10, 99)))),
            "{passage}": passages[0],
            "{second}": passages[1],
            "{third}": passages[2],
            "{fourth}": passages[3],
        }
        while "{name}" in opener:
            opener = opener.replace("{name}", self._words.name(rng) or rng.choice(NAMES), 1)
        for slot, value in slots.items():
            opener = opener.replace(slot, value)
        return opener


def whole_sentences(text: str) -> str:
    """Return `text` up to its last sentence end, or all of it where it has none."""
    ends = [text.rfind(mark) for mark in (". ", ".\n", "! ", "? ")]
    end = max(ends)
    return text[: end + 1].strip() if end > 0 and not text.rstrip().endswith((".", "!", "?")) else text.strip()


def turn_prefix(tokenizer: Tokenizer, system: str | None, opener: str) -> list[int]:
    """Return the chat template's tokens up to and including a user turn that begins with `opener`.

    Raises `InvalidParameter` where the model has no chat template.
    """
    mark = "PROLEPSIS-TURN"
    whole = tokenizer.decode(tokenizer.apply_chat_template(chat(system, mark)), skip_special_tokens=False)
    before, _, _ = whole.partition(mark)
    return tokenizer.encode(before + opener.rstrip(" "), add_special_tokens=False)


def chat(system: str | None, user: str) -> list[dict[str, str]]:
    """Return the messages of a conversation's first question."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": user}]


def read_prompts(file: Path) -> list[str]:
    """Read the user's prompts: a JSON object with `prompt` on each line.

    Raises `ConfigError` naming the first line that is none.
    """
    prompts = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{file} cannot be read as UTF-8 text: {error}", param="prompts") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompts.append(str(json.loads(line)["prompt"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{file}, line {number}: not a JSON object with 'prompt': {error!r}", param="prompts"
            ) from error
    return prompts
