//! `serviceaccounts/token`: issues a bound token.

use jiff::Timestamp;
use kinds::User;
use machinery::field::{FieldErrors, Path};
use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use serde_json::{Value, json};

use crate::admission::service_account::TOKEN_SECONDS;
use crate::authn::service_account::{Bound, Reference};
use crate::authz::node;
use crate::objects::{self, Resource};
use crate::security::Security;

const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;
const MINIMUM: i64 = 600;
const MAXIMUM: i64 = 1 << 32;

/// Answers a TokenRequest for the ServiceAccount: the object that was sent, with its status.
pub async fn answer(
    security: &Security,
    user: &User,
    namespace: &str,
    name: &str,
    mut request: Value,
) -> status::Result<Value> {
    let spec = Spec::of(&request, security.tokens.audiences())?;
    let missing = |resource: &str, name: &str| Status::not_found(&GroupResource::new("", resource), name);
    let account = security.objects.find(objects::SERVICE_ACCOUNTS, namespace, name).await?;
    let account = account.ok_or_else(|| missing("serviceaccounts", name))?;
    let mut bound =
        Bound { namespace: namespace.to_owned(), serviceaccount: Reference::to(&account), ..Bound::default() };
    let mut pod = None;
    if let Some(target) = &spec.target {
        let (resource, place) = match (target.api_version.as_str(), target.kind.as_str()) {
            ("v1", "Pod") => (objects::PODS, namespace),
            ("v1", "Secret") => (objects::SECRETS, namespace),
            ("v1", "Node") => (objects::NODES, ""),
            (version, kind) => {
                let why = format!("cannot bind token to object of type {version}, Kind={kind}");
                return Err(Status::bad_request(why));
            }
        };
        let object = security.objects.find(resource, place, &target.name).await?;
        let object = object.ok_or_else(|| missing(resource.plural, &target.name))?;
        check_uid(resource, &object, &target.uid)?;
        let reference = Some(Reference::to(&object));
        match target.kind.as_str() {
            "Pod" => {
                if object.pointer("/spec/serviceAccountName").and_then(Value::as_str) != Some(name) {
                    let why = format!(
                        "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
                    );
                    return Err(Status::bad_request(why));
                }
                bound.pod = reference;
                if let Some(host) = object.pointer("/spec/nodeName").and_then(Value::as_str).filter(|n| !n.is_empty()) {
                    let found = security.objects.get(objects::NODES, "", host);
                    // A node that is gone leaves its name: the token says where the pod was placed.
                    let unknown = || Reference { name: host.to_owned(), uid: String::new() };
                    bound.node = Some(found.map_or_else(unknown, |n| Reference::to(&n)));
                }
                pod = Some(object);
            }
            "Secret" => bound.secret = reference,
            _ => bound.node = reference,
        }
    }
    if let Some(node) = node::node_name(user) {
        judge_node(node, &spec, pod.as_deref())
            .map_err(|why| Status::forbidden(&GroupResource::new("", "serviceaccounts"), name, why))?;
    }
    let now = security.tokens.now();
    let own = spec.audiences.iter().all(|a| security.tokens.audiences().contains(a));
    let (expires, warn) = lifetime(now, spec.seconds, bound.pod.is_some() && own);
    bound.warnafter = warn;
    let token = security.tokens.issue(bound, spec.audiences.clone(), now, expires)?;
    let stated = Timestamp::from_second(now.as_second().saturating_add(spec.seconds)).unwrap_or(Timestamp::MAX);
    if let Some(fields) = request.as_object_mut() {
        let sent = fields.entry("spec").or_insert_with(|| json!({}));
        sent["audiences"] = json!(spec.audiences);
        sent["expirationSeconds"] = json!(spec.seconds);
        fields.insert("status".into(), json!({"token": token, "expirationTimestamp": stated.to_string()}));
    }
    meta::set_name(&mut request, name);
    meta::set_namespace(&mut request, namespace);
    meta::set_creation_timestamp(&mut request, Some(now));
    Ok(request)
}

/// When the token ends and, if its holder should renew before that, from when on it is warned about.
///
/// A pod's token for exactly 3607 seconds is what admission asks for on behalf of programs that may
/// never have heard that tokens end: it works for a year, and its use after an hour is noticed.
fn lifetime(now: Timestamp, seconds: i64, legacy: bool) -> (i64, Option<i64>) {
    let now = now.as_second();
    let after = |s: i64| now.saturating_add(s);
    if legacy && seconds == TOKEN_SECONDS { (after(YEAR), Some(after(seconds))) } else { (after(seconds), None) }
}

fn check_uid(resource: Resource, object: &Value, wanted: &str) -> status::Result<()> {
    if wanted.is_empty() || wanted == meta::uid(object) {
        return Ok(());
    }
    let why = format!(
        "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have \
         been deleted and then recreated"
    );
    Err(Status::conflict(&GroupResource::new(resource.group, resource.plural), meta::name(object), why))
}

/// What a kubelet may ask for: tokens bound to its own pods, for audiences those pods name.
fn judge_node(node: &str, spec: &Spec, pod: Option<&Value>) -> Result<(), String> {
    let Some(pod) = pod else { return Err("node requested token not bound to a pod".into()) };
    if spec.target.as_ref().is_none_or(|t| t.uid.is_empty()) {
        return Err("node requested token with a pod binding without a uid".into());
    }
    if pod.pointer("/spec/nodeName").and_then(Value::as_str) != Some(node) {
        return Err("node requested token bound to a pod scheduled on a different node".into());
    }
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let sources = volumes.filter_map(|v| v.pointer("/projected/sources")?.as_array()).flatten();
    let tokens = sources.filter_map(|s| s.get("serviceAccountToken"));
    let named: Vec<&str> = tokens.map(|t| t.get("audience").and_then(Value::as_str).unwrap_or_default()).collect();
    // Nothing asked for is the API server's own audience, which a projection asks for the same way.
    let asked: Vec<&str> =
        if spec.asked.is_empty() { vec![""] } else { spec.asked.iter().map(String::as_str).collect() };
    match asked.iter().find(|a| !named.contains(*a)) {
        None => Ok(()),
        Some(audience) => Err(format!("audience {audience:?} not found in pod spec volume")),
    }
}

#[derive(Debug, PartialEq)]
struct Target {
    kind: String,
    api_version: String,
    name: String,
    uid: String,
}

#[derive(Debug, PartialEq)]
struct Spec {
    /// As sent.
    asked: Vec<String>,
    /// With the default.
    audiences: Vec<String>,
    seconds: i64,
    target: Option<Target>,
}

impl Spec {
    fn of(request: &Value, default: &[String]) -> status::Result<Self> {
        let spec = request.get("spec").unwrap_or(&Value::Null);
        let asked: Vec<String> = spec
            .get("audiences")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        let seconds = spec.get("expirationSeconds").and_then(Value::as_i64).unwrap_or(HOUR);
        let path = Path::new("spec").child("expirationSeconds");
        let mut errors = FieldErrors::new();
        if seconds < MINIMUM {
            errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > MAXIMUM {
            errors.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
        }
        if !errors.is_empty() {
            return Err(Status::invalid("authentication.k8s.io", "TokenRequest", meta::name(request), &errors));
        }
        let target = spec.get("boundObjectRef").filter(|t| !t.is_null()).map(|target| {
            let text = |key: &str| target.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            Target { kind: text("kind"), api_version: text("apiVersion"), name: text("name"), uid: text("uid") }
        });
        let audiences = if asked.is_empty() { default.to_vec() } else { asked.clone() };
        Ok(Self { asked, audiences, seconds, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::jwt;
    use crate::authn::service_account::{self, tests::NOW};

    fn security() -> Security {
        let world = service_account::tests::world();
        world.objects.put(objects::NODES, json!({"metadata": {"name": "n", "uid": "n-uid"}}));
        let pod = |name: &str, node: &str, account: &str| {
            json!({"metadata": {"namespace": "ns", "name": name, "uid": format!("{name}-uid")},
                   "spec": {"nodeName": node, "serviceAccountName": account, "volumes": [{"projected": {"sources": [
                       {"serviceAccountToken": {"path": "token"}},
                       {"serviceAccountToken": {"path": "vault", "audience": "vault"}}]}}]}})
        };
        world.objects.put(objects::PODS, pod("pod", "n", "sa")).put(objects::PODS, pod("other", "m", "sb"));
        let key = pki::SigningKey::from_pem(&pki::SigningKey::generate().unwrap()).unwrap();
        let options = service_account::Options::standard("x", std::sync::Arc::new(key));
        let mut security = Security::new(world.objects, options, world.clock, stdx::Rng::seeded(2));
        security.tokens = world.tokens;
        security
    }

    async fn ask(user: &str, spec: Value) -> status::Result<Value> {
        let groups = if user.starts_with("system:node:") { vec!["system:nodes".to_owned()] } else { Vec::new() };
        let user = User { name: user.into(), groups, ..User::default() };
        answer(&security(), &user, "ns", "sa", json!({"kind": "TokenRequest", "spec": spec})).await
    }

    fn bind(kind: &str, name: &str, uid: &str) -> Value {
        json!({"kind": kind, "apiVersion": "v1", "name": name, "uid": uid})
    }

    #[tokio::test]
    async fn a_token_is_issued_as_asked() {
        let reply = ask("jane", json!({})).await.unwrap();
        assert_eq!(reply["status"]["expirationTimestamp"], "2026-08-01T13:00:00Z");
        let claims = jwt::peek(reply["status"]["token"].as_str().unwrap()).unwrap();
        assert_eq!(claims["aud"], json!(["https://kubernetes.default.svc.cluster.local"]));
        assert_eq!(
            claims["kubernetes.io"],
            json!({"namespace": "ns", "serviceaccount": {"name": "sa", "uid": "sa-uid"}})
        );
    }

    #[tokio::test]
    async fn the_usual_token_of_a_pod_works_for_a_year() {
        let spec = json!({"expirationSeconds": TOKEN_SECONDS, "boundObjectRef": bind("Pod", "pod", "pod-uid")});
        let reply = ask("system:node:n", spec).await.unwrap();
        assert_eq!(reply["status"]["expirationTimestamp"], "2026-08-01T13:00:07Z");
        let claims = jwt::peek(reply["status"]["token"].as_str().unwrap()).unwrap();
        let now = NOW.parse::<Timestamp>().unwrap().as_second();
        assert_eq!(claims["exp"], json!(now + YEAR));
        assert_eq!(claims["kubernetes.io"]["warnafter"], json!(now + TOKEN_SECONDS));
        assert_eq!(claims["kubernetes.io"]["node"], json!({"name": "n", "uid": "n-uid"}));
    }

    #[tokio::test]
    async fn what_is_refused() {
        for (user, spec, code, text) in [
            ("jane", json!({"expirationSeconds": 599}), 422, "may not specify a duration less than 10 minutes"),
            ("jane", json!({"expirationSeconds": (1i64 << 32) + 1}), 422, "larger than 2^32 seconds"),
            ("jane", json!({"boundObjectRef": bind("Pod", "none", "")}), 404, "pods \"none\" not found"),
            ("jane", json!({"boundObjectRef": bind("Pod", "pod", "x")}), 409, "does not match the UID in record"),
            ("jane", json!({"boundObjectRef": bind("Pod", "other", "")}), 400, "different serviceaccount name"),
            ("jane", json!({"boundObjectRef": bind("ConfigMap", "x", "")}), 400, "v1, Kind=ConfigMap"),
            ("system:node:n", json!({}), 403, "not bound to a pod"),
            ("system:node:n", json!({"boundObjectRef": bind("Pod", "pod", "")}), 403, "without a uid"),
            ("system:node:m", json!({"boundObjectRef": bind("Pod", "pod", "pod-uid")}), 403, "on a different node"),
            (
                "system:node:n",
                json!({"audiences": ["vault", "db"], "boundObjectRef": bind("Pod", "pod", "pod-uid")}),
                403,
                "audience \"db\" not found in pod spec volume",
            ),
        ] {
            let error = ask(user, spec.clone()).await.unwrap_err();
            assert_eq!(error.code, code, "{spec}: {error}");
            assert!(error.message.contains(text), "{spec}: {error}");
        }
        let vault = json!({"audiences": ["vault"], "boundObjectRef": bind("Pod", "pod", "pod-uid")});
        assert!(ask("system:node:n", vault).await.is_ok());
    }
}
