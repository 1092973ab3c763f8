//! Plugins that know credentials for images: asked once for what they say holds, and started without
//! a shell from one folder only.

pub mod config;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::cri::v1;
use api::types::core::v1::ServiceAccount;
use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use stdx::SharedClock;
use stdx::clock::Instant;

use super::credentials::{Credential, Origin, sha256};
use super::matching::covers;
use super::reference::Reference;
use crate::pod::BoundPod;
use crate::program::{Call, Programs};
use config::{API, Provider};

/// What a plugin may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Answers beyond these are forgotten: they are asked for again.
const MAX_ANSWERS: usize = 1024;

/// Who knows service accounts.
#[async_trait]
pub trait Accounts: Send + Sync + 'static {
    /// The pod's service account.
    async fn account(&self, pod: &BoundPod) -> Result<Option<ServiceAccount>, client::Error>;
    /// A token of it for that audience, bound to the pod.
    async fn account_token(&self, pod: &BoundPod, audience: &str) -> Result<String, client::Error>;
}

/// Registries and who one is there.
type Logins = BTreeMap<String, (String, String)>;

struct Answer {
    until: Instant,
    logins: Logins,
}

/// The plugins of a node.
pub struct Providers {
    providers: Vec<Provider>,
    folder: PathBuf,
    programs: Arc<dyn Programs>,
    accounts: Arc<dyn Accounts>,
    clock: SharedClock,
    answers: Mutex<HashMap<(usize, String), Answer>>,
    /// One question at a time to each: who asks for the same finds the answer.
    turns: Vec<tokio::sync::Mutex<()>>,
}

/// What is told of the pod's service account.
#[derive(Default)]
struct Told {
    token: String,
    annotations: BTreeMap<String, String>,
    origin: Option<Origin>,
    /// Whose answers are kept together.
    key: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    kind: String,
    api_version: String,
    cache_key_type: String,
    cache_duration: Option<String>,
    auth: BTreeMap<String, Login>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Login {
    username: String,
    password: String,
}

impl Providers {
    /// Reads the configuration: a file, or every `.json`, `.yaml` and `.yml` of a folder in their order.
    pub fn load(
        path: &Path,
        folder: &Path,
        programs: Arc<dyn Programs>,
        accounts: Arc<dyn Accounts>,
        clock: SharedClock,
    ) -> Result<Self, String> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let is_config = |p: &PathBuf| {
                p.is_file() && p.extension().is_some_and(|e| ["json", "yaml", "yml"].iter().any(|known| e == *known))
            };
            let entries = std::fs::read_dir(path).map_err(|e| failed(path, &e))?;
            files = entries.flatten().map(|e| e.path()).filter(is_config).collect();
            files.sort();
            if files.is_empty() {
                return Err(failed(path, &"no configuration files found in the directory"));
            }
        }
        let mut providers: Vec<Provider> = Vec::new();
        for file in files {
            let bytes = std::fs::read(&file).map_err(|e| failed(&file, &e))?;
            for provider in config::read(&bytes).map_err(|e| failed(&file, &e))? {
                if providers.iter().any(|known| known.name == provider.name) {
                    return Err(failed(&file, &format!("duplicate provider name {:?}", provider.name)));
                }
                let program = folder.join(&provider.name);
                if !program.is_file() {
                    return Err(failed(&program, &"there is no such plugin"));
                }
                providers.push(provider);
            }
        }
        let turns = providers.iter().map(|_| tokio::sync::Mutex::default()).collect();
        let folder = folder.to_owned();
        Ok(Self { providers, folder, programs, accounts, clock, answers: Mutex::default(), turns })
    }

    /// What the plugins know for an image. One that fails is passed over: the image may not need it.
    pub async fn credentials(&self, pod: &BoundPod, image: &Reference) -> Vec<Credential> {
        let mut out: Vec<Credential> = Vec::new();
        for (index, provider) in self.providers.iter().enumerate() {
            if !provider.match_images.iter().any(|pattern| covers(pattern, image)) {
                continue;
            }
            let (logins, origin) = match self.ask(index, provider, pod, image).await {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(why) => {
                    let (provider, pod) = (&provider.name, pod.full_name());
                    tracing::warn!(provider, %pod, why, "no credentials for an image");
                    continue;
                }
            };
            let mut fitting: Vec<_> = logins.into_iter().filter(|(pattern, _)| covers(pattern, image)).collect();
            fitting.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
            out.extend(fitting.into_iter().map(|(_, (username, password))| Credential {
                auth: v1::AuthConfig { username, password, ..v1::AuthConfig::default() },
                origin: origin.clone(),
            }));
        }
        out
    }

    async fn ask(
        &self,
        index: usize,
        provider: &Provider,
        pod: &BoundPod,
        image: &Reference,
    ) -> Result<Option<(Logins, Origin)>, String> {
        let (Some(turn), Some(told)) = (self.turns.get(index), self.told(provider, pod).await?) else {
            return Ok(None);
        };
        let origin = told.origin.clone().unwrap_or(Origin::Node);
        let _turn = turn.lock().await;
        let name = format!("{}/{}", image.host, image.path);
        let key = |what: &str| (index, format!("{what}\n{}", told.key));
        let keys = [key(&name), key(&image.host), key("")];
        let now = self.clock.now();
        {
            let mut answers = self.answers.lock();
            answers.retain(|_, answer| answer.until > now);
            if let Some(answer) = keys.iter().find_map(|key| answers.get(key)) {
                return Ok(Some((answer.logins.clone(), origin)));
            }
        }
        let response = self.run(provider, &name, &told).await?;
        let echoes = provider.token_attributes.as_ref().is_some_and(|t| t.cache_type != "Token")
            && !told.token.is_empty()
            && response.auth.values().any(|login| login.password == told.token);
        if echoes {
            let text =
                "the plugin gave the service account's token as the password, which is for cache type Token only";
            return Err(text.into());
        }
        let place = match response.cache_key_type.as_str() {
            "Image" => 0,
            "Registry" => 1,
            "Global" => 2,
            other => return Err(format!("the plugin did not return a valid cacheKeyType: {other:?}")),
        };
        let holds = match &response.cache_duration {
            Some(text) => config::duration(text)?,
            None => provider.default_cache(),
        };
        let logins: Logins = response.auth.into_iter().map(|(k, v)| (k, (v.username, v.password))).collect();
        if holds > Duration::ZERO {
            let mut answers = self.answers.lock();
            if answers.len() >= MAX_ANSWERS {
                answers.clear();
            }
            if let Some(key) = keys.into_iter().nth(place) {
                answers.insert(key, Answer { until: now + holds, logins: logins.clone() });
            }
        }
        Ok(Some((logins, origin)))
    }

    /// What the plugin is to know of the pod's account; `None` when it is not to be asked for this pod.
    async fn told(&self, provider: &Provider, pod: &BoundPod) -> Result<Option<Told>, String> {
        let Some(wanted) = &provider.token_attributes else { return Ok(Some(Told::default())) };
        let name = pod.spec().service_account_name.clone().unwrap_or_default();
        if name.is_empty() {
            return Ok((wanted.require_service_account != Some(true)).then(Told::default));
        }
        let account = self.accounts.account(pod).await.map_err(|e| format!("failed to get service account: {e}"))?;
        let account = account.ok_or_else(|| format!("failed to get service account: {name} not found"))?;
        let has = |key: &String| account.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned();
        let mut annotations = BTreeMap::new();
        for key in &wanted.required_service_account_annotation_keys {
            // Without it this account does not take part.
            let Some(value) = has(key) else { return Ok(None) };
            annotations.insert(key.clone(), value);
        }
        let optional = wanted.optional_service_account_annotation_keys.iter();
        annotations.extend(optional.filter_map(|key| Some((key.clone(), has(key)?))));
        let audience = &wanted.service_account_token_audience;
        let token = self.accounts.account_token(pod, audience).await;
        let token = token.map_err(|e| format!("failed to get service account token: {e}"))?;
        let uid = account.metadata.uid.clone().unwrap_or_default();
        let mut key = format!("{}/{name}/{uid}/{annotations:?}", pod.namespace);
        if wanted.cache_type == "Token" {
            key = format!("{key}/{}/{}", pod.uid, sha256(token.as_bytes()));
        }
        let origin = Some(Origin::Account { uid, namespace: pod.namespace.clone(), name });
        Ok(Some(Told { token, annotations, origin, key }))
    }

    async fn run(&self, provider: &Provider, image: &str, told: &Told) -> Result<Response, String> {
        let mut request = json!({"kind": "CredentialProviderRequest", "apiVersion": API, "image": image});
        if !told.token.is_empty() {
            request["serviceAccountToken"] = json!(told.token);
        }
        if !told.annotations.is_empty() {
            request["serviceAccountAnnotations"] = json!(told.annotations);
        }
        let call = Call {
            program: self.folder.join(&provider.name),
            args: provider.args.clone(),
            environment: provider.env.iter().map(|v| (v.name.clone(), v.value.clone())).collect(),
            input: request.to_string().into_bytes(),
        };
        let left = self.programs.run(call, LIMIT).await.map_err(|e| e.to_string())?;
        if left.code != Some(0) {
            return Err(format!("the plugin ended with {:?}: {}", left.code, left.errors.trim_end()));
        }
        // Not told on: what the plugin wrote may hold credentials.
        let response = serde_json::from_slice::<Response>(&left.output)
            .map_err(|_| "error decoding credential provider plugin response from stdout".to_owned())?;
        if response.api_version != API || response.kind != "CredentialProviderResponse" {
            let found = &response.api_version;
            return Err(format!("the plugin's response is no CredentialProviderResponse of {API} but of {found:?}"));
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests;
