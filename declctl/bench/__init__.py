"""What a change of code costs: a restart and a reload of the same handlers, measured side by side.

    comparison = compare(built_in(handlers=4), [], objects=5000)
    print(comparison.reload.lists, comparison.restart.lists)

A controller (`declctl run`) runs in a process of its own over an API server in this one, while objects
change all the time. The calls of its handlers are written down by the process itself (`observed`); what
the API server was asked for stands in the server's ledger. `bundle` has the files that run and are edited,
`objects` and `churn` make the cluster, `figures` makes numbers of what was written down, and `reload`
joins them. Nothing is read of any cluster or kubeconfig but those made here.
"""
