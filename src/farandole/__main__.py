"""`python -m farandole`."""

import sys

from farandole.cli import main

sys.exit(main())
