//! What was found out about a pod.

use api::wait::Wait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};

/// An object the pod descends from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// Something that happened, as an event tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// The last time it did; often in whole seconds.
    pub at: Option<Timestamp>,
    /// Its place among what happened in the same second: the revision at which the server last wrote
    /// of it.
    pub order: u64,
    /// How often.
    pub count: i64,
    pub warning: bool,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub reason: String,
    pub message: String,
}

impl From<Event> for Happened {
    fn from(event: Event) -> Self {
        let series = event.series.as_ref();
        let last = series.and_then(|s| s.last_observed_time.as_ref()).map(|t| t.0);
        let last = last.or(event.last_timestamp.as_ref().map(|t| t.0)).or(event.event_time.as_ref().map(|t| t.0));
        Self {
            at: last.or(event.first_timestamp.map(|t| t.0)).or(event.metadata.creation_timestamp.map(|t| t.0)),
            order: event.metadata.resource_version.and_then(|v| v.parse().ok()).unwrap_or(1),
            count: i64::from(series.and_then(|s| s.count).or(event.count).unwrap_or(1)).max(1),
            warning: event.type_.as_deref() == Some("Warning"),
            kind: event.involved_object.kind.unwrap_or_default(),
            name: event.involved_object.name.unwrap_or_default(),
            uid: event.involved_object.uid.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        }
    }
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub namespace: String,
    pub name: String,
    /// `None` when it is gone.
    pub pod: Option<Pod>,
    /// The controller, its controller, and so on.
    pub owners: Vec<Owner>,
    /// Of the pod and of its owners.
    pub waits: Vec<Wait>,
    /// Of the pod, and what concerns it of its owners.
    pub history: Vec<Happened>,
}
