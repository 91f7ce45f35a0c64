"""`python -m gradlane.compat.byteps script.py [arguments]` runs a BytePS script; `-m module` a module."""

from gradlane.compat._run import main

main("gradlane.compat.byteps")
