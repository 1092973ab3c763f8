//! Which of the forms a client accepts it gets; pure.
//!
//! `application/json;as=Table;v=v1;g=meta.k8s.io,application/json` asks for a Table and takes the
//! object itself where there is no Table. A clause that asks for what its endpoint does not have is
//! passed over; the next may be answered.

use http::HeaderMap;
use http::header::{ACCEPT, USER_AGENT};
use machinery::decode;
use machinery::status::{self, Status};

use crate::request::Query;

/// How values become bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Json,
    Yaml,
    /// Kubernetes' own, with its envelope.
    Protobuf,
}

impl Format {
    /// In the order in which a wildcard chooses among them.
    const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => PROTOBUF,
        }
    }

    /// The media type of a watch, whose events come in this format.
    pub fn stream_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            other => other.media_type(),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub format: Format,
    pub view: View,
    /// The version in which Tables and PartialObjectMetadata are said to be.
    pub meta_version: &'static str,
    /// Indented, for eyes.
    pub pretty: bool,
}

impl Default for Accepted {
    fn default() -> Self {
        Self { format: Format::Json, view: View::Whole, meta_version: META_V1, pretty: false }
    }
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
/// The version Tables and PartialObjectMetadata are of, and the one they had before.
pub const META_V1: &str = "meta.k8s.io/v1";
pub const META_V1BETA1: &str = "meta.k8s.io/v1beta1";
/// The media types a 406 and a 415 name.
const SUPPORTED: &[&str] = &["application/json", "application/yaml", PROTOBUF];
/// The media types a 406 names where only a stream will do.
const STREAMS: &[&str] = &["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

/// What views an endpoint can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Objects, Tables and metadata; `list` for collections.
    Objects { list: bool },
    /// The same as a stream of events: JSON or protobuf.
    Watch,
    /// The thing itself and nothing else.
    Plain,
}

/// Chooses by the `Accept` header. `custom`: objects are of a custom kind, of which there is no protobuf. `of`
/// says what the endpoint's objects are called in an error's text.
///
/// # Errors
/// 406 when none of the forms the client accepts is spoken.
pub fn accept(header: &str, offer: Offer, custom: bool, of: impl FnOnce() -> String) -> status::Result<Accepted> {
    if header.trim().is_empty() {
        return Ok(Accepted::default());
    }
    let mut clauses: Vec<Clause<'_>> = header.split(',').filter_map(Clause::parse).collect();
    rank(&mut clauses);
    let answers = clauses.iter().filter(|clause| clause.quality > 0).flat_map(|clause| {
        Format::ALL.into_iter().filter(|format| clause.names(*format)).filter_map(|f| clause.answer(f, offer))
    });
    let answers = answers.filter(|answer| !(custom && answer.is_whole_protobuf()));
    match answers.into_iter().next() {
        None => Err(Status::not_acceptable(supported(custom))),
        Some(Answer::Given(accepted)) if offer == Offer::Watch && accepted.format == Format::Yaml => {
            Err(Status::not_acceptable(STREAMS))
        }
        Some(Answer::Given(accepted)) => Ok(accepted),
        Some(Answer::OneOfMany) => Err(Status::new(
            406,
            "NotAcceptable",
            format!("you requested PartialObjectMetadata, but the requested object is a list (*{}List)", of()),
        )),
        Some(Answer::ManyOfOne) => Err(Status::new(
            406,
            "NotAcceptable",
            format!("you requested PartialObjectMetadataList, but the requested object is not a list (*{})", of()),
        )),
    }
}

/// Chooses for a request: by its `Accept` headers, and for eyes by `pretty` or by who asks.
///
/// # Errors
/// As [`accept`].
pub fn of_request(
    headers: &HeaderMap,
    query: &Query,
    offer: Offer,
    custom: bool,
    of: impl FnOnce() -> String,
) -> status::Result<Accepted> {
    let values: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    let mut accepted = accept(&values.join(","), offer, custom, of)?;
    let agent = headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    // Eyes look at what these fetch.
    let eyes = || ["curl", "Wget", "Mozilla/5.0"].iter().any(|name| agent.starts_with(name));
    let asked = query.text("pretty").map(|text| matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"));
    accepted.pretty |= asked.unwrap_or_else(eyes);
    Ok(accepted)
}

/// What a clause gets where it is answered at all.
enum Answer {
    Given(Accepted),
    /// Metadata of one object, where there are many.
    OneOfMany,
    /// Metadata of many objects, where there is one.
    ManyOfOne,
}

impl Answer {
    fn is_whole_protobuf(&self) -> bool {
        matches!(self, Self::Given(Accepted { format: Format::Protobuf, view: View::Whole, .. }))
    }
}

/// One element of an `Accept` header.
#[derive(Debug)]
struct Clause<'a> {
    kind: String,
    subtype: String,
    /// In thousandths.
    quality: u16,
    parameters: Vec<(String, &'a str)>,
}

/// Sorts clauses, the best first. Upstream's order is not a total one: what is named goes before what a
/// wildcard covers, whatever the qualities say, but only where the wildcard came first. So the way of
/// sorting is part of the rule: each clause moves forward past those it goes before.
fn rank(clauses: &mut [Clause<'_>]) {
    for end in 1..clauses.len() {
        let mut at = end;
        while at > 0 && clauses[at].goes_before(&clauses[at - 1]) {
            clauses.swap(at, at - 1);
            at -= 1;
        }
    }
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';');
        let media = parts.next()?.trim().to_ascii_lowercase();
        let (kind, subtype) = match media.split_once('/') {
            Some((kind, subtype)) if !subtype.contains('/') => (kind.trim().to_owned(), subtype.trim().to_owned()),
            None if media == "*" => ("*".to_owned(), "*".to_owned()),
            _ => return None,
        };
        let mut clause = Self { kind, subtype, quality: 1000, parameters: Vec::new() };
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            if key == "q" {
                // A quality that is no number is the least there is.
                clause.quality = value.parse().map_or(1, |q: f32| (q.clamp(0.0, 1.0) * 1000.0) as u16);
            } else {
                clause.parameters.push((key, value));
            }
        }
        Some(clause)
    }

    fn goes_before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || (self.kind != "*" && other.kind == "*")
            || (self.subtype != "*" && other.subtype == "*")
    }

    fn names(&self, format: Format) -> bool {
        let (kind, subtype) = format.media_type().split_once('/').unwrap_or_default();
        match (self.kind.as_str(), self.subtype.as_str()) {
            ("*", "*") => true,
            (own, "*") => own == kind,
            (own, of) => own == kind && of == subtype,
        }
    }

    fn parameter(&self, key: &str) -> Option<&'a str> {
        self.parameters.iter().rev().find(|(k, _)| k == key).map(|(_, v)| *v).filter(|value| !value.is_empty())
    }

    /// What is answered in the format; `None` when the clause asks for what the endpoint does not have.
    fn answer(&self, format: Format, offer: Offer) -> Option<Answer> {
        if self.parameter("stream").is_some_and(|stream| stream != "watch" || format == Format::Yaml) {
            return None;
        }
        if self.parameter("sv").is_some_and(|version| version != "v1" || offer == Offer::Plain) {
            return None;
        }
        let pretty = self.parameter("pretty") == Some("1");
        let given = |view, meta_version| Some(Answer::Given(Accepted { format, view, meta_version, pretty }));
        if ["as", "g", "v"].iter().all(|key| self.parameters.iter().all(|(k, _)| k != key)) {
            return given(View::Whole, META_V1);
        }
        let meta_version = match (self.parameter("g"), self.parameter("v")) {
            (Some("meta.k8s.io"), Some("v1")) => META_V1,
            (Some("meta.k8s.io"), Some("v1beta1")) => META_V1BETA1,
            _ => return None,
        };
        match (self.parameter("as")?, offer) {
            (_, Offer::Plain) => None,
            // Cells are of no type: there is no protobuf of a Table.
            ("Table", _) if format != Format::Protobuf => given(View::Table, meta_version),
            ("PartialObjectMetadata", Offer::Objects { list: true }) => Some(Answer::OneOfMany),
            ("PartialObjectMetadata", _) => given(View::Metadata, meta_version),
            ("PartialObjectMetadataList", Offer::Objects { list: true }) => given(View::Metadata, meta_version),
            ("PartialObjectMetadataList", Offer::Objects { list: false }) => Some(Answer::ManyOfOne),
            // The events of a watch are no lists: they come as they are.
            ("PartialObjectMetadataList", Offer::Watch) => given(View::Whole, meta_version),
            _ => None,
        }
    }
}

/// What a request body is written in.
///
/// # Errors
/// 415 for anything but JSON, YAML and protobuf.
pub fn content(header: Option<&str>) -> status::Result<Content> {
    let mut parts = header.unwrap_or_default().split(';');
    let media = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
    // A parameter that is none makes the whole header one that cannot be read.
    let sound = parts.all(|part| {
        let part = part.trim();
        part.is_empty() || part.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty())
    });
    match media.as_str() {
        "" if sound => Ok(Content::Text(decode::Format::Json)),
        "application/json" if sound => Ok(Content::Text(decode::Format::Json)),
        "application/yaml" if sound => Ok(Content::Text(decode::Format::Yaml)),
        PROTOBUF if sound => Ok(Content::Protobuf),
        _ => Err(unknown_content(false)),
    }
}

/// The 415 for a body in a form that is not read; of custom resources there is no protobuf.
pub fn unknown_content(custom: bool) -> Box<Status> {
    Status::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        supported(custom).join(", ")
    ))
}

fn supported(custom: bool) -> &'static [&'static str] {
    if custom { &SUPPORTED[..2] } else { SUPPORTED }
}

/// True when the client takes gzip.
pub fn takes_gzip(header: Option<&str>) -> bool {
    let refused = |parameters: &str| {
        let quality = parameters.split(';').filter_map(|p| p.split_once('=')).find(|(key, _)| key.trim() == "q");
        quality.is_some_and(|(_, value)| value.trim().parse::<f32>().is_ok_and(|q| q <= 0.0))
    };
    header.unwrap_or_default().split(',').any(|clause| {
        let (coding, parameters) = clause.split_once(';').unwrap_or((clause, ""));
        coding.trim().eq_ignore_ascii_case("gzip") && !refused(parameters)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &str, offer: Offer) -> Result<(Format, View), String> {
        let accepted = accept(header, offer, false, || "core.Pod".to_owned());
        accepted.map(|a| (a.format, a.view)).map_err(|status| status.message)
    }

    #[test]
    fn the_best_form_both_sides_speak_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let (one, list) = (Offer::Objects { list: false }, Offer::Objects { list: true });
        let json = |view| Some((Format::Json, view));
        let whole = |format| Some((format, View::Whole));
        for (header, offer, want) in [
            ("", one, json(View::Whole)),
            ("*", one, json(View::Whole)),
            ("*/*", Offer::Watch, json(View::Whole)),
            ("*/*;stream=watch", Offer::Watch, json(View::Whole)),
            (table, list, json(View::Table)),
            (table, Offer::Watch, json(View::Table)),
            (table, Offer::Plain, json(View::Whole)),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", list, json(View::Table)),
            ("application/json;as=Table;v=v2;g=meta.k8s.io", list, None),
            ("application/json;as=Table;v=v2;g=meta.k8s.io,application/yaml", list, whole(Format::Yaml)),
            ("application/json;as=Table", list, None),
            ("application/json;v=v1;g=meta.k8s.io", list, None),
            ("application/json;as=Chart;v=v1;g=meta.k8s.io, application/json", list, json(View::Whole)),
            ("application/yaml;as=Table;v=v1;g=meta.k8s.io", list, Some((Format::Yaml, View::Table))),
            ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", list, None),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json",
                list,
                json(View::Whole),
            ),
            ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", one, json(View::Metadata)),
            ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", list, json(View::Metadata)),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                list,
                Some((Format::Protobuf, View::Metadata)),
            ),
            ("application/vnd.kubernetes.protobuf,application/json", one, whole(Format::Protobuf)),
            ("application/vnd.kubernetes.protobuf;stream=watch", Offer::Watch, whole(Format::Protobuf)),
            ("application/vnd.kubernetes.protobuf;sv=v1", one, whole(Format::Protobuf)),
            ("application/vnd.kubernetes.protobuf;sv=v2", one, None),
            ("application/json;q=0.5, application/yaml", one, whole(Format::Yaml)),
            ("application/json;q=0.5, application/yaml;q=0.4,*/*;q=0.1", one, json(View::Whole)),
            ("application/yaml;q=0.2, application/vnd.kubernetes.protobuf;q=0.3", one, whole(Format::Protobuf)),
            ("*/*, application/yaml;q=0.5", one, whole(Format::Yaml)),
            ("application/yaml;q=0.5, */*", one, json(View::Whole)),
            ("application/yaml;stream=watch", Offer::Watch, None),
            ("application/json;q=0", one, None),
            ("application/json;q=high, application/yaml", one, whole(Format::Yaml)),
            ("Application/JSON; charset=utf-8", one, json(View::Whole)),
            ("application/json;stream=watch", Offer::Watch, json(View::Whole)),
            ("application/json;stream=other", Offer::Watch, None),
            ("text/html, image/gif;q=.2, */*; q=.1", one, json(View::Whole)),
            ("nonsense;;;===,,", one, None),
            ("text/html", one, None),
        ] {
            assert_eq!(check(header, offer).ok(), want, "{header} {offer:?}");
        }
    }

    #[test]
    fn refusals_say_what_there_is() {
        let (one, list) = (Offer::Objects { list: false }, Offer::Objects { list: true });
        let all = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
        for (header, offer, want) in [
            ("text/html", one, all),
            ("text/html", Offer::Watch, all),
            (
                "application/yaml",
                Offer::Watch,
                "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
            ),
            (
                "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
                list,
                "you requested PartialObjectMetadata, but the requested object is a list (*core.PodList)",
            ),
            (
                "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
                one,
                "you requested PartialObjectMetadataList, but the requested object is not a list (*core.Pod)",
            ),
        ] {
            assert_eq!(check(header, offer), Err(want.to_owned()), "{header} {offer:?}");
        }
    }

    #[test]
    fn bodies_are_json_yaml_or_protobuf() {
        for (header, want) in [
            (None, Some(Content::Text(decode::Format::Json))),
            (Some("application/json; charset=utf-8"), Some(Content::Text(decode::Format::Json))),
            (Some("application/json;"), Some(Content::Text(decode::Format::Json))),
            (Some("application/json; charset"), None),
            (Some("Application/YAML"), Some(Content::Text(decode::Format::Yaml))),
            (Some("application/vnd.kubernetes.protobuf"), Some(Content::Protobuf)),
            (Some("text/plain"), None),
        ] {
            assert_eq!(content(header).ok(), want, "{header:?}");
        }
    }

    #[test]
    fn gzip_is_for_those_who_name_it() {
        for (header, want) in [
            (Some("deflate, gzip;q=1.0"), true),
            (Some("gzip"), true),
            (Some("GZIP;q=0.001"), true),
            (Some("gzip;q=0, identity"), false),
            (Some("gzip; q=0.000"), false),
            (Some("identity"), false),
            (Some("*"), false),
            (None, false),
        ] {
            assert_eq!(takes_gzip(header), want, "{header:?}");
        }
    }
}
