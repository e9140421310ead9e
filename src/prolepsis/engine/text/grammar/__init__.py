"""Grammars compiled for the model's tokenizer, and the tokens that they allow next."""
