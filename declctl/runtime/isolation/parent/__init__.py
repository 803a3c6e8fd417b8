"""The parent's side of isolation: who is started, what a call in a child is, and the answers that it gets."""
