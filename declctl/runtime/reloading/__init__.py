"""From one generation to the next: what asks for it, the attempt, the commit, and what comes after it."""
