//! `scale`: how many replicas, for every kind whose shape says where they are written.

use api::meta::apis::meta::v1::LabelSelector;
use http::header::CONTENT_TYPE;
use kinds::scale::Scale;
use kinds::shape::ScalePaths;
use machinery::field::{FieldErrors, Path};
use machinery::managed::{self, Manager};
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::{encode as encoder, meta};
use serde::Deserialize;
use serde_json::{Value, json};
use transport::Response;

use crate::chain::Call;
use crate::crd::convert;
use crate::encode;
use crate::encode::negotiate::{Accepted, Offer};
use crate::registry::catalogue::Resource;
use crate::registry::store::{self, Written};
use crate::verbs::apply::Apply;
use crate::verbs::options::{self, WriteOptions};
use crate::verbs::patch::{self, Patch, check_identity};
use crate::verbs::{body, check_names, write};

/// Serves the request.
///
/// # Errors
/// As get, update and patch; 405 for other verbs.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let paths = resource.shape().scale.ok_or_else(Status::no_such_path)?;
    let accepted = call.accept(Offer::Objects { list: false })?;
    match call.info.verb.as_str() {
        "get" => {
            let asked = call.query.text("resourceVersion").map(options::revision).transpose()?;
            resource.settle(asked).await?;
            let missing = || Status::not_found(&resource.group_resource(), &call.info.name);
            let object = resource.cached(&call.info.namespace, &call.info.name).ok_or_else(missing)?;
            let object = convert::object(&call.server, resource, object).await?.value()?;
            if resource.kind.is_custom() && object.pointer(paths.spec_replicas).is_none() {
                let path = paths.spec_replicas.replace('/', ".");
                return Err(Status::internal(format!("the spec replicas field {path:?} does not exist")));
            }
            respond(call, accepted, &scale_of(&object, &paths)).await
        }
        "update" => {
            let options = WriteOptions::parse(&call.query, "UpdateOptions", false, call.user_agent())?;
            let sent = body::read(call, &schema()?, options.validation)?;
            check_names(&sent.value, resource, &call.info.name, &call.info.namespace)?;
            let change = |old: &Value| scaled(old, &sent.value, &paths);
            let done = store::update(&write(call, resource, &call.info.name, "scale", &options), change).await?;
            changed(call, accepted, &paths, &done).await
        }
        "patch" if patch::is_apply(call.header(CONTENT_TYPE)) => apply(call, resource, accepted, &paths).await,
        "patch" => {
            let options = WriteOptions::parse(&call.query, "PatchOptions", false, call.user_agent())?;
            let patch = Patch::read(call.header(CONTENT_TYPE), &patch::TYPES, &call.body, options.validation)?;
            let schema = schema()?;
            let change = |old: &Value| {
                let scale = scale_of(old, &paths);
                let patched = patch.apply(&scale, &schema)?;
                call.warn(patched.warnings);
                check_identity(&patched.object, &scale, resource, &call.info.namespace)?;
                scaled(old, &patched.object, &paths)
            };
            let done = store::update(&write(call, resource, &call.info.name, "scale", &options), change).await?;
            changed(call, accepted, &paths, &done).await
        }
        verb => Err(resource.refuses(verb)),
    }
}

/// Applies a Scale: the replicas are the object's own, and so is who owns them.
async fn apply(
    call: &Call,
    resource: &Resource,
    accepted: Accepted,
    paths: &ScalePaths<'_>,
) -> status::Result<Response> {
    let apply = Apply::read(call)?;
    let (schema, api_version) = (schema()?, resource.shape().api_version());
    let path: Vec<&str> = paths.spec_replicas.split('/').skip(1).collect();
    let manager = Manager {
        name: apply.options.manager.clone(),
        api_version: "autoscaling/v1".to_owned(),
        also: Vec::new(),
        subresource: "scale".to_owned(),
        reset: &[],
        now: call.server.clock.wall(),
    };
    let change = |old: &Value| {
        let mut scale = scale_of(old, paths);
        managed::set_managed_fields(&mut scale, managed::of_parent(old, &api_version, &path));
        let scale = apply.lay_over(Some(&scale), &schema, &manager)?;
        check_names(&scale, resource, &call.info.name, &call.info.namespace)?;
        let mut new = scaled(old, &scale, paths)?;
        managed::set_managed_fields(&mut new, managed::of_scale(old, &scale, &api_version, &path));
        Ok(new)
    };
    let done = store::update(&write(call, resource, &call.info.name, "scale", &apply.unmanaged), change).await?;
    changed(call, accepted, paths, &done).await
}

/// Answers with the Scale of what was written.
async fn changed(call: &Call, accepted: Accepted, paths: &ScalePaths<'_>, done: &Written) -> status::Result<Response> {
    call.warn(done.warnings.iter().cloned());
    respond(call, accepted, &scale_of(&done.object, paths)).await
}

fn schema() -> status::Result<Type> {
    api::schema::of("autoscaling", "v1", "Scale").ok_or_else(|| Status::internal("Scale has no schema"))
}

async fn respond(call: &Call, accepted: Accepted, scale: &Value) -> status::Result<Response> {
    let (json, revision) = (encoder::json(scale, &schema()?), meta::revision(scale).unwrap_or_default());
    encode::one(call, &Scale, accepted, 200, &json, Some(revision)).await
}

/// An object's Scale.
fn scale_of(object: &Value, paths: &ScalePaths<'_>) -> Value {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.get("metadata").and_then(|m| m.get(field)) {
            metadata[field] = value.clone();
        }
    }
    let mut status = json!({ "replicas": number(paths.status_replicas) });
    let selector = selector(object.pointer(paths.selector).filter(|_| !paths.selector.is_empty()));
    if !selector.is_empty() {
        status["selector"] = json!(selector);
    }
    json!({ "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": { "replicas": number(paths.spec_replicas) }, "status": status })
}

/// A selector as text: a LabelSelector, or a plain map of labels.
fn selector(value: Option<&Value>) -> String {
    let Some(value) = value else { return String::new() };
    // Custom resources write it as the text it is.
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    if value.get("matchLabels").is_some() || value.get("matchExpressions").is_some() {
        let parsed = LabelSelector::deserialize(value).ok().and_then(|s| api::selector(&s).ok());
        return parsed.map(|s| s.to_string()).unwrap_or_default();
    }
    let pairs = value.as_object().into_iter().flatten();
    let labels = pairs.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect();
    machinery::labels::Selector::from_labels(&labels).to_string()
}

/// The object with the replicas of a Scale, and the version the client meant.
fn scaled(old: &Value, scale: &Value, paths: &ScalePaths<'_>) -> status::Result<Value> {
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if replicas < 0 {
        let mut errors = FieldErrors::new();
        let path = Path::new("spec").child("replicas");
        errors.invalid(&path, replicas, "must be greater than or equal to 0");
        return Err(Status::invalid("autoscaling", "Scale", meta::name(scale), &errors));
    }
    let mut new = old.clone();
    meta::set_resource_version(&mut new, meta::resource_version(scale));
    meta::set_uid(&mut new, meta::uid(scale));
    set(&mut new, paths.spec_replicas, replicas.into());
    Ok(new)
}

/// Sets the value at a pointer, making the objects on the way.
fn set(tree: &mut Value, pointer: &str, value: Value) {
    let mut at = tree;
    for part in pointer.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[part];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: ScalePaths =
        ScalePaths { spec_replicas: "/spec/replicas", status_replicas: "/status/replicas", selector: "/spec/selector" };

    #[test]
    fn an_object_and_its_scale() {
        let object = json!({"metadata": {"name": "a", "namespace": "b", "resourceVersion": "7", "labels": {"x": "y"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}}, "status": {"replicas": 1}});
        let mut scale = scale_of(&object, &PATHS);
        let want = json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": "a", "namespace": "b", "resourceVersion": "7"},
            "spec": {"replicas": 2}, "status": {"replicas": 1, "selector": "app=a"}});
        assert_eq!(scale, want);
        scale["spec"]["replicas"] = json!(5);
        scale["metadata"]["resourceVersion"] = json!("6");
        let new = scaled(&object, &scale, &PATHS).expect("scales");
        assert_eq!((&new["spec"]["replicas"], &new["metadata"]["resourceVersion"]), (&json!(5), &json!("6")));
        scale["spec"]["replicas"] = json!(-1);
        let refused = scaled(&object, &scale, &PATHS).expect_err("refused");
        let text =
            r#"Scale.autoscaling "a" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"#;
        assert_eq!(refused.message, text);
    }
}
