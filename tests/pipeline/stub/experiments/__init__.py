"""Stand-ins for the commands of the real package."""
