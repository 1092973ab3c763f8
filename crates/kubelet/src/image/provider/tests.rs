//! Plugins that say what a test wants them to.

use super::*;
use crate::image::reference::parse;
use crate::pod::tests::pod;
use crate::program::{FakePrograms, Left};
use serde_json::Value;
use stdx::clock::ManualClock;

struct One;

#[async_trait]
impl Accounts for One {
    async fn account(&self, pod: &BoundPod) -> Result<Option<ServiceAccount>, client::Error> {
        let name = pod.spec().service_account_name.clone().unwrap_or_default();
        let annotations = if name == "plain" { json!({}) } else { json!({"role": name}) };
        let account = json!({"metadata": {"name": name, "uid": format!("u-{name}"), "annotations": annotations}});
        Ok(serde_json::from_value(account).ok())
    }

    async fn account_token(&self, pod: &BoundPod, audience: &str) -> Result<String, client::Error> {
        Ok(format!("token of {} for {audience}", pod.uid))
    }
}

struct Case {
    programs: FakePrograms,
    clock: ManualClock,
    providers: Providers,
    _root: tempfile::TempDir,
}

impl Case {
    fn new(more: &str) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let (config, bin) = (root.path().join("config.yaml"), root.path().join("bin"));
        std::fs::create_dir(&bin).expect("made");
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: words\n  \
             apiVersion: {API}\n  matchImages: ['*.reg.io']\n  defaultCacheDuration: 1m\n  args: [get]\n  env: [{{name: \
             A, value: b}}]\n{more}"
        );
        std::fs::write(&config, text).expect("written");
        let (programs, clock) = (FakePrograms::default(), ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
        let load = || {
            let shared: SharedClock = Arc::new(clock.clone());
            Providers::load(&config, &bin, Arc::new(programs.clone()), Arc::new(One), shared)
        };
        assert!(load().err().is_some_and(|why| why.ends_with("there is no such plugin")));
        std::fs::write(bin.join("words"), "").expect("written");
        let providers = load().expect("loaded");
        Self { programs, clock, providers, _root: root }
    }

    fn answer(&self, value: &Value) {
        let mut value = value.clone();
        (value["kind"], value["apiVersion"]) = (json!("CredentialProviderResponse"), json!(API));
        let left = Left { code: Some(0), output: value.to_string().into_bytes(), errors: String::new() };
        self.programs.answers.lock().push_back(Ok(left));
    }

    async fn users(&self, account: &str, image: &str) -> Vec<String> {
        let pod = pod(json!({"spec": {"serviceAccountName": account, "containers": []}}));
        let found = self.providers.credentials(&pod, &parse(image).expect("a name")).await;
        found.iter().map(|c| format!("{} {:?}", c.auth.username, c.origin)).collect()
    }

    fn asked(&self) -> usize {
        self.programs.asked.lock().len()
    }
}

#[tokio::test]
async fn answers_hold_as_long_and_as_far_as_they_say() {
    let case = Case::new("");
    let login = |user: &str| json!({"*.reg.io": {"username": user, "password": "p"}, "other.io": {"username": "no"}});
    case.answer(&json!({"cacheKeyType": "Registry", "auth": login("one")}));
    assert!(case.users("sa", "elsewhere.io/x").await.is_empty());
    assert_eq!(case.asked(), 0, "the image is none of its own");
    assert_eq!(case.users("sa", "eu.reg.io/x:1").await, ["one Node"]);
    assert_eq!(case.users("sa", "eu.reg.io/y").await, ["one Node"], "the same registry");
    assert_eq!(case.asked(), 1);
    let call = case.programs.asked.lock()[0].clone();
    assert_eq!((call.args.as_slice(), call.environment["A"].as_str()), (&["get".to_owned()][..], "b"));
    let told: Value = serde_json::from_slice(&call.input).expect("JSON");
    assert_eq!(told, json!({"kind": "CredentialProviderRequest", "apiVersion": API, "image": "eu.reg.io/x"}));
    case.answer(&json!({"cacheKeyType": "Image", "cacheDuration": "0s", "auth": login("two")}));
    case.answer(&json!({"cacheKeyType": "Global", "cacheDuration": "1h", "auth": login("three")}));
    assert_eq!(case.users("sa", "us.reg.io/x").await, ["two Node"]);
    assert_eq!(case.users("sa", "us.reg.io/x").await, ["three Node"], "what is not to be kept is not kept");
    case.clock.advance(Duration::from_secs(61));
    assert_eq!(case.users("sa", "eu.reg.io/x").await, ["three Node"], "its own answer has run out");
    case.clock.advance(Duration::from_secs(3600));
    assert!(case.users("sa", "eu.reg.io/x").await.is_empty(), "a plugin that fails gives none");
    let left = |output: &str| Left { code: Some(0), output: output.into(), errors: String::new() };
    for bad in ["no JSON", "{}", "{\"kind\": \"CredentialProviderResponse\", \"apiVersion\": \"x/v1\"}"] {
        case.programs.answers.lock().push_back(Ok(left(bad)));
        assert!(case.users("sa", "eu.reg.io/x").await.is_empty(), "{bad}");
    }
    case.answer(&json!({"cacheKeyType": "Moon", "auth": login("four")}));
    assert!(case.users("sa", "eu.reg.io/x").await.is_empty(), "it does not say how far it holds");
}

#[tokio::test]
async fn accounts_have_credentials_of_their_own() {
    let case = Case::new(
        "  tokenAttributes:\n    serviceAccountTokenAudience: reg\n    cacheType: ServiceAccount\n    \
         requireServiceAccount: true\n    requiredServiceAccountAnnotationKeys: [role]\n",
    );
    let login = |user: &str, password: &str| json!({"cacheKeyType": "Registry", "auth": {"*.reg.io": {"username": user, "password": password}}});
    assert!(case.users("", "eu.reg.io/x").await.is_empty());
    assert!(case.users("plain", "eu.reg.io/x").await.is_empty());
    assert_eq!(case.asked(), 0, "neither takes part");
    case.answer(&login("a", "p"));
    case.answer(&login("b", "p"));
    let of = |user: &str| {
        let (uid, name) = (format!("u-{user}"), user.to_owned());
        vec![format!("{user} {:?}", Origin::Account { uid, namespace: "default".into(), name })]
    };
    assert_eq!(case.users("a", "eu.reg.io/x").await, of("a"));
    assert_eq!(case.users("b", "eu.reg.io/x").await, of("b"));
    assert_eq!(case.users("a", "eu.reg.io/x").await, of("a"));
    assert_eq!(case.asked(), 2);
    let told: Value = serde_json::from_slice(&case.programs.asked.lock()[0].input).expect("JSON");
    assert_eq!(told["serviceAccountAnnotations"], json!({"role": "a"}));
    let token = told["serviceAccountToken"].as_str().expect("a token").to_owned();
    case.clock.advance(Duration::from_secs(61));
    case.answer(&login("a", &token));
    assert!(case.users("a", "eu.reg.io/x").await.is_empty(), "the token is no password here");
}
