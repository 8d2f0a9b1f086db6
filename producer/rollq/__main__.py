"""`python -m rollq`: the same as the console script."""

import sys

from rollq.cli import main

sys.exit(main())
