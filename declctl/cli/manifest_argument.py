"""The MANIFEST of a command line: a file, a folder, `-`, or a ConfigMap of the cluster."""

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

_CONFIG_MAP = "configmap/"


def is_config_map(manifest: str) -> bool:
    """Whether the text names a ConfigMap. A folder `configmap` is written as `./configmap/…`."""
    return manifest.startswith(_CONFIG_MAP)


@contextmanager
def manifest_folder(
    manifest: str, kubeconfig: str | None = None, context: str | None = None
) -> Generator[Path | None]:
    """Where the files of a manifest are, if not at the path that it names: the `at` of `check`.

    That is a copy of the ConfigMap that `configmap/NAMESPACE/NAME` names, which is gone after the block. For
    everything else it is None, and no cluster is asked. `kubeconfig` and `context` are the options of the
    command. Raises UsageError for a ConfigMap that can't be read, and says why. Blocks; not on a loop.
    """
    if not is_config_map(manifest):
        yield None
        return
    from declctl.runtime.config_map import copied_config_map  # late: most commands need no client
    from declctl.transport import Client

    with copied_config_map(
        manifest, connect=lambda: Client.connect(kubeconfig=kubeconfig, context=context)
    ) as folder:
        yield folder


@contextmanager
def manifest_folders(
    manifests: Iterable[str], kubeconfig: str | None, context: str | None
) -> Generator[list[Path | None]]:
    """As `manifest_folder`, for several manifests, in their order."""
    with ExitStack() as stack:
        yield [stack.enter_context(manifest_folder(each, kubeconfig, context)) for each in manifests]
