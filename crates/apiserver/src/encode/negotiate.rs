//! Which of the forms a client accepts it gets; pure.
//!
//! `application/json;as=Table;v=v1;g=meta.k8s.io,application/json` asks for a Table and takes the
//! object itself where there is no Table. Forms we do not answer in (protobuf) are passed over;
//! bodies may be written in it.

use machinery::decode;
use machinery::status::{self, Status};

/// How values become bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Json,
    Yaml,
}

impl Format {
    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// What of an object is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The object.
    #[default]
    Whole,
    /// Columns, as `kubectl get` shows them.
    Table,
    /// Metadata only.
    Metadata,
}

/// What the client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    pub format: Format,
    pub view: View,
    /// Indented, for eyes.
    pub pretty: bool,
}

/// What a request body is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Text(decode::Format),
    /// Kubernetes' own, with its envelope.
    Protobuf,
}

/// The media type of protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The media types a 406 names.
const SUPPORTED: &[&str] = &["application/json", "application/yaml"];
/// The media types a 415 names.
const READ: &[&str] = &["application/json", "application/yaml", PROTOBUF];

/// What views an endpoint can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Objects, Tables and metadata; `list` for collections.
    Objects { list: bool },
    /// The same as a stream of events: JSON only.
    Watch,
    /// The thing itself and nothing else.
    Plain,
}

/// Chooses by the `Accept` header.
///
/// # Errors
/// 406 when none of the forms the client accepts is spoken.
pub fn accept(header: &str, offer: Offer) -> status::Result<Accepted> {
    if header.trim().is_empty() {
        return Ok(Accepted::default());
    }
    let mut clauses: Vec<Clause> = header.split(',').filter_map(Clause::parse).collect();
    // Stable: among equals the client's order counts.
    clauses.sort_by_key(|clause| std::cmp::Reverse(clause.quality));
    let found = clauses.iter().filter(|c| c.quality > 0).find_map(|c| c.answer(offer));
    found.ok_or_else(|| Status::not_acceptable(if offer == Offer::Watch { &SUPPORTED[..1] } else { SUPPORTED }))
}

/// One element of an `Accept` header.
#[derive(Debug)]
struct Clause<'a> {
    media: String,
    /// In thousandths.
    quality: u16,
    parameters: Vec<(String, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';');
        let media = parts.next()?.trim().to_ascii_lowercase();
        let mut clause = Self { media, quality: 1000, parameters: Vec::new() };
        for part in parts {
            let (key, value) = part.split_once('=')?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            if key == "q" {
                let quality: f32 = value.parse().ok()?;
                clause.quality = (quality.clamp(0.0, 1.0) * 1000.0) as u16;
            } else {
                clause.parameters.push((key, value));
            }
        }
        Some(clause)
    }

    fn parameter(&self, key: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(k, _)| k == key).map(|(_, v)| *v)
    }

    fn answer(&self, offer: Offer) -> Option<Accepted> {
        let format = match self.media.as_str() {
            "application/json" | "application/*" | "*/*" => Format::Json,
            "application/yaml" if offer != Offer::Watch => Format::Yaml,
            _ => return None,
        };
        if self.parameter("stream").is_some_and(|stream| stream != "watch") {
            return None;
        }
        let meta = self.parameter("g").unwrap_or("meta.k8s.io") == "meta.k8s.io"
            && self.parameter("v").unwrap_or("v1") == "v1";
        let view = match (self.parameter("as"), offer) {
            (None, _) => View::Whole,
            (Some(_), Offer::Plain) => return None,
            (Some("Table"), _) if meta => View::Table,
            (Some("PartialObjectMetadata"), Offer::Objects { list: false } | Offer::Watch) if meta => View::Metadata,
            (Some("PartialObjectMetadataList"), Offer::Objects { list: true }) if meta => View::Metadata,
            (Some(_), _) => return None,
        };
        let pretty = self.parameter("pretty") == Some("1");
        Some(Accepted { format, view, pretty })
    }
}

/// What a request body is written in.
///
/// # Errors
/// 415 for anything but JSON, YAML and protobuf.
pub fn content(header: Option<&str>) -> status::Result<Content> {
    let media = header.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media.as_str() {
        "" | "application/json" => Ok(Content::Text(decode::Format::Json)),
        "application/yaml" => Ok(Content::Text(decode::Format::Yaml)),
        PROTOBUF => Ok(Content::Protobuf),
        _ => Err(Status::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            READ.join(", ")
        ))),
    }
}

/// True when the client takes gzip.
pub fn takes_gzip(header: Option<&str>) -> bool {
    let refused = |parameters: &str| parameters.replace(' ', "").split(';').any(|p| matches!(p, "q=0" | "q=0.0"));
    header.unwrap_or_default().split(',').any(|clause| {
        let (coding, parameters) = clause.split_once(';').unwrap_or((clause, ""));
        coding.trim().eq_ignore_ascii_case("gzip") && !refused(parameters)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_form_both_sides_speak_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let (one, list) = (Offer::Objects { list: false }, Offer::Objects { list: true });
        let json = |view| Some((Format::Json, view));
        for (header, offer, want) in [
            ("", one, json(View::Whole)),
            ("*/*", Offer::Watch, json(View::Whole)),
            (table, list, json(View::Table)),
            (table, Offer::Watch, json(View::Table)),
            (table, Offer::Plain, json(View::Whole)),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", list, None),
            ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", one, json(View::Metadata)),
            ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", list, None),
            ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", list, json(View::Metadata)),
            ("application/vnd.kubernetes.protobuf,application/json", one, json(View::Whole)),
            ("application/vnd.kubernetes.protobuf", one, None),
            ("application/json;q=0.5, application/yaml", one, Some((Format::Yaml, View::Whole))),
            ("application/yaml", Offer::Watch, None),
            ("application/json;q=0", one, None),
            ("application/json;stream=watch", Offer::Watch, json(View::Whole)),
            ("text/html, image/gif;q=.2, */*; q=.1", one, json(View::Whole)),
            ("nonsense;;;===,,", one, None),
        ] {
            let got = accept(header, offer).ok().map(|a| (a.format, a.view));
            assert_eq!(got, want, "{header} {offer:?}");
        }
    }

    #[test]
    fn bodies_are_json_yaml_or_protobuf() {
        for (header, want) in [
            (None, Some(Content::Text(decode::Format::Json))),
            (Some("application/json; charset=utf-8"), Some(Content::Text(decode::Format::Json))),
            (Some("Application/YAML"), Some(Content::Text(decode::Format::Yaml))),
            (Some("application/vnd.kubernetes.protobuf"), Some(Content::Protobuf)),
            (Some("text/plain"), None),
        ] {
            assert_eq!(content(header).ok(), want, "{header:?}");
        }
        assert!(takes_gzip(Some("deflate, gzip;q=1.0")));
        assert!(!takes_gzip(Some("gzip;q=0, identity")));
        assert!(!takes_gzip(None));
    }
}
