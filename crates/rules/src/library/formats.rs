//! The formats that Kubernetes has names for.

use machinery::names;

use super::{Imp, no_such_overload, urls};
use crate::meter::{Error, Meter};
use crate::time::Timestamp;
use crate::value::{Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("format-validate: <Format>.validate(string) -> optional<list<string>>", validate),
    ("format-named: format.named(string) -> optional<Format>", named),
    ("format.dns1123Label: format.dns1123Label() -> Format", |_, _| known("dns1123Label")),
    ("format.dns1123Subdomain: format.dns1123Subdomain() -> Format", |_, _| known("dns1123Subdomain")),
    ("format.dns1035Label: format.dns1035Label() -> Format", |_, _| known("dns1035Label")),
    ("format.qualifiedName: format.qualifiedName() -> Format", |_, _| known("qualifiedName")),
    ("format.dns1123LabelPrefix: format.dns1123LabelPrefix() -> Format", |_, _| known("dns1123LabelPrefix")),
    ("format.dns1123SubdomainPrefix: format.dns1123SubdomainPrefix() -> Format", |_, _| {
        known("dns1123SubdomainPrefix")
    }),
    ("format.dns1035LabelPrefix: format.dns1035LabelPrefix() -> Format", |_, _| known("dns1035LabelPrefix")),
    ("format.labelValue: format.labelValue() -> Format", |_, _| known("labelValue")),
    ("format.uri: format.uri() -> Format", |_, _| known("uri")),
    ("format.uuid: format.uuid() -> Format", |_, _| known("uuid")),
    ("format.byte: format.byte() -> Format", |_, _| known("byte")),
    ("format.date: format.date() -> Format", |_, _| known("date")),
    ("format.datetime: format.datetime() -> Format", |_, _| known("datetime")),
];

/// A format: what it is called, and what is wrong with a text that is not of it.
#[derive(Debug)]
pub struct Format {
    key: &'static str,
    pub name: &'static str,
    check: fn(&str) -> Vec<String>,
    /// How long a pattern it counts as.
    pub pattern_size: u64,
}

static FORMATS: [Format; 13] = [
    Format { key: "dns1123Label", name: "DNS1123Label", check: names::dns1123_label, pattern_size: 30 },
    Format { key: "dns1123Subdomain", name: "DNS1123Subdomain", check: names::dns1123_subdomain, pattern_size: 60 },
    Format { key: "dns1035Label", name: "DNS1035Label", check: names::dns1035_label, pattern_size: 30 },
    Format { key: "qualifiedName", name: "QualifiedName", check: names::qualified_name, pattern_size: 60 },
    Format {
        key: "dns1123LabelPrefix",
        name: "DNS1123LabelPrefix",
        check: |s| names::dns1123_label(&whole(s)),
        pattern_size: 30,
    },
    Format {
        key: "dns1123SubdomainPrefix",
        name: "DNS1123SubdomainPrefix",
        check: |s| names::dns1123_subdomain(&whole(s)),
        pattern_size: 60,
    },
    Format {
        key: "dns1035LabelPrefix",
        name: "DNS1035LabelPrefix",
        check: |s| names::dns1035_label(&whole(s)),
        pattern_size: 30,
    },
    Format { key: "labelValue", name: "LabelValue", check: names::label_value, pattern_size: 40 },
    Format { key: "uri", name: "URI", check: |s| urls::is_request(s).err().into_iter().collect(), pattern_size: 1103 },
    Format {
        key: "uuid",
        name: "uuid",
        check: |s| unless(is_uuid(s), "does not match the UUID format"),
        pattern_size: 89,
    },
    Format { key: "byte", name: "byte", check: |s| unless(is_base64(s), "invalid base64"), pattern_size: 84 },
    Format {
        key: "date",
        name: "date",
        check: |s| unless(Timestamp::parse_date(s).is_some(), "invalid date"),
        pattern_size: 75,
    },
    Format {
        key: "datetime",
        name: "datetime",
        check: |s| unless(is_date_time(s), "invalid datetime"),
        pattern_size: 75,
    },
];

fn unless(fits: bool, message: &str) -> Vec<String> {
    if fits { Vec::new() } else { vec![message.to_owned()] }
}

/// A prefix of a name may end in the dash that separates it from what follows.
fn whole(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(rest) => format!("{rest}a"),
        None => prefix.to_owned(),
    }
}

fn is_uuid(text: &str) -> bool {
    let mut rest = text;
    for (i, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        match rest.get(..length) {
            Some(part) if part.bytes().all(|b| b.is_ascii_hexdigit()) => rest = rest.get(length..).unwrap_or(""),
            _ => return false,
        }
    }
    rest.is_empty()
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
}

fn is_date_time(text: &str) -> bool {
    text.len() >= 4 && Timestamp::parse(&text.to_ascii_uppercase()).is_ok()
}

fn find(key: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|f| f.key == key)
}

fn known<'a>(key: &str) -> Out<'a> {
    find(key).map(Val::Format).ok_or_else(Error::no_such_overload)
}

fn named<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(name)] = args else { return Err(no_such_overload("format.named", args)) };
    Ok(find(name).map_or(Val::Optional(None), |f| Val::some(Val::Format(f))))
}

fn validate<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Format(format), Val::String(text)] = args else { return Err(no_such_overload("validate", args)) };
    meter.step(text.len() as u64)?;
    let wrong = (format.check)(text);
    Ok(if wrong.is_empty() { Val::Optional(None) } else { Val::some(Val::texts(wrong)) })
}
