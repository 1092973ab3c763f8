//! `pods/ephemeralcontainers` and `pods/resize`: the parts of a pod that may change while it runs, each
//! through a door that lets nothing else in.

use http::header::CONTENT_TYPE;
use machinery::managed::Manager;
use machinery::meta;
use machinery::status;
use serde_json::{Value, json};
use transport::Response;

use super::{Endpoint, Responding};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::store;
use crate::verbs::apply::Apply;
use crate::verbs::options::WriteOptions;
use crate::verbs::patch::{self, Patch, check_identity};
use crate::verbs::{self, body, check_names, write, written};

const fn endpoint(subresource: &'static str) -> Endpoint {
    Endpoint {
        group: "",
        resource: "pods",
        subresource,
        verb: "*",
        run: |call| -> Responding<'_> { Box::pin(run(call)) },
    }
}

pub static EPHEMERAL_CONTAINERS: Endpoint = endpoint("ephemeralcontainers");
pub static RESIZE: Endpoint = endpoint("resize");

async fn run(call: &Call) -> status::Result<Response> {
    let resource = call.resource()?;
    let (name, namespace, part) = (&call.info.name, &call.info.namespace, call.info.subresource.as_str());
    match call.info.verb.as_str() {
        "get" => return verbs::get::run(call, &resource).await,
        "update" | "patch" => {}
        verb => return Err(resource.refuses(verb)),
    }
    let accepted = call.accept(Offer::Objects { list: false })?;
    let schema = resource.kind.schema();
    if call.info.verb == "update" {
        let options = WriteOptions::parse(&call.query, "UpdateOptions", false, call.user_agent())?;
        let sent = body::decode(call, &*resource.kind, options.validation)?;
        check_names(&sent.value, &resource, name, namespace)?;
        let change = |old: &Value| Ok(changed(part, old, &sent.value));
        let done = store::update(&write(call, &resource, name, part, &options), change).await?;
        return written(call, &resource, accepted, &done).await;
    }
    if patch::is_apply(call.header(CONTENT_TYPE)) {
        let apply = Apply::read(call)?;
        let manager = Manager {
            name: apply.options.manager.clone(),
            api_version: resource.shape().api_version(),
            also: Vec::new(),
            subresource: part.to_owned(),
            reset: resource.shape().resets(part),
            now: call.server.clock.wall(),
        };
        let change = |old: &Value| {
            let laid = apply.lay_over(Some(old), &schema, &manager)?;
            check_names(&laid, &resource, name, namespace)?;
            let mut new = changed(part, old, &laid);
            if let Some(fields) = laid.pointer("/metadata/managedFields") {
                meta::metadata_mut(&mut new).insert("managedFields".to_owned(), fields.clone());
            }
            Ok(new)
        };
        let done = store::update(&write(call, &resource, name, part, &apply.unmanaged), change).await?;
        return written(call, &resource, accepted, &done).await;
    }
    let options = WriteOptions::parse(&call.query, "PatchOptions", false, call.user_agent())?;
    let patch = Patch::read(call.header(CONTENT_TYPE), &patch::TYPES, &call.body, options.validation)?;
    let change = |old: &Value| {
        let patched = patch.apply(old, &schema)?;
        call.warn(patched.warnings);
        check_identity(&patched.object, old, &resource, namespace)?;
        Ok(changed(part, old, &patched.object))
    };
    let done = store::update(&write(call, &resource, name, part, &options), change).await?;
    written(call, &resource, accepted, &done).await
}

/// The stored pod with the part that was sent, and the version the client meant.
fn changed(part: &str, old: &Value, sent: &Value) -> Value {
    let mut new = old.clone();
    meta::set_resource_version(&mut new, meta::resource_version(sent));
    meta::set_uid(&mut new, meta::uid(sent));
    if !new["spec"].is_object() {
        new["spec"] = json!({});
    }
    if part == "ephemeralcontainers" {
        put(&mut new["spec"], "ephemeralContainers", sent.pointer("/spec/ephemeralContainers"));
        return new;
    }
    put(&mut new["spec"], "resources", sent.pointer("/spec/resources"));
    for list in ["containers", "initContainers"] {
        let of = |pod: &Value| pod["spec"][list].as_array().cloned().unwrap_or_default();
        let (ours, theirs) = (of(old), of(sent));
        let same = ours.len() == theirs.len() && ours.iter().zip(&theirs).all(|(a, b)| a["name"] == b["name"]);
        if !same {
            // Validation says what is wrong with it.
            put(&mut new["spec"], list, sent["spec"].get(list));
            continue;
        }
        let containers = new["spec"].get_mut(list).and_then(Value::as_array_mut);
        for (ours, theirs) in containers.into_iter().flatten().zip(&theirs) {
            put(ours, "resources", theirs.get("resources"));
            put(ours, "resizePolicy", theirs.get("resizePolicy"));
        }
    }
    new
}

fn put(into: &mut Value, field: &str, value: Option<&Value>) {
    let Some(into) = into.as_object_mut() else { return };
    match value.filter(|value| !value.is_null()) {
        Some(value) => drop(into.insert(field.to_owned(), value.clone())),
        None => drop(into.remove(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_part_changes() {
        let old = json!({"metadata": {"name": "p", "resourceVersion": "7"}, "spec": {"nodeName": "n",
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}});
        let sent = json!({"metadata": {"name": "p", "labels": {"x": "y"}}, "spec": {"nodeName": "m",
            "ephemeralContainers": [{"name": "e"}],
            "containers": [{"name": "c", "image": "j", "resources": {"requests": {"cpu": "2"}}}]}});
        assert_eq!(
            changed("ephemeralcontainers", &old, &sent),
            json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "ephemeralContainers": [{"name": "e"}],
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}})
        );
        assert_eq!(
            changed("resize", &old, &sent),
            json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n",
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}]}})
        );
        let other = json!({"spec": {"containers": [{"name": "d"}]}});
        assert_eq!(changed("resize", &old, &other)["spec"]["containers"], other["spec"]["containers"]);
    }
}
