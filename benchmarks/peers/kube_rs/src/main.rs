//! kube-rs' reflector as a peer of the benchmark (PROTOCOL.md, two folders up).
//!
//! It is what a controller written with kube-rs runs below its reconciler: a `watcher` with the default backoff, reflected into a
//! `Store` of typed objects (`DynamicObject` for custom resources), in a release build with all settings at their defaults, but for
//! `--mode streaming`, which asks for streaming lists; `--mode paged` is the default of the library. It speaks JSON alone.
//!
//! - The store has no indexes: the one of the protocol is kept by hand, in the stream, as a user would have to (`index.rs`).
//! - A stream has one consumer, an async one, and that is the handler here: `--listener sync` and `async` are the same.
//! - `--burn` is a task beside it that never yields: it takes one of the runtime's threads, as a handler that computes would.

mod counter;
mod index;
mod kinds;

use std::{io::BufRead, pin::pin, process::exit, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{api::coordination::v1::Lease, api::core::v1};
use kube::{
    Api, Client, Config,
    api::DynamicObject,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{WatchStreamExt, reflector::store::Writer, watcher, watcher::Event},
};
use serde_json::json;

use counter::{Counter, say};
use index::Index;
use kinds::Cached;

#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    kubeconfig: String,
    #[arg(long, value_enum, default_value = "pods")]
    kind: Kind,
    #[arg(long)]
    objects: usize,
    #[arg(long, value_enum, default_value = "paged")]
    mode: Mode,
    #[arg(long, value_enum, default_value = "none")]
    listener: Listener,
    #[arg(long)]
    burn: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Pods,
    Configmaps,
    Secrets,
    Leases,
    Customs,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Mode {
    Streaming,
    Paged,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Listener {
    None,
    Sync,
    Async,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let kubeconfig = Kubeconfig::read_from(&arguments.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    match arguments.kind {
        Kind::Pods => run::<v1::Pod>(Api::all(client), (), arguments).await,
        Kind::Configmaps => run::<v1::ConfigMap>(Api::all(client), (), arguments).await,
        Kind::Secrets => run::<v1::Secret>(Api::all(client), (), arguments).await,
        Kind::Leases => run::<Lease>(Api::all(client), (), arguments).await,
        Kind::Customs => {
            let resource = kinds::customs();
            run::<DynamicObject>(Api::all_with(client, &resource), resource, arguments).await
        }
    }
}

/// Keep the store and the index in step with the server, until standard input ends.
async fn run<K: Cached>(api: Api<K>, resource: K::DynamicType, arguments: Arguments) -> Result<()> {
    let writer = Writer::<K>::new(resource.clone());
    let reader = writer.as_reader();
    let index = Arc::new(Index::new(reader.clone(), resource));
    let counter =
        (arguments.listener != Listener::None).then(|| Arc::new(Counter::new(arguments.objects)));
    obey(index.clone(), counter.clone());

    let settings = match arguments.mode {
        Mode::Streaming => watcher::Config::default().streaming_lists(),
        Mode::Paged => watcher::Config::default(),
    };
    let mut burns = arguments.burn;
    let mut synced = false;
    let before = index.clone();
    let mut events = pin!(
        watcher(api, settings)
            .default_backoff()
            .inspect_ok(move |event| before.forget(event))
            .reflect(writer)
    );
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                eprintln!("{error}: the watcher tries again");
                continue;
            }
        };
        index.learn(&event);
        if let Some(counter) = &counter {
            match &event {
                Event::InitApply(_) if !synced => counter.added().await,
                Event::InitApply(object) | Event::Apply(object) => counter.called(object).await,
                _ => (),
            }
        }
        if std::mem::take(&mut burns) {
            tokio::spawn(burn());
        }
        if matches!(event, Event::InitDone) && !std::mem::replace(&mut synced, true) {
            if reader.len() != arguments.objects {
                bail!(
                    "synced with {} objects of {}",
                    reader.len(),
                    arguments.objects
                );
            }
            say(&json!({"event": "synced", "objects": reader.len(), "version": version()}));
        }
    }
    bail!("the watcher has ended")
}

/// Do what standard input says, in a thread of its own; its end ends the process.
fn obey<K: Cached>(index: Arc<Index<K>>, counter: Option<Arc<Counter>>) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let done = line
                .map_err(anyhow::Error::from)
                .and_then(|line| command(&line, &index, counter.as_deref()));
            if let Err(error) = done {
                eprintln!("{error:#}");
                exit(1);
            }
        }
        exit(0);
    });
}

fn command<K: Cached>(line: &str, index: &Index<K>, counter: Option<&Counter>) -> Result<()> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["expect", changes, ref rest @ ..] => {
            let counter = counter.context("expect needs a listener that counts")?;
            counter.expect(changes.parse()?, rest.contains(&"latency"));
        }
        ["read"] => {
            let value = index.first().context("the index is empty")?;
            let mut values = 0;
            let mut taken: Vec<_> = (0..200)
                .map(|_| {
                    let began = Instant::now();
                    values = index.objects(&value).len();
                    began.elapsed()
                })
                .collect();
            taken.sort();
            say(&json!({"event": "read", "median": taken[100].as_secs_f64(), "values": values}));
        }
        // A watcher doesn't tell how often it has listed.
        ["lists"] => say(&json!({"event": "lists", "lists": null})),
        [] => (),
        _ => bail!("no such command: {line:?}"),
    }
    Ok(())
}

/// Keep a core busy, for ever.
async fn burn() {
    let mut number = 0u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(31).wrapping_add(7));
    }
}

/// The version of the library: Cargo.toml names exactly one.
fn version() -> String {
    let pinned = include_str!("../Cargo.toml")
        .lines()
        .find_map(|line| line.strip_prefix("kube = { version = \"="));
    format!(
        "kube {}",
        pinned
            .and_then(|rest| rest.split('"').next())
            .unwrap_or("of an unknown version")
    )
}
