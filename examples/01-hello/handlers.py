"""Edit me while I run: save this file, and the next change is told in your words."""


def on_pod(change):
    print(f"{change.type} pod {change.key}")
