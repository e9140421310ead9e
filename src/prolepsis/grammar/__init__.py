"""Grammars compiled against the model's tokenizer, and what they allow next."""
