//! Secret: keys and values that fewer may read.

use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::config_map::DATA_LIMIT;
use crate::key_pair;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable};
use crate::only::Part;
use crate::shape::Shape;

const FROZEN: &str = "field is immutable when `immutable` is set";
/// Names the account a token Secret belongs to.
const ACCOUNT: &str = "kubernetes.io/service-account.name";

pub struct Secret;

impl Kind for Secret {
    type Object = core::Secret;
    const SHAPE: Shape = Shape::namespaced("", "v1", "Secret", "secrets").singular("secret");
    const SELECTABLE: &'static [Selectable] = &[Selectable::at("type", &["/type"])];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, secret: &mut Self::Object) {
        if let Some(texts) = secret.string_data.take().filter(|texts| !texts.is_empty()) {
            let data = secret.data.get_or_insert_default();
            data.extend(texts.into_iter().map(|(key, text)| (key, api::k8s::ByteString(text.into_bytes()))));
        }
        if secret.type_.as_deref().unwrap_or_default().is_empty() {
            secret.type_ = Some("Opaque".into());
        }
    }

    fn validate(_ctx: &Ctx, secret: &Self::Object, errors: &mut FieldErrors) {
        let data = Path::new("data");
        let mut size = 0;
        for (key, value) in secret.data.iter().flatten() {
            check::all(names::config_map_key(key), &data.key(key), key, errors);
            size += value.0.len();
        }
        if size > DATA_LIMIT {
            errors.too_long(&data, DATA_LIMIT);
        }
        let content = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|value| &value.0);
        let needs_key = |key: &str, errors: &mut FieldErrors| {
            if content(key).is_none() {
                errors.required(&data.key(key), "");
            }
        };
        let json = |key: &str, errors: &mut FieldErrors| match content(key) {
            None => errors.required(&data.key(key), ""),
            Some(bytes) => {
                if let Some(why) = machinery::go::json_error(bytes) {
                    errors.invalid(&data.key(key), "<secret contents redacted>", why);
                }
            }
        };
        match secret.type_.as_deref().unwrap_or_default() {
            "kubernetes.io/service-account-token" => {
                let annotations = secret.metadata.annotations.as_ref();
                if annotations.and_then(|a| a.get(ACCOUNT)).is_none_or(String::is_empty) {
                    errors.required(&Path::new("metadata").child("annotations").key(ACCOUNT), "");
                }
            }
            "kubernetes.io/dockercfg" => json(".dockercfg", errors),
            "kubernetes.io/dockerconfigjson" => json(".dockerconfigjson", errors),
            "kubernetes.io/basic-auth" if content("username").is_none() && content("password").is_none() => {
                needs_key("username", errors);
                needs_key("password", errors);
            }
            "kubernetes.io/ssh-auth" if content("ssh-privatekey").is_none_or(|key| key.is_empty()) => {
                errors.required(&data.key("ssh-privatekey"), "");
            }
            "kubernetes.io/tls" => {
                needs_key("tls.crt", errors);
                needs_key("tls.key", errors);
            }
            _ => {}
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.type_, &old.type_, &Path::new("type"), errors);
        if old.immutable != Some(true) {
            return;
        }
        if new.immutable != Some(true) {
            errors.forbidden(&Path::new("immutable"), FROZEN);
        }
        if new.data.clone().unwrap_or_default() != old.data.clone().unwrap_or_default() {
            errors.forbidden(&Path::new("data"), FROZEN);
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        if new.type_.as_deref() != Some("kubernetes.io/tls") {
            return Vec::new();
        }
        let part = |key: &str| new.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        let [certificate, key] = ["tls.crt", "tls.key"].map(|key| part(key).unwrap_or_default());
        key_pair::wrong(certificate, key).into_iter().collect()
    }

    const SHOWN: &'static [Part] = &[Part::METADATA, Part::whole("type"), Part::whole("data")];

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Type", "What the data is for."),
                    Column::text("Data", "How many keys it holds."),
                    Column::AGE,
                ]
            },
            row: |secret, now| {
                let row = vec![
                    cells::name(&secret.metadata),
                    secret.type_.clone().unwrap_or_default().into(),
                    secret.data.as_ref().map_or(0, |data| data.len()).into(),
                    cells::of(&secret.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}
