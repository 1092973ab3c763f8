//! TokenReview and the SubjectAccessReview family: questions that are answered, not stored.

use std::collections::BTreeMap;

use kinds::User;
use machinery::status::{self, Status};
use serde_json::{Map, Value, json};

use crate::authz::rbac::Rule;
use crate::authz::{Decision, node};
use crate::request::RequestInfo;
use crate::security::Security;

/// Answers a review of the kind with this plural: the object that was sent, with its status. `None`
/// for other kinds. The object has been decoded and validated.
pub async fn answer(security: &Security, user: &User, plural: &str, review: Value) -> Option<status::Result<Value>> {
    let status = match plural {
        "tokenreviews" => review_token(security, &review).await,
        "selfsubjectreviews" => Ok(json!({"userInfo": user_info(user)})),
        "selfsubjectaccessreviews" => Ok(decide(security, user, &review).await),
        "subjectaccessreviews" | "localsubjectaccessreviews" => Ok(decide(security, &subject(&review), &review).await),
        "selfsubjectrulesreviews" => review_rules(security, user, &review),
        _ => return None,
    };
    Some(status.map(|status| with_status(review, status)))
}

fn with_status(mut review: Value, status: Value) -> Value {
    if let Some(fields) = review.as_object_mut() {
        fields.insert("status".into(), status);
    }
    review
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let list = value.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A user as reviews show it.
fn user_info(user: &User) -> Value {
    let mut info = Map::new();
    info.insert("username".into(), json!(user.name));
    if !user.uid.is_empty() {
        info.insert("uid".into(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        info.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".into(), json!(user.extra));
    }
    Value::Object(info)
}

async fn review_token(security: &Security, review: &Value) -> status::Result<Value> {
    let token = text(review, "/spec/token");
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = texts(review.pointer("/spec/audiences"));
    Ok(match security.tokens.verify(&token, &audiences).await {
        Ok(verified) => {
            let mut user = verified.user;
            user.groups.push("system:authenticated".into());
            json!({"authenticated": true, "user": user_info(&user), "audiences": verified.audiences})
        }
        Err(refusal) => json!({"user": {}, "error": refusal.to_string()}),
    })
}

/// Whom a SubjectAccessReview asks about.
fn subject(review: &Value) -> User {
    let extra = review.pointer("/spec/extra").and_then(Value::as_object).into_iter().flatten();
    let extra: BTreeMap<String, Vec<String>> =
        extra.map(|(key, values)| (key.to_ascii_lowercase(), texts(Some(values)))).collect();
    User {
        name: text(review, "/spec/user"),
        uid: text(review, "/spec/uid"),
        groups: texts(review.pointer("/spec/groups")),
        extra,
    }
}

/// What a review asks to be allowed.
fn request(review: &Value) -> RequestInfo {
    if let Some(wish) = review.pointer("/spec/nonResourceAttributes").filter(|w| !w.is_null()) {
        return RequestInfo { path: text(wish, "/path"), verb: text(wish, "/verb"), ..RequestInfo::default() };
    }
    let wish = &review["spec"]["resourceAttributes"];
    let version = text(wish, "/version");
    RequestInfo {
        is_resource: true,
        verb: text(wish, "/verb"),
        group: text(wish, "/group"),
        version: if version.is_empty() { "*".to_owned() } else { version },
        namespace: text(wish, "/namespace"),
        resource: text(wish, "/resource"),
        subresource: text(wish, "/subresource"),
        name: text(wish, "/name"),
        field_selector: field_selector(wish),
        ..RequestInfo::default()
    }
}

/// The selector of a review in the form requests have it. Requirements other than "is one value"
/// only narrow what is asked for; leaving them out asks for more, which is safe to refuse.
fn field_selector(wish: &Value) -> String {
    let raw = text(wish, "/fieldSelector/rawSelector");
    if !raw.is_empty() {
        return raw;
    }
    let requirements = wish.pointer("/fieldSelector/requirements").and_then(Value::as_array).into_iter().flatten();
    let terms = requirements.filter_map(|r| match (r["operator"].as_str()?, texts(r.get("values")).as_slice()) {
        ("In", [value]) => Some(format!("{}={value}", r["key"].as_str()?)),
        _ => None,
    });
    terms.collect::<Vec<_>>().join(",")
}

async fn decide(security: &Security, user: &User, review: &Value) -> Value {
    let decision = security.authorize(user, &request(review)).await;
    let mut status = json!({"allowed": decision.is_allowed()});
    if matches!(decision, Decision::Deny { .. }) {
        status["denied"] = json!(true);
    }
    if !decision.reason().is_empty() {
        status["reason"] = json!(decision.reason());
    }
    status
}

fn review_rules(security: &Security, user: &User, review: &Value) -> status::Result<Value> {
    let namespace = text(review, "/spec/namespace");
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let (rules, errors) = security.rbac.rules_for(user, &namespace);
    let list = |resources: bool| -> Vec<Value> {
        rules.iter().filter(|r| r.urls.is_empty() == resources).map(Rule::to_value).collect()
    };
    let is_node = node::node_name(user).is_some();
    let mut status = json!({
        "resourceRules": list(true), "nonResourceRules": list(false), "incomplete": is_node || !errors.is_empty(),
    });
    let error =
        if is_node { "node authorizer does not support user rule resolution".to_owned() } else { errors.join(", ") };
    if !error.is_empty() {
        status["evaluationError"] = json!(error);
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::service_account::{self, Bound, Reference};
    use crate::objects;

    fn security() -> Security {
        let world = service_account::tests::world();
        world.objects.put(
            objects::CLUSTER_ROLES,
            json!({"metadata": {"name": "r"}, "rules": [
                {"apiGroups": [""], "verbs": ["get"], "resources": ["pods/log"]},
                {"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]}),
        );
        world.objects.put(
            objects::CLUSTER_ROLE_BINDINGS,
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                   "subjects": [{"kind": "User", "name": "jane"}, {"kind": "Group", "name": "devs"}]}),
        );
        let rbac = crate::authz::Rbac::new(world.objects.clone());
        let mut security = Security::new(
            world.objects.clone(),
            service_account::Options::standard("x", std::sync::Arc::new(key())),
            world.clock.clone(),
            stdx::Rng::seeded(2),
        );
        (security.rbac, security.tokens) = (rbac, world.tokens);
        security
    }

    fn key() -> pki::SigningKey {
        pki::SigningKey::from_pem(&pki::SigningKey::generate().unwrap()).unwrap()
    }

    async fn ask(plural: &str, spec: Value) -> Value {
        let user = User { name: "jane".into(), ..User::default() };
        let review = json!({"kind": "Review", "spec": spec});
        let answer = answer(&security(), &user, plural, review).await.unwrap().unwrap();
        assert_eq!(answer["kind"], "Review");
        answer["status"].clone()
    }

    #[tokio::test]
    async fn access_reviews() {
        let log = json!({"verb": "get", "resource": "pods", "subresource": "log", "namespace": "a"});
        let reason =
            |subject: &str| format!("RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to {subject}");
        let jane = json!({"allowed": true, "reason": reason("User \"jane\"")});
        assert_eq!(ask("selfsubjectaccessreviews", json!({"resourceAttributes": log})).await, jane);
        let other = json!({"resourceAttributes": log, "user": "joe"});
        assert_eq!(ask("subjectaccessreviews", other).await, json!({"allowed": false}));
        let grouped = json!({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}, "groups": ["devs"]});
        let devs = json!({"allowed": true, "reason": reason("Group \"devs\"")});
        assert_eq!(ask("subjectaccessreviews", grouped).await, devs);
    }

    #[tokio::test]
    async fn rules_and_self() {
        let rules = ask("selfsubjectrulesreviews", json!({"namespace": "a"})).await;
        assert_eq!(rules["resourceRules"][0]["resources"], json!(["pods/log"]));
        assert_eq!(rules["nonResourceRules"], json!([{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]));
        assert_eq!(rules["incomplete"], false);
        assert_eq!(ask("selfsubjectreviews", json!(null)).await, json!({"userInfo": {"username": "jane"}}));
    }

    #[tokio::test]
    async fn token_reviews() {
        let security = security();
        let bound = Bound {
            namespace: "ns".into(),
            serviceaccount: Reference { name: "sa".into(), uid: "sa-uid".into() },
            ..Bound::default()
        };
        let now = security.tokens.now();
        let token = security.tokens.issue(bound, vec!["a".into(), "b".into()], now, now.as_second() + 600).unwrap();
        let ask = async |token: &str, audiences: Value| {
            let review = json!({"spec": {"token": token, "audiences": audiences}});
            answer(&security, &User::default(), "tokenreviews", review).await.unwrap()
        };
        let good = ask(&token, json!(["b", "c"])).await.unwrap();
        assert_eq!(good["status"]["audiences"], json!(["b"]));
        assert_eq!(good["status"]["user"]["username"], "system:serviceaccount:ns:sa");
        assert_eq!(good["status"]["user"]["groups"][2], "system:authenticated");
        let wrong = ask(&token, json!([])).await.unwrap();
        assert!(wrong["status"].get("authenticated").is_none(), "{wrong}");
        assert_eq!(ask("garbage", json!([])).await.unwrap()["status"]["error"], "invalid bearer token");
        assert_eq!(ask("", json!([])).await.unwrap_err().code, 400);
    }
}
