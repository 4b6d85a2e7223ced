"""The pytest fixture ``trial``. pytest loads this file by itself where Millstream is installed, so it loads nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from millstream.pipeline import Pipeline
    from millstream.testing.trial import Trial


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Iterator[Callable[..., Trial]]:
    """Put pipelines on trial: ``trial("shop.py")``, ``trial("shop.sql")`` or ``trial(pipeline)``, options as those of ``millstream.testing.Trial``.

    A file is looked for beside the test, then where pytest was started. All trials end with the test.
    """
    from millstream.testing.trial import Trial

    with ExitStack() as stack:

        def begin(pipeline: Pipeline | str | Path, **options: Any) -> Trial:
            if isinstance(pipeline, str | Path):
                file = re.sub(r"(?<=\.py):\w+$", "", str(pipeline))
                beside = request.path.parent
                pipeline = beside / pipeline if (beside / file).is_file() else pipeline
            return stack.enter_context(Trial(pipeline, **options))

        yield begin
