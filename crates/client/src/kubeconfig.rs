//! The kubeconfig file: how a server is reached, as whom; read, merged and written.
//!
//! Files are kept as trees, so that what others put into them (extensions, exec plugins of other
//! contexts) survives a merge. They are replaced whole and readable by their owner alone.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use stdx::SharedClock;
use transport::SharedHandler;
use transport::dial::{Https, Target};
use transport::files::FileIdentity;
use transport::tls;
use transport::trust::Trust;

use crate::client::{Client, TokenSource};

/// A file larger than this is no kubeconfig.
const MAX_FILE: u64 = 4 << 20;

/// Why a kubeconfig cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path}: {message}")]
    Syntax { path: PathBuf, message: String },
    /// Something is named that the file does not hold, or holds what we do not do.
    #[error("{0}")]
    Content(String),
}

/// How one context reaches its server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// `https://host:port`.
    pub server: String,
    /// The name the server's certificate must carry, when it is not the host.
    pub server_name: Option<String>,
    pub ca_pem: Vec<u8>,
    pub certificate_pem: Option<Vec<u8>>,
    pub key_pem: Option<Vec<u8>>,
    pub token: Option<String>,
    pub token_file: Option<PathBuf>,
    /// The namespace of the context.
    pub namespace: Option<String>,
    /// Where it was read, to be read again when that changes.
    pub origin: Option<Origin>,
}

/// The files a connection was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    path: PathBuf,
    context: Option<String>,
    /// The kubeconfig, and what it names for the authorities, the client certificate and its key.
    files: Vec<PathBuf>,
}

/// Reads a file as a tree.
pub fn load(path: &Path) -> Result<Value, Error> {
    let file = |source| Error::File { path: path.to_owned(), source };
    let length = std::fs::metadata(path).map_err(file)?.len();
    let syntax = |message: String| Error::Syntax { path: path.to_owned(), message };
    if length > MAX_FILE {
        return Err(syntax("too large for a kubeconfig".into()));
    }
    let text = std::fs::read_to_string(path).map_err(file)?;
    if text.trim().is_empty() {
        return Ok(empty());
    }
    let value: Value = serde_saphyr::from_str(&text).map_err(|e| syntax(e.to_string()))?;
    if value.is_object() { Ok(value) } else { Err(syntax("not a mapping".into())) }
}

fn empty() -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [], "users": [], "current-context": "", "preferences": {}})
}

impl Connection {
    /// Reads the connection of a context, the current one unless named. Relative paths are
    /// relative to the file.
    pub fn load(path: &Path, context: Option<&str>) -> Result<Self, Error> {
        let config = load(path)?;
        let base = path.parent().unwrap_or(Path::new("."));
        let mut connection = Self::of(&config, context, base)?;
        let mut files = vec![path.to_owned()];
        let of = |list, name: &str, inner| entry(&config, list, name, inner).ok();
        let named = context.unwrap_or_else(|| text(&config, "current-context"));
        let context_entry = of("contexts", named, "context");
        let cluster = context_entry.and_then(|c| of("clusters", text(c, "cluster"), "cluster"));
        let user = context_entry.and_then(|c| of("users", text(c, "user"), "user"));
        let paths = [(cluster, "certificate-authority"), (user, "client-certificate"), (user, "client-key")]
            .map(|(entry, key)| entry.map_or("", |entry| text(entry, key)));
        files.extend(paths.into_iter().filter(|p| !p.is_empty()).map(|p| base.join(p)));
        connection.origin = Some(Origin { path: path.to_owned(), context: context.map(str::to_owned), files });
        Ok(connection)
    }

    /// The same from a tree.
    pub fn of(config: &Value, context: Option<&str>, base: &Path) -> Result<Self, Error> {
        let name = context.or_else(|| config.get("current-context").and_then(Value::as_str)).unwrap_or_default();
        if name.is_empty() {
            return Err(Error::Content("no context is named and the kubeconfig has no current one".into()));
        }
        let context = entry(config, "contexts", name, "context")?;
        let cluster = entry(config, "clusters", text(context, "cluster"), "cluster")?;
        let none = Value::Null;
        let user = match text(context, "user") {
            "" => &none,
            user => entry(config, "users", user, "user")?,
        };
        for refused in ["exec", "auth-provider", "username"] {
            if user.get(refused).is_some() {
                return Err(Error::Content(format!("context {name:?}: users with {refused:?} are not supported")));
            }
        }
        if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
            return Err(Error::Content(format!(
                "context {name:?}: a server that is not verified is not talked to; set certificate-authority-data"
            )));
        }
        let token_file = text(user, "tokenFile");
        Ok(Self {
            server: text(cluster, "server").to_owned(),
            server_name: some(text(cluster, "tls-server-name")),
            ca_pem: material(cluster, "certificate-authority", base)?.unwrap_or_default(),
            certificate_pem: material(user, "client-certificate", base)?,
            key_pem: material(user, "client-key", base)?,
            token: some(text(user, "token")),
            token_file: (!token_file.is_empty()).then(|| base.join(token_file)),
            namespace: some(text(context, "namespace")),
            origin: None,
        })
    }

    /// Where to connect to, and which name to expect there.
    pub fn target(&self) -> Result<Target, Error> {
        let Some(rest) = self.server.strip_prefix("https://") else {
            return Err(Error::Content(format!("{:?}: the server must be an https:// address", self.server)));
        };
        let authority = rest.split('/').next().unwrap_or_default();
        let uri: http::uri::Authority =
            authority.parse().map_err(|_| Error::Content(format!("{:?}: not an address", self.server)))?;
        let host = uri.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let address = format!("{}:{}", uri.host(), uri.port_u16().unwrap_or(443));
        Ok(Target { address, server_name: self.server_name.clone().unwrap_or(host) })
    }

    /// The same way to the server, with no identity.
    #[must_use]
    pub fn anonymous(&self) -> Self {
        Self { certificate_pem: None, key_pem: None, token: None, token_file: None, ..self.clone() }
    }

    /// Dials the server, showing the client certificate if there is one. One that was read from
    /// files, and the authorities, are read again when they change. Tokens are the client's.
    pub fn dial(&self, clock: &SharedClock) -> Result<SharedHandler, Error> {
        let target = self.target()?;
        let Some(origin) = &self.origin else {
            let identity = self.identity()?.map(|own| own as _);
            let roots = tls::roots(&self.ca_pem).map_err(content)?;
            let config = tls::client(clock, roots, identity).map_err(content)?;
            return Ok(Arc::new(Https::new(&target, &config, clock).map_err(content)?));
        };
        let Origin { path, context, files } = origin.clone();
        let read = move || Self::load(&path, context.as_deref()).map_err(|e| e.to_string());
        let authorities = move || tls::roots(&read()?.ca_pem).map_err(|e| e.to_string());
        let trust = Trust::open(files, authorities).map_err(content)?;
        let identity = self.shown()?;
        let shown = identity.clone().map(|own| own as _);
        let config = tls::client(clock, trust.clone(), shown).map_err(content)?;
        let https = Https::new(&target, &config, clock).map_err(content)?;
        Ok(Arc::new(https.redialling(identity, trust)))
    }

    /// The identity that a connection of files shows, as it is read again whenever they change; `None` for one without
    /// a client certificate, or that is of no files.
    ///
    /// # Errors
    /// When the files hold none.
    pub fn shown(&self) -> Result<Option<Arc<FileIdentity>>, Error> {
        let (Some(_), Some(origin)) = (&self.certificate_pem, &self.origin) else { return Ok(None) };
        let Origin { path, context, files } = origin.clone();
        let pair = move || {
            let now = Self::load(&path, context.as_deref()).map_err(|e| e.to_string())?;
            now.certificate_pem.zip(now.key_pem).ok_or_else(|| "no client certificate with a key".to_owned())
        };
        Ok(Some(FileIdentity::open(files, pair).map_err(content)?))
    }

    /// The TLS identity the connection shows, if it has one.
    fn identity(&self) -> Result<Option<Arc<tls::Identity>>, Error> {
        match (&self.certificate_pem, &self.key_pem) {
            (Some(chain), Some(key)) => tls::Identity::from_pem(chain, key).map(Some).map_err(content),
            (None, None) => Ok(None),
            _ => Err(Error::Content("a client certificate needs its key, and a key its certificate".into())),
        }
    }
}

fn content(error: impl std::fmt::Display) -> Error {
    Error::Content(error.to_string())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn entry<'a>(config: &'a Value, list: &str, name: &str, inner: &str) -> Result<&'a Value, Error> {
    let entries = config.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let found = entries.iter().find(|e| text(e, "name") == name).and_then(|e| e.get(inner));
    found.ok_or_else(|| Error::Content(format!("the kubeconfig has no {inner} {name:?}")))
}

/// Inline data wins over a file, as upstream.
fn material(entry: &Value, key: &str, base: &Path) -> Result<Option<Vec<u8>>, Error> {
    let inline = text(entry, &format!("{key}-data"));
    if !inline.is_empty() {
        let data = STANDARD.decode(inline.trim());
        return data.map(Some).map_err(|e| Error::Content(format!("{key}-data: {e}")));
    }
    match text(entry, key) {
        "" => Ok(None),
        file => {
            let path = base.join(file);
            std::fs::read(&path).map(Some).map_err(|source| Error::File { path, source })
        }
    }
}

/// A token kept in a file that somebody renews.
struct TokenFile(PathBuf);

impl TokenSource for TokenFile {
    fn token(&self) -> Option<String> {
        match std::fs::read_to_string(&self.0) {
            Ok(token) => some(token.trim()),
            Err(error) => {
                tracing::warn!(path = %self.0.display(), %error, "no token");
                None
            }
        }
    }
}

impl Client {
    /// A client that dials the server of a kubeconfig.
    pub fn https(connection: &Connection, user_agent: &str, clock: &SharedClock) -> Result<Self, Error> {
        let client = Self::new(connection.dial(clock)?, user_agent);
        Ok(if let Some(token) = &connection.token {
            client.with_token(Arc::new(token.clone()))
        } else if let Some(path) = &connection.token_file {
            client.with_token(Arc::new(TokenFile(path.clone())))
        } else {
            client
        })
    }
}

/// What a file written by us says about one cluster and one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub cluster: String,
    pub user: String,
    pub context: String,
    pub server: String,
    pub ca_pem: String,
    pub certificate_pem: String,
    pub key_pem: String,
}

impl Entry {
    /// A whole file with this entry alone.
    pub fn render(&self) -> Value {
        merge(empty(), self, true)
    }
}

/// Puts an entry into a tree, replacing those of its names. The current context changes when
/// `make_current` says so, or when there is none.
pub fn merge(mut config: Value, entry: &Entry, make_current: bool) -> Value {
    if !config.is_object() {
        config = empty();
    }
    let encode = |pem: &str| STANDARD.encode(pem);
    put(
        &mut config,
        "clusters",
        &entry.cluster,
        "cluster",
        &json!({
            "server": entry.server, "certificate-authority-data": encode(&entry.ca_pem),
        }),
    );
    put(
        &mut config,
        "users",
        &entry.user,
        "user",
        &json!({
            "client-certificate-data": encode(&entry.certificate_pem), "client-key-data": encode(&entry.key_pem),
        }),
    );
    // The namespace somebody chose for the context stays.
    let mut context = json!({"cluster": entry.cluster, "user": entry.user});
    let old = self::entry(&config, "contexts", &entry.context, "context").ok();
    if let Some(namespace) = old.and_then(|c| c.get("namespace")) {
        context["namespace"] = namespace.clone();
    }
    put(&mut config, "contexts", &entry.context, "context", &context);
    for (key, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        if config.get(key).is_none() {
            config[key] = json!(value);
        }
    }
    if make_current || text(&config, "current-context").is_empty() {
        config["current-context"] = json!(entry.context);
    }
    config
}

/// Takes an entry's names out of a tree again; the current context is cleared when it was this one.
pub fn remove(mut config: Value, entry: &Entry) -> Value {
    for (list, name) in [("clusters", &entry.cluster), ("users", &entry.user), ("contexts", &entry.context)] {
        if let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|e| text(e, "name") != name);
        }
    }
    if text(&config, "current-context") == entry.context {
        config["current-context"] = json!("");
    }
    config
}

fn put(config: &mut Value, list: &str, name: &str, inner: &str, value: &Value) {
    if !config.get(list).is_some_and(Value::is_array) {
        config[list] = json!([]);
    }
    let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) else { return };
    let entry = json!({"name": name, inner: value});
    match entries.iter_mut().find(|e| text(e, "name") == name) {
        Some(old) => *old = entry,
        None => entries.push(entry),
    }
}

/// Writes a tree: whole or not at all, readable by its owner alone, also when it replaces a file
/// that others could read. A link is followed, so that the file it points to is replaced.
pub fn write(path: &Path, config: &Value) -> Result<(), Error> {
    let text =
        serde_saphyr::to_string(config).map_err(|e| Error::Syntax { path: path.to_owned(), message: e.to_string() })?;
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let file = |source| Error::File { path: real.clone(), source };
    let directory = real.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(file)?;
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    let result = write_private(&temporary, text.as_bytes()).and_then(|()| std::fs::rename(&temporary, &real));
    if result.is_err() {
        // What is left of a failed write is of no use to anybody.
        let _ = std::fs::remove_file(&temporary);
    }
    result.map_err(file)
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(server: &str) -> Entry {
        Entry {
            cluster: "pintle".into(),
            user: "pintle".into(),
            context: "pintle".into(),
            server: server.into(),
            ca_pem: "CA".into(),
            certificate_pem: "CERT".into(),
            key_pem: "KEY".into(),
        }
    }

    #[test]
    fn a_merge_keeps_what_others_wrote_and_a_removal_undoes_it() {
        let theirs: Value = serde_saphyr::from_str(
            "apiVersion: v1\nkind: Config\ncurrent-context: work\nextra: {x: 1}\nclusters:\n- {name: work, cluster: {server: 'https://w'}}\ncontexts:\n- {name: work, context: {cluster: work, user: u}}\n",
        )
        .expect("valid");
        let merged = merge(theirs.clone(), &entry("https://127.0.0.1:6443"), false);
        assert_eq!(merged["current-context"], "work");
        assert_eq!(merged["extra"]["x"], 1);
        assert_eq!(merged["clusters"].as_array().map(Vec::len), Some(2));
        let again = merge(merged, &entry("https://127.0.0.1:7443"), true);
        assert_eq!(again["clusters"].as_array().map(Vec::len), Some(2));
        assert_eq!(again["clusters"][1]["cluster"]["server"], "https://127.0.0.1:7443");
        assert_eq!(again["current-context"], "pintle");
        let removed = remove(again, &entry(""));
        assert_eq!(removed["clusters"], theirs["clusters"]);
        assert_eq!(removed["current-context"], "");
    }

    #[test]
    fn a_written_file_is_private_and_reads_back() {
        let directory = std::env::temp_dir().join(format!("pintle-kubeconfig-{}", std::process::id()));
        let path = directory.join("config");
        std::fs::create_dir_all(&directory).expect("writable");
        std::fs::write(&path, "").expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
        write(&path, &entry("https://[::1]:6443").render()).expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let connection = Connection::load(&path, None).expect("readable");
        assert_eq!(connection.certificate_pem.as_deref(), Some(b"CERT".as_slice()));
        let target = connection.target().expect("an address");
        assert_eq!((target.address.as_str(), target.server_name.as_str()), ("[::1]:6443", "::1"));
        let origin = connection.origin.expect("it was read from a file");
        assert_eq!(origin.files, std::slice::from_ref(&path), "nothing else is named");
        let mut named = load(&path).expect("readable");
        named["users"][0]["user"] = json!({"client-certificate": "c.crt", "client-key": ""});
        named["clusters"][0]["cluster"] = json!({"server": "https://[::1]:6443", "certificate-authority": "ca.crt"});
        std::fs::write(directory.join("ca.crt"), "CA").expect("writable");
        std::fs::write(directory.join("c.crt"), "CERT").expect("writable");
        named["users"][0]["user"]["client-key"] = json!(directory.join("k.key"));
        std::fs::write(directory.join("k.key"), "KEY").expect("writable");
        write(&path, &named).expect("written");
        let origin = Connection::load(&path, None).expect("readable").origin.expect("files");
        assert_eq!(origin.files, [path, directory.join("ca.crt"), directory.join("c.crt"), directory.join("k.key")]);
        std::fs::remove_dir_all(&directory).expect("ours");
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let base = Path::new(".");
        let of = |yaml: &str| {
            let value: Value = serde_saphyr::from_str(yaml).expect("valid");
            Connection::of(&value, None, base).err().map(|e| e.to_string())
        };
        assert_eq!(of("{}").as_deref(), Some("no context is named and the kubeconfig has no current one"));
        assert_eq!(of("{current-context: a}").as_deref(), Some("the kubeconfig has no context \"a\""));
        let exec = "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: s}}], users: [{name: u, user: {exec: {}}}]}";
        assert_eq!(of(exec).as_deref(), Some("context \"a\": users with \"exec\" are not supported"));
    }
}
