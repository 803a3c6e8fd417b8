//! The index that the store doesn't have: by value, the objects of the store.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use kube::runtime::{
    reflector::{ObjectRef, Store},
    watcher::Event,
};

use crate::kinds::Cached;

type Key = (String, String);

/// Kept in step by calls before and after each event is reflected; read from any thread.
pub struct Index<K: Cached> {
    store: Store<K>,
    resource: K::DynamicType,
    objects: RwLock<HashMap<String, HashMap<Key, Arc<K>>>>,
}

impl<K: Cached> Index<K> {
    pub fn new(store: Store<K>, resource: K::DynamicType) -> Self {
        Self {
            store,
            resource,
            objects: RwLock::default(),
        }
    }

    /// Before the store has it: what it has now is no longer to be found.
    pub fn forget(&self, event: &Event<K>) {
        let (Event::Apply(object) | Event::Delete(object)) = event else {
            return;
        };
        if let Some(old) = self.known(object) {
            let mut objects = self.objects.write().unwrap();
            if let Some(found) = objects.get_mut(old.value()) {
                found.remove(&key(&*old));
                if found.is_empty() {
                    objects.remove(old.value());
                }
            }
        }
    }

    /// After the store has it: what is new can be found.
    pub fn learn(&self, event: &Event<K>) {
        match event {
            Event::Apply(object) => {
                let Some(object) = self.known(object) else {
                    return;
                };
                enter(&mut self.objects.write().unwrap(), object);
            }
            Event::InitDone => {
                let mut objects = HashMap::new();
                for object in self.store.state() {
                    enter(&mut objects, object);
                }
                *self.objects.write().unwrap() = objects;
            }
            _ => (),
        }
    }

    /// What the store has of this name.
    pub fn known(&self, object: &K) -> Option<Arc<K>> {
        self.store
            .get(&ObjectRef::from_obj_with(object, self.resource.clone()))
    }

    /// The objects of a value.
    pub fn objects(&self, value: &str) -> Vec<Arc<K>> {
        self.objects
            .read()
            .unwrap()
            .get(value)
            .map(|found| found.values().cloned().collect())
            .unwrap_or_default()
    }

    /// The first value.
    pub fn first(&self) -> Option<String> {
        self.objects.read().unwrap().keys().min().cloned()
    }
}

fn enter<K: Cached>(objects: &mut HashMap<String, HashMap<Key, Arc<K>>>, object: Arc<K>) {
    if !objects.contains_key(object.value()) {
        objects.insert(object.value().to_owned(), HashMap::new());
    }
    if let Some(found) = objects.get_mut(object.value()) {
        found.insert(key(&*object), object);
    }
}

fn key<K: Cached>(object: &K) -> Key {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}
