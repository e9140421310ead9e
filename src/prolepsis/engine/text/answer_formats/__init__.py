"""How families of models write tool calls and reasoning: a table, and what reads and constrains its forms."""
