//! Whether a pattern of a host and a path covers an image: for entries of docker configurations and
//! for `matchImages` of credential providers. Pure.

use super::reference::Reference;

/// True when every part of the pattern's host, its port and the beginning of its path are the image's.
/// A part of a host may have `*` for anything and `?` for one character.
pub fn covers(pattern: &str, image: &Reference) -> bool {
    let pattern = pattern.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    // Names of the public registry.
    let pattern = match pattern {
        "index.docker.io/v1" | "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    };
    let (host, path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let path = path.trim_start_matches("v1/").trim_start_matches("v2/");
    let path = if path == "v1" || path == "v2" { "" } else { path };
    let (host, port) = split_port(host);
    let (image_host, image_port) = split_port(&image.host);
    let parts = |host: &'_ str| host.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (wanted, found) = (parts(host), parts(image_host));
    port == image_port
        && wanted.len() == found.len()
        && wanted.iter().zip(&found).all(|(wanted, found)| glob(wanted.as_bytes(), found.as_bytes()))
        && image.path.starts_with(path)
}

fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (name, port),
        _ => (host, ""),
    }
}

/// `*` and `?`, in time that grows with the product of both lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(b) if *b == b'?' || *b == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (p, t) = (at + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::reference::parse;

    #[test]
    fn patterns() {
        let rows = [
            ("reg.io", "reg.io/x", true),
            ("reg.io", "reg.io:5000/x", false),
            ("reg.io:5000", "reg.io:5000/x", true),
            ("*.reg.io", "eu.reg.io/x", true),
            ("*.reg.io", "reg.io/x", false),
            ("*.reg.io", "a.eu.reg.io/x", false),
            ("*.*.reg.io", "a.eu.reg.io/x", true),
            ("e*.reg.io", "eu.reg.io/x", true),
            ("e?.reg.io", "eus.reg.io/x", false),
            ("reg.io/team", "reg.io/team/app:1", true),
            ("reg.io/team", "reg.io/teams/app:1", true),
            ("reg.io/team", "reg.io/other/app:1", false),
            ("https://index.docker.io/v1/", "nginx", true),
            ("docker.io", "nginx", true),
            ("*", "localhost/x", true),
            ("*", "reg.io/x", false),
        ];
        for (pattern, image, want) in rows {
            assert_eq!(covers(pattern, &parse(image).expect("a name")), want, "{pattern} {image}");
        }
        assert!(glob(b"a*b*c", b"axxbyyc") && !glob(b"a*b*c", b"axxbyy") && glob(b"**", b""));
    }
}
