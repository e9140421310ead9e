"""The text side of a model: tokens, chat templates, answer formats, grammars. It knows no tensor and no step."""
