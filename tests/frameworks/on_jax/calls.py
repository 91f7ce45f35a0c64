"""What the tests of this folder share."""

SETTING = "GRADLANE_JAX_CALL"
ROUTES = ("local", "shm", "quic")
