"""Status, conditions, the history of reloads, and reports to log and hooks."""
