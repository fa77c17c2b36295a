"""Starts a worker from its path: `python -I -S start_worker.py`.

Without the environment's packages, of which a worker needs none: finding them would delay every rank.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from farandole.launch.worker import main

main()
