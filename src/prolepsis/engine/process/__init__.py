"""An engine in a process of its own, so that no other Python code holds the interpreter lock while it steps."""
