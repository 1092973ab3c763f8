//! `CredentialProviderConfig`: which plugins there are, for which images, and what they are told. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

/// The version in which plugins are spoken to.
pub const API: &str = "credentialprovider.kubelet.k8s.io/v1";

/// One plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provider {
    pub name: String,
    pub match_images: Vec<String>,
    pub default_cache_duration: Option<String>,
    pub api_version: String,
    pub args: Vec<String>,
    pub env: Vec<Variable>,
    pub token_attributes: Option<TokenAttributes>,
}

/// An environment variable of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Variable {
    pub name: String,
    pub value: String,
}

/// What a plugin learns of the pod's service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenAttributes {
    pub service_account_token_audience: String,
    pub cache_type: String,
    pub require_service_account: Option<bool>,
    pub required_service_account_annotation_keys: Vec<String>,
    pub optional_service_account_annotation_keys: Vec<String>,
}

impl Provider {
    /// How long its answers hold that do not say so themselves.
    pub fn default_cache(&self) -> Duration {
        self.default_cache_duration.as_deref().and_then(|text| duration(text).ok()).unwrap_or_default()
    }
}

/// A duration in Go's words.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanos = machinery::time::read_duration(text)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| format!("{text:?} is negative"))
}

/// Reads a configuration, JSON or YAML; the error names what is wrong.
pub fn read(bytes: &[u8]) -> Result<Vec<Provider>, String> {
    let mut value = machinery::yaml::read(bytes).map_err(|e| e.to_string())?;
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, version) = (text("kind"), text("apiVersion"));
    if kind != "CredentialProviderConfig" {
        return Err(format!("failed to decode {kind:?} (wrong Kind)"));
    }
    if !version.starts_with("kubelet.config.k8s.io/") {
        return Err(format!("failed to decode CredentialProviderConfig, unexpected apiVersion: {version}"));
    }
    let providers = value.get_mut("providers").map(Value::take).unwrap_or_default();
    let providers: Vec<Provider> = match providers {
        Value::Null => Vec::new(),
        providers => serde_json::from_value(providers).map_err(|e| e.to_string())?,
    };
    let wrong = mistakes(&providers);
    if wrong.is_empty() { Ok(providers) } else { Err(wrong.join("; ")) }
}

fn mistakes(providers: &[Provider]) -> Vec<String> {
    let mut out = Vec::new();
    if providers.is_empty() {
        out.push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    let mut names = BTreeSet::new();
    for provider in providers {
        let name = &provider.name;
        let mut wrong = |field: &str, what: &str| out.push(format!("providers.{field}: {what} (provider {name:?})"));
        if name.is_empty() || name.contains(['/', ' ', '\0']) || name == "." || name == ".." {
            wrong("name", "Invalid value: provider name cannot be empty, '.' or '..', nor contain '/' or spaces");
        }
        if !names.insert(name) {
            wrong("name", "Duplicate value");
        }
        if provider.api_version != API {
            wrong("apiVersion", &format!("Unsupported value: {:?}: supported values: {API:?}", provider.api_version));
        }
        if provider.match_images.is_empty() {
            wrong("matchImages", "Required value: at least 1 item in matchImages is required");
        }
        match provider.default_cache_duration.as_deref().map(duration) {
            None => wrong("defaultCacheDuration", "Required value"),
            Some(Err(why)) => wrong("defaultCacheDuration", &format!("Invalid value: {why}")),
            Some(Ok(_)) => {}
        }
        let Some(token) = &provider.token_attributes else { continue };
        let mut wrong = |field: &str, what: &str| wrong(&format!("tokenAttributes.{field}"), what);
        if token.service_account_token_audience.is_empty() {
            wrong("serviceAccountTokenAudience", "Required value");
        }
        if token.require_service_account.is_none() {
            wrong("requireServiceAccount", "Required value");
        }
        if !matches!(token.cache_type.as_str(), "ServiceAccount" | "Token") {
            wrong("cacheType", "Unsupported value: supported values: \"ServiceAccount\", \"Token\"");
        }
        let required = &token.required_service_account_annotation_keys;
        if token.require_service_account == Some(false) && !required.is_empty() {
            let what =
                "Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set";
            wrong("requiredServiceAccountAnnotationKeys", what);
        }
        if token.optional_service_account_annotation_keys.iter().any(|key| required.contains(key)) {
            wrong("requiredServiceAccountAnnotationKeys", "Invalid value: keys cannot be both required and optional");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: words
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ['*.reg.io', reg.io/x]
  defaultCacheDuration: 1h30m
  args: [get]
  env: [{name: A, value: b}]
  tokenAttributes: {serviceAccountTokenAudience: reg, cacheType: ServiceAccount, requireServiceAccount: true}
";

    #[test]
    fn configurations() {
        let found = read(GOOD.as_bytes()).expect("read");
        assert_eq!((found.len(), found[0].name.as_str()), (1, "words"));
        assert_eq!(found[0].default_cache(), Duration::from_secs(5400));
        assert_eq!(found[0].env, [Variable { name: "A".into(), value: "b".into() }]);
        let rows = [
            ("name: words", "name: ../sh", "providers.name: Invalid value"),
            ("apiVersion: credentialprovider", "apiVersion: x", "providers.apiVersion: Unsupported"),
            ("matchImages: ['*.reg.io', reg.io/x]", "matchImages: []", "providers.matchImages: Required value"),
            ("defaultCacheDuration: 1h30m", "x: 1", "providers.defaultCacheDuration: Required value"),
            ("Duration: 1h30m", "Duration: -1s", "providers.defaultCacheDuration: Invalid value"),
            ("Type: ServiceAccount", "Type: Never", "providers.tokenAttributes.cacheType: Unsupported value"),
            (
                "serviceAccountTokenAudience: reg, ",
                "",
                "providers.tokenAttributes.serviceAccountTokenAudience: Required value",
            ),
            ("kind: CredentialProviderConfig", "kind: Pod", "failed to decode \"Pod\" (wrong Kind)"),
        ];
        for (from, to, want) in rows {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            let why = read(text.as_bytes()).expect_err(to);
            assert!(why.starts_with(want), "{why}");
        }
        let none = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
        assert!(read(none.as_bytes()).expect_err("none").contains("at least 1 item in plugins"));
    }
}
