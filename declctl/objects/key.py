"""The name of an object within its resource, as kubectl prints it."""


def key_of(namespace: str | None, name: str) -> str:
    """The key as a plain string, which is what caches are keyed by."""
    return f"{namespace}/{name}" if namespace else name


class ObjectKey(str):
    """`namespace/name`, or `name` for cluster-scoped kinds (client-go's MetaNamespaceKeyFunc).

    It is the string, so that a lister takes either form; `namespace` and `name` are its parts.
    """

    __slots__ = ()

    @classmethod
    def of(cls, namespace: str | None, name: str) -> "ObjectKey":
        """The key of a name; an empty or absent namespace means cluster-scoped."""
        return cls(key_of(namespace, name))

    @classmethod
    def parse(cls, text: str) -> "ObjectKey":
        """The key that `text` prints.

        Raises ValueError when it has more than one slash or an empty part.
        """
        parts = text.split("/")
        if len(parts) > 2 or not all(parts):
            raise ValueError(f"{text!r} is no key: a key is namespace/name, or name for cluster-scoped kinds")
        return cls(text)

    @property
    def namespace(self) -> str | None:
        """The namespace; None for a cluster-scoped object."""
        namespace, slash, _ = self.partition("/")
        return namespace if slash else None

    @property
    def name(self) -> str:
        """The name."""
        return self.rpartition("/")[2]
