"""`python -m gradlane` is the `gradlane` command, for environments whose scripts are not on the path."""

import sys

from gradlane.cli import main

sys.exit(main())
