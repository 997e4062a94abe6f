import sys

from pumasi.cli.main import main

sys.exit(main())
