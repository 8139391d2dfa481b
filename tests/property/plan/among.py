"""Strategies that are made once."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st


@functools.cache
def among(*values: Any) -> st.SearchStrategy[Any]:
    """One of the values, as `sampled_from`. The strategy is made once: to make one takes longer
    than to draw from it."""
    return st.sampled_from(values)
