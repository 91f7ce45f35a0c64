"""Other systems' names for Gradlane, so that scripts run as they are; each module says which."""
