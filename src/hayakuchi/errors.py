"""Errors that are the user's to mend."""


class UserError(Exception):
    """A mistake of the user's: the command line prints its one line and exits with 2.

    The message names the culprit (file, line, option, value) and what to do about it.
    """


class MissingExtraError(UserError):
    """A library of an optional extra is needed and not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the library {library!r}: install it with `pip install 'hayakuchi[{extra}]'`")


def require(condition: bool, name: str, value: object, rule: str) -> None:
    """Raises a UserError of the form "top_p=1.5 must be at most 1" unless the condition holds.

    Args:
      condition: whether `value` is allowed.
      name: of the option.
      value: what was given.
      rule: what it must be.
    """
    if not condition:
        raise UserError(f"{name}={value!r} {rule}")
