"""Healthcare."""
