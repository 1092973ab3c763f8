//! Where another server has its document of OpenAPI v3 about a version: what its index says of that, and of
//! nothing else; pure.

use serde_json::Value;

/// No URL is longer.
const LONGEST: usize = 512;

/// The place of the document for what is below `path`; `None` when there is none.
///
/// # Errors
/// When it is no index.
pub(super) fn place(body: &[u8], path: &str) -> Result<Option<String>, String> {
    let index: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let paths = index.get("paths").and_then(Value::as_object).ok_or("it is no index of OpenAPI")?;
    let Some(entry) = paths.get(path.trim_start_matches('/')) else { return Ok(None) };
    let own = format!("/openapi/v3{path}");
    let said = entry.get("serverRelativeURL").and_then(Value::as_str).unwrap_or_default();
    // One that leads elsewhere leads to what others serve.
    let is_own = said.split('?').next() == Some(own.as_str())
        && said.len() <= LONGEST
        && said.bytes().all(|b| b.is_ascii_graphic());
    Ok(Some(if is_own { said.to_owned() } else { own }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_its_own_place_is_believed() {
        let of = |url: &str| {
            let index =
                json!({"paths": {"apis/g/v1": {"serverRelativeURL": url}, "api/v1": {"serverRelativeURL": "/x"}}});
            place(index.to_string().as_bytes(), "/apis/g/v1").expect("an index")
        };
        let own = "/openapi/v3/apis/g/v1";
        assert_eq!(of("/openapi/v3/apis/g/v1?hash=AB"), Some("/openapi/v3/apis/g/v1?hash=AB".to_owned()));
        for lie in ["/openapi/v3/api/v1?hash=AB", "https://elsewhere/", "", "/openapi/v3/apis/g/v1?hash=\n"] {
            assert_eq!(of(lie).as_deref(), Some(own), "{lie}");
        }
        assert_eq!(of(&format!("{own}?hash={}", "A".repeat(600))).as_deref(), Some(own));
        assert_eq!(place(br#"{"paths": {}}"#, "/apis/g/v1"), Ok(None));
        assert!(place(b"[]", "/apis/g/v1").is_err());
    }
}
