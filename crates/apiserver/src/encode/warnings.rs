//! `Warning` headers: `299 - "text"`, each text once, in upstream's bounds.

use std::collections::HashSet;

use http::HeaderValue;
use http::header::WARNING;
use transport::Response;

/// The most characters of all texts; beyond it every text is cut.
const TOTAL: usize = 4 * 1024;
/// The most characters of a text once there are too many.
const EACH: usize = 256;

/// Adds warnings to those that a response has already.
pub fn warn(response: &mut Response, warnings: &[String]) {
    if warnings.is_empty() {
        return;
    }
    let headers = response.headers_mut();
    let mut texts: Vec<String> = headers.get_all(WARNING).iter().filter_map(text_of).collect();
    texts.extend(warnings.iter().cloned());
    headers.remove(WARNING);
    for text in bounded(&texts) {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

/// The text of a header that [`warn`] wrote.
fn text_of(header: &HeaderValue) -> Option<String> {
    let text = std::str::from_utf8(header.as_bytes()).ok()?;
    let quoted = text.strip_prefix("299 - \"")?.strip_suffix('"')?;
    let mut out = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next()? } else { c });
    }
    Some(out)
}

/// The texts that are sent: all of them while they are few, else the start of each until there are too many.
fn bounded(texts: &[String]) -> Vec<String> {
    let mut seen = HashSet::new();
    let sendable = |text: &&String| !text.is_empty() && !text.chars().any(char::is_control);
    let texts: Vec<&String> = texts.iter().filter(|text| seen.insert(text.as_str())).filter(sendable).collect();
    let length = |text: &str| text.chars().count();
    if texts.iter().map(|text| length(text)).sum::<usize>() <= TOTAL {
        return texts.into_iter().cloned().collect();
    }
    let mut written = 0;
    let cut = texts.into_iter().map(|text| text.chars().take(EACH).collect::<String>());
    cut.take_while(|text| {
        let room = written < TOTAL;
        written += length(text);
        room
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_sent_once_and_added_to() {
        let mut response = Response::new(transport::full(""));
        warn(&mut response, &["unknown field \"a\\b\"".into(), "x\ny".into(), "ä".into(), "ä".into()]);
        warn(&mut response, &["ä".into(), "last".into()]);
        let sent: Vec<String> =
            response.headers().get_all(WARNING).iter().map(|h| String::from_utf8_lossy(h.as_bytes()).into()).collect();
        assert_eq!(sent, ["299 - \"unknown field \\\"a\\\\b\\\"\"", "299 - \"ä\"", "299 - \"last\""]);
    }

    #[test]
    fn too_much_is_cut() {
        let few: Vec<String> = (0..4).map(|i| format!("{i}{}", "x".repeat(1000))).collect();
        assert_eq!(bounded(&few), few);
        let many: Vec<String> = (10..60).map(|i| format!("{i}{}", "x".repeat(1000))).collect();
        let sent = bounded(&many);
        assert_eq!((sent.len(), sent[0].chars().count()), (16, 256));
    }
}
