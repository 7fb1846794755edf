"""Text before and after the model: control codes, normalisation, the tokenizer."""
