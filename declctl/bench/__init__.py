"""The cost of a code change: a restart and a reload with the same handlers, measured side by side.

    comparison = compare(built_in(handlers=4), [], objects=5000)
    print(comparison.reload.lists, comparison.restart.lists)

A controller (`declctl run`) runs in its own process over an API server in this one, while objects change all
the time. The process records the calls of its handlers (`recorder`), and the server records its requests.
`controller` has the files and the process, `cluster` the objects and their changes, and `reload` computes the
figures. No other cluster or kubeconfig is read.
"""
