"""What a recorded timeline says: for every rank where its seconds went, and what limited it.

    found = analyse(Path("trace.json"))
    found["ranks"][0]["exposed_s"]              # communication that training waited for
    print(as_text(found))

Reads nothing but the file; docs/traces.md says what each figure is.
"""

from farandole.observe.analysis.analyse import analyse
from farandole.observe.analysis.spans import spread_out
from farandole.observe.analysis.text import as_text, gaps_of

__all__ = ["analyse", "as_text", "gaps_of", "spread_out"]
