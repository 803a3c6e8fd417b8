"""What a manifest would change in a process that runs, and what it would cost: `declctl plan`."""
