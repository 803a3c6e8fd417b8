"""From one generation to the next: triggers, attempts, staging, commit, probation and retirement."""
