"""`python -m hayakuchi`."""

import sys

from hayakuchi.cli import main

sys.exit(main())
