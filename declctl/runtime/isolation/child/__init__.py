"""The child's side of isolation: it calls the hooks of one handler, and its `ctx` asks the parent."""
