//! Pages of what runs in the cluster, whose links lead here: `/login` of a pod is `/api/v1/…/proxy/login` of
//! this server. What is no HTML, or speaks in a way that is not understood here, passes as it is.
//!
//! ```text
//!  the pod's page ─► (unzip, a little at a time) ─► page.rs ─► (zip) ─► the client
//! ```
//!
//! Nothing is gathered: a page of any length, zipped or not, costs a tag and a piece of memory, and is read as
//! fast as the client takes it.

mod page;

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};
use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use transport::{Body, BodyError, Response};

use page::Page;

/// So much of what is zipped is unzipped at a time: at most a thousand times as much comes of it.
const SLICE: usize = 512;

/// Encodings in which a byte of ASCII may be something else: none of their pages is touched.
const NOT_ASCII: &[&str] = &["utf-16", "utf-32", "utf-7", "ucs-2", "ucs-4", "iso-10646", "unicode", "iso-2022", "hz-"];
/// What is said of a body that is no longer the same.
const OF_BODY: &[&str] = &["content-md5", "digest", "content-digest", "repr-digest"];

/// Whose page it is: what leads there leads here.
#[derive(Clone, Debug)]
pub struct Place {
    /// The path of this server under which its own paths are reached.
    pub prefix: String,
    /// Its names: its own, and the one that the client knows this server by.
    pub hosts: Vec<String>,
}

impl Place {
    /// A path of the place, or a whole URL of it, as a path of this server; `None` for what leads elsewhere,
    /// here already, or goes on from the page's own path.
    pub fn lead(&self, to: &str) -> Option<String> {
        let path = if to.starts_with('/') && !to.starts_with("//") { to } else { self.own(to)? };
        let prefix = self.prefix.trim_end_matches('/');
        let is_here =
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
        match (is_here, path.starts_with('/')) {
            (true, _) => (path.len() < to.len()).then(|| path.to_owned()),
            (false, true) => Some(format!("{prefix}{path}")),
            (false, false) => Some(format!("{prefix}/{path}")),
        }
    }

    /// What follows the host in a URL of the place.
    fn own<'t>(&self, to: &'t str) -> Option<&'t str> {
        let scheme = ["http://", "https://", "//"]
            .iter()
            .find(|scheme| to.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme)))?;
        let rest = &to[scheme.len()..];
        let (host, path) = rest.split_at(rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len()));
        let is_own = |own: &String| {
            let plain = own.strip_suffix(":80").or_else(|| own.strip_suffix(":443"));
            host == own || Some(host) == plain
        };
        self.hosts.iter().any(is_own).then_some(path)
    }
}

/// How a page comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Plain,
    Gzip,
}

/// Is this a page whose links are understood? Then how it comes.
fn coding(method: &Method, status: StatusCode, headers: &HeaderMap) -> Option<Coding> {
    let text = |name: HeaderName| headers.get(name).map_or(Some(""), |value| value.to_str().ok());
    // A part of a page may begin in the middle of a tag.
    let whole = ![StatusCode::PARTIAL_CONTENT, StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    if !whole || *method == Method::HEAD || headers.contains_key(LOCATION) {
        return None;
    }
    let kind = text(CONTENT_TYPE)?.to_ascii_lowercase();
    let (media, parameters) = kind.split_once(';').unwrap_or((&kind, ""));
    if media.trim() != "text/html" {
        return None;
    }
    let charset = parameters.split(';').find_map(|one| one.trim().strip_prefix("charset="));
    let charset = charset.unwrap_or_default().trim_matches(['"', '\'', ' ']);
    if NOT_ASCII.iter().any(|name| charset.starts_with(name)) {
        return None;
    }
    match text(CONTENT_ENCODING)?.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Some(Coding::Plain),
        "gzip" | "x-gzip" => Some(Coding::Gzip),
        _ => None,
    }
}

/// The same answer; the links of a page lead here.
pub fn rewritten(mut response: Response, method: &Method, place: &Place) -> Response {
    let Some(coding) = coding(method, response.status(), response.headers()) else { return response };
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    OF_BODY.iter().for_each(|name| drop(headers.remove(*name)));
    // Its parts are those of another text: whoever would go on with one begins anew.
    headers.remove(ACCEPT_RANGES);
    let weak = |tag: &HeaderValue| HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()).ok();
    let strong = headers.get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
    if let Some(tag) = strong.and_then(weak) {
        headers.insert(ETAG, tag);
    }
    let place = place.clone();
    let page = Page::new(move |link: &str| place.lead(link));
    response.map(|body| led(body, page, coding))
}

/// What a page goes through, a piece at a time.
struct Pass<F> {
    body: Body,
    page: Page<F>,
    /// What came and was not looked at yet.
    came: Bytes,
    begun: bool,
    /// Nothing has come at all.
    empty: bool,
    /// Its begin says that no byte of it is ASCII.
    as_it_is: bool,
    unzip: Option<MultiGzDecoder<Vec<u8>>>,
    zip: Option<GzEncoder<Vec<u8>>>,
    ended: bool,
}

fn led<F>(body: Body, page: Page<F>, coding: Coding) -> Body
where
    F: Fn(&str) -> Option<String> + Send + 'static,
{
    let gzip = coding == Coding::Gzip;
    let pass = Pass {
        body,
        page,
        came: Bytes::new(),
        begun: false,
        empty: true,
        as_it_is: false,
        unzip: gzip.then(|| MultiGzDecoder::new(Vec::new())),
        zip: gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
        ended: false,
    };
    transport::stream(futures::stream::unfold(pass, |mut pass| async move {
        match pass.next().await {
            Ok(Some(piece)) => Some((Ok(piece), pass)),
            Ok(None) => None,
            Err(error) => {
                pass.ended = true;
                Some((Err(error), pass))
            }
        }
    }))
}

impl<F: Fn(&str) -> Option<String>> Pass<F> {
    /// The next piece that has something in it.
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        while !self.ended {
            if self.came.is_empty() {
                match self.body.frame().await {
                    Some(frame) => {
                        self.came = frame?.into_data().unwrap_or_default();
                        self.empty &= self.came.is_empty();
                    }
                    None => {
                        self.ended = true;
                        // Also where it was to be zipped: nothing is no zipped page.
                        if self.empty {
                            return Ok(None);
                        }
                        return self.end().map(|last| Some(last).filter(|last| !last.is_empty()));
                    }
                }
            }
            // What waits for more is passed on: nobody knows when that comes.
            let piece = self.piece()?;
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    fn piece(&mut self) -> Result<Bytes, BodyError> {
        let Some(unzip) = &mut self.unzip else {
            let came = std::mem::take(&mut self.came);
            let mut out = Vec::with_capacity(came.len() + came.len() / 16);
            self.look(&came, &mut out);
            return Ok(out.into());
        };
        let slice = self.came.split_to(self.came.len().min(SLICE));
        unzip.write_all(&slice)?;
        unzip.flush()?;
        let plain = std::mem::take(unzip.get_mut());
        let mut out = Vec::new();
        self.look(&plain, &mut out);
        self.zipped(&out, self.came.is_empty())
    }

    fn look(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        if !self.begun && !plain.is_empty() {
            self.begun = true;
            self.as_it_is = plain.starts_with(b"\xff\xfe") || plain.starts_with(b"\xfe\xff");
        }
        match self.as_it_is {
            true => out.extend_from_slice(plain),
            false => self.page.take(plain, out),
        }
    }

    /// `now`: nothing is kept for later.
    fn zipped(&mut self, out: &[u8], now: bool) -> Result<Bytes, BodyError> {
        let Some(zip) = &mut self.zip else { return Ok(Bytes::copy_from_slice(out)) };
        zip.write_all(out)?;
        if now {
            zip.flush()?;
        }
        Ok(std::mem::take(zip.get_mut()).into())
    }

    fn end(&mut self) -> Result<Bytes, BodyError> {
        let mut out = Vec::new();
        if let Some(mut unzip) = self.unzip.take() {
            unzip.try_finish()?;
            let plain = std::mem::take(unzip.get_mut());
            self.look(&plain, &mut out);
        }
        self.page.finish(&mut out);
        let Some(mut zip) = self.zip.take() else { return Ok(out.into()) };
        zip.write_all(&out)?;
        Ok(zip.finish()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    fn place() -> Place {
        Place { prefix: "/p/proxy".into(), hosts: vec!["10.9.9.9:8080".into(), "localhost:8001".into()] }
    }

    #[test]
    fn what_leads_there_leads_here() {
        for (to, want) in [
            ("/x?y=1", Some("/p/proxy/x?y=1")),
            ("/", Some("/p/proxy/")),
            ("//elsewhere/x", None),
            ("http://elsewhere/x", None),
            ("x", None),
            ("", None),
            ("#x", None),
            ("http://10.9.9.9:8080/login?next=%2F", Some("/p/proxy/login?next=%2F")),
            ("HTTPS://10.9.9.9:8080", Some("/p/proxy/")),
            ("//10.9.9.9:8080?x", Some("/p/proxy/?x")),
            ("http://localhost:8001/x", Some("/p/proxy/x")),
            ("http://10.9.9.9:80801/", None),
            ("http://10.9.9.9:8080@elsewhere/", None),
            ("http://10.9.9.9:8080\\@elsewhere/", Some("/p/proxy/\\@elsewhere/")),
            // Already here: written by who knows where it stands.
            ("/p/proxy/x", None),
            ("/p/proxy", None),
            ("/p/proxyx", Some("/p/proxy/p/proxyx")),
            ("http://localhost:8001/p/proxy/x", Some("/p/proxy/x")),
        ] {
            assert_eq!(place().lead(to).as_deref(), want, "{to}");
        }
        let plain = Place { prefix: "/p/".into(), hosts: vec!["10.9.9.9:80".into()] };
        assert_eq!(plain.lead("http://10.9.9.9/a").as_deref(), Some("/p/a"));
    }

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: impl Into<Bytes>) -> Response {
        let mut response = Response::new(transport::full(body));
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        for (name, value) in headers {
            response.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        response
    }

    const PAGE: &str = "<a href=/x>";
    const LED: &str = "<a href=/p/proxy/x>";
    const HTML: (&str, &str) = ("content-type", "text/html; charset=utf-8");

    #[tokio::test]
    async fn only_whole_pages_are_touched() {
        for (method, status, headers, touched) in [
            ("GET", 200, &[HTML][..], true),
            ("POST", 201, &[("content-type", "Text/HTML")], true),
            ("GET", 200, &[("content-type", "text/html;charset=\"ISO-8859-1\"")], true),
            ("GET", 200, &[HTML, ("content-encoding", "identity")], true),
            ("HEAD", 200, &[HTML], false),
            ("GET", 404, &[HTML], true),
            ("GET", 304, &[HTML], false),
            ("GET", 206, &[HTML], false),
            ("GET", 200, &[HTML, ("location", "/y")], false),
            ("GET", 200, &[("content-type", "text/html; charset=UTF-16LE")], false),
            ("GET", 200, &[HTML, ("content-encoding", "br")], false),
            ("GET", 200, &[("content-type", "text/htmlx")], false),
            ("GET", 200, &[], false),
        ] {
            let headers = [headers, &[("content-length", "11"), ("digest", "x")]].concat();
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            let got = rewritten(answer(status, &headers, PAGE), &method, &place());
            let length = got.headers().contains_key(CONTENT_LENGTH) && got.headers().contains_key("digest");
            let body = transport::read(got.into_body(), 1000).await.expect("read");
            let want = if touched { (LED, false) } else { (PAGE, true) };
            assert_eq!((std::str::from_utf8(&body).expect("text"), length), want, "{method} {status} {headers:?}");
        }
    }

    #[tokio::test]
    async fn nobody_goes_on_with_another_text() {
        for (tag, want) in [("\"a\"", "W/\"a\""), ("W/\"a\"", "W/\"a\"")] {
            let headers = [HTML, ("etag", tag), ("accept-ranges", "bytes")];
            let got = rewritten(answer(200, &headers, PAGE), &Method::GET, &place());
            assert_eq!(got.headers()[ETAG], want);
            assert!(!got.headers().contains_key(ACCEPT_RANGES));
            // What is no page keeps both.
            let headers = [("content-type", "image/png"), ("etag", tag), ("accept-ranges", "bytes")];
            let got = rewritten(answer(200, &headers, PAGE), &Method::GET, &place());
            assert!(got.headers()[ETAG] == tag && got.headers().contains_key(ACCEPT_RANGES));
        }
    }

    #[tokio::test]
    async fn an_empty_page_is_one_also_where_it_was_to_be_zipped() {
        let got = rewritten(answer(200, &[HTML, ("content-encoding", "gzip")], ""), &Method::GET, &place());
        assert_eq!(transport::read(got.into_body(), 1000).await.expect("read"), "");
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut zip = GzEncoder::new(Vec::new(), Compression::best());
        zip.write_all(plain).expect("zipped");
        zip.finish().expect("zipped")
    }

    #[tokio::test]
    async fn a_zipped_page_stays_zipped() {
        let long = format!("{}{PAGE}", "text é ".repeat(10_000));
        let zipped = gzip(long.as_bytes());
        let got = rewritten(answer(200, &[HTML, ("content-encoding", "gzip")], zipped.clone()), &Method::GET, &place());
        assert_eq!(got.headers().get(CONTENT_ENCODING).map(HeaderValue::as_bytes), Some(&b"gzip"[..]));
        let body = transport::read(got.into_body(), 1 << 20).await.expect("read");
        let mut plain = String::new();
        GzDecoder::new(&body[..]).read_to_string(&mut plain).expect("unzipped");
        assert_eq!(plain, long.replace(PAGE, LED));
        // One that breaks off is no whole page.
        let half = zipped[..zipped.len() / 2].to_vec();
        let got = rewritten(answer(200, &[HTML, ("content-encoding", "gzip")], half), &Method::GET, &place());
        assert!(transport::read(got.into_body(), 1 << 20).await.is_err());
    }

    #[tokio::test]
    async fn a_bomb_is_unzipped_a_little_at_a_time() {
        let bomb = gzip(&vec![b'x'; 4 << 20]);
        assert!(bomb.len() < 20_000, "{}", bomb.len());
        let page = Page::new(|_: &str| None);
        let mut pass = Pass {
            body: transport::full(bomb),
            page,
            came: Bytes::new(),
            begun: false,
            empty: true,
            as_it_is: false,
            unzip: Some(MultiGzDecoder::new(Vec::new())),
            zip: None,
            ended: false,
        };
        let mut all = 0;
        while let Some(piece) = pass.next().await.expect("whole") {
            assert!(piece.len() <= 1 << 20, "{}", piece.len());
            all += piece.len();
        }
        assert_eq!(all, 4 << 20);
    }

    #[tokio::test]
    async fn a_page_that_says_it_is_not_ascii_passes() {
        let page: Vec<u8> = [0xfeff].into_iter().chain(PAGE.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        let got = rewritten(answer(200, &[("content-type", "text/html")], page.clone()), &Method::GET, &place());
        assert_eq!(transport::read(got.into_body(), 1000).await.expect("read"), page);
    }
}
