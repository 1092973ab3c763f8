//! Names of images: `[host[:port]/]path[:tag][@digest]`. Pure.

/// An image's name in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `docker.io` when the name has none.
    pub host: String,
    pub path: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

/// Reads a name; the error is the message of InvalidImageName.
pub fn parse(image: &str) -> Result<Reference, String> {
    let bad = |why: &str| format!("couldn't parse image name \"{image}\": {why}");
    const FORMAT: &str = "invalid reference format";
    if image.is_empty() || image.len() > 512 {
        return Err(bad(FORMAT));
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let (rest, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    // The first part is a host if it cannot be part of a path.
    let (host, path) = match rest.split_once('/') {
        Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path),
        _ => ("docker.io", rest),
    };
    if path.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(bad(&format!("{FORMAT}: repository name ({path}) must be lowercase")));
    }
    let word = |text: &str, more: &[char]| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        edge(text.chars().next())
            && edge(text.chars().last())
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(&c))
    };
    let host_fits = host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c));
    let tag_fits = tag.is_none_or(|t| {
        (1..=128).contains(&t.len())
            && !t.starts_with(['.', '-'])
            && t.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    });
    let digest_fits = digest.is_none_or(|d| {
        d.split_once(':').is_some_and(|(kind, hex)| {
            !kind.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
        })
    });
    if !(path.split('/').all(|part| word(part, &['.', '_', '-'])) && host_fits && tag_fits && digest_fits) {
        return Err(bad(FORMAT));
    }
    Ok(Reference {
        host: host.to_owned(),
        path: if host == "docker.io" && !path.contains('/') { format!("library/{path}") } else { path.to_owned() },
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    })
}

/// The name with `:latest` where it has neither tag nor digest.
pub fn with_tag(image: &str) -> Result<String, String> {
    let parsed = parse(image)?;
    Ok(match (parsed.tag, parsed.digest) {
        (None, None) => format!("{image}:latest"),
        _ => image.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, host, path, tagged) in [
            ("nginx", "docker.io", "library/nginx", "nginx:latest"),
            ("nginx:1.22", "docker.io", "library/nginx", "nginx:1.22"),
            ("me/app", "docker.io", "me/app", "me/app:latest"),
            ("127.0.0.1:5000/library/pause:3.9", "127.0.0.1:5000", "library/pause", "127.0.0.1:5000/library/pause:3.9"),
            ("127.0.0.1:5000/app", "127.0.0.1:5000", "app", "127.0.0.1:5000/app:latest"),
            ("localhost/x", "localhost", "x", "localhost/x:latest"),
            ("quay.io/a/b_c-d", "quay.io", "a/b_c-d", "quay.io/a/b_c-d:latest"),
        ] {
            let parsed = parse(image).expect(image);
            assert_eq!((parsed.host.as_str(), parsed.path.as_str()), (host, path), "{image}");
            assert_eq!(with_tag(image).as_deref(), Ok(tagged));
        }
        let pinned = format!("nginx@{digest}");
        assert_eq!(with_tag(&pinned), Ok(pinned));
    }

    #[test]
    fn mistakes() {
        for image in ["", "BAD//name::x", "a b", "nginx:", "nginx:-x", "a//b", "x@sha256:12", "-x", "ü"] {
            let error = parse(image).expect_err(image);
            assert!(error.starts_with(&format!("couldn't parse image name \"{image}\": invalid reference format")));
        }
        assert!(parse("Nginx").expect_err("upper case").ends_with("repository name (Nginx) must be lowercase"));
    }
}
