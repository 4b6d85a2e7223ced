"""What is open until it is closed: the end of a ``with`` block closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something to be closed."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
