//! `namespaces/finalize`: lets go of a namespace that is on its way out. When nothing holds it any
//! more the write path removes it in the same update.

use machinery::meta;
use machinery::status;
use serde_json::Value;

use super::{Endpoint, Responding};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::store;
use crate::verbs::options::WriteOptions;
use crate::verbs::{body, check_names, write, written};

pub static UPDATE: Endpoint = Endpoint {
    group: "",
    resource: "namespaces",
    subresource: "finalize",
    verb: "update",
    run: |call| -> Responding<'_> { Box::pin(run(call)) },
};

async fn run(call: &Call) -> status::Result<transport::Response> {
    let resource = call.resource()?;
    let accepted = call.accept(Offer::Objects { list: false })?;
    let options = WriteOptions::parse(&call.query, "UpdateOptions", false, call.user_agent())?;
    let sent = body::decode(call, &*resource.kind, options.validation)?;
    check_names(&sent.value, &resource, &call.info.name, "")?;
    let done = store::update(&write(call, &resource, &call.info.name, "finalize", &options), |old| {
        Ok(finalized(old, &sent.value))
    })
    .await?;
    written(call, &resource, accepted, &done).await
}

/// The stored namespace with the finalizers that were sent, and the version the client meant.
fn finalized(old: &Value, sent: &Value) -> Value {
    let mut new = old.clone();
    meta::set_resource_version(&mut new, meta::resource_version(sent));
    meta::set_uid(&mut new, meta::uid(sent));
    let finalizers = sent.pointer("/spec/finalizers").filter(|f| f.as_array().is_some_and(|list| !list.is_empty()));
    if !new.get("spec").is_some_and(Value::is_object) {
        new["spec"] = Value::Object(serde_json::Map::new());
    }
    if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
        match finalizers {
            Some(list) => spec.insert("finalizers".into(), list.clone()),
            None => spec.remove("finalizers"),
        };
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_finalizers_change() {
        let old = json!({"metadata": {"name": "a", "resourceVersion": "7", "uid": "u"},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"}});
        let sent = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"finalizers": []}, "status": {}});
        let want = json!({"metadata": {"name": "a"}, "spec": {}, "status": {"phase": "Terminating"}});
        assert_eq!(finalized(&old, &sent), want);
    }
}
