//! The handler that counts what it's called with, and says so when all of it has come.

use std::{
    io::Write,
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

const SENT: &str = "bench/sent";

/// One line, flushed; safe from any thread.
pub fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("standard output is open");
}

pub struct Counter {
    objects: usize,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    added: usize,
    changes: usize,
    wanted: usize,
    delays: Option<Vec<Duration>>,
}

impl Counter {
    pub fn new(objects: usize) -> Self {
        Self {
            objects,
            counts: Mutex::default(),
        }
    }

    /// A first notification was delivered.
    pub async fn added(&self) {
        let mut counts = self.counts.lock().unwrap();
        counts.added += 1;
        if counts.added == self.objects {
            say(&json!({"event": "added", "objects": self.objects}));
        }
    }

    /// A change was delivered, or after a relist an object, changed or not. The clock is read first.
    pub async fn called<K: Resource>(&self, object: &K) {
        let now = SystemTime::now();
        let mut counts = self.counts.lock().unwrap();
        if let Some(delays) = &mut counts.delays {
            delays.push(now.duration_since(sent(object)).unwrap_or_default());
        }
        counts.changes += 1;
        if counts.changes == counts.wanted {
            self.tell(&mut counts);
        }
    }

    /// Count from here, and say so when there were that many.
    pub fn expect(&self, changes: usize, latency: bool) {
        let delays = latency.then(|| Vec::with_capacity(changes));
        let mut counts = self.counts.lock().unwrap();
        *counts = Counts {
            added: counts.added,
            wanted: changes,
            delays,
            ..Counts::default()
        };
    }

    fn tell(&self, counts: &mut Counts) {
        let mut told = json!({
            "event": "received", "changes": counts.changes, "calls": counts.changes, "objects": self.objects,
        });
        if let Some(mut delays) = counts.delays.take() {
            delays.sort();
            let milliseconds = |at: usize| delays[at].as_secs_f64() * 1e3;
            told["p50"] = json!(milliseconds(delays.len() / 2));
            told["p99"] = json!(milliseconds(delays.len() * 99 / 100));
            told["most"] = json!(milliseconds(delays.len() - 1));
        }
        say(&told);
    }
}

/// When the server made the change.
fn sent<K: Resource>(object: &K) -> SystemTime {
    let stamp = object
        .annotations()
        .get(SENT)
        .and_then(|text| text.parse().ok());
    UNIX_EPOCH + Duration::from_nanos(stamp.expect("bench/sent is a number"))
}
