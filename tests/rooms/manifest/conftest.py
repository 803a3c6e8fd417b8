"""What the tests of the desk share: small manifests, and a mark that says where a fault must be shown."""

from collections.abc import Callable, Mapping
from textwrap import dedent, indent

import pytest

from declctl.errors import ManifestErrors
from declctl.manifest import Diagnostic, LoadedManifest, ManifestSource, load

HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: c}\nspec:\n"
MARK = "§"  # stands directly before the character at which a fault must be shown

# A manifest without a fault, with nearly every field that this version does.
FULL = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata:
  name: pod-guard
spec:
  namespaces: [default, team-a]
  plugins:
    - name: slack
      version: ">=1.2,<2"
      onError: Disable
      config: {channel: "#ops"}
      configFrom:
        - {name: token, env: SLACK_TOKEN}
        - {name: ca, file: certs/ca.pem}
        - {name: key, secretKeyRef: {name: slack, key: private.pem}}
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      labelSelector: {matchLabels: {app: web}}
      fieldSelector: status.phase=Running
      resyncPeriod: 10m
      transform: {dropFields: [status, metadata.managedFields], entryPoint: "handlers.trim:slim"}
      namespaces: [team-b]
      idleTimeout: 2m
      cache: {mode: Objects}
      indexers:
        - {name: byNode, fieldPath: spec.nodeName}
        - {name: byTeam, entryPoint: "handlers.index:by_team"}
    - name: settings
      apiVersion: v1
      kind: ConfigMap
      names: [guard-settings]
  handlers:
    - name: notify
      resourceRef: {name: pods}
      events: [Deleted, Added]
      resyncPeriod: 5m
      entryPoint: "handlers.pods:on_change"
      initialSync: Skip
      delivery: Keyed
      bufferBytes: 1Mi
      queue: {name: default, concurrency: 4}
      retry: {maxAttempts: 3, initialBackoff: 500ms, maxBackoff: 1m}
      timeout: 30s
      onFailure: Retry
      replay: OnCodeChange
      applies:
        - {apiVersion: apps/v1, kind: Deployment, onImmutable: Recreate}
        - {apiVersion: v1, kind: Service}
      status: true
      fieldManager: guard/web
      adoptFieldsFrom: [kubectl-edit]
      fieldConflicts: Fail
      onExisting: Fail
    - name: tell
      resourceRef: {name: settings}
      pluginRef: {name: slack}
  lifecycle:
    startup:
      - {entryPoint: "handlers.boot:late", order: 10}
      - {entryPoint: "handlers.boot:a"}
      - {entryPoint: "handlers.boot:b"}
    shutdown: [{entryPoint: "handlers.boot:stop"}]
  reload:
    watch: Poll
    drainPolicy: Handover
    drainTimeout: 1s
    settle: 100ms
    preflight: Off
    preflightTimeout: 2s
    warmTimeout: 3s
    probationPeriod: 60s
    minCalls: 5
    maxErrorRatio: 0.25
    informerLinger: 0s
  leaderElection: {enabled: false, leaseDuration: 15s}
  admin: {bindAddress: "[::1]:0"}
"""


def whole(fragment: str) -> str:
    """A manifest: the fragment itself if it is one, else with the fragment as its spec."""
    text = dedent(fragment).lstrip("\n")
    return text if "apiVersion: declctl" in text or "---" in text else HEAD + indent(text, "  ")


def place_of_mark(text: str) -> tuple[int, int]:
    before = text[: text.index(MARK)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def diagnostics(text: str, *, environ: Mapping[str, str] | None = None) -> tuple[Diagnostic, ...]:
    """Everything that is said about a manifest, errors and warnings."""
    source = ManifestSource(name="manifest.yaml", data=text.encode())
    try:
        return load(source, environ=environ or {}).warnings
    except ManifestErrors as error:
        return tuple(fault for fault in error.diagnostics if isinstance(fault, Diagnostic))


@pytest.fixture(scope="session", name="loaded")
def _loaded() -> Callable[..., LoadedManifest]:
    """Loads a manifest, or a fragment of a spec, that has no errors."""

    def load_fragment(fragment: str, *, environ: Mapping[str, str] | None = None) -> LoadedManifest:
        source = ManifestSource(name="manifest.yaml", data=whole(fragment).encode())
        return load(source, environ=environ or {})

    return load_fragment


@pytest.fixture(scope="session", name="faults")
def _faults() -> Callable[..., tuple[Diagnostic, ...]]:
    """Everything that is said about a manifest or a fragment of a spec."""

    def faults_of(fragment: str, *, environ: Mapping[str, str] | None = None) -> tuple[Diagnostic, ...]:
        return diagnostics(whole(fragment), environ=environ)

    return faults_of


@pytest.fixture(scope="session", name="only_fault")
def _only_fault() -> Callable[..., Diagnostic]:
    """The one thing that is said about a marked manifest; fails if it isn't shown at the mark."""

    def only_fault_of(fragment: str, *, environ: Mapping[str, str] | None = None) -> Diagnostic:
        text = whole(fragment)
        wanted = place_of_mark(text)
        found = diagnostics(text.replace(MARK, ""), environ=environ)
        assert [str(fault) for fault in found] == [str(found[0])], "one cause, one diagnostic"
        assert (found[0].line, found[0].column) == wanted
        assert found[0].source_line == text.replace(MARK, "").split("\n")[wanted[0] - 1]
        return found[0]

    return only_fault_of


@pytest.fixture(scope="session", name="diagnose")
def _diagnose() -> Callable[..., tuple[Diagnostic, ...]]:
    """Everything that is said about a text, which is taken as it is."""
    return diagnostics
