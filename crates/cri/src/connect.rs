//! A gRPC channel over a unix socket, opened when first needed.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::error::{Error, Result};

/// The socket that an endpoint as users write it (`unix:///run/x.sock`, `/run/x.sock`) names.
pub fn socket_path(endpoint: &str) -> Result<PathBuf> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if path.starts_with('/') { Ok(PathBuf::from(path)) } else { Err(Error::Endpoint(endpoint.to_owned())) }
}

/// A channel that dials `endpoint` at its first call, and again whenever the connection broke.
pub(crate) fn channel(endpoint: &str) -> Result<Channel> {
    let path = socket_path(endpoint)?;
    Ok(Endpoint::from_static("http://localhost").connect_with_connector_lazy(Dial { path }))
}

#[derive(Clone)]
struct Dial {
    path: PathBuf,
}

impl tower_service::Service<Uri> for Dial {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.path.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_name_a_socket_or_are_refused() {
        assert_eq!(socket_path("unix:///run/c.sock").ok(), Some(PathBuf::from("/run/c.sock")));
        assert_eq!(socket_path("/run/c.sock").ok(), Some(PathBuf::from("/run/c.sock")));
        for bad in ["", "tcp://1.2.3.4:5", "unix://run/c.sock", "run/c.sock"] {
            assert!(matches!(socket_path(bad), Err(Error::Endpoint(_))), "{bad}");
        }
    }
}
