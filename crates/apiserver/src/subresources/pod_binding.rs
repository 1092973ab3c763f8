//! `pods/binding`: the scheduler gives a pod its node. Once, and only to a pod that may have one.

use jiff::Timestamp;
use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use machinery::time;
use serde_json::{Map, Value, json};

use super::{Endpoint, Responding};
use crate::chain::Call;
use crate::encode;
use crate::encode::negotiate::Offer;
use crate::registry::store::{self, Depth};
use crate::verbs::options::WriteOptions;
use crate::verbs::{body, write};

pub static CREATE: Endpoint = Endpoint {
    group: "",
    resource: "pods",
    subresource: "binding",
    verb: "create",
    run: |call| -> Responding<'_> { Box::pin(run(call)) },
};

/// The older way: a Binding of the pod's name, created like an object.
pub static CREATE_BINDING: Endpoint =
    Endpoint { group: "", resource: "bindings", subresource: "", verb: "create", ..CREATE };

async fn run(call: &Call) -> status::Result<transport::Response> {
    let accepted = call.accept(Offer::Plain)?;
    let options = WriteOptions::parse(&call.query, "CreateOptions", false, call.user_agent())?;
    let bindings = call.server.catalogue.of_kind("", "v1", "Binding").ok_or_else(Status::no_such_path)?;
    let binding = body::decode(call, &*bindings.kind, options.validation)?.value;
    let name = if call.info.name.is_empty() { meta::name(&binding) } else { &call.info.name };
    if !matches!(meta::name(&binding), "" | "0") && meta::name(&binding) != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let said = meta::namespace(&binding);
    if !said.is_empty() && said != call.info.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    check_target(&binding, name)?;
    let pods = call.server.catalogue.find("", "v1", "pods").ok_or_else(Status::no_such_path)?;
    // Binding writes no managed fields: the node's name is not a field that managers share.
    let direct = WriteOptions { manager: String::new(), ..options };
    let mut write = write(call, &pods, name, "binding", &direct);
    write.depth = Depth::Direct;
    let now = call.server.clock.wall();
    store::update(&write, |pod| bound(pod, &binding, now)).await?;
    Ok(encode::success(call, accepted, 201, &Value::Null).await)
}

fn check_target(binding: &Value, name: &str) -> status::Result<()> {
    use machinery::field::{FieldErrors, Path};
    let text = |field: &str| binding.pointer(&format!("/target/{field}")).and_then(Value::as_str).unwrap_or_default();
    let mut errors = FieldErrors::new();
    let target = Path::new("target");
    if !matches!(text("kind"), "" | "Node") {
        errors.not_supported(&target.child("kind"), text("kind"), &["Node", "<empty>"]);
    }
    if text("name").is_empty() {
        errors.required(&target.child("name"), "");
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("", "Binding", name, &errors)) }
}

/// The pod with its node, or why it cannot have one.
fn bound(pod: &Value, binding: &Value, now: Timestamp) -> status::Result<Value> {
    let name = meta::name(pod);
    let conflict = |why: String| Err(Status::conflict(&GroupResource::new("", "pods/binding"), name, why));
    for (what, demanded, found) in [
        ("UID", meta::uid(binding), meta::uid(pod)),
        ("ResourceVersion", meta::resource_version(binding), meta::resource_version(pod)),
    ] {
        if !demanded.is_empty() && demanded != found {
            return conflict(format!(
                "Precondition failed: {what} in precondition: {demanded}, {what} in object meta: {found}"
            ));
        }
    }
    if meta::is_deleting(pod) {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if !node.is_empty() {
        return conflict(format!("pod {name} is already assigned to node {node:?}"));
    }
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut new = pod.clone();
    let target = binding.pointer("/target/name").cloned().unwrap_or_default();
    object(&mut new, "spec").insert("nodeName".into(), target);
    for (key, value) in meta::annotations(binding) {
        meta::set_annotation(&mut new, &key, Some(&value));
    }
    for (key, value) in meta::labels(binding) {
        meta::set_label(&mut new, &key, Some(&value));
    }
    let status = object(&mut new, "status");
    status.remove("nominatedNodeName");
    scheduled(status, now);
    Ok(new)
}

fn object<'a>(parent: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let made = || Value::Object(Map::new());
    if !parent.get(key).is_some_and(Value::is_object) {
        parent[key] = made();
    }
    match &mut parent[key] {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn scheduled(status: &mut Map<String, Value>, now: Timestamp) {
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    let wanted = json!({ "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": time::rfc3339(now) });
    match conditions.iter_mut().find(|c| c.get("type") == wanted.get("type")) {
        Some(found) if found.get("status") == wanted.get("status") => {}
        Some(found) => *found = wanted,
        None => conditions.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pod: &Value, binding: &Value) -> Result<Value, String> {
        bound(pod, binding, Timestamp::UNIX_EPOCH).map_err(|s| format!("{} {}", s.code, s.message))
    }

    #[test]
    fn a_pod_gets_its_node_once() {
        let pod = json!({"metadata": {"name": "a", "uid": "u"}, "spec": {}, "status": {"nominatedNodeName": "n0",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}});
        let binding = json!({"metadata": {"name": "a", "uid": "u", "annotations": {"k": "v"}},
            "target": {"kind": "Node", "name": "n1"}});
        let new = check(&pod, &binding).expect("binds");
        assert_eq!(new["spec"]["nodeName"], "n1");
        assert_eq!(new["metadata"]["annotations"]["k"], "v");
        assert_eq!(new["status"]["conditions"][0]["status"], "True");
        assert!(new["status"].get("nominatedNodeName").is_none());
        let refused = |pod: &Value, binding: &Value| check(pod, binding).expect_err("refused");
        let operation = "409 Operation cannot be fulfilled on pods/binding \"a\": ";
        assert_eq!(refused(&new, &binding), format!("{operation}pod a is already assigned to node \"n1\""));
        let gated = json!({"metadata": {"name": "a"}, "spec": {"schedulingGates": [{"name": "x"}]}});
        let plain = json!({"target": {"name": "n1"}});
        assert_eq!(refused(&gated, &plain), format!("{operation}pod a has non-empty .spec.schedulingGates"));
        let going = json!({"metadata": {"name": "a", "deletionTimestamp": "1970-01-01T00:00:00Z"}});
        assert_eq!(refused(&going, &plain), format!("{operation}pod a is being deleted, cannot be assigned to a host"));
        let other = json!({"metadata": {"uid": "w"}, "target": {"name": "n1"}});
        assert!(refused(&pod, &other).contains("UID in precondition: w, UID in object meta: u"));
    }

    #[test]
    fn a_target_is_a_node() {
        for (binding, want) in [
            (json!({"target": {"name": "n"}}), Ok(())),
            (json!({"target": {"kind": "Node", "name": "n"}}), Ok(())),
            (
                json!({"target": {"kind": "Pod", "name": "n"}}),
                Err(
                    r#"Binding "a" is invalid: target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>""#,
                ),
            ),
            (json!({}), Err(r#"Binding "a" is invalid: target.name: Required value"#)),
        ] {
            assert_eq!(check_target(&binding, "a").map_err(|s| s.message), want.map_err(str::to_owned));
        }
    }
}
