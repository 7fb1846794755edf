"""Hayakuchi (早口): Japanese text and speech models from scratch, fast."""
