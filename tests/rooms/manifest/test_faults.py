r"""The faults of a manifest: each is shown once, at its place, with its code and with what to do.

A section begins with `#`, a code and what a user notices. Each row is a part of a manifest: one of FRAMES,
and what stands in it, with the mark § before the character at which the fault is shown. `::` begins the
message and `=>` the suggestion; behind a heading they hold for each of its rows. `[...]` is any text, and
`\n` ends a line of the manifest. An indented line goes on with the one above it. `# fine` has no faults.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

CALLS = "name: a, resourceRef: {name: pods}, entryPoint: m"
PODS = "resources: [{name: pods, apiVersion: v1, kind: Pod%s}]"
BARE = ", cache: {mode: MetadataOnly}"
DROPS = ", transform: {dropFields: [status, metadata.ownerReferences, metadata.annotations]}"
WATCH = (
    "resources: [{name: pods, apiVersion: v1, kind: Pod%s}, {name: apps, apiVersion: apps/v1, kind: App}]\n"
    "handlers: [{name: a, mode: Reconcile, resourceRef: {name: apps}, entryPoint: m, "
    "watches: [{resourceRef: {name: pods}, %s}]}]"
)
FRAMES = {
    "document": "%s\n# apiVersion: declctl",
    "spec": "%s",
    "resource": PODS % ", %s",
    "bare": PODS % f"{BARE}, %s",
    "handler": f"{PODS % ''}\nhandlers: [{{{CALLS}, %s}}]",
    "handlers": "plugins: [{name: slack}]\n"
    "resources: [{name: pods, apiVersion: v1, kind: Pod}, {name: maps, apiVersion: v1, kind: ConfigMap}]\n"
    "handlers: [%s]",
    "entry": f"{PODS % ''}\nhandlers: [{{name: a, resourceRef: {{name: pods}}, entryPoint: %s}}]",
    "app": "resources: [{name: apps, apiVersion: example.dev/v1, kind: App}, "
    "{name: new-apps, apiVersion: example.dev/v2, kind: App}]\n"
    "handlers: [{name: a, resourceRef: {name: apps}, entryPoint: m, %s}]",
    "filter": f"{PODS % ''}\nhandlers: [{{{CALLS}, filter: {{%s}}}}]",
    "bare-filter": f"{PODS % BARE}\nhandlers: [{{{CALLS}, filter: {{%s}}}}]",
    "drops-filter": f"{PODS % DROPS}\nhandlers: [{{{CALLS}, filter: {{%s}}}}]",
    "expression": f"{PODS % ''}\nhandlers:\n  - name: a\n    resourceRef: {{name: pods}}\n    entryPoint: m\n"
    "    filter:\n      expression: %s",
    "watch": WATCH % ("", "%s"),
    "bare-watch": WATCH % (BARE, "%s"),
    "drops-watch": WATCH % (DROPS, "%s"),
    "plugin": "plugins: [{name: p, %s}]",
    "election": "leaderElection: {enabled: true, %s}",
    "no-election": "leaderElection: {enabled: false, %s}",
    "sharding": "sharding: {slots: 4, %s}",
    "shared": "resources: [{name: pods, apiVersion: v1, kind: Pod, namespaces: [a]},\n"
    "{name: settings, apiVersion: v1, kind: ConfigMap, sharded: false}]\nsharding: {slots: 4}\n%s",
    "by-uid": "resources: [{name: pods, apiVersion: v1, kind: Pod},\n"
    "{name: settings, apiVersion: v1, kind: ConfigMap, sharded: false}]\nsharding: {slots: 4, by: UID}\n"
    "handlers: [{name: a, mode: Reconcile, resourceRef: {name: pods}, entryPoint: m, %s}]",
    "schedule": "schedules: [{name: nightly, entryPoint: 'm:f', %s}]",
}
ENVIRON = {"TOKEN": "token", "SECRET": "Hunter/2!"}

TABLE = r"""
# DCL001 A text that is not YAML is shown where the parser stopped, with the usual remedy
spec plugins:\n  - name: a§: b   => put the value in quotes if it holds ": "[...]
spec namespaces: [*§]   => put the value in quotes if it begins with "*"[...]
spec namespaces: [a\nreload§: {}   => close the list with "]"[...]
spec reload: {settle: 1s\nadmin§: {}   => close the mapping with "}"[...]
spec reload:\n  settle: 1s\n §admin: {}   => indent this line like its siblings above[...]
spec admin: {bindAddress: §@x}   => put the value in quotes[...]
spec plugins: [{name: "a§\d"}]   => use single quotes[...]
spec plugins: [§*missing]   => write the anchor first, or put the text in quotes if it begins with "*"[...]
spec namespaces: [{{ .Values.a }}§{{ .Values.b }}]
    => this looks like a template: render it first (for example with helm template)
spec reload: {<<: §1}   => write *name of an anchored mapping
spec namespaces: [a,\n  b\nreload§: {}
    :: [...](while parsing a flow sequence that begins at line 5, column 15)

# DCL001 Tags have no meaning: no tag makes objects of text   => remove the tag
plugin config: {x: §!!python/object:os.system y}
plugin config: {x: §!custom y}
plugin config: {x: §!!binary y}

# DCL002 Tabs cannot be seen, so the caret points at one
spec resources:\n§⇥- name: pods   => use spaces; most editors can convert tabs

# DCL003 YAML readers differ in which of two equal keys wins
spec reload:\n  settle: 1s\n  §settle: 2s
    :: the key "settle" is here twice: first at line 6, column 5   => remove one, or merge the two

# DCL008 A key that YAML 1.1 reads as something else
handler §on: [Added]   :: the key "on" is read as true by YAML 1.1, and must be text
    => write "events" for the changes that a handler receives[...]
plugin config: {§off: x}   :: the key "off" is read as false by YAML 1.1, and must be text
    => put it in quotes: "off"
plugin config: {§1: x}   :: the key "1" is read as 1 by YAML 1.1, and must be text   => put it in quotes: "1"
plugin config: {§~: x}   :: the key "~" is read as null by YAML 1.1, and must be text
    => put it in quotes: "~"
plugin config: {§1.5: x}   :: the key "1.5" is read as 1.5 by YAML 1.1, and must be text
    => put it in quotes: "1.5"
plugin config: {§[a]: x}   => put it in quotes if it begins with "[" or "{"

# DCL009 A value that YAML 1.1 reads as something else
spec namespaces: [§no]
    :: spec.namespaces[0] must be text, and YAML reads no as the boolean false   => put it in quotes: "no"
spec namespaces: [§On]
    :: spec.namespaces[0] must be text, and YAML reads On as the boolean true   => put it in quotes: "On"
spec reload: {settle: §10:00}
    :: spec.reload.settle must be text, and YAML reads 10:00 as the number 600 (base 60)
    => write a duration with its unit, such as "10m" or "1h30m"
spec lifecycle: {startup: [{entryPoint: a, order: §010}]}
    :: spec.lifecycle.startup[0].order is 010, which YAML reads as the number 8 (octal)
    => write 8 if that is meant
plugin version: §1.20   :: [...]must be text, and YAML reads 1.20 as the number 1.2
    => put it in quotes, with a comparison: ">=1.20"
document apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: §1.10}\nspec: {}
    :: [...]must be text, and YAML reads 1.10 as the number 1.1   => put it in quotes: "1.10"
document apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: §true}\nspec: {}
    :: [...]must be text, and YAML reads true as the boolean true   => put it in quotes: "true"
resource labelSelector: {matchLabels: {app: §true}}   => put it in quotes: "true"
filter expression: §1

# DCL009 warning Only the plugin knows what it wants: the manifest is loaded, and the doubt is told
plugin config: {a: [§10:00]}   => put it in quotes if text is meant: "10:00"
    :: spec.plugins[0].config.a[0] is 10:00, which YAML reads as the number 600 (base 60)
plugin config: {a: [§0777]}   => put it in quotes if text is meant: "0777"
    :: spec.plugins[0].config.a[0] is 0777, which YAML reads as the number 511 (octal)

# DCL010 A value of another type is shown where it stands, with the form that was meant
spec resources: §{pods: {}}   => begin each item with "- "
spec namespaces: §default   => write [default]
spec namespaces: §web
spec namespaces: {labelSelector: §[a]}
spec handlers: [{name: a, resourceRef: §pods, entryPoint: m}]   => write {name: pods}
spec reload: §[1]   => write fields without "- " before them
spec lifecycle: {startup: [{entryPoint: a, order: §'1'}]}   => write a number, without quotes and unit
spec leaderElection: {enabled: §'false'}   => write true or false
spec §resources:   => give it a value, or remove it
spec handlers:\n  -§   => give it a value, or remove it
resource namespaces: §web
resource namespaces: {labelSelector: §[a]}
handler filter: §[spec]
filter changedPaths: §spec
app mode: Reconcile, finalizer: §[example.dev/a]

# DCL011 A missing field is shown at the mapping that lacks it, with what to add
spec resources:\n  - §name: pods\n    kind: Pod
    :: spec.resources[0] needs the field "apiVersion"   => add apiVersion: v1
spec handlers: [§{name: a, entryPoint: m}]
    :: spec.handlers[0] needs the field "resourceRef"   => add resourceRef: {name: …}
spec lifecycle: {startup: [§{order: 1}]}
    :: spec.lifecycle.startup[0] needs the field "entryPoint"   => add entryPoint: handlers.boot:run
document §apiVersion: declctl.dev/v1alpha1\nkind: Controller\nspec: {}
    :: the document needs the field "metadata"   => add metadata: {name: …}
spec namespaces: §{}
resource namespaces: §{}

# DCL012 A misspelt field is found at its key, and what was meant is not reported as missing too
spec §resorces: []   => did you mean "resources"?
spec handlers: [{name: a, §resoruce: {name: pods}, entryPoint: m}]
    :: unknown field "resoruce" in spec.handlers[0]   => did you mean "resourceRef"?
spec handlers: [{name: a, §RESOURCEREF: {name: pods}, entryPoint: m}]   => did you mean "resourceRef"?
resource §namespace: x   => did you mean "namespaces"?
resource §resync: 10m   => did you mean "resyncPeriod"?
resource §selector: {}   => did you mean "labelSelector"?
resource labelSelector: {§app: web}   => put labels under matchLabels: {matchLabels: {app: …}}
handlers {name: a, resourceRef: {name: pods}, §entrypoint: m}   => did you mean "entryPoint"?
filter §paths: [spec]
app mode: Reconcile, §finalizers: [example.dev/a]
spec reload: {§drainTimout: 5s}   => did you mean "drainTimeout"?
spec lifecycle:\n  §start: []   => did you mean "startup"?
spec admin: {§zzzzzz: 1}
    => the fields that could stand here are bindAddress, allowedHosts, tokenFile, authorization and tls
no-election §leaseduration: 10s

# DCL012 Columns count characters: wide letters and emoji count as one each, as editors count them
spec plugins: [{name: a, config: {'日本🙂': 1}, §bad: 1}]
spec plugins:\n  - {name: a, config: {base: &base {settle: x}}}\n  - {name: b, config: {<<: *base}, §bad: 1}

# DCL013 A word that is not allowed is shown with the nearest, and with all that are
spec reload: {watch: §Autoo}   => did you mean "Auto"? The choices are Auto, Poll and Off
spec reload: {watch: §true}   => the choices are Auto, Poll and Off
spec reload: {preflight: §enabled}   => did you mean "On"? The choices are On and Off
spec reload: {drainPolicy: §fence}   => did you mean "Fence"? The choices are Fence and Handover
spec reload: {drainPolicy: §'${env:SECRET}'}
spec plugins: [{name: a, onError: §zzz}]   => the choices are Fail and Disable
resource labelSelector: {matchExpressions: [{key: a, operator: §exists}]}   => did you mean "Exists"?[...]
resource namespaces: {labelSelector: {matchExpressions: [{key: team, operator: §Near}]}}
spec namespaces: {labelSelector: {matchExpressions: [{key: team, operator: §Near}]}}
no-election followers: §Hot

# DCL013 The words of other systems for changes are understood
handler events: [§added]   => did you mean "Added"?[...]
handler events: [§ADDED]   => did you mean "Added"?[...]
handler events: [§create]   => did you mean "Added"?[...]
handler events: [§Updated]   => did you mean "Modified"?[...]
handler events: [§delete]   => did you mean "Deleted"?[...]

# DCL014 An empty text or list is not a default, and a number has a least value
spec plugins: [{name: §''}]   => give it a value, or remove it
spec namespaces: §[]   => write ["*"] for all namespaces, or remove it
resource names: §[]   => give it a value, or remove it
handler applies: §[]
filter changedPaths: §[]
filter expression: §''
app mode: Reconcile, finalizer: §''
handler queue: {concurrency: §0}   :: [...]can't be 0   => write 1 or more
handler retry: {maxAttempts: §-1}   :: [...]can't be -1   => write 1 or more
handler retry: &retry {maxAttempts: §0}}, {name: b, resourceRef: {name: pods}, entryPoint: m

# DCL015 Of alternatives exactly one is needed: none is shown at the item, both at the second
resource indexers: [§{name: a}]   => add fieldPath or entryPoint
resource indexers: [{name: a, fieldPath: b, §entryPoint: 'm:f'}]   => remove entryPoint or fieldPath
plugin configFrom: [§{name: a}]   => add env or file or secretKeyRef
plugin configFrom: [{name: a, file: f, §env: A}]   => remove env or file
plugin configFrom: [{name: a, env: A, §secretKeyRef: {name: s, key: k}}]   => remove secretKeyRef or env
handlers §{name: a, resourceRef: {name: pods}}   => add entryPoint or pluginRef
handlers {name: a, resourceRef: {name: pods}, entryPoint: m, §pluginRef: {name: slack}}
    => remove pluginRef or entryPoint

# DCL016 A document that was meant for declctl is not passed over in silence
document apiVersion: §declctl.dev/v1\nkind: Controller\nmetadata: {name: c}\nspec: {}
    => write "declctl.dev/v1alpha1"
document apiVersion: §declctl.de/v1alpha1\nkind: Controller\nmetadata: {name: c}\nspec: {}
    => write "declctl.dev/v1alpha1"
document apiVersion: declctl.dev/v1alpha1\nkind: §Controler\nmetadata: {name: c}\nspec: {}
    => did you mean "Controller"?

# DCL017 What cannot both be true is refused, rather than one of the fields silently winning
resource names: [a], fieldSelector: §metadata.name=b   => keep names, and drop the condition
spec namespaces: [a, §'*']   => write ["*"] alone, or remove it
plugin config: {token: x}, configFrom: [{name: §token, env: A}]   => remove one of them
plugin onError: Disable, circuitBreaker: {maxBackoff: §5s}   => [...]maxBackoff (10m if absent)[...]
plugin onError: Disable, circuitBreaker: {initialBackoff: §1h}   => [...]initialBackoff (30s if absent)[...]
plugin §circuitBreaker: {failures: 3}   => [...]write onError: Disable, or remove it[...]
plugin onError: Fail, §circuitBreaker: {}   => [...]write onError: Disable, or remove it[...]
app §finalizer: example.dev/a
handler isolation: {§maxMemory: 256Mi}   => write mode: Process beside it
handler isolation: {mode: Thread, §maxCalls: 5}   => write mode: Process beside it
handler isolation: {mode: Process, maxMemory: §16Mi}   => allow 64Mi at least; 256Mi is usual

# DCL017 The longest wait is not shorter than the first, also against the default of the other field
    => maxBackoff (5m if absent) can't be shorter than initialBackoff (1s if absent)
handler retry: {initialBackoff: 10s, maxBackoff: §5s}
handler retry: {initialBackoff: §10m}
handler retry: {maxBackoff: §500ms}

# DCL017 client-go 2.17.273: the leader has to stop before another process can begin. With defaults, too
election leaseDuration: §10s
    => leaseDuration (15s if absent) has to be longer than renewDeadline (10s if[...]
election renewDeadline: §15s
    => leaseDuration (15s if absent) has to be longer than renewDeadline (10s if[...]
election leaseDuration: 5s, renewDeadline: §6s   => leaseDuration (15s if absent) has to be longer[...]
election retryPeriod: §9s   => renewDeadline (10s if absent) has to be longer than 1.2 times retryPeriod[...]
election renewDeadline: §2s
    => renewDeadline (10s if absent) has to be longer than 1.2 times retryPeriod[...]
election renewDeadline: 6s, retryPeriod: §5s   => renewDeadline (10s if absent) has to be longer than 1.2[...]

# DCL017 The same for slots: a process stops before another one can take its slots
sharding leaseDuration: §10s   :: a process would act for 10s[...]take its slots after 10s
    => leaseDuration (15s if absent) has to be longer than renewDeadline (10s if[...]
sharding retryPeriod: §9s   => renewDeadline (10s if absent) has to be longer than 1.2 times retryPeriod[...]

# DCL017 What is not possible together is no surprise of a rollout
shared §leaderElection: {enabled: true}   => remove leaderElection: each slot has an election of its own[...]
shared §state: {path: /var/lib/declctl}   :: [...]not possible beside spec.sharding yet[...]
    => remove state: each process lists its slots when it starts
spec resources: [{name: pods, apiVersion: v1, kind: Pod, §namespaces: {labelSelector: a=b}}]
    \nsharding: {slots: 4}   :: [...]not possible for sharded resources yet
    => name the namespaces, or watch all; or write sharded: false for the resource
spec §namespaces: {labelSelector: a=b}\nsharding: {slots: 4}
    \nresources: [{name: a, apiVersion: v1, kind: Pod}, {name: b, apiVersion: v1, kind: Service}]
    => name the namespaces, or watch all; or write[...]
document apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: §aLONG}
    \nspec: {sharding: {slots: 2}}   => shorten it, or write sharding: {leaseName: …}

# DCL017 A process has the objects of its slots: nothing is handled by what it does not see
shared handlers: [{name: a, mode: Reconcile, resourceRef: {name: settings}, entryPoint: m,
    watches: [{resourceRef: {name: §pods}, mapTo: {owner: Any}}]}]
    :: [...]settings is not sharded, so its handlers run in the process with slot 0, and each process[...]
    => write sharded: false for pods, so that each process has all of it
shared handlers: [{name: a, resourceRef: {name: settings}, entryPoint: m, includeSnapshotsFrom: [§pods]}]
    => write sharded: false for pods[...]
shared schedules: [{name: a, every: 1m, entryPoint: 'm:f', includeSnapshotsFrom: [settings, §pods]}]
    :: [...]a schedule is called in the process with slot 0, and each process has its slots of pods alone
    => write sharded: false for pods[...]
by-uid includeSnapshotsFrom: [settings, §pods]   => write sharded: false for pods[...]
by-uid watches: [{resourceRef: {name: §pods}, mapTo: {owner: Any}}]
    :: [...]with sharding.by: UID, what an object needs may be in any slot, and each process[...]
    => write sharded: false for pods[...]
by-uid §applies: [{apiVersion: v1, kind: Secret}]   => write by: Namespace, with which they are in one slot

# DCL017 A metrics address that takes the admin port: the start would blame another process
    :: [...]which includes the admin address[...]
spec metrics: {bindAddress: §'0.0.0.0:8081'}
spec admin: {bindAddress: '[::1]:9000'}\nmetrics: {bindAddress: §'[::]:9000'}

# DCL017 What follows the last attempt needs one: a change would be tried again for ever
    :: [...]tried again until the handler succeeds[...]   => [...]retry: {maxAttempts: 5}[...]
handler onFailure: §Ignore   :: [...]onFailure is Ignore, and[...]
handler onFailure: §Ignore, retry: {maxBackoff: 1m}   :: [...]onFailure is Ignore, and[...]
handler onFailure: §DeadLetter   :: [...]onFailure is DeadLetter, and[...]
handler onFailure: §DeadLetter, retry: {maxBackoff: 1m}   :: [...]onFailure is DeadLetter, and[...]
handler mode: Event, onFailure: §DeadLetter

# DCL017 Each apply of one handler would remove the fields of the other; a default counts, too
    :: [...]the field manager of another handler[...]   => give each handler a field manager of its own
handlers {name: a, fieldManager: shared, resourceRef: {name: pods}, entryPoint: m},
    {name: b, fieldManager: §shared, resourceRef: {name: pods}, entryPoint: m}
handlers {name: a, timeout: 1s, resourceRef: {name: pods}, entryPoint: m},
    {name: b, fieldManager: §declctl/c/a, resourceRef: {name: pods}, entryPoint: m}

# DCL017 Handlers that share a queue agree on its workers
handlers {name: a, resourceRef: {name: pods}, entryPoint: h, queue: {name: slow, concurrency: 2}},
    {name: b, resourceRef: {name: pods}, entryPoint: h, queue: {name: slow, concurrency: §3}}
    :: spec.handlers[1].queue.concurrency is 3, and another handler has 2 for the same queue slow: line [...]
    => write the same number, or name it for one of the handlers

# DCL017 A cache of metadata has no other fields: an index would be empty, a handler would never be called
    :: [...]with cache.mode MetadataOnly objects have nothing but metadata
bare indexers: [{name: it, fieldPath: §spec.nodeName}]
    :: spec.resources[0].indexers[0].fieldPath is spec.nodeName, and with cache.mode[...]
    => index by a field of metadata, or write cache: {mode: Frames}
bare indexers: [{name: it, fieldPath: §status}]
bare indexers: [{name: it, fieldPath: §kind}]
bare-filter changedPaths: [metadata, §spec.nodeName]
    :: spec.handlers[0].filter.changedPaths[1] is spec.nodeName, and with cache.mode[...]
bare-filter changedPaths: [metadata, §status]
bare-filter changedPaths: [metadata, §kind]
bare-filter expression: "obj.status.§phase == 'x'"
bare-filter expression: "obj.metadata.name == old.spec.§x"
bare-watch mapTo: {owner: Any}, filter: {expression: "obj.status.§phase == 'Failed'"}
    :: [...]spec.handlers[0].watches[0].[...]
bare-watch mapTo: {owner: Any}, filter: {changedPaths: [§status]}   :: [...]spec.handlers[0].watches[0].[...]
bare-watch mapTo: {fieldPath: §spec.nodeName}   :: [...]spec.handlers[0].watches[0].[...]

# DCL017 A cache without these fields would show no object as deleted
resource transform: {dropFields: [metadata.finalizers]}}]\nhandlers: [{name: a, entryPoint: m,
    resourceRef: {name: pods}, mode: Reconcile, finalizer: §example.dev/a   :: [...]metadata.finalizers[...]
resource transform: {dropFields: [metadata.deletionTimestamp]}}]\nhandlers: [{name: a, entryPoint: m,
    resourceRef: {name: pods}, mode: Reconcile, finalizer: §example.dev/a
    :: [...]metadata.deletionTimestamp[...]

# DCL017 warning What the resource drops is never there
bare transform: {dropFields: [metadata.managedFields, §status]}   => remove it
filter changedPaths: [spec, §'metadata.managedFields[0].manager']   :: [...]nothing ever changes there
drops-filter changedPaths: [spec, §status.phase]   :: [...]nothing ever changes there
drops-filter changedPaths: [spec, §status]   :: [...]nothing ever changes there
drops-filter expression: "obj.spec.a == 1 && has(§obj.status.phase)"
    :: [...]reads obj.status.phase, and the resource drops status: it is always missing[...]
drops-watch mapTo: {label: x}, filter: {expression: "obj.status.§phase == 'Failed'"}
    :: [...]the resource drops status[...]   => [...]take status out of transform.dropFields
drops-watch mapTo: {label: x}, filter: {changedPaths: [§status.phase]}
    :: [...]the resource drops status[...]   => [...]take status out of transform.dropFields
drops-watch mapTo: {fieldPath: §status.nominatedNodeName}
    :: [...]the resource drops status[...]   => [...]take status out of transform.dropFields
drops-watch mapTo: {owner: §Controller}
    :: [...]the resource drops metadata.ownerReferences[...]
    => [...]take metadata.ownerReferences out of transform.dropFields
drops-watch mapTo: {annotation: §example.dev/app}
    :: [...]the resource drops metadata.annotations[...]
    => [...]take metadata.annotations out of transform.dropFields

# DCL017 warning A change that there is not: the handler would never be called, or always
filter expression: "change.type == §'Foo'"
    :: [...]change.type with "Foo", which it never is   => the values are Added, Modified[...]
filter expression: "has(obj.a) && §'added' != change.type"   :: [...]change.type with[...]
    => did you mean "Added"?[...]
filter expression: "change.type in ['Added', §'Removed']"
    :: [...]change.type with "Removed"[...]   => the values are Added[...]
filter expression: "change.reason == §'Resyncs'"   :: [...]change.reason with[...]
    => did you mean "Resync"?[...]
filter expression: "[1].all(x, change.type != §'' || x == 1)"
    :: [...]change.type with ""[...]   => the values are Added[...]
watch mapTo: {owner: Any}, filter: {expression: "change.type == §'Foo'"}
    :: spec.handlers[0].watches[0].filter.expression compares change.type with "Foo", which it never is

# DCL020 A reference to nothing is shown with the nearest name and all names (client-go 308)
handlers {name: a, resourceRef: {name: §pod}, entryPoint: m}
    => did you mean "pods"? spec.resources has: pods and maps
handlers {name: a, resourceRef: {name: §nodes-of-all}, entryPoint: m}   => spec.resources has: pods and maps
handlers {name: a, resourceRef: {name: pods}, pluginRef: {name: §slak}}
    => did you mean "slack"? spec.plugins has: slack
handlers {name: a, resourceRef: {name: pods}, pluginRef: {name: §pagerduty}}
    => list it in spec.plugins, as {name: pagerduty}; there are: slack
handlers {name: a, resourceRef: {name: §'${env:SECRET}'}, entryPoint: m}

# DCL021 A name that is taken is shown where it is used again, and the first place is named
    => give each a name of its own
spec resources: [{name: a, apiVersion: v1, kind: Pod}, {name: §a, apiVersion: v1, kind: Node}]
    :: the resource name a is taken: first at line 5, column [...]
spec plugins: [{name: a}, {name: §a}]   :: the plugin name a is taken: first at line 5, column [...]
resource indexers: [{name: a, fieldPath: b}, {name: §a, fieldPath: c}]
    :: the indexer name a is taken: first at line 5, column [...]
plugin configFrom: [{name: a, env: A}, {name: §a, env: B}]
    :: the config value name a is taken: first at line 5, column [...]
handlers {name: tell, resourceRef: {name: pods}, entryPoint: a},
    {name: §tell, resourceRef: {name: pods}, entryPoint: b}
    :: the handler name tell is taken: first at line 7, column 21

# DCL021 The first of two handlers with one finalizer would remove it for both, also of two versions
    :: [...]another handler of App has the finalizer[...]
app mode: Reconcile, finalizer: example.dev/a},
    {name: b, resourceRef: {name: apps}, entryPoint: m, mode: Reconcile, finalizer: §example.dev/a
app mode: Reconcile, finalizer: example.dev/a},
    {name: b, resourceRef: {name: new-apps}, entryPoint: m, mode: Reconcile, finalizer: §example.dev/a

# DCL022 Of two equal values the second one is shown, and the first is named
spec namespaces: [a, b, §a]
    :: spec.namespaces holds a twice: first at line 5, column 16   => remove one of them
filter changedPaths: [spec, §spec]

# DCL023 CEL's own message about an expression, at its own place
filter expression: "obj.a == 1 && obj.b.startswith§('x')"
    :: spec.handlers[0].filter.expression: undeclared reference to 'startswith'
    => the functions are size, has, startsWith[...]
filter expression: §foo == 1
filter expression: "obj.status.phase §= 'Running'"
filter expression: 'obj.a == 1 + obj.b &&§ '
filter expression: §'1'
filter expression: §'${env:SECRET}'

# DCL023 In blocks and on several lines, too; behind an escape it is at the beginning of the value
    :: [...]undeclared reference to 'phase'[...]
expression |\n        has(obj.status.phase) &&\n        §phase == 'Running'\n
    :: [...]undeclared reference to 'phase' (line 2, column 1 of the expression)[...]
expression |-  # why\n\n        has(obj.a) &&\n\n          §phase == 'Running'\n
expression >-\n        has(obj.a) &&\n        §phase == 'Running'\n
expression !!str |2-\n            has(obj.a) && §phase == 'Running'\n
expression |-\n        has(obj.a) && §phase == 'Running'\n
expression has(obj.a) &&\n        §phase == 'Running'\n
expression "has(obj.a) &&\n        §phase == 'Running'"\n
expression "has(obj.a) && §phase == 'a\tb'"\n
expression §'obj.a == ''x'' && phase == 1'\n
expression §"'a\tb' == obj.a && phase == 1"\n

# DCL030 A duration without a unit, of another unit or too short says what to write (client-go 133)
resource resyncPeriod: §10   => did you mean "10s" or "10m"?
resource resyncPeriod: §1.5   => did you mean "1.5s" or "1.5m"?
resource resyncPeriod: §'10'   => a unit is needed: did you mean "10s" or "10m"?
resource resyncPeriod: §5min   => did you mean "5m"?
resource resyncPeriod: §1d   => did you mean "24h"? Hours are the largest unit
resource resyncPeriod: '1h§30'   => write it like 500ms, 10s, 5m or 1h30m
resource resyncPeriod: §-5s   => write it like 500ms, 10s, 5m or 1h30m
resource resyncPeriod: §500ms   => write 1s or more, or 0s for none
resource idleTimeout: §0s   => write 1s or more
handler timeout: §0s   => write 1ms or more
handler timeout: §9999999h   => leave the field out for no limit
handler retry: {initialBackoff: §soon}   => write it like 500ms, 10s, 5m or 1h30m
spec reload: {drainTimeout: §20 s}   => did you mean "20s"?
spec reload: {settle: §'${env:SECRET}'}
no-election leaseDuration: §500ms

# DCL031 Sizes are Kubernetes quantities: a near miss gets the binary unit
handler bufferBytes: §64MB   => did you mean "64Mi"?
handler bufferBytes: §64 mib   => did you mean "64Mi"?
handler bufferBytes: §64m   => did you mean "64Mi"?
handler bufferBytes: §lots   => write it like 64Mi, 1Gi or 65536
handler bufferBytes: §0   => write a size such as 64Mi
handler bufferBytes: §-1   => write it like 64Mi, 1Gi or 65536
handler bufferBytes: §900000Ei   => write a size such as 64Mi

# DCL032 Each condition of a label selector is judged alone, so that the wrong one is shown
    => write it like {matchLabels: {app: web}} or app=web,tier in (a,b)
resource labelSelector: {matchLabels: {app: §'not valid'}}   :: [...]'not valid' is no label value
resource labelSelector: {matchLabels: {app: web, '-x': §a}}   :: [...]'-x' is no label key
resource labelSelector: {matchExpressions: [§{key: app, operator: In}]}
    :: [...]In for 'app' needs at least one value
resource labelSelector: {matchExpressions: [§{key: app, operator: Exists, values: [a]}]}
    :: [...]Exists for 'app' takes no values
resource labelSelector: §'app in (a'   :: [...]'app in (a' is no label key
resource labelSelector: §'${env:SECRET}'
resource labelSelector: {matchExpressions: [§{key: a, operator: In, values: ['${env:SECRET}']}]}
resource namespaces: {labelSelector: §'team in (a,,'}
resource namespaces: {labelSelector: {matchLabels: {team: §'not a value'}}}
spec namespaces: {labelSelector: §'team in (a,,'}
spec namespaces: {labelSelector: {matchLabels: {team: §'not a value'}}}
filter labelSelector: {matchLabels: {app: §'a b'}}
filter labelSelector: §'app=web,'

# DCL033 A field selector compares fields with values, and nothing else
    => write it like status.phase=Running,spec.nodeName!=node-1
resource fieldSelector: §status.phase
resource fieldSelector: §status.phase>1
resource fieldSelector: §'a=b,,c=d'
resource fieldSelector: §','
resource fieldSelector: §'${env:SECRET}'

# DCL034 The character at which a path stops being one is shown, in quotes and without
    => write it like spec.nodeName or spec.containers[*].image
resource indexers: [{name: a, fieldPath: spec§ nodeName}]
resource indexers: [{name: a, fieldPath: 'spec.§.nodeName'}]
resource indexers: [{name: a, fieldPath: §'[0'}]
resource indexers: [{name: a, fieldPath: 'spec.containers§[x].image'}]
resource indexers: [{name: a, fieldPath: spec.node§/x}]
resource indexers: [{name: a, fieldPath: '.§'}]
bare indexers: [{name: it, fieldPath: 'spec.§-'}]
filter changedPaths: [spec, 'spec.§']

# DCL034 Without what identifies an object the cache would break   => remove it from the list
resource transform: {dropFields: [§metadata]}
resource transform: {dropFields: [§metadata.name]}
resource transform: {dropFields: [§metadata.resourceVersion]}
resource transform: {dropFields: [§kind]}

# DCL035 A name that Kubernetes or declctl does not allow is shown with one that it does
spec resources: [{name: §MyPods, apiVersion: v1, kind: Pod}]
    => did you mean "my-pods"? Rule: use lower-case letters, digits and dashes, at most 63 of them
spec resources: [{name: pods, apiVersion: v1, kind: §pod}]
    => did you mean "Pod"? Rule: kinds are written in CamelCase, such as ConfigMap
spec resources: [{name: pods, apiVersion: §v1/apps, kind: Pod}]   => did you mean "apps/v1"?
spec resources: [{name: pods, apiVersion: §apps, kind: Pod}]
    => write "v1", or group and version such as "apps/v1"
resource names: [§a/b]   => use the name that kubectl shows
plugin configFrom: [{name: a, file: §"a\0b"}]   => remove the zero byte
spec namespaces: [§Team_A]
    => did you mean "team-a"? Rule: use lower-case letters, digits and dashes, at most 63 of them
spec namespaces: [§'${TEAM}']   => for an environment variable write ${env:NAME}
spec namespaces: [§'${env:SECRET}']
resource indexers: [{name: §1st, fieldPath: a}]   => use letters and digits, as in byNode
spec plugins: [{name: §a b}]   => use the name that `declctl plugins list` shows
plugin configFrom: [{name: a, secretKeyRef: {name: §My_Pager, key: token}}]
    => did you mean "my-pager"? Rule: use lower-case letters, digits, dashes and dots
plugin configFrom: [{name: a, secretKeyRef: {name: pager, key: §a/b}}]
    => use letters, digits, dashes, dots and underscores
plugin configFrom: [{name: a, env: §$TOKEN}]   => use letters, digits and underscores, without $ and braces
handler fieldManager: §"a\tb"   => use at most 128 printable characters
handler fieldManager: §LONG   => use at most 128 printable characters
handler mode: Reconcile, watches: [{resourceRef: {name: pods}, mapTo: {label: §'${env:SECRET}'}}]
app mode: Reconcile, finalizer: §webapp
app mode: Reconcile, finalizer: §Example.dev/webapp
app mode: Reconcile, finalizer: §example.dev/-webapp
app mode: Reconcile, finalizer: §example.dev/
app mode: Reconcile, finalizer: §example.dev/a/b
app mode: Reconcile, finalizer: §example.dev/LONG
no-election leaseName: §Web_1
no-election namespace: §'*'

# DCL035 A label that no object can have would lead nowhere: a mapping names a key that there may be
    => before the slash, write a domain, as in example.dev/app
watch mapTo: {label: §'a b/c'}   :: [...]mapTo.label[...]
watch mapTo: {label: §'a/b/c'}   :: [...]mapTo.label[...]
watch mapTo: {annotation: §'//'}   :: [...]mapTo.annotation[...]
watch mapTo: {annotation: §'/x'}   :: [...]mapTo.annotation[...]

# DCL035 It is a key, and no selector
    => write the key of a label or an annotation, as in example.dev/app
watch mapTo: {label: §'x/'}   :: [...]mapTo.label[...]
watch mapTo: {label: §'-x'}   :: [...]mapTo.label[...]
watch mapTo: {annotation: §'!x'}   :: [...]mapTo.annotation[...]
watch mapTo: {annotation: §'x=y'}   :: [...]mapTo.annotation[...]

# DCL036 An address is a host and a port
spec admin: {bindAddress: §8081}   => did you mean "127.0.0.1:8081"?
spec admin: {bindAddress: §'8081'}   => did you mean "127.0.0.1:8081"?
spec admin: {bindAddress: §localhost}   => a port is needed, as in "localhost:8081"
spec admin: {bindAddress: §http://localhost:8081/metrics}   => did you mean "localhost:8081"?
spec admin: {bindAddress: §a:b:c}   => write host:port, as in "127.0.0.1:8081"
spec admin: {bindAddress: localhost:§70000}   => ports end at 65535
spec admin: {bindAddress: §'${env:SECRET}'}

# DCL037 A file in the place of a module gets the module; an index, a transform and a filter are functions
entry §'./handlers/pods.py:on_change'   => did you mean "handlers.pods:on_change"?
entry §'handlers/pods.py'   => did you mean "handlers.pods"?
entry §'handlers.pods.py:on_change'   => did you mean "handlers.pods:on_change"?
entry §'handlers.pods:on-change'   => did you mean "handlers.pods:on_change"?
entry §'handlers.pods:on_change()'   => did you mean "handlers.pods:on_change"?
entry §'my-handlers.pods:run'   => did you mean "my_handlers.pods:run"?
entry §'/srv/handlers.py:run'
    => write "package.module" or "package.module:attribute"; modules are found beside the manifest
entry §'handlers.class:run'
    => write "package.module" or "package.module:attribute", with names as Python has them
entry §'handlers.pods:'   => did you mean "handlers.pods"?
resource indexers: [{name: a, entryPoint: §handlers.index}]   => write "handlers.index:name_of_the_function"
resource transform: {entryPoint: §handlers.index}   => write "handlers.index:name_of_the_function"
filter entryPoint: §handlers.filters

# DCL038 A variable that is not set is an error and never the empty text, and its own place is shown
plugin config: {a: 'a §${env:TOKN} b'}   :: the environment variable TOKN is not set
    => did you mean "TOKEN"? Otherwise set TOKN before you start declctl
plugin config: {a: 'a §${env:OTHER}'}
    :: the environment variable OTHER is not set   => set OTHER before you start declctl
plugin config: {a: "§${env:A B}"}   :: ${env:A B} is not a whole reference
    => write ${env:NAME}, with the name of an environment variable and a closing brace
plugin config: {a: '§${env:TOKEN'}   :: ${env:TOKEN is not a whole reference
    => write ${env:NAME}, with the name of an environment variable and a closing brace
plugin config: {a: '§${file:/etc/token}'}   :: "file" is not a kind of reference
    => write ${env:NAME} for a variable, or $${file:… for these characters

# DCL039 Version ranges are Python's, not another system's
plugin version: §^1.2   => write it like ">=1.2"
plugin version: §v2   => write it like ">=2"
plugin version: §latest   => write it like ">=1.2,<2"

# DCL101 A cron line that never fires, or is none, is told with the reason and with what to write instead
schedule cron: §'0 0 30 2 *'
    :: [...]it never fires: none of its months has a day 30[...]   => name days and months that go[...]
schedule cron: §'0 0 31 4,6 *'
    :: [...]it never fires: none of its months has a day 31[...]   => name days and months that go[...]
schedule cron: §'61 0 * * *'
    :: [...]is not a cron line[...]'61' is no minute[...]   => write minute, hour, day of the month[...]
schedule cron: §'@every 5m'   :: [...]is not a cron line[...]   => write every: "5m" instead of cron[...]
schedule cron: §'0 0 2 * * *'   :: [...]is not a cron line[...]   => seconds are not possible[...]
schedule cron: §'TZ=UTC 0 2 * * *'   :: [...]is not a cron line[...]
    => name the zone in the field timeZone[...]

# DCL102 A name of a zone that is refused is never suggested
schedule cron: '@daily', timeZone: §localtime   => write an IANA name such as Europe/Berlin, or UTC
schedule cron: '@daily', timeZone: §Factory   => write an IANA name such as Europe/Berlin, or UTC
schedule cron: '@daily', timeZone: §Berlin   => did you mean "Europe/Berlin"?

# fine Values that ask for what happens anyway, or for what can be done
handler mode: Event, filter: {}, debounce: 0s, onFailure: Retry, replay: Never
handler debounce: 500ms, onFailure: Ignore, retry: {maxAttempts: 3}
handler onFailure: DeadLetter, retry: {maxAttempts: 3}
handler onFailure: DeadLetter, mode: Reconcile
spec schedules: []\nleaderElection: {enabled: no}\nreload: {probationPeriod: 0s}\nmetrics: {}
spec metrics: {bindAddress: 127.0.0.1:8081}
spec admin: {bindAddress: ':9000'}\nmetrics: {bindAddress: ':9000'}
spec admin: {bindAddress: ':9000'}\nmetrics: {bindAddress: '127.0.0.1:9000'}
spec admin: {bindAddress: '127.0.0.1:9000'}\nmetrics: {bindAddress: '10.0.0.5:9000'}
spec admin: {bindAddress: ':0'}\nmetrics: {bindAddress: ':0'}
spec resources: [{name: a, apiVersion: v1, kind: Pod, indexers: [{name: byNode, fieldPath: spec.nodeName}]},
    {name: b, apiVersion: v1, kind: Pod, indexers: [{name: byNode, fieldPath: spec.nodeName}]}]
handlers {name: a, resourceRef: {name: pods}, entryPoint: h, queue: {name: slow, concurrency: 2}},
    {name: b, resourceRef: {name: pods}, entryPoint: h, queue: {name: slow}},
    {name: c, resourceRef: {name: pods}, entryPoint: h, queue: {name: slow, concurrency: 2}},
    {name: d, resourceRef: {name: pods}, entryPoint: h, queue: {concurrency: 3}},
    {name: e, resourceRef: {name: pods}, entryPoint: h, queue: {name: default, concurrency: 4}}
schedule cron: '0 0 29 2 *'
schedule cron: '0 0 31 * *'
schedule cron: '@daily'
shared handlers: [{name: a, mode: Reconcile, resourceRef: {name: pods}, entryPoint: m, watches: [{resourceRef:
    {name: settings}, mapTo: {label: app}}], includeSnapshotsFrom: [pods, settings]}]
by-uid includeSnapshotsFrom: [settings], watches: [{resourceRef: {name: settings}, mapTo: {label: app}}]
spec namespaces: {labelSelector: a=b}\nsharding: {slots: 4}
    \nresources: [{name: a, apiVersion: v1, kind: Pod, sharded: false}]
document apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: aLONG}
    \nspec: {sharding: {slots: 2, leaseName: short}}
bare indexers: [{name: a, fieldPath: metadata.annotations.x}, {name: b, entryPoint: 'm:f'}]
bare transform: {dropFields: [metadata.annotations]}
resource cache: {mode: Frames}, indexers: [{name: it, fieldPath: spec.nodeName}]
resource cache: {mode: Objects}, indexers: [{name: it, fieldPath: spec.x}], transform: {dropFields: [status]}
bare-watch mapTo: {owner: Any}, filter: {changedPaths: [metadata.labels]}
bare-watch mapTo: {annotation: x}, filter: {expression: "has(obj.metadata.labels.a)"}
bare-watch mapTo: {fieldPath: metadata.annotations.x}
drops-watch mapTo: {label: x}, filter: {labelSelector: a=b}
drops-watch mapTo: {fieldPath: spec.nodeName}, filter: {entryPoint: 'm:f'}
watch mapTo: {fieldPath: status.phase}
filter changedPaths: [metadata],
    expression: "change.type in ['Added', 'Deleted'] || change.reason == 'OutOfScope' || change.type == obj.a"
filter expression: "obj.type == 'Foo' && change.initial"
filter expression: "'${env:SECRET}' == change.type"
spec resources: [{name: pods, apiVersion: v1, kind: Pod, transform: {dropFields: []}}]
    \nhandlers: [{name: a, resourceRef: {name: pods}, entryPoint: m,
    filter: {changedPaths: [metadata.managedFields]}}]
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One part of a manifest, and what is said about it: patterns of texts; the code `fine` is no fault."""

    code: str
    severity: str
    part: str
    messages: tuple[str, ...]
    suggestions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.code} {self.part}"

    def manifest(self) -> str:
        """The fragment of a spec, or the document, with the mark."""
        frame, _, rest = self.part.partition(" ")
        text = rest.replace("LONG", 129 * "a")
        return (FRAMES[frame] % text).replace(" \\n", "\n").replace("\\n", "\n").replace("⇥", "\t")


def said(line: str) -> tuple[str, dict[str, str]]:
    text, *more = re.split(r"\s+(::|=>) ", line)
    return text.strip(), dict(zip(more[::2], more[1::2], strict=True))


def rows() -> Iterator[Row]:
    code, severity, common = "", "", dict[str, str]()
    for line in re.sub(r"\n    ", " ", TABLE).splitlines():
        text, own = said(line)
        if heading := re.match(r"# (\w+)( warning)?", text):
            code, severity, common = heading[1], "warning" if heading[2] else "error", own
        elif text:
            patterns = [tuple(each[sign] for each in (common, own) if sign in each) for sign in ("::", "=>")]
            yield Row(code, severity, text, *patterns)


def matches(pattern: str, text: str | None) -> bool:
    parts = (re.escape(part) for part in pattern.split("[...]"))
    return re.fullmatch(".*".join(parts), text or "", re.DOTALL) is not None


@pytest.mark.client_go("Controller", 308)
@pytest.mark.parametrize("row", [row for row in rows() if row.code != "fine"], ids=str)
def test_a_fault_is_shown_once_at_its_place(only_fault, row):
    """With its code, its message and what to do; a value from the environment, maybe a secret, is not."""
    fault = only_fault(row.manifest(), environ=ENVIRON)
    assert (fault.code, fault.severity) == (row.code, row.severity)
    for pattern in row.messages:
        assert matches(pattern, fault.message)
    for pattern in row.suggestions:
        assert matches(pattern, fault.suggestion)
    assert "Hunter" not in f"{fault}{fault.suggestion}{fault.source_line}"


@pytest.mark.parametrize("row", [row for row in rows() if row.code == "fine"], ids=str)
def test_what_is_fine_is_not_told(faults, row):
    assert faults(row.manifest(), environ=ENVIRON) == ()


@pytest.mark.parametrize(
    "resources",
    [
        "resorces: [{name: pods, apiVersion: v1, kind: Pod}]",
        "resources: [{nam: pods, apiVersion: v1, kind: Pod}]",
        "resources: {name: pods}",
        "resources: [{name: 1, apiVersion: v1, kind: Pod}]",
        "resources: [{name: 'Bad_name', apiVersion: v1, kind: Pod}]",
        "resources: [{name: '${env:MISSING}', apiVersion: v1, kind: Pod}]",
    ],
)
def test_a_broken_declaration_is_not_an_unknown_reference_too(faults, resources):
    """One cause gives one diagnostic: references to names that are not known are not judged."""
    assert len(faults(f"{resources}\nhandlers: [{{{CALLS}}}]")) == 1


def test_everything_is_said_at_once_and_in_order(faults):
    """Faults of all kinds come together, sorted by position; two missing fields are two faults."""
    found = faults(
        """
        resources:
          - {name: pods, apiVersion: v1, kind: Pod, resyncPeriod: 10}
          - {name: pods, apiVersion: v1, kind: Pod}
        handlers:
          - {name: a, resourceRef: {name: pod}, entryPoint: "./a.py:b", evnts: []}
        """
    )
    assert [fault.code for fault in found] == ["DCL030", "DCL021", "DCL020", "DCL037", "DCL012"]
    assert [(fault.line, fault.column) for fault in found] == sorted((f.line, f.column) for f in found)
    found = faults("resources: [{name: pods}]")
    assert [fault.code for fault in found] == ["DCL011", "DCL011"]
    assert {fault.message.rpartition(" ")[2] for fault in found} == {'"apiVersion"', '"kind"'}
