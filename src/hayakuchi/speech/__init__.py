"""Speech: text to phones with accent marks. No JAX here."""
