//! Bound ServiceAccount tokens: who a bearer token says it is, if it still is.
//!
//! A token is good while its signature is ours, our own clock says so, and the ServiceAccount and
//! the object it is bound to still exist with the uid it names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use kinds::User;
use machinery::{meta, status};
use pki::token_key::Jwk;
use pki::{PublicKey, SigningKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stdx::SharedClock;

use super::{Authenticator, Verdict, jwt};
use crate::objects::{self, Objects, Resource};

/// Clocks of other machines may differ so much; also how long after its deletion was due an object
/// still counts.
const LEEWAY: i64 = 60;

/// Who issues, for whom.
#[derive(Clone)]
pub struct Options {
    /// `https://kubernetes.default.svc.cluster.local`.
    pub issuer: String,
    /// Whom the API server itself answers to; tokens are for these when not said otherwise.
    pub audiences: Vec<String>,
    pub key: Arc<SigningKey>,
    /// Keys that also count, from before a change of key.
    pub further: Vec<PublicKey>,
    /// Where the keys can be read, for the discovery document; empty: below the issuer.
    pub jwks_uri: String,
}

impl Options {
    /// The usual ones: the issuer is the API server's name in the cluster, and its only audience.
    pub fn standard(cluster_domain: &str, key: Arc<SigningKey>) -> Self {
        let issuer = format!("https://kubernetes.default.svc.{cluster_domain}");
        Self { audiences: vec![issuer.clone()], issuer, key, further: Vec::new(), jwks_uri: String::new() }
    }
}

/// An object a token names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Reference {
    /// Of an object.
    pub fn to(object: &Value) -> Self {
        Self { name: meta::name(object).to_owned(), uid: meta::uid(object).to_owned() }
    }
}

/// The claims under `kubernetes.io`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    /// When the holder should have asked for a new token, if that is before it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    #[serde(default)]
    aud: Audience,
    exp: i64,
    #[serde(default)]
    iat: i64,
    iss: String,
    #[serde(default)]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    bound: Bound,
    #[serde(default)]
    nbf: i64,
    sub: String,
}

/// One audience or several; both forms are allowed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Audience {
    fn list(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// Why a token is not good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not ours: another form, another key, another issuer.
    Foreign,
    Expired,
    NotYet,
    /// What it names is gone.
    Invalidated,
    WrongAudience {
        token: Vec<String>,
        wanted: Vec<String>,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("invalid bearer token"),
            Self::Expired => f.write_str("[invalid bearer token, service account token has expired]"),
            Self::NotYet => f.write_str("[invalid bearer token, service account token is not valid yet]"),
            Self::Invalidated => f.write_str("[invalid bearer token, service account token has been invalidated]"),
            Self::WrongAudience { token, wanted } => write!(
                f,
                "[invalid bearer token, token audiences {token:?} is invalid for the target audiences {wanted:?}]"
            ),
        }
    }
}

/// Who a good token is, and for which of the audiences asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub user: User,
    pub audiences: Vec<String>,
}

/// Issues and checks tokens.
pub struct ServiceAccountTokens {
    options: Options,
    keys: Vec<PublicKey>,
    objects: Arc<dyn Objects>,
    clock: SharedClock,
    rng: stdx::Rng,
}

impl ServiceAccountTokens {
    /// With the keys and listers given.
    pub fn new(options: Options, objects: Arc<dyn Objects>, clock: SharedClock, rng: stdx::Rng) -> Arc<Self> {
        let keys = std::iter::once(options.key.public().clone()).chain(options.further.iter().cloned()).collect();
        Arc::new(Self { options, keys, objects, clock, rng })
    }

    /// Whom the API server itself answers to.
    pub fn audiences(&self) -> &[String] {
        &self.options.audiences
    }

    /// The listers tokens are checked against.
    pub fn objects(&self) -> &Arc<dyn Objects> {
        &self.objects
    }

    /// The time tokens are issued at.
    pub fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// Issues a token that ends at `expires`.
    pub fn issue(&self, bound: Bound, audiences: Vec<String>, now: Timestamp, expires: i64) -> status::Result<String> {
        let claims = Claims {
            aud: Audience::Many(audiences),
            exp: expires,
            iat: now.as_second(),
            iss: self.options.issuer.clone(),
            jti: self.rng.uuid(),
            sub: user_name(&bound.namespace, &bound.serviceaccount.name),
            bound,
            nbf: now.as_second(),
        };
        let payload = serde_json::to_vec(&claims).map_err(status::Status::internal)?;
        jwt::sign(&self.options.key, &payload).map_err(status::Status::internal)
    }

    /// Checks a token for one of `audiences` (none given: the API server's own).
    pub async fn verify(&self, token: &str, audiences: &[String]) -> Result<Verified, Refusal> {
        let payload = jwt::open(token, &self.keys).ok_or(Refusal::Foreign)?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| Refusal::Foreign)?;
        let now = self.clock.wall();
        let (bound, own) = judge(claims, &self.options, audiences, now)?;
        self.check_alive(&bound.0, now).await?;
        Ok(Verified { user: user(&bound.0, &bound.1), audiences: own })
    }

    async fn check_alive(&self, bound: &Bound, now: Timestamp) -> Result<(), Refusal> {
        let mut wanted = vec![(objects::SERVICE_ACCOUNTS, bound.namespace.as_str(), &bound.serviceaccount)];
        wanted.extend(bound.secret.as_ref().map(|r| (objects::SECRETS, bound.namespace.as_str(), r)));
        match (&bound.pod, &bound.node) {
            (Some(pod), _) => wanted.push((objects::PODS, bound.namespace.as_str(), pod)),
            // A pod's node is where it runs, not what it lives by.
            (None, Some(node)) => wanted.push((objects::NODES, "", node)),
            (None, None) => {}
        }
        for (resource, namespace, reference) in wanted {
            if !self.is_alive(resource, namespace, reference, now).await {
                return Err(Refusal::Invalidated);
            }
        }
        Ok(())
    }

    async fn is_alive(&self, resource: Resource, namespace: &str, reference: &Reference, now: Timestamp) -> bool {
        // A store that cannot be asked is no reason to believe.
        let Ok(Some(object)) = self.objects.find(resource, namespace, &reference.name).await else { return false };
        let over =
            meta::deletion_timestamp(&object).is_some_and(|at| at.as_second() < now.as_second().saturating_sub(LEEWAY));
        meta::uid(&object) == reference.uid && !over
    }

    /// The answer to `/.well-known/openid-configuration` and `/openid/v1/jwks`; `None` elsewhere.
    pub fn discover(&self, path: &str) -> Option<transport::Response> {
        let (kind, body) = match path.trim_end_matches('/') {
            "/.well-known/openid-configuration" => ("application/json", self.configuration()),
            "/openid/v1/jwks" => ("application/jwk-set+json", self.jwks()),
            _ => return None,
        };
        let mut response = http::Response::new(transport::full(body.to_string()));
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
        headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("public, max-age=3600"));
        Some(response)
    }

    fn configuration(&self) -> Value {
        let jwks = match self.options.jwks_uri.as_str() {
            "" => format!("{}/openid/v1/jwks", self.options.issuer),
            uri => uri.to_owned(),
        };
        let mut algorithms: Vec<&str> = self.keys.iter().map(PublicKey::algorithm).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        json!({
            "issuer": self.options.issuer, "jwks_uri": jwks, "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": algorithms,
        })
    }

    fn jwks(&self) -> Value {
        let key = |key: &PublicKey| match key.jwk() {
            Jwk::Ec { x, y } => json!({
                "use": "sig", "kty": "EC", "kid": key.id(), "crv": "P-256", "alg": "ES256", "x": x, "y": y,
            }),
            Jwk::Rsa { n, e } => json!({
                "use": "sig", "kty": "RSA", "kid": key.id(), "alg": "RS256", "n": n, "e": e,
            }),
        };
        json!({"keys": self.keys.iter().map(key).collect::<Vec<_>>()})
    }
}

type Named = (Bound, String);

/// What can be said of claims without looking anything up: who (with the token's id), and for which
/// of the audiences asked about.
fn judge(
    claims: Claims,
    options: &Options,
    wanted: &[String],
    now: Timestamp,
) -> Result<(Named, Vec<String>), Refusal> {
    let bound = claims.bound;
    if claims.iss != options.issuer || claims.sub != user_name(&bound.namespace, &bound.serviceaccount.name) {
        return Err(Refusal::Foreign);
    }
    let now = now.as_second();
    if claims.exp < now.saturating_sub(LEEWAY) {
        return Err(Refusal::Expired);
    }
    if claims.nbf > now.saturating_add(LEEWAY) {
        return Err(Refusal::NotYet);
    }
    let wanted = if wanted.is_empty() { &options.audiences } else { wanted };
    let mut token = claims.aud.list();
    if token.is_empty() {
        token.clone_from(&options.audiences);
    }
    let own: Vec<String> = wanted.iter().filter(|a| token.contains(a)).cloned().collect();
    if own.is_empty() {
        return Err(Refusal::WrongAudience { token, wanted: wanted.to_vec() });
    }
    Ok(((bound, claims.jti), own))
}

/// The user a ServiceAccount authenticates as.
pub fn user_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The groups of a ServiceAccount.
pub fn groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

fn user(bound: &Bound, id: &str) -> User {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |key: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if !id.is_empty() {
        add("credential-id", &format!("JTI={id}"));
    }
    if let Some(pod) = &bound.pod {
        add("pod-name", &pod.name);
        add("pod-uid", &pod.uid);
    }
    if let Some(node) = &bound.node {
        add("node-name", &node.name);
        add("node-uid", &node.uid);
    }
    User {
        name: user_name(&bound.namespace, &bound.serviceaccount.name),
        uid: bound.serviceaccount.uid.clone(),
        groups: groups(&bound.namespace),
        extra,
    }
}

/// The token of an `Authorization: Bearer` header.
pub fn bearer(headers: &http::HeaderMap) -> Option<&str> {
    let text = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[async_trait]
impl Authenticator for ServiceAccountTokens {
    async fn authenticate(&self, request: &http::request::Parts) -> Verdict {
        let Some(token) = bearer(&request.headers) else { return Verdict::Unknown };
        match self.verify(token, &[]).await {
            Ok(verified) => Verdict::User(verified.user),
            Err(refusal) => {
                tracing::debug!(%refusal, "bearer token refused");
                Verdict::Invalid
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use stdx::clock::ManualClock;

    use super::*;
    use crate::objects::fixed::Fixed;

    pub const NOW: &str = "2026-08-01T12:00:00Z";

    pub fn object(namespace: &str, name: &str, uid: &str) -> Value {
        json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}})
    }

    pub struct World {
        pub clock: Arc<ManualClock>,
        pub objects: Arc<Fixed>,
        pub tokens: Arc<ServiceAccountTokens>,
    }

    pub fn world() -> World {
        let clock = Arc::new(ManualClock::new(NOW.parse().unwrap()));
        let objects = Arc::new(Fixed::default());
        objects.put(objects::SERVICE_ACCOUNTS, object("ns", "sa", "sa-uid"));
        objects.put(objects::PODS, object("ns", "pod", "pod-uid"));
        let key = Arc::new(SigningKey::from_pem(&SigningKey::generate().unwrap()).unwrap());
        let options = Options::standard("cluster.local", key);
        let tokens = ServiceAccountTokens::new(options, objects.clone(), clock.clone(), stdx::Rng::seeded(1));
        World { clock, objects, tokens }
    }

    fn bound() -> Bound {
        let reference = |name: &str, uid: &str| Reference { name: name.into(), uid: uid.into() };
        Bound {
            namespace: "ns".into(),
            pod: Some(reference("pod", "pod-uid")),
            node: Some(reference("node", "node-uid")),
            serviceaccount: reference("sa", "sa-uid"),
            ..Bound::default()
        }
    }

    impl World {
        fn issue(&self, bound: Bound, audiences: &[&str], seconds: i64) -> String {
            let now = self.tokens.now();
            let audiences = audiences.iter().map(|a| (*a).to_owned()).collect();
            self.tokens.issue(bound, audiences, now, now.as_second() + seconds).unwrap()
        }
    }

    const API: &str = "https://kubernetes.default.svc.cluster.local";

    #[tokio::test]
    async fn a_token_is_its_service_account() {
        let world = world();
        let token = world.issue(bound(), &[API], 3600);
        let verified = world.tokens.verify(&token, &[]).await.unwrap();
        assert_eq!(verified.audiences, [API]);
        let user = verified.user;
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:serviceaccount:ns:sa", "sa-uid"));
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns"]);
        let keys: Vec<&str> = user.extra.keys().map(|k| k.rsplit_once('/').unwrap().1).collect();
        assert_eq!(keys, ["credential-id", "node-name", "node-uid", "pod-name", "pod-uid"]);
        let claims = jwt::peek(&token).unwrap();
        assert_eq!(claims["kubernetes.io"]["pod"], json!({"name": "pod", "uid": "pod-uid"}));
        assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3600);
    }

    #[tokio::test]
    async fn a_token_ends_by_our_clock_with_its_leeway() {
        let world = world();
        let token = world.issue(bound(), &[API], 600);
        for (seconds, want) in [
            (-61, Some(Refusal::NotYet)),
            (-60, None),
            (599, None),
            (660, None),
            (661, Some(Refusal::Expired)),
            (40 * 365 * 86400, Some(Refusal::Expired)),
        ] {
            let at: Timestamp = NOW.parse().unwrap();
            world.clock.jump_wall(at + jiff::SignedDuration::from_secs(seconds));
            assert_eq!(world.tokens.verify(&token, &[]).await.err(), want, "{seconds}");
        }
        world.clock.jump_wall(NOW.parse().unwrap());
        world.clock.advance(Duration::from_secs(10));
        assert!(world.tokens.verify(&token, &[]).await.is_ok(), "a clock set right again");
    }

    #[tokio::test]
    async fn a_token_ends_with_what_it_is_bound_to() {
        let check = async |why: &str, change: &dyn Fn(&Fixed), want: bool| {
            let world = world();
            let token = world.issue(bound(), &[API], 3600);
            change(&world.objects);
            assert_eq!(world.tokens.verify(&token, &[]).await.is_ok(), want, "{why}");
        };
        let deleting = |name: &str, uid: &str, at: &str| {
            let mut object = object("ns", name, uid);
            object["metadata"]["deletionTimestamp"] = json!(at);
            object
        };
        check("nothing changed", &|_| {}, true).await;
        check("account gone", &|o| o.remove(objects::SERVICE_ACCOUNTS, "ns", "sa"), false).await;
        check("pod gone", &|o| o.remove(objects::PODS, "ns", "pod"), false).await;
        let put = |resource, object: Value| {
            move |o: &Fixed| {
                o.put(resource, object.clone());
            }
        };
        check("another account", &put(objects::SERVICE_ACCOUNTS, object("ns", "sa", "new")), false).await;
        check("another pod", &put(objects::PODS, object("ns", "pod", "new")), false).await;
        let soon = deleting("pod", "pod-uid", "2026-08-01T12:00:30Z");
        check("pod ends soon", &put(objects::PODS, soon), true).await;
        let just = deleting("pod", "pod-uid", "2026-08-01T11:59:30Z");
        check("pod should have just ended", &put(objects::PODS, just), true).await;
        let over = deleting("pod", "pod-uid", "2026-08-01T11:58:59Z");
        check("pod should be long gone", &put(objects::PODS, over), false).await;
    }

    #[tokio::test]
    async fn a_token_is_for_its_audiences() {
        let world = world();
        let vault = world.issue(bound(), &["vault", "db"], 600);
        assert!(matches!(world.tokens.verify(&vault, &[]).await, Err(Refusal::WrongAudience { .. })));
        let wanted = ["x".to_owned(), "db".to_owned()];
        assert_eq!(world.tokens.verify(&vault, &wanted).await.unwrap().audiences, ["db"]);
    }

    #[tokio::test]
    async fn another_issuer_or_subject_is_foreign() {
        let world = world();
        let now = world.tokens.now().as_second();
        let good = json!({"aud": [API], "exp": now + 600, "iss": API, "sub": "system:serviceaccount:ns:sa",
                          "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "sa", "uid": "sa-uid"}}});
        for (pointer, value, want) in [
            ("/iss", json!(API), true),
            ("/aud", json!(API), true),
            ("/iss", json!("https://elsewhere"), false),
            ("/sub", json!("system:serviceaccount:ns:other"), false),
            ("/exp", json!("soon"), false),
            ("/kubernetes.io/namespace", json!("other"), false),
            ("/kubernetes.io", json!(null), false),
        ] {
            let mut claims = good.clone();
            *claims.pointer_mut(pointer).unwrap() = value.clone();
            let token = jwt::sign(&world.tokens.options.key, claims.to_string().as_bytes()).unwrap();
            assert_eq!(world.tokens.verify(&token, &[]).await.is_ok(), want, "{pointer} {value}");
        }
        let twice = good.to_string().replacen('{', r#"{"sub":"system:serviceaccount:kube-system:admin","#, 1);
        let token = jwt::sign(&world.tokens.options.key, twice.as_bytes()).unwrap();
        assert_eq!(world.tokens.verify(&token, &[]).await, Err(Refusal::Foreign), "a claim that appears twice");
    }

    #[test]
    fn bearer_headers() {
        for (header, want) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
        ] {
            let mut headers = http::HeaderMap::new();
            headers.insert("authorization", header.parse().unwrap());
            assert_eq!(bearer(&headers), want, "{header}");
        }
    }

    #[test]
    fn discovery_documents() {
        let world = world();
        assert!(world.tokens.discover("/.well-known/openid-configuration").is_some());
        assert!(world.tokens.discover("/openid/v1/other").is_none());
        assert_eq!(world.tokens.configuration()["jwks_uri"], json!(format!("{API}/openid/v1/jwks")));
        assert_eq!(world.tokens.jwks()["keys"][0]["kid"], json!(world.tokens.keys[0].id()));
    }
}
