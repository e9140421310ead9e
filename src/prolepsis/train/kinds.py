"""The kinds of user turns, and how each begins; the target writes on from there.

Slots: {topic}, {name}, {thing}, {language}, {other} (another language), {code} (a programming language), {number},
{passage}, {second}, {third} and {fourth} (texts the target wrote before). An opener that ends in a space or newline is
continued by the target up to the end of the turn; any other opener is a whole turn.
"""

from dataclasses import dataclass


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
