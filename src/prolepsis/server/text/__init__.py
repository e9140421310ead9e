"""The text of answers: the tokenizer, single tokens as clients see them, and what a step adds."""
