//! Answers that only change with the program: negotiated, tagged, and not sent twice.

use std::io::{Read as _, Write as _};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use machinery::status::{self, Status};
use machinery::{encode, proto};
use serde_json::Value;
use sha2::{Digest, Sha512};

use crate::encode::negotiate;

/// Which of the media types offered the client likes best; `None` when it takes none of them.
/// Parameters other than `q` must be those offered: `a/b;as=X` is another type than `a/b`. A `profile`
/// says from which of several servers, and there is one.
pub fn choose(headers: &HeaderMap, offers: &[&str]) -> Option<usize> {
    let accept: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    let accept = accept.join(",");
    if accept.trim().is_empty() {
        // Who says nothing gets the plain one, which is offered last.
        return offers.len().checked_sub(1);
    }
    let mut clauses: Vec<(i32, &str, Vec<String>)> = Vec::new();
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let Some(media) = parts.next().filter(|m| !m.is_empty()) else { continue };
        let (mut quality, mut parameters) = (1000, Vec::new());
        for part in parts {
            match part.split_once('=') {
                #[expect(clippy::cast_possible_truncation, reason = "thousandths of a number between 0 and 1")]
                Some(("q", q)) => quality = (q.parse::<f32>().unwrap_or(0.0).clamp(0.0, 1.0) * 1000.0) as i32,
                Some(("profile", _)) => {}
                _ => parameters.push(part.replace(' ', "")),
            }
        }
        parameters.sort_unstable();
        if quality > 0 {
            clauses.push((quality, media, parameters));
        }
    }
    clauses.sort_by_key(|(quality, ..)| -quality);
    clauses.iter().find_map(|(_, media, parameters)| {
        let plain = parameters.iter().all(|p| p.starts_with("charset=") || p.starts_with("pretty="));
        let wild = matches!(*media, "*/*" | "application/*");
        // A wildcard takes the plain offer, which is the last.
        if wild {
            return offers.len().checked_sub(1);
        }
        offers.iter().position(|offer| {
            let mut parts = offer.split(';').map(str::to_owned);
            let same_media = parts.next().is_some_and(|m| m.eq_ignore_ascii_case(media));
            let mut wanted: Vec<String> = parts.collect();
            wanted.sort_unstable();
            same_media && (wanted == *parameters || wanted.is_empty() && plain)
        })
    })
}

/// A tag that changes when the body does.
pub fn etag(body: &[u8]) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{}\"", hash(body))).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// The hash of a body, as upper-case hexadecimal digits.
pub fn hash(body: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(128);
    for byte in Sha512::digest(body) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02X}");
    }
    out
}

/// A body under a tag: 304 when the client has it already.
pub fn cached(headers: &HeaderMap, media: &'static str, body: &Bytes, tag: &HeaderValue) -> transport::Response {
    tagged(headers, media, tag, || {
        let zipped = if body.len() > ZIP_OVER && takes_gzip(headers) { zip(body, 1) } else { None };
        zipped.map_or_else(|| (body.clone(), false), |zipped| (zipped, true))
    })
}

/// The same with a body that is kept compressed and sent so to those who take it.
pub fn cached_zipped(
    headers: &HeaderMap,
    media: &'static str,
    tag: &HeaderValue,
    zipped: impl FnOnce() -> Bytes,
) -> transport::Response {
    tagged(headers, media, tag, || {
        let zipped = zipped();
        if takes_gzip(headers) { (zipped, true) } else { (unzip(&zipped), false) }
    })
}

/// `body` is what is sent, and whether that is compressed.
fn tagged(
    headers: &HeaderMap,
    media: &'static str,
    tag: &HeaderValue,
    body: impl FnOnce() -> (Bytes, bool),
) -> transport::Response {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok());
    let known = known.flat_map(|v| v.split(',')).any(|v| {
        let v = v.trim();
        v == "*" || tag.to_str().is_ok_and(|t| v.strip_prefix("W/").unwrap_or(v) == t)
    });
    let mut response = if known {
        let mut response = Response::new(transport::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let (body, is_zipped) = body();
        let mut response = Response::new(transport::full(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        if is_zipped {
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    };
    response.headers_mut().insert(header::ETAG, tag.clone());
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    response
}

/// Longer answers are compressed for those who take it.
const ZIP_OVER: usize = 128 * 1024;

fn takes_gzip(headers: &HeaderMap) -> bool {
    negotiate::takes_gzip(headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()))
}

/// Compresses; `None` when that fails, which memory does not.
pub fn zip(body: &[u8], level: u32) -> Option<Bytes> {
    let level = flate2::Compression::new(level);
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(body.len() / 8), level);
    encoder.write_all(body).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

fn unzip(zipped: &[u8]) -> Bytes {
    let mut body = Vec::with_capacity(zipped.len() * 8);
    // It is what `zip` has made.
    let _ = flate2::read::GzDecoder::new(zipped).read_to_end(&mut body);
    body.into()
}

/// A discovery document of the old kind in the form the client likes best. `forms` are protobuf, YAML
/// and JSON.
///
/// # Errors
/// 406 when it takes none of them.
pub fn in_form(
    headers: &HeaderMap,
    forms: &'static [&'static str],
    body: &Value,
) -> status::Result<transport::Response> {
    let Some(chosen) = choose(headers, forms) else { return Err(Status::not_acceptable(forms)) };
    let kind = body["kind"].as_str().unwrap_or_default();
    let schema = api::schema::find("meta/v1", kind);
    let json = || match &schema {
        Some(s) if body.get("apiVersion").is_some() => encode::json(body, s),
        _ => body.to_string().into_bytes(),
    };
    let bytes = match (chosen, &schema) {
        // The documents of the core group have no version of their own.
        (0, Some(s)) => {
            proto::seal(body["apiVersion"].as_str().unwrap_or_default(), kind, &proto::encode_body(body, s))
        }
        (1, _) => machinery::yaml::write(body)?.into_bytes(),
        _ => {
            let mut json = json();
            json.push(b'\n');
            json
        }
    };
    let mut response = Response::new(transport::full(bytes));
    let media = forms.get(chosen).copied().unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn the_best_offer_is_chosen() {
        const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let offers = [V2, "application/json"];
        let kubectl =
            format!("{V2},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json");
        for (accept, want) in [
            ("", Some(1)),
            (kubectl.as_str(), Some(0)),
            ("application/json", Some(1)),
            ("application/json, */*", Some(1)),
            ("*/*", Some(1)),
            ("application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io", Some(0)),
            ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", None),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/vnd.kubernetes.protobuf,application/json;q=0.5", Some(1)),
            ("application/json;q=0", None),
            ("application/json;charset=utf-8", Some(1)),
            ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer", Some(0)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(choose(&headers, &offers), want, "{accept}");
        }
    }

    #[tokio::test]
    async fn a_compressed_body_is_sent_as_the_client_takes_it() {
        let body = vec![b'x'; 1000];
        let zipped = zip(&body, 6).unwrap();
        let tag = etag(&body);
        let sent = async |headers: &HeaderMap| {
            let response = cached_zipped(headers, "application/json", &tag, || zipped.clone());
            let encoded = response.headers().contains_key(header::CONTENT_ENCODING);
            (encoded, response.into_body().collect().await.unwrap().to_bytes())
        };
        let mut headers = HeaderMap::new();
        assert_eq!(sent(&headers).await, (false, body.into()));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(sent(&headers).await, (true, zipped.clone()));
    }

    #[test]
    fn a_known_tag_is_not_sent_again() {
        let body = Bytes::from_static(b"{}");
        let tag = etag(&body);
        let mut headers = HeaderMap::new();
        assert_eq!(cached(&headers, "application/json", &body, &tag).status(), 200);
        headers.insert(header::IF_NONE_MATCH, tag.clone());
        assert_eq!(cached(&headers, "application/json", &body, &tag).status(), 304);
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"other\""));
        assert_eq!(cached(&headers, "application/json", &body, &tag).status(), 200);
    }
}
