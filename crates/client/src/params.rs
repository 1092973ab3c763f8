//! Options of requests, and how they are written into a query or a body.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

/// What a list selects and how fresh it must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListParams {
    pub label_selector: String,
    pub field_selector: String,
    pub limit: Option<u32>,
    pub continue_token: String,
    /// `None` asks for the most recent; `Some(0)` takes whatever the server has cached.
    pub resource_version: Option<u64>,
    pub exact: bool,
}

impl ListParams {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.label_selector = selector.into();
        self
    }

    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = selector.into();
        self
    }

    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        query.text("labelSelector", &self.label_selector);
        query.text("fieldSelector", &self.field_selector);
        query.text("continue", &self.continue_token);
        if let Some(limit) = self.limit {
            query.text("limit", &limit.to_string());
        }
        if let Some(revision) = self.resource_version {
            query.text("resourceVersion", &revision.to_string());
            if self.exact {
                query.text("resourceVersionMatch", "Exact");
            }
        }
        query
    }
}

/// What a watch selects and where it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchParams {
    pub label_selector: String,
    pub field_selector: String,
    /// Begin after this revision; `None` begins with the present.
    pub after: Option<u64>,
    /// Stream the existing objects first, closed by a bookmark.
    pub initial_events: bool,
    pub bookmarks: bool,
    pub timeout_seconds: Option<u32>,
}

impl WatchParams {
    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        query.text("watch", "1");
        query.text("labelSelector", &self.label_selector);
        query.text("fieldSelector", &self.field_selector);
        if self.bookmarks {
            query.text("allowWatchBookmarks", "true");
        }
        if self.initial_events {
            query.text("sendInitialEvents", "true");
            query.text("resourceVersionMatch", "NotOlderThan");
        }
        if let Some(after) = self.after {
            query.text("resourceVersion", &after.to_string());
        }
        if let Some(seconds) = self.timeout_seconds {
            query.text("timeoutSeconds", &seconds.to_string());
        }
        query
    }
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// How an object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteParams {
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    /// Delete only the object with this uid.
    pub uid: Option<String>,
    /// Delete only this revision.
    pub revision: Option<u64>,
    pub dry_run: bool,
}

impl DeleteParams {
    /// Delete only the object with this uid.
    pub fn of_uid(uid: impl Into<String>) -> Self {
        Self { uid: Some(uid.into()), ..Self::default() }
    }

    #[must_use]
    pub fn propagation(mut self, propagation: Propagation) -> Self {
        self.propagation = Some(propagation);
        self
    }

    #[must_use]
    pub fn grace(mut self, seconds: i64) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }

    #[must_use]
    pub fn revision(mut self, revision: u64) -> Self {
        self.revision = Some(revision);
        self
    }

    pub(crate) fn body(&self) -> Value {
        let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = self.grace_period_seconds {
            body["gracePeriodSeconds"] = json!(seconds);
        }
        if let Some(policy) = self.propagation {
            body["propagationPolicy"] = json!(match policy {
                Propagation::Background => "Background",
                Propagation::Foreground => "Foreground",
                Propagation::Orphan => "Orphan",
            });
        }
        if let Some(uid) = &self.uid {
            body["preconditions"]["uid"] = json!(uid);
        }
        if let Some(revision) = self.revision {
            body["preconditions"]["resourceVersion"] = json!(revision.to_string());
        }
        if self.dry_run {
            body["dryRun"] = json!(["All"]);
        }
        body
    }
}

/// A change to an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7396.
    Merge(Value),
    /// Kubernetes' merge with list keys.
    Strategic(Value),
    /// Server-side apply.
    Apply { value: Value, manager: String, force: bool },
}

impl Patch {
    pub(crate) fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json-patch+json",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
            Self::Apply { .. } => "application/apply-patch+yaml",
        }
    }

    pub(crate) fn value(&self) -> &Value {
        match self {
            Self::Json(value) | Self::Merge(value) | Self::Strategic(value) | Self::Apply { value, .. } => value,
        }
    }

    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        if let Self::Apply { manager, force, .. } = self {
            query.text("fieldManager", manager);
            if *force {
                query.text("force", "true");
            }
        }
        query
    }
}

/// A query string in the making.
#[derive(Clone, Debug, Default)]
pub struct Query(String);

impl Query {
    /// Adds a parameter unless its value is empty.
    pub fn text(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(key);
        self.0.push('=');
        self.0.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
    }

    /// The query with its question mark; empty without parameters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped_and_delete_options_are_minimal() {
        assert_eq!(ListParams::all().labels("a=b,c").limit(5).query().as_str(), "?labelSelector=a%3Db%2Cc&limit=5");
        let watch = WatchParams { initial_events: true, bookmarks: true, ..WatchParams::default() };
        assert_eq!(
            watch.query().as_str(),
            "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(
            DeleteParams::of_uid("u").propagation(Propagation::Foreground).body(),
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground", "preconditions": {"uid": "u"}})
        );
    }
}
