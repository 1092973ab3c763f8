//! What a client is told about a value of the wrong type: the innermost struct, the whole way to the
//! field, and the type, as Go's decoder names them. The texts were taken from it.

use machinery::decode::{self, Format, Strictness};

/// What is wrong with a body, without whose it is.
fn wrong(group: &str, kind: &str, body: &str) -> String {
    let schema = api::schema::of(group, "v1", kind).expect("a kind");
    match decode::decode(body.as_bytes(), Format::Json, &schema, Strictness::Warn) {
        Ok(read) => format!("fits: {}", read.value),
        Err(status) => {
            let prefix = format!("{kind} in version \"v1\" cannot be handled as a {kind}: ");
            status.message.strip_prefix(&prefix).unwrap_or(&status.message).to_owned()
        }
    }
}

#[test]
fn values_of_other_types_are_told_as_go_tells_them() {
    let quantity = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    let field = |found: &str, place: &str, of: &str| {
        format!("json: cannot unmarshal {found} into Go struct field {place} of type {of}")
    };
    let pod = |inner: &str| format!(r#"{{"spec":{{"template":{{"spec":{inner}}}}}}}"#);
    let container = |inner: &str| pod(&format!(r#"{{"containers":[{inner}]}}"#));
    let containers = "spec.template.spec.containers";
    for (body, want) in [
        (r#"{"spec":{"replicas":"3"}}"#.to_owned(), field("string", "DeploymentSpec.spec.replicas", "int32")),
        (container(r#"{"name":1}"#), field("number", &format!("Container.{containers}.name"), "string")),
        (pod(r#"{"containers":{"a":1}}"#), field("object", &format!("PodSpec.{containers}"), "[]v1.Container")),
        (container("5"), field("number", &format!("PodSpec.{containers}"), "v1.Container")),
        (
            container(r#"{"name":"a","env":[{"name":"x","value":5}]}"#),
            field("number", &format!("EnvVar.{containers}.env.value"), "string"),
        ),
        (r#"{"metadata":{"labels":{"a":1}}}"#.to_owned(), field("number", "ObjectMeta.metadata.labels", "string")),
        (
            r#"{"metadata":{"labels":[1]}}"#.to_owned(),
            field("array", "ObjectMeta.metadata.labels", "map[string]string"),
        ),
        (r#"{"metadata":{"name":5}}"#.to_owned(), field("number", "ObjectMeta.metadata.name", "string")),
        (r#"{"metadata":5}"#.to_owned(), field("number", "Deployment.metadata", "v1.ObjectMeta")),
        (
            r#"{"spec":{"strategy":{"rollingUpdate":{"maxSurge":true}}}}"#.to_owned(),
            field("bool", "RollingUpdateDeployment.spec.strategy.rollingUpdate.maxSurge", "int32"),
        ),
        (
            r#"{"spec":{"selector":{"matchExpressions":[{"key":1}]}}}"#.to_owned(),
            field("number", "LabelSelectorRequirement.spec.selector.matchExpressions.key", "string"),
        ),
        (container(r#"{"resources":{"limits":{"cpu":{}}}}"#), quantity.to_owned()),
        (
            pod(r#"{"volumes":[{"name":"a","emptyDir":5}]}"#),
            field("number", "Volume.spec.template.spec.volumes.VolumeSource.emptyDir", "v1.EmptyDirVolumeSource"),
        ),
        (
            container(r#"{"livenessProbe":{"httpGet":{"port":true}}}"#),
            field("bool", &format!("HTTPGetAction.{containers}.livenessProbe.ProbeHandler.httpGet.port"), "int32"),
        ),
        (
            container(r#"{"livenessProbe":{"httpGet":5}}"#),
            field("number", &format!("Probe.{containers}.livenessProbe.ProbeHandler.httpGet"), "v1.HTTPGetAction"),
        ),
        (
            r#"{"spec":{"template":{"metadata":{"creationTimestamp":5}}}}"#.to_owned(),
            field("number", "ObjectMeta.spec.template.metadata.creationTimestamp", "string"),
        ),
        (r#"{"spec":{"paused":"x"}}"#.to_owned(), field("string", "DeploymentSpec.spec.paused", "bool")),
        (
            pod(r#"{"tolerations":[{"tolerationSeconds":1.5}]}"#),
            field("number 1.5", "Toleration.spec.template.spec.tolerations.tolerationSeconds", "int64"),
        ),
        (container(r#"{"command":"x"}"#), field("string", &format!("Container.{containers}.command"), "[]string")),
        (container(r#"{"command":[1]}"#), field("number", &format!("Container.{containers}.command"), "string")),
        (pod(r#"{"nodeSelector":{"a":{}}}"#), field("object", "PodSpec.spec.template.spec.nodeSelector", "string")),
    ] {
        assert_eq!(wrong("apps", "Deployment", &body), want, "{body}");
    }
    for (body, want) in [
        (r#"{"data":{"a":5}}"#, field("number", "Secret.data", "[]uint8")),
        (r#"{"data":{"a":"!"}}"#, "illegal base64 data at input byte 0".to_owned()),
        (r#"{"data":"x"}"#, field("string", "Secret.data", "map[string][]uint8")),
        (r#"{"immutable":1}"#, field("number", "Secret.immutable", "bool")),
    ] {
        assert_eq!(wrong("", "Secret", body), want, "{body}");
    }
}

/// A null among the elements of a list is an element with nothing in it.
#[test]
fn null_elements_are_empty_ones() {
    let schema = api::schema::of("", "v1", "Pod").expect("a kind");
    let body = r#"{"metadata":{"finalizers":[null]},"spec":{"containers":[null,{"name":"a","args":[null]}]}}"#;
    let read = decode::decode(body.as_bytes(), Format::Json, &schema, Strictness::Strict).expect("it fits").value;
    assert_eq!(read["metadata"]["finalizers"], serde_json::json!([""]));
    assert_eq!(read["spec"]["containers"], serde_json::json!([{}, {"name": "a", "args": [""]}]));
}
