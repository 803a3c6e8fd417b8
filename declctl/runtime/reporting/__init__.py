"""What a controller says of itself: status, conditions, the history of its reloads, and who is told."""
