"""What a benchmark prints can be read by a machine."""

from __future__ import annotations

import json
from math import nan

from benchmarks.summary import as_json


def test_what_is_not_known_is_null() -> None:
    told = {"figures": {"share": 0.5, "deaths": nan}, "rounds": (1, nan), "wrong": []}
    read = json.loads(as_json(told), parse_constant=lambda name: name)
    assert read == {"figures": {"share": 0.5, "deaths": None}, "rounds": [1, None], "wrong": []}
