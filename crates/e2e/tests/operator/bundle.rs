//! The bundle in its three states: as it is installed, with a new version that is stored, and with that one
//! alone. In the old version of half of the kinds the number of replicas is called `count`.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::converter::{self, Converter};
use crate::definitions;

/// As it is installed: `v1`, and for half of the kinds `v1beta1` beside it.
pub fn first(converter: &Converter) -> Vec<Value> {
    let mut all = definitions::definitions();
    for definition in &mut all {
        let versions = definition["spec"]["versions"].as_array_mut();
        let Some(old) = versions.and_then(|versions| versions.get_mut(1)) else { continue };
        rename(&mut old["schema"]["openAPIV3Schema"]["properties"]["spec"]);
        old["subresources"]["scale"]["specReplicasPath"] = json!(".spec.count");
        old["additionalPrinterColumns"][0]["jsonPath"] = json!(".spec.count");
        // Versions of different schemas may not have the same selectable fields.
        old["selectableFields"] = json!([{"jsonPath": ".spec.mode"}]);
        definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"],
            "clientConfig": {"url": converter.url(), "caBundle": ByteString(converter.authority().as_bytes().to_vec())},
        }});
    }
    all
}

/// The schema of a spec whose `replicas` are called `count`.
fn rename(spec: &mut Value) {
    let properties = spec["properties"].as_object_mut();
    if let Some(properties) = properties
        && let Some(replicas) = properties.remove(converter::NEW)
    {
        properties.insert(converter::OLD.to_owned(), replicas);
    }
    spec["required"] = json!([converter::OLD]);
    for rule in spec["x-kubernetes-validations"].as_array_mut().into_iter().flatten() {
        let renamed = rule["rule"].as_str().unwrap_or_default().replace("self.replicas", "self.count");
        rule["rule"] = json!(renamed);
    }
}

/// With `v2`, which is stored and has a field more, beside the versions there were, or alone.
pub fn second(first: &[Value], beside: bool) -> Vec<Value> {
    let upgraded = |definition: &Value| {
        let mut definition = definition.clone();
        let mut old = definition["spec"]["versions"].take();
        let mut new = old[0].clone();
        new["name"] = json!("v2");
        new["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tier"] =
            json!({"type": "string", "enum": ["gold", "tin"], "default": "tin"});
        new["selectableFields"] = json!([{"jsonPath": ".spec.mode"}, {"jsonPath": ".spec.tier"}]);
        let mut versions = vec![new];
        if beside {
            old[0]["storage"] = json!(false);
            versions.extend(old.as_array().into_iter().flatten().cloned());
        } else if let Some(spec) = definition["spec"].as_object_mut() {
            spec.remove("conversion");
        }
        definition["spec"]["versions"] = Value::Array(versions);
        definition
    };
    first.iter().map(upgraded).collect()
}
