"""CASE in an expression: where it stands, and its branches, each as it was written."""

from __future__ import annotations

from sqlglot import Token, TokenType

from millstream.relation.schema import tokens_of

_OPENING = (TokenType.CASE, TokenType.L_PAREN)
_CLOSING = (TokenType.END, TokenType.R_PAREN)
_WORDS = (TokenType.WHEN, TokenType.THEN, TokenType.ELSE, TokenType.END)


def outer_cases(sql: str) -> list[tuple[int, int]]:
    """From where to where each CASE is that stands in no other.

    >>> [("f(CASE WHEN a THEN 1 END) + 1")[start:end] for start, end in outer_cases("f(CASE WHEN a THEN 1 END) + 1")]
    ['CASE WHEN a THEN 1 END']
    """
    found, depth, start = [], 0, 0
    for token in tokens_of(sql) if "case" in sql.lower() else ():
        if token.token_type == TokenType.CASE:
            start = start if depth else token.start
            depth += 1
        elif token.token_type == TokenType.END and depth:
            depth -= 1
            found += [] if depth else [(start, token.end + 1)]
    return found


def read_case(sql: str) -> tuple[str, list[tuple[str, str]], str]:
    """The subject of a CASE, its branches (when, then), and what is behind ELSE; nothing where there is none.

    >>> read_case("CASE n WHEN 1 THEN 'one' WHEN 2 THEN CASE WHEN a THEN b END ELSE c END")
    ('n', [('1', "'one'"), ('2', 'CASE WHEN a THEN b END')], 'c')
    """
    pieces: list[tuple[TokenType, list[Token]]] = [(TokenType.CASE, [])]
    depth = 0
    for token in tokens_of(sql)[1:]:
        kind = token.token_type
        if not depth and kind in _WORDS:
            pieces.append((kind, []))
            continue
        depth += (kind in _OPENING) - (kind in _CLOSING)
        pieces[-1][1].append(token)
    texts = [(word, sql[part[0].start : part[-1].end + 1] if part else "") for word, part in pieces]
    whens, thens = ([text for word, text in texts if word == kind] for kind in (TokenType.WHEN, TokenType.THEN))
    otherwise = next((text for word, text in texts if word == TokenType.ELSE), "")
    return texts[0][1], list(zip(whens, thens, strict=True)), otherwise
