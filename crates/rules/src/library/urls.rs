//! URLs, read as Go reads the address of a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{Key, Map, Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("string_to_url: url(string) -> URL", url),
    ("url_get_scheme: <URL>.getScheme() -> string", scheme),
    ("url_get_host: <URL>.getHost() -> string", host),
    ("url_get_hostname: <URL>.getHostname() -> string", hostname),
    ("url_get_port: <URL>.getPort() -> string", port),
    ("url_get_escaped_path: <URL>.getEscapedPath() -> string", escaped_path),
    ("url_get_query: <URL>.getQuery() -> map<string, list<string>>", query),
    ("is_url_string: isURL(string) -> bool", is_url),
];

/// A URL in its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    user: Option<String>,
    host: String,
    /// As it is written in the URL.
    path: String,
    query: String,
    fragment: Option<String>,
}

impl Url {
    /// Reads what a request may name: an absolute URL or an absolute path. A fragment is part of what
    /// precedes it while it is judged, and cut off afterwards.
    pub fn parse(text: &str) -> Result<Self, String> {
        let quoted = machinery::go::quote(text);
        let wrong = |why: &str| Err(format!("parse {quoted}: {why}"));
        match Self::read(text, true) {
            Ok(_) => {}
            Err(why) => return wrong(&why),
        }
        let (head, fragment) = match text.split_once('#') {
            Some((head, fragment)) => (head, Some(fragment)),
            None => (text, None),
        };
        let mut url = match Self::read(head, false) {
            Ok(url) => url,
            Err(why) => return Err(format!("parse {}: {why}", machinery::go::quote(head))),
        };
        if let Some(fragment) = fragment.filter(|f| !f.is_empty()) {
            if let Err(why) = valid_escapes(fragment) {
                return wrong(&why);
            }
            url.fragment = Some(fragment.to_owned());
        }
        Ok(url)
    }

    fn read(text: &str, request: bool) -> Result<Self, String> {
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text.is_empty() && request {
            return Err("empty url".to_owned());
        }
        if text == "*" {
            return Ok(Self { path: "*".to_owned(), ..Self::default() });
        }
        let (scheme, rest) = cut_scheme(text)?;
        let scheme = scheme.to_ascii_lowercase();
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, query),
            None => (rest, ""),
        };
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                // What is behind the scheme is opaque.
                return Ok(Self { scheme, query: query.to_owned(), ..Self::default() });
            }
            if request {
                return Err("invalid URI for request".to_owned());
            }
            if rest.split('/').next().is_some_and(|first| first.contains(':')) {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
        }
        let mut url = Self { scheme: scheme.clone(), query: query.to_owned(), ..Self::default() };
        let mut path = rest;
        let authority =
            (!scheme.is_empty() || (!request && !rest.starts_with("///"))).then(|| rest.strip_prefix("//")).flatten();
        if let Some(authority) = authority {
            let end = authority.find('/').unwrap_or(authority.len());
            let (authority, after) = authority.split_at(end);
            path = after;
            let (user, host) = match authority.rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, authority),
            };
            if let Some(user) = user {
                let ok = |b: u8| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b);
                if !user.bytes().all(ok) {
                    return Err("net/url: invalid userinfo".to_owned());
                }
                valid_escapes(user)?;
                url.user = Some(user.to_owned());
            }
            url.host = read_host(host)?;
        }
        valid_escapes(path)?;
        url.path = path.to_owned();
        Ok(url)
    }

    /// The host without brackets and port, and the port.
    fn split_host(&self) -> (&str, &str) {
        let host = self.host.as_str();
        if let Some(rest) = host.strip_prefix('[')
            && let Some((inner, after)) = rest.split_once(']')
        {
            return (inner, after.strip_prefix(':').unwrap_or(""));
        }
        match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (name, port),
            _ => (host, ""),
        }
    }

    /// The path with everything escaped that must be.
    fn escaped_path(&self) -> String {
        if self.path == "*" || self.path.bytes().all(|b| is_path_byte(b) || b == b'%') {
            return self.path.clone();
        }
        let decoded: Vec<u8> = percent_decode_str(&self.path).collect();
        utf8_percent_encode(&String::from_utf8_lossy(&decoded), PATH).to_string()
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.scheme.is_empty() {
            write!(f, "{}:", self.scheme)?;
        }
        if !self.host.is_empty() {
            write!(f, "//{}", self.host)?;
        }
        f.write_str(&self.escaped_path())?;
        if !self.query.is_empty() {
            write!(f, "?{}", self.query)?;
        }
        Ok(())
    }
}

/// What Go escapes in a path.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}')
    .add(b'!')
    .add(b'\'')
    .add(b'(')
    .add(b')')
    .add(b'*');

fn is_path_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]".contains(&b)
}

fn cut_scheme(text: &str) -> Result<(&str, &str), String> {
    for (i, b) in text.bytes().enumerate() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if i > 0 => {}
            b':' if i == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((text.get(..i).unwrap_or(""), text.get(i + 1..).unwrap_or(""))),
            _ => break,
        }
    }
    Ok(("", text))
}

/// Is every `%` followed by two digits?
fn valid_escapes(text: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let after = rest.get(at..).unwrap_or("");
        let bytes = after.as_bytes();
        if bytes.len() < 3 || !bytes[1].is_ascii_hexdigit() || !bytes[2].is_ascii_hexdigit() {
            let end = after.char_indices().map(|(i, c)| i + c.len_utf8()).take(3).last().unwrap_or(after.len());
            return Err(format!("invalid URL escape {}", machinery::go::quote(after.get(..end).unwrap_or(after))));
        }
        rest = after.get(3..).unwrap_or("");
    }
    Ok(())
}

fn read_host(host: &str) -> Result<String, String> {
    let port_of = |port: &str| -> Result<(), String> {
        let digits = port.strip_prefix(':').unwrap_or("x");
        if !port.is_empty() && !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("invalid port {} after host", machinery::go::quote(port)));
        }
        Ok(())
    };
    if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return Err("missing ']' in host".to_owned()) };
        port_of(host.get(end + 1..).unwrap_or(""))?;
        let inner = host.get(1..end).unwrap_or("");
        if inner.split('%').next().unwrap_or("").parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("invalid host: ParseAddr({}): unable to parse IP", machinery::go::quote(inner)));
        }
    } else if let Some(at) = host.rfind(':') {
        port_of(host.get(at..).unwrap_or(""))?;
    }
    for c in host.chars() {
        if matches!(c, ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}') {
            let quoted = machinery::go::quote(&c.to_string());
            return Err(format!("invalid character {quoted} in host name"));
        }
    }
    let mut rest = host;
    while let Some(at) = rest.find('%') {
        let escape = rest.get(at..(at + 3).min(rest.len())).unwrap_or("%");
        let high = escape.as_bytes().get(1).copied().unwrap_or(b'0');
        if escape != "%25" && (!high.is_ascii_hexdigit() || high < b'8') {
            return Err(format!("invalid URL escape {}", machinery::go::quote(escape)));
        }
        rest = rest.get(at + 1..).unwrap_or("");
    }
    Ok(percent_decode_str(host).decode_utf8_lossy().into_owned())
}

fn url<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("url", args)) };
    meter.allocate(text.len())?;
    Url::parse(text)
        .map(|url| Val::Url(Arc::new(url)))
        .map_err(|why| Error::new(format!("URL parse error during conversion from string: {why}")))
}

fn is_url<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("isURL", args)) };
    meter.allocate(text.len())?;
    Ok(Val::Bool(is_request(text).is_ok()))
}

/// Is it what a request may name? Else, why not.
pub fn is_request(text: &str) -> Result<(), String> {
    Url::read(text, true).map(|_| ()).map_err(|why| format!("parse {}: {why}", machinery::go::quote(text)))
}

fn scheme<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Url(url)] = args else { return Err(no_such_overload("getScheme", args)) };
    Ok(Val::text(url.scheme.as_str()))
}

fn host<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Url(url)] = args else { return Err(no_such_overload("getHost", args)) };
    Ok(Val::text(url.host.as_str()))
}

fn hostname<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Url(url)] = args else { return Err(no_such_overload("getHostname", args)) };
    Ok(Val::text(url.split_host().0))
}

fn port<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Url(url)] = args else { return Err(no_such_overload("getPort", args)) };
    Ok(Val::text(url.split_host().1))
}

fn escaped_path<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Url(url)] = args else { return Err(no_such_overload("getEscapedPath", args)) };
    meter.allocate(3 * url.path.len())?;
    Ok(Val::text(url.escaped_path()))
}

fn query<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Url(url)] = args else { return Err(no_such_overload("getQuery", args)) };
    meter.allocate(url.query.len())?;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in url.query.split('&') {
        if part.is_empty() || part.contains(';') {
            continue;
        }
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let decode = |text: &str| -> Option<String> {
            valid_escapes(text).ok()?;
            Some(percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned())
        };
        if let (Some(key), Some(value)) = (decode(key), decode(value)) {
            meter.allocate(size_of::<Val<'_>>())?;
            found.entry(key).or_default().push(value);
        }
    }
    let entries =
        found.into_iter().map(|(key, values)| (Key::String(key.as_str().into()), (Val::text(key), Val::texts(values))));
    Ok(Val::Map(Map::made(entries.collect())))
}
