"""What runs have measured: one schema, one reader, repeats as cases, scaling, statistics, tables and verdicts.

A study writes results, a page draws them; both know this room and not each other.
"""

from __future__ import annotations

from farandole.results.cases import Case, cases_of
from farandole.results.reading import Study, read_folder
from farandole.results.schema import MEASURES, SCHEMA, Result

__all__ = ["MEASURES", "SCHEMA", "Case", "Result", "Study", "cases_of", "read_folder"]
