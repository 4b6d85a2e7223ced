"""The settings of ``millstream serve``: who may use it, and for how much. Secrets are references, here as everywhere."""

from __future__ import annotations

from typing import Annotated

import msgspec

from millstream.secret import check_setting


class ServeToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token of ``millstream serve``: where it is, and what it may do."""

    token: str
    scopes: tuple[str, ...]

    def __post_init__(self) -> None:
        check_setting("token", self.token)

    def __repr__(self) -> str:
        return f"ServeToken(scopes={self.scopes!r})"


class ServeWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Webhooks that ``millstream serve`` takes: into which topic, and where the secrets are that sign them."""

    topic: str
    secrets: tuple[str, ...]

    def __post_init__(self) -> None:
        for each in self.secrets:
            check_setting("secret", each)
        if not self.secrets:
            raise ValueError("secrets: found none, expected at least one")

    def __repr__(self) -> str:
        return f"ServeWebhook(topic={self.topic!r})"


class ServeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``millstream serve`` takes at most."""

    body: Annotated[int, msgspec.Meta(ge=1)] = 4 << 20
    events: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    depth: Annotated[int, msgspec.Meta(ge=1)] = 64
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    memory: Annotated[int, msgspec.Meta(ge=1)] = 64 << 20
    connections: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    streams: Annotated[int, msgspec.Meta(ge=1)] = 500
    keys: Annotated[int, msgspec.Meta(ge=1)] = 500_000


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may use ``millstream serve``, and for how much."""

    hosts: tuple[str, ...] = ()
    tokens: dict[str, ServeToken] = {}
    webhooks: dict[str, ServeWebhook] = {}
    limits: ServeLimits = ServeLimits()
