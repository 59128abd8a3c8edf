"""Exceptions whose message is all that the user sees."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(Exception):
    """Something outside the program is wrong; the message says what, where and how to mend it."""


class ConfigError(UserError):
    """All problems of a configuration at once; `main` prints it without a traceback.

    Attributes:
      messages: one line per problem, each naming the key or file, the value and the fix.
    """

    def __init__(self, messages: str | Iterable[str]) -> None:
        self.messages = [messages] if isinstance(messages, str) else list(messages)
        super().__init__(self.messages)

    def __str__(self) -> str:
        if len(self.messages) == 1:
            return self.messages[0]
        return "\n".join(f"{number}. {message}" for number, message in enumerate(self.messages, 1))


class TrainingError(UserError):
    """Ends training; the message says what, where and how to mend it.

    Attributes:
      alert: title under which a person is told wherever a sink can reach one; empty: nobody is.
    """

    alert = ""
