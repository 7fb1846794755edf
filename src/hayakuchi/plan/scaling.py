"""How good a language model of a size gets from so many tokens: the rule that the search of `plan` goes by.

The loss is that of Muennighoff et al. (arXiv 2305.16264, section 3 and appendix A), fitted on English web text: it
ranks plans, and its value is no forecast for Japanese. To it comes what a large batch wastes (Kaplan et al., arXiv
2001.08361, section 5.1).
"""

import math

# L = E + A / N' ** ALPHA + B / D' ** ALPHA, in nats a token.
_E, _A, _B, _ALPHA = 1.87, 521.0, 1_488.0, 0.353
# Repeating a text, and parameters beyond what its unique tokens call for, fade with these constants.
_REPEATS, _EXCESS = 15.4, 5.3
# The best N for D, from the derivative of the loss: N = (A / B) ** (1 / ALPHA) * D.
_PARAMETERS_A_TOKEN = (_A / _B) ** (1 / _ALPHA)
_CRITICAL_TOKENS, _CRITICAL_POWER = 2e8, 1 / 0.21

GOOD_EPOCHS = 4
"""Up to so many readings a text is worth about as much as a new one (arXiv 2305.16264, section 6)."""
MOST_EPOCHS = 40
"""After so many readings another teaches next to nothing."""


def predicted_loss(
    parameters: float, tokens: float, unique_tokens: float = math.inf, batch_tokens: float = 0.0
) -> float:
    """Nats a token after training.

    Args:
      parameters: trained numbers.
      tokens: read in all.
      unique_tokens: of the data set; infinite where every token is new.
      batch_tokens: of a step; each step of a large batch teaches less than its tokens would in small ones.
    """
    loss = _loss(parameters, tokens, unique_tokens)
    if not batch_tokens:
        return loss
    critical = _CRITICAL_TOKENS / loss**_CRITICAL_POWER
    return _loss(parameters, tokens / (1 + batch_tokens / critical), unique_tokens)


def _loss(parameters: float, tokens: float, unique: float) -> float:
    data, size = tokens, parameters
    if tokens > unique:
        data = unique + unique * _REPEATS * -math.expm1(-(tokens / unique - 1) / _REPEATS)
    called_for = _PARAMETERS_A_TOKEN * unique
    if parameters > called_for:
        size = called_for + called_for * _EXCESS * -math.expm1(-(parameters / called_for - 1) / _EXCESS)
    return _E + float(_A / size**_ALPHA + _B / data**_ALPHA)
