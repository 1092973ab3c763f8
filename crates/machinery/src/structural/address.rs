//! URIs and mail addresses, as Go reads them.

/// An absolute URI or an absolute path, as a request line may have it.
pub fn is_request_uri(s: &str) -> bool {
    if s.is_empty() || s.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if s == "*" {
        return true;
    }
    let (scheme, rest) = match scheme(s) {
        Ok(found) => found,
        Err(()) => return false,
    };
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !rest.starts_with('/') {
        // What follows a scheme without a slash is opaque.
        return !scheme.is_empty();
    }
    let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    is_authority(authority) && is_escaped(path)
}

/// The host of an absolute URI with a scheme; `None` when it has none.
pub fn host_of_uri(s: &str) -> Option<&str> {
    let (scheme, rest) = scheme(s).ok()?;
    if scheme.is_empty() || !is_request_uri(s) {
        return None;
    }
    let rest = rest.strip_prefix("//")?;
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    (!host.is_empty()).then_some(host)
}

fn scheme(s: &str) -> Result<(&str, &str), ()> {
    for (i, b) in s.bytes().enumerate() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if i > 0 => {}
            b':' if i == 0 => return Err(()),
            b':' => return Ok((&s[..i], &s[i + 1..])),
            _ => break,
        }
    }
    Ok(("", s))
}

/// Every `%` begins an escape.
fn is_escaped(s: &str) -> bool {
    let bytes = s.as_bytes();
    let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    bytes.iter().enumerate().all(|(i, b)| *b != b'%' || (hex(i + 1) && hex(i + 2)))
}

fn is_authority(authority: &str) -> bool {
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (user, host),
        None => ("", authority),
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b);
    if !user.bytes().all(plain) || !is_escaped(user) {
        return false;
    }
    let is_port = |port: &str| {
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
    };
    if host.starts_with('[') {
        return match host.rsplit_once(']') {
            Some((inner, port)) => {
                let inner = &inner[1..];
                let address = inner.split_once("%25").map_or(inner, |(address, _)| address);
                is_port(port) && address.parse::<std::net::Ipv6Addr>().is_ok()
            }
            None => false,
        };
    }
    let (name, port) = host.split_at(host.rfind(':').unwrap_or(host.len()));
    let named = |b: u8| b >= 0x80 || b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]<>\"%".contains(&b);
    // Only what is no ASCII may be escaped in a name.
    let escapes = name.match_indices('%').all(|(i, _)| {
        name.get(i + 1..i + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()).is_some_and(|b| b >= 0x80)
    });
    is_port(port) && name.bytes().all(named) && escapes && !name.contains(':')
}

/// One mail address, with or without a name before it.
pub fn is_email(s: &str) -> bool {
    let s = s.trim_matches([' ', '\t']);
    if is_address(s) {
        return true;
    }
    let Some((name, address)) = s.strip_suffix('>').and_then(|s| s.rsplit_once('<')) else { return false };
    is_phrase(name.trim_matches([' ', '\t'])) && is_address(address)
}

fn is_atom_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || (!c.is_ascii() && !c.is_control())
}

fn is_dot_atom(s: &str) -> bool {
    !s.is_empty() && s.split('.').all(|part| !part.is_empty() && part.chars().all(is_atom_char))
}

/// Words, each an atom or quoted; dots are tolerated.
fn is_phrase(s: &str) -> bool {
    let mut rest = s;
    while !rest.is_empty() {
        rest = match rest.strip_prefix('"') {
            Some(quoted) => match quoted_end(quoted) {
                Some(end) => &quoted[end..],
                None => return false,
            },
            None => {
                let end = rest.find([' ', '\t', '"']).unwrap_or(rest.len());
                if end == 0 || !rest[..end].chars().all(|c| c == '.' || is_atom_char(c)) {
                    return false;
                }
                &rest[end..]
            }
        };
        rest = rest.trim_start_matches([' ', '\t']);
    }
    true
}

/// The place behind the quote that ends a quoted text.
fn quoted_end(s: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in s.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(i + 1),
            c if c.is_control() && c != '\t' => return None,
            _ => {}
        }
    }
    None
}

fn is_address(s: &str) -> bool {
    let domain = match s.strip_prefix('"') {
        Some(quoted) => quoted_end(quoted).filter(|end| *end > 1).and_then(|end| quoted[end..].strip_prefix('@')),
        None => s.split_once('@').filter(|(local, _)| is_dot_atom(local)).map(|(_, domain)| domain),
    };
    domain.is_some_and(|domain| match domain.strip_prefix('[') {
        Some(literal) => literal.strip_suffix(']').is_some_and(|address| {
            let v6 = address.strip_prefix("IPv6:").unwrap_or(address);
            address.parse::<std::net::Ipv4Addr>().is_ok() || v6.parse::<std::net::Ipv6Addr>().is_ok()
        }),
        None => is_dot_atom(domain),
    })
}
