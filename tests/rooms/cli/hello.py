"""A manifest without faults, and its handler: what tests of the command line begin with."""

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: hello}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers:
    - name: greet
      resourceRef: {name: pods}
      entryPoint: "handlers:on_pod"
"""
HANDLERS = "def on_pod(change):\n    print(change.key)\n"
