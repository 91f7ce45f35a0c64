"""`python -m gradlane.compat.horovod script.py [arguments]` runs a Horovod script; `-m module` a module."""

from gradlane.compat._run import main

main("gradlane.compat.horovod")
