"""Two handlers, one watch for each namespace: both read the same cache, each at its own pace."""


def audit(change):
    print(f"audit: {change.type} {change.key}")


def check(obj):
    """Called for every object every two seconds, from the cache: the API server is not asked."""
    owner = obj.annotations.get("owner")
    print(f"check: {obj.key} " + (f"is {owner}'s" if owner else "has no owner"))
