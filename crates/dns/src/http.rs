//! What the DNS tells of itself: `/health` and `/ready` as CoreDNS' plugins do, and `/metrics`. Everybody is
//! answered who reaches the port, as by CoreDNS: who scrapes may be outside of the cluster, and no name is told.

use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};
use stdx::metrics::{Form, Registry};
use transport::{Handler, Request, Responding, Response};

use crate::ready::Ready;

/// The answers.
pub struct Status {
    pub ready: Arc<Ready>,
    pub registry: Registry,
}

impl Status {
    fn answer(&self, request: &Request) -> Response {
        let plain = "text/plain; charset=utf-8";
        if request.method() != Method::GET {
            return told(StatusCode::METHOD_NOT_ALLOWED, plain, "405: Method Not Allowed\n".into());
        }
        match request.uri().path() {
            "/health" => told(StatusCode::OK, plain, "OK".into()),
            // Who is not ready yet says by which part.
            "/ready" if self.ready.is_ready() => told(StatusCode::OK, plain, "OK".into()),
            "/ready" => told(StatusCode::SERVICE_UNAVAILABLE, plain, "kubernetes".into()),
            "/metrics" => {
                let form = Form::asked(request.headers().get(http::header::ACCEPT).and_then(|v| v.to_str().ok()));
                told(StatusCode::OK, form.media_type(), form.write(self.registry.page()))
            }
            _ => told(StatusCode::NOT_FOUND, plain, "404 page not found\n".into()),
        }
    }
}

fn told(code: StatusCode, media: &'static str, text: String) -> Response {
    let mut response = Response::new(transport::full(text));
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

impl Handler for Status {
    fn call(&self, request: Request) -> Responding {
        let response = self.answer(&request);
        Box::pin(async move { Ok(response) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told() {
        let registry = Registry::default();
        registry.counter("a_total", "A.", &[]).inc(&[]);
        let status = Status { ready: Arc::default(), registry };
        let code = |method: Method, path: &str| {
            let request =
                http::Request::builder().method(method).uri(path).body(transport::empty()).expect("a request");
            status.answer(&request).status().as_u16()
        };
        assert_eq!([code(Method::GET, "/health"), code(Method::GET, "/ready")], [200, 503]);
        status.ready.synced();
        assert_eq!([code(Method::GET, "/ready"), code(Method::GET, "/metrics")], [200, 200]);
        let ailing = status.ready.ails();
        assert_eq!(code(Method::GET, "/ready"), 503, "a part does not work");
        drop(ailing);
        assert_eq!([code(Method::POST, "/ready"), code(Method::GET, "/")], [405, 404]);
    }
}
