//! `metav1.Status`: what a client sees of a failure, with upstream's codes, reasons and texts.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::field::{FieldErrors, Path};

/// A group and resource as error texts print them: `deployments.apps`, `pods`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupResource {
    pub group: String,
    pub resource: String,
}

impl GroupResource {
    /// `group` is empty for the core group.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.resource) } else { write!(f, "{}.{}", self.resource, self.group) }
    }
}

/// One cause in `status.details.causes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// `status.details`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A failed request. `reason` is one of upstream's StatusReason constants (or empty).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Option<Details>,
    /// `metadata.continue`, which a 410 for a continued list carries.
    pub continue_token: Option<String>,
}

/// Status is large; failures travel boxed.
pub type Result<T, E = Box<Status>> = std::result::Result<T, E>;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl Status {
    /// A Status of any code and reason.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { code, reason: reason.to_owned(), message: message.into(), ..Self::default() })
    }

    /// The same with the resource and name it is about.
    #[must_use]
    pub fn about(mut self: Box<Self>, resource: &GroupResource, name: &str) -> Box<Self> {
        let details = self.details.get_or_insert_default();
        details.group.clone_from(&resource.group);
        details.kind.clone_from(&resource.resource);
        name.clone_into(&mut details.name);
        self
    }

    /// The same with one more cause.
    #[must_use]
    pub fn cause(mut self: Box<Self>, reason: &str, message: impl Into<String>, field: &str) -> Box<Self> {
        let cause = Cause { reason: reason.into(), message: message.into(), field: field.into() };
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// The same with a hint when to try again (also sent as `Retry-After`).
    #[must_use]
    pub fn retry_after(mut self: Box<Self>, seconds: u32) -> Box<Self> {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Box<Self> {
        Self::new(400, "BadRequest", message)
    }

    /// 401.
    pub fn unauthorized() -> Box<Self> {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 `<resource> "<name>" is forbidden: <why>`.
    pub fn forbidden(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Box<Self> {
        let message = match (resource.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{resource} is forbidden: {why}"),
            (false, false) => format!("{resource} \"{name}\" is forbidden: {why}"),
        };
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// 404 `<resource> "<name>" not found`.
    pub fn not_found(resource: &GroupResource, name: &str) -> Box<Self> {
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found")).about(resource, name)
    }

    /// 404 for a path that no resource answers to.
    pub fn no_such_path() -> Box<Self> {
        let mut status = Self::new(404, "NotFound", "the server could not find the requested resource");
        status.details = Some(Details::default());
        status
    }

    /// 405 for a method that no path of the kind has: whoever finds that out knows of no resource.
    pub fn no_such_method() -> Box<Self> {
        let mut status =
            Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource");
        status.details = Some(Details::default());
        status
    }

    /// 405 of a resource that does not have the verb.
    pub fn method_not_allowed(resource: &GroupResource, verb: &str) -> Box<Self> {
        Self::new(405, "MethodNotAllowed", format!("{verb} is not supported on resources of kind \"{resource}\""))
            .about(resource, "")
    }

    /// 406.
    pub fn not_acceptable(supported: &[&str]) -> Box<Self> {
        let list = supported.join(", ");
        Self::new(406, "NotAcceptable", format!("only the following media types are accepted: {list}"))
    }

    /// 409 AlreadyExists.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Box<Self> {
        Self::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists")).about(resource, name)
    }

    /// 409 AlreadyExists for a name that the server made up.
    pub fn name_not_generated(resource: &GroupResource, name: &str) -> Box<Self> {
        const WHY: &str = "already exists, the server was not able to generate a unique name for the object";
        Self::new(409, "AlreadyExists", format!("{resource} \"{name}\" {WHY}")).about(resource, name).retry_after(1)
    }

    /// 409 Conflict `Operation cannot be fulfilled on <resource> "<name>": <why>`.
    pub fn conflict(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Box<Self> {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"))
            .about(resource, name)
    }

    /// The Conflict of an update against an older resourceVersion.
    pub fn modified(resource: &GroupResource, name: &str) -> Box<Self> {
        const WHY: &str = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, WHY)
    }

    /// 410 Expired.
    pub fn expired(message: impl Into<String>) -> Box<Self> {
        Self::new(410, "Expired", message)
    }

    /// 413.
    pub fn too_large(limit: usize) -> Box<Self> {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 415.
    pub fn unsupported_media_type(message: impl Into<String>) -> Box<Self> {
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 422 with every mistake as a cause. `kind` is `Deployment.apps` as group and kind.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &FieldErrors) -> Box<Self> {
        let group_kind = GroupResource::new(group, kind);
        let mut status =
            Self::new(422, "Invalid", format!("{group_kind} \"{name}\" is invalid: {errors}")).about(&group_kind, name);
        let causes = errors.0.iter().map(|e| Cause {
            reason: e.kind.cause().into(),
            message: e.body(),
            field: if e.path == Path::root() { "<nil>".into() } else { e.path.as_str().into() },
        });
        status.details.get_or_insert_default().causes.extend(causes);
        status
    }

    /// 429.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Box<Self> {
        Self::new(429, "TooManyRequests", message).retry_after(retry_after)
    }

    /// 500. The message is prefixed as upstream's.
    pub fn internal(error: impl fmt::Display) -> Box<Self> {
        let text = error.to_string();
        Self::new(500, "InternalError", format!("Internal error occurred: {text}")).cause("", text, "")
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>) -> Box<Self> {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 504.
    pub fn timeout(message: impl fmt::Display) -> Box<Self> {
        Self::new(504, "Timeout", format!("Timeout: {message}"))
    }

    /// 504 for a resourceVersion the server has not reached.
    pub fn too_large_resource_version(asked: u64, current: u64) -> Box<Self> {
        Self::timeout(format!("Too large resource version: {asked}, current: {current}"))
            .cause("ResourceVersionTooLarge", "Too large resource version", "")
            .retry_after(1)
    }

    /// True for the reason given.
    pub fn is(&self, reason: &str) -> bool {
        self.reason == reason
    }

    /// The object as it is sent.
    pub fn to_value(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        let mut out = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata,
            "status": "Failure", "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            out["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            out["details"] = json!(details);
        }
        out
    }

    /// Reads a Status that a server sent; `None` when `value` is not one.
    pub fn from_value(value: &Value) -> Option<Box<Self>> {
        if value.get("kind")?.as_str()? != "Status" {
            return None;
        }
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Box::new(Self {
            code: value.get("code").and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok()).unwrap_or(0),
            reason: text("reason"),
            message: text("message"),
            details: value.get("details").and_then(|d| serde_json::from_value(d.clone()).ok()),
            continue_token: value.pointer("/metadata/continue").and_then(Value::as_str).map(str::to_owned),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_object_lists_every_cause() {
        let mut errors = FieldErrors::new();
        errors.required(&Path::new("spec").child("selector"), "");
        errors.invalid(&Path::new("spec").child("replicas"), -1, "must be greater than or equal to 0");
        let status = Status::invalid("apps", "Deployment", "web", &errors);
        assert_eq!(
            status.message,
            "Deployment.apps \"web\" is invalid: [spec.selector: Required value, \
             spec.replicas: Invalid value: -1: must be greater than or equal to 0]"
        );
        assert_eq!(status.details.as_ref().map(|d| d.causes.len()), Some(2));
        assert_eq!(Status::from_value(&status.to_value()), Some(status));
    }
}
