"""The tokens of an expression, taken from left to right."""

from __future__ import annotations

from sqlglot import Token, TokenType

from millstream.relation.schema import tokens_of
from millstream.scalar.types import need

_LONGEST = 200  # tokens; sums and products of many parts repeat each other in what is unsure


class Tokens:
    """Where a reader is in its text."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._tokens: list[Token] = tokens_of(sql)
        need(len(self._tokens) <= _LONGEST)
        self._at = 0

    @property
    def at_end(self) -> bool:
        """Whether all of it was taken."""
        return self._at == len(self._tokens)

    def kind(self, ahead: int = 0) -> TokenType | None:
        """What kind of token comes next; None at the end."""
        at = self._at + ahead
        return self._tokens[at].token_type if at < len(self._tokens) else None

    def word(self, ahead: int = 0) -> str:
        """The next token as it was written, in lower case; nothing for literals, quoted names and the end."""
        if self.kind(ahead) in (None, TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER):
            return ""
        token = self._tokens[self._at + ahead]
        return self._sql[token.start : token.end + 1].lower()

    def take(self, *words: str) -> str:
        """Pass over one of the words if it is next, and give it."""
        word = self.word()
        if word not in words:
            return ""
        self._at += 1
        return word

    def expect(self, *words: str) -> str:
        """Pass over one of the words, which must be next, and give it."""
        word = self.take(*words)
        need(bool(word))
        return word

    def false_for_null(self) -> bool:
        """Whether the brackets that come next stand in ``coalesce((…), false)``."""
        depth = 0
        for ahead in range(len(self._tokens) - self._at):
            depth += (self.kind(ahead) == TokenType.L_PAREN) - (self.kind(ahead) == TokenType.R_PAREN)
            if depth == 0:
                behind = [self.word(ahead + step) for step in (1, 2, 3)]
                return self.kind() == TokenType.L_PAREN and behind == [",", "false", ")"]
        return False

    def next(self) -> Token:
        """Pass over the next token, and give it."""
        need(self._at < len(self._tokens))
        self._at += 1
        return self._tokens[self._at - 1]

    def quote(self, text: Token) -> str:
        """The quote that a text in quotes begins with."""
        return self._sql[text.start]

    def suffix(self, number: Token) -> str:
        """Pass over the letter that stands right behind a number, and give it: ``1L`` comes as 1, ::, L."""
        if self.kind() != TokenType.DCOLON or self._tokens[self._at].start != number.start:
            return ""
        self._at += 2
        return self._tokens[self._at - 1].text.lower()
