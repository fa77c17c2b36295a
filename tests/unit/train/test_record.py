"""run.json."""

import json
from pathlib import Path

from farandole.train.record import write_record


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    write_record(tmp_path, {"epochs": [{"loss": 0.5, "val_loss": float("inf")}], "final": {"test": {"r2": float("nan")}}, "n": (1, 2)})
    text = (tmp_path / "run.json").read_text()
    found = json.loads(text, parse_constant=lambda word: f"{word} is no JSON")
    assert found == {"epochs": [{"loss": 0.5, "val_loss": None}], "final": {"test": {"r2": None}}, "n": [1, 2]}
