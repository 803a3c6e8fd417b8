//! The kinds of the server, and what their one index is made of.

use std::{fmt::Debug, hash::Hash};

use k8s_openapi::{api::coordination::v1::Lease, api::core::v1};
use kube::{Resource, api::ApiResource, api::DynamicObject, core::GroupVersionKind};
use serde::de::DeserializeOwned;

/// What can be watched, reflected and indexed here.
pub trait Cached:
    Resource<DynamicType: Clone + Eq + Hash + Send + Sync + Unpin>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The index value: the namespace, but for pods.
    fn value(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }
}

impl Cached for v1::Pod {
    fn value(&self) -> &str {
        self.spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default()
    }
}

impl Cached for v1::ConfigMap {}
impl Cached for v1::Secret {}
impl Cached for Lease {}
impl Cached for DynamicObject {}

pub fn customs() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("bench.declctl.dev", "v1", "Custom"),
        "customs",
    )
}
