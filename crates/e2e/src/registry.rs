//! A registry on loopback that serves a few images from memory: the read half of the OCI
//! distribution API.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use host::image::Image;
use host::layout::Layout;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

/// What the registry has: `repository` → tag or digest → manifest, and blobs by digest.
#[derive(Default)]
struct Content {
    manifests: HashMap<(String, String), (&'static str, Bytes)>,
    blobs: HashMap<String, Bytes>,
    digests: HashMap<(String, String), String>,
}

/// What a held registry lets through of a blob: containerd writes, and counts, a whole MiB at a time.
pub const BEGINNING: usize = 1 << 20;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves images until it is dropped.
pub struct Registry {
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
    /// Whether blobs are sent to their end.
    open: watch::Sender<bool>,
    /// The `Authorization` that is asked for, where one is.
    guard: watch::Sender<Option<String>>,
}

impl Registry {
    /// Serves `images`, whose names are `<repository>:<tag>`, on a free loopback port.
    pub async fn start(images: &[Image]) -> std::io::Result<Self> {
        let mut content = Content::default();
        for image in images {
            let (repository, tag) = image.name.rsplit_once(':').unwrap_or((&image.name, "latest"));
            for reference in [tag, &image.manifest.digest] {
                let key = (repository.to_owned(), reference.to_owned());
                let bytes = Bytes::from(image.manifest.bytes.clone());
                content.manifests.insert(key.clone(), (image.manifest.media_type, bytes));
                content.digests.insert(key, image.manifest.digest.clone());
            }
            for blob in std::iter::once(&image.config).chain(&image.layers) {
                content.blobs.insert(blob.digest.clone(), Bytes::from(blob.bytes.clone()));
            }
        }
        let content = Arc::new(content);
        let open = watch::Sender::new(true);
        let guard = watch::Sender::new(None);
        let (told, asked) = (open.clone(), guard.clone());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (content, told, asked) = (content.clone(), told.clone(), asked.clone());
                let service = service_fn(move |request| {
                    let response = match refuse(&request, &asked) {
                        Some(refusal) => refusal,
                        None => answer(&content, &request, &told),
                    };
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(async move {
                    // A client that goes away is its own business.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { address, task, open, guard })
    }

    /// From now on only this user is answered.
    pub fn admit_only(&self, user: &str, password: &str) {
        use base64::Engine as _;
        let login = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        self.guard.send_replace(Some(format!("Basic {login}")));
    }

    /// From now on large blobs stop after their first MiB, until [`Registry::release`].
    pub fn hold(&self) {
        self.open.send_replace(false);
    }

    /// Sends what was held back.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// Lets a runtime whose folders are below `root` pull from here without TLS.
    pub fn trusted_below(&self, root: &Path) -> anyhow::Result<()> {
        let address = self.address;
        let folder = Layout::below(root).registry_config().join(address.to_string());
        std::fs::create_dir_all(&folder)?;
        let hosts = format!(
            "server = \"http://{address}\"\n[host.\"http://{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
        );
        Ok(std::fs::write(folder.join("hosts.toml"), hosts)?)
    }

    /// The full reference of `<repository>:<tag>` here.
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The beginning at once, the rest when the registry is open.
fn body(bytes: Bytes, open: &watch::Sender<bool>) -> Body {
    if *open.borrow() || bytes.len() <= BEGINNING {
        return Full::new(bytes).boxed_unsync();
    }
    let mut open = open.subscribe();
    let rest = bytes.slice(BEGINNING..);
    let later = stream::once(async move {
        // The registry is gone: so is the reader's interest.
        let _ = open.wait_for(|open| *open).await;
        rest
    });
    let parts = stream::iter([bytes.slice(..BEGINNING)]).chain(later);
    StreamBody::new(parts.map(|part| Ok(Frame::data(part)))).boxed_unsync()
}

/// The answer to who does not say what is asked for.
fn refuse(request: &Request<Incoming>, guard: &watch::Sender<Option<String>>) -> Option<Response<Body>> {
    let wanted = guard.borrow().clone()?;
    let said = request.headers().get("authorization").and_then(|v| v.to_str().ok());
    if said == Some(wanted.as_str()) {
        return None;
    }
    let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    let challenge = http::HeaderValue::from_static("Basic realm=\"e2e\"");
    response.headers_mut().insert("www-authenticate", challenge);
    Some(response)
}

fn answer(content: &Content, request: &Request<Incoming>, open: &watch::Sender<bool>) -> Response<Body> {
    let head = request.method() == Method::HEAD;
    let path = request.uri().path().trim_start_matches("/v2/");
    let found = if let Some((repository, reference)) = path.split_once("/manifests/") {
        let key = (repository.to_owned(), reference.to_owned());
        content.manifests.get(&key).map(|(kind, bytes)| (*kind, bytes.clone(), content.digests[&key].clone()))
    } else if let Some((_, digest)) = path.split_once("/blobs/") {
        content.blobs.get(digest).map(|bytes| ("application/octet-stream", bytes.clone(), digest.to_owned()))
    } else if path.is_empty() || path == "/v2" {
        Some(("application/json", Bytes::from_static(b"{}"), String::new()))
    } else {
        None
    };
    let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
    let Some((kind, bytes, digest)) = found else {
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", kind.to_owned()),
        ("docker-content-digest", digest),
        ("docker-distribution-api-version", "registry/2.0".to_owned()),
        ("content-length", bytes.len().to_string()),
    ] {
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    }
    if !head {
        *response.body_mut() = body(bytes, open);
    }
    response
}
