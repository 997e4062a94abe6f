"""`python -m pumasi.cli`: the command line where its script is not on the PATH."""

import sys

from pumasi.cli.main import main

sys.exit(main())
