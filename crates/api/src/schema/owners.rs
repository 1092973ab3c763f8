//! Managed fields of real kinds, as a real cluster records them.

use machinery::decode::{Strictness, tree};
use machinery::managed::{self, Manager};
use serde_json::{Value, json};

use super::of;

fn created(group: &str, version: &str, object: Value) -> Value {
    let schema = of(group, version, object["kind"].as_str().unwrap_or_default()).expect("a schema");
    let api_version = schema.get().api_version();
    let mut object = tree(object, &schema, Strictness::Strict).expect("decodes").value;
    let now = "2026-01-02T03:04:05Z".parse().expect("a time");
    let reset: &[&[&str]] = &[&["status"]];
    let manager =
        Manager { name: "kubectl".into(), api_version, also: Vec::new(), subresource: String::new(), reset, now };
    managed::update(None, &mut object, &schema, &manager);
    managed::expand(&mut object);
    object["metadata"]["managedFields"][0]["fieldsV1"].take()
}

#[test]
fn a_defaulted_deployment() {
    let fields = created(
        "apps",
        "v1",
        json!({
            "kind": "Deployment", "metadata": {"name": "nginx", "namespace": "default", "labels": {"app": "nginx"}},
            "spec": {
                "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
                "selector": {"matchLabels": {"app": "nginx"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                "template": {"metadata": {"labels": {"app": "nginx"}}, "spec": {
                    "containers": [{"name": "nginx", "image": "nginx", "imagePullPolicy": "Always",
                        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                    "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                    "securityContext": {}, "terminationGracePeriodSeconds": 30,
                }},
            },
        }),
    );
    assert_eq!(
        fields,
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:progressDeadlineSeconds": {}, "f:replicas": {}, "f:revisionHistoryLimit": {}, "f:selector": {},
                "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}},
                "f:template": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                    "f:spec": {
                        "f:containers": {"k:{\"name\":\"nginx\"}": {
                            ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {},
                            "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
                        }},
                        "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                        "f:terminationGracePeriodSeconds": {},
                    },
                },
            },
        })
    );
}

#[test]
fn a_service_and_an_owned_object() {
    let fields = created(
        "",
        "v1",
        json!({
            "kind": "Service", "metadata": {"name": "a"},
            "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
                     "selector": {"a": "b"}, "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"},
        }),
    );
    assert_eq!(
        fields,
        json!({"f:spec": {
            "f:internalTrafficPolicy": {},
            "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}":
                {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}},
            "f:selector": {}, "f:sessionAffinity": {}, "f:type": {},
        }})
    );
    let fields = created(
        "apps",
        "v1",
        json!({
            "kind": "ReplicaSet",
            "metadata": {"name": "a", "annotations": {"x": "1"}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u", "controller": true}]},
            "spec": {"replicas": 1},
        }),
    );
    assert_eq!(
        fields["f:metadata"],
        json!({"f:annotations": {".": {}, "f:x": {}}, "f:ownerReferences": {".": {}, "k:{\"uid\":\"u\"}": {}}})
    );
}
