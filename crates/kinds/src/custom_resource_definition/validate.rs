//! The mistakes in a definition. What all versions have in common is told as one part of `spec`, as
//! upstream, which once had it there, tells it.

use std::collections::BTreeSet;

use machinery::field::{FieldErrors, Path};
use machinery::names;
use machinery::structural::{self, Type, address};
use serde_json::{Value, json};

use super::ratchet::Kept;
use super::view::{Definition, Names, PrinterColumn, Scale, SelectableField, Spec, Status, Subresources, Version};
use super::{conversion, open_api};
use crate::check;

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// No field selector may name more fields.
pub(super) const MAX_SELECTABLE: usize = 8;
/// Who approved an API of the community's.
const APPROVED: &str = "api-approved.kubernetes.io";
const PROPOSAL: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// The mistakes in a whole definition, which may keep what it had.
pub(super) fn definition(definition: &Definition, kept: &Kept, errors: &mut FieldErrors) {
    let spec = &definition.spec;
    let name = definition.metadata.name.as_deref().unwrap_or_default();
    if !name.is_empty() && name != format!("{}.{}", spec.names.plural, spec.group) {
        errors.invalid(&Path::new("metadata").child("name"), name, r#"must be spec.names.plural+"."+spec.group"#);
    }
    self::spec(spec, kept, &Path::new("spec"), errors);
    status(definition, errors);
    if let Some(status) = &definition.status {
        stored_versions(status, &spec.versions, errors);
    }
    approval(definition, errors);
    if spec.preserve_unknown_fields == Some(true) {
        errors.invalid(
            &Path::new("spec").child("preserveUnknownFields"),
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        );
    }
}

/// The mistakes in its status.
pub(super) fn status(definition: &Definition, errors: &mut FieldErrors) {
    if let Some(status) = &definition.status {
        self::names(&status.accepted_names, &Path::new("status").child("acceptedNames"), errors);
    }
}

fn stored_versions(status: &Status, versions: &[Version], errors: &mut FieldErrors) {
    let path = Path::new("status").child("storedVersions");
    let stored = &status.stored_versions;
    if stored.is_empty() {
        errors.invalid(&path, check::value(stored), "must have at least one stored version");
        return;
    }
    // Of versions that are called the same, the first counts.
    let known = |i: usize, name: &String| stored.contains(name) && versions[..i].iter().all(|v| v.name != *name);
    for (_, version) in versions.iter().enumerate().filter(|(i, v)| v.storage && !known(*i, &v.name)) {
        errors.invalid(&path, check::value(stored), format!("must have the storage version {}", version.name));
    }
    for (i, gone) in stored.iter().enumerate().filter(|(_, name)| versions.iter().all(|v| v.name != **name)) {
        errors.invalid(
            &path.index(i),
            gone.as_str(),
            format!(
                "missing from spec.versions; {gone} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {gone} and removes {gone} from \
                 status.storedVersions"
            ),
        );
    }
}

fn approval(definition: &Definition, errors: &mut FieldErrors) {
    let group = &definition.spec.group;
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    if !protected {
        return;
    }
    let path = Path::new("metadata").child("annotations").key(APPROVED);
    let said = definition.metadata.annotations.as_ref().and_then(|annotations| annotations.get(APPROVED));
    match said.map(String::as_str).unwrap_or_default() {
        "" => {
            errors.required(&path, format!("protected groups must have approval annotation {APPROVED:?}, {PROPOSAL}"))
        }
        said if said.starts_with("unapproved") || address::host_of_uri(said).is_some() => {}
        said => errors.invalid(
            &path,
            said,
            format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting \
                 with \"unapproved\", {PROPOSAL}"
            ),
        ),
    }
}

/// What all versions have alike.
struct Shared {
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl Shared {
    fn of(versions: &[Version]) -> Self {
        let alike = |same: fn(&Version, &Version) -> bool| versions.windows(2).all(|pair| same(&pair[0], &pair[1]));
        Self {
            schema: alike(|a, b| a.schema == b.schema),
            subresources: alike(|a, b| a.subresources == b.subresources),
            columns: alike(|a, b| a.additional_printer_columns == b.additional_printer_columns),
            selectable: alike(|a, b| a.selectable_fields == b.selectable_fields),
        }
    }
}

fn spec(spec: &Spec, kept: &Kept, path: &Path, errors: &mut FieldErrors) {
    let group = path.child("group");
    let wrong = names::dns1123_subdomain(&spec.group);
    if spec.group.is_empty() {
        errors.required(&group, "");
    } else if !wrong.is_empty() {
        errors.invalid(&group, &*spec.group, wrong.join(","));
    } else if !spec.group.contains('.') {
        errors.invalid(&group, &*spec.group, "should be a domain with at least one dot");
    }
    check::one_of(Some(&spec.scope), &["Cluster", "Namespaced"], &path.child("scope"), errors);
    let at = path.child("versions");
    for (i, version) in spec.versions.iter().enumerate() {
        if version.open_api_v3_schema().is_none() {
            errors.required(&at.index(i).child("schema").child("openAPIV3Schema"), "");
        }
    }
    let preserves = spec.preserve_unknown_fields == Some(true);
    let mut has_defaults = false;
    for schema in spec.versions.iter().filter_map(Version::open_api_v3_schema).filter(|_| preserves) {
        open_api::each(schema, &mut |schema| has_defaults |= schema.get("default").is_some_and(|d| !d.is_null()));
    }
    if has_defaults {
        let detail = "must be false in order to use defaults in the schema";
        errors.invalid(&path.child("preserveUnknownFields"), true, detail);
    }
    let shared = Shared::of(&spec.versions);
    for (i, version) in spec.versions.iter().enumerate() {
        self::version(version, &shared, kept, &at.index(i), errors);
    }
    let unique: BTreeSet<&str> = spec.versions.iter().map(|version| version.name.as_str()).collect();
    if unique.len() < spec.versions.len() {
        errors.invalid(&at, internal(&spec.versions, &shared), "must contain unique version names");
    }
    if spec.versions.iter().filter(|version| version.storage).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.invalid(&at, internal(&spec.versions, &shared), detail);
    }
    if let Some(first) = spec.versions.first().filter(|version| !version.name.is_empty()) {
        let wrong = names::dns1035_label(&first.name);
        if !wrong.is_empty() {
            errors.invalid(&path.child("version"), &*first.name, wrong.join(","));
        }
    }
    let at = path.child("names");
    for (name, field) in [
        (&spec.names.plural, "plural"),
        (&spec.names.singular, "singular"),
        (&spec.names.kind, "kind"),
        (&spec.names.list_kind, "listKind"),
    ] {
        if name.is_empty() {
            errors.required(&at.child(field), "");
        }
    }
    self::names(&spec.names, &at, errors);
    if let Some(first) = spec.versions.first() {
        common(spec, first, &shared, kept, path, errors);
    }
    if let Some(conversion) = &spec.conversion {
        conversion::validate(conversion, preserves, kept.reviews, &path.child("conversion"), errors);
    }
}

/// What all versions have alike is checked once.
fn common(spec: &Spec, first: &Version, shared: &Shared, kept: &Kept, path: &Path, errors: &mut FieldErrors) {
    if shared.schema
        && let Some(schema) = first.open_api_v3_schema()
    {
        let has_status = spec.versions.iter().any(Version::has_status);
        let at = path.child("validation").child("openAPIV3Schema");
        let unchanged = kept.is_unchanged(&first.name);
        open_api::schema(schema, has_status, unchanged, kept.schemas, &at, errors);
    }
    if shared.subresources
        && let Some(subresources) = &first.subresources
    {
        self::subresources(subresources, &path.child("subresources"), errors);
    }
    if shared.columns {
        columns(&first.additional_printer_columns, &path.child("additionalPrinterColumns"), errors);
    }
    if shared.selectable && !first.selectable_fields.is_empty() {
        let at = path.child("selectableFields");
        match first.open_api_v3_schema().filter(|_| shared.schema) {
            Some(schema) => {
                selectable(&first.selectable_fields, schema, kept.has_too_many(None), &at, errors);
            }
            None => errors.invalid(&at, "", "may only be set when validations.schema is included"),
        }
    }
}

fn version(version: &Version, shared: &Shared, kept: &Kept, path: &Path, errors: &mut FieldErrors) {
    let wrong = names::dns1035_label(&version.name);
    if !wrong.is_empty() {
        errors.invalid(&path.child("name"), &*version.name, wrong.join(","));
    }
    if let Some(warning) = &version.deprecation_warning {
        deprecation(version.deprecated == Some(true), warning, &path.child("deprecationWarning"), errors);
    }
    if !shared.schema
        && let Some(schema) = version.open_api_v3_schema()
    {
        let at = path.child("schema").child("openAPIV3Schema");
        let unchanged = kept.is_unchanged(&version.name);
        open_api::schema(schema, version.has_status(), unchanged, kept.schemas, &at, errors);
    }
    if !shared.subresources
        && let Some(subresources) = &version.subresources
    {
        self::subresources(subresources, &path.child("subresources"), errors);
    }
    if !shared.columns {
        columns(&version.additional_printer_columns, &path.child("additionalPrinterColumns"), errors);
    }
    if !shared.selectable && !version.selectable_fields.is_empty() {
        let at = path.child("selectableFields");
        match version.open_api_v3_schema().filter(|_| !shared.schema) {
            Some(schema) => {
                let many = kept.has_too_many(Some(&version.name));
                selectable(&version.selectable_fields, schema, many, &at, errors);
            }
            None => errors.invalid(&at, "", "may only be set when `version.schema.openAPIV3Schema` is not included"),
        }
    }
}

fn deprecation(deprecated: bool, warning: &str, path: &Path, errors: &mut FieldErrors) {
    if !deprecated {
        errors.invalid(path, warning, "can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        errors.invalid(path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid(path, warning, "must not be an empty string");
    }
    let printable = |c: char| c == ' ' || !(c.is_whitespace() || c.is_control());
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| !printable(*c)) {
        let detail = "must only contain printable UTF-8 characters; non-printable character found at index";
        errors.invalid(path, warning, format!("{detail} {i}"));
    }
}

/// Versions as they are shown where their number is wrong, without what they have alike.
fn internal(versions: &[Version], shared: &Shared) -> Value {
    let shown = |version: &Version| {
        let own = |value: Value, shared: bool| if shared { Value::Null } else { value };
        json!({
            "Name": version.name,
            "Served": version.served,
            "Storage": version.storage,
            "Deprecated": version.deprecated == Some(true),
            "DeprecationWarning": version.deprecation_warning,
            "Schema": own(check::value(&version.schema), shared.schema),
            "Subresources": own(check::value(&version.subresources), shared.subresources),
            "AdditionalPrinterColumns": own(check::value(&version.additional_printer_columns), shared.columns),
            "SelectableFields": own(check::value(&version.selectable_fields), shared.selectable),
        })
    };
    if versions.is_empty() { Value::Null } else { Value::Array(versions.iter().map(shown).collect()) }
}

fn names(names: &Names, path: &Path, errors: &mut FieldErrors) {
    let label = |name: &str, path: &Path, errors: &mut FieldErrors| {
        let wrong = names::dns1035_label(name);
        if !wrong.is_empty() {
            errors.invalid(path, name, wrong.join(","));
        }
    };
    for (name, field) in [(&names.plural, "plural"), (&names.singular, "singular")] {
        if !name.is_empty() {
            label(name, &path.child(field), errors);
        }
    }
    for (name, field) in [(&names.kind, "kind"), (&names.list_kind, "listKind")] {
        let wrong = names::dns1035_label(&name.to_lowercase());
        if !name.is_empty() && !wrong.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
            errors.invalid(&path.child(field), name.as_str(), detail);
        }
    }
    for (i, name) in names.short_names.iter().enumerate() {
        label(name, &path.child("shortNames").index(i), errors);
    }
    if !names.kind.is_empty() && names.kind == names.list_kind {
        errors.invalid(&path.child("listKind"), &*names.list_kind, "kind and listKind may not be the same");
    }
    for (i, category) in names.categories.iter().enumerate() {
        label(category, &path.child("categories").index(i), errors);
    }
}

fn columns(columns: &[PrinterColumn], path: &Path, errors: &mut FieldErrors) {
    for (i, column) in columns.iter().enumerate() {
        let path = path.index(i);
        if column.name.is_empty() {
            errors.required(&path.child("name"), "");
        }
        let types = format!("must be one of {}", COLUMN_TYPES.join(","));
        if column.kind.is_empty() {
            errors.required(&path.child("type"), types);
        } else if !COLUMN_TYPES.contains(&column.kind.as_str()) {
            errors.invalid(&path.child("type"), &*column.kind, types);
        }
        if !column.format.is_empty() && !COLUMN_FORMATS.contains(&column.format.as_str()) {
            let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.invalid(&path.child("format"), &*column.format, detail);
        }
        let at = path.child("JSONPath");
        if column.json_path.is_empty() {
            errors.required(&at, "");
        } else if !column.json_path.starts_with('.') {
            errors.invalid(&at, &*column.json_path, "must be a simple json path starting with .");
        }
    }
}

fn subresources(subresources: &Subresources, path: &Path, errors: &mut FieldErrors) {
    let Some(Scale { spec_replicas_path, status_replicas_path, label_selector_path }) = &subresources.scale else {
        return;
    };
    let selector = label_selector_path.as_deref().filter(|path| !path.is_empty());
    for (given, field, under, detail) in [
        (Some(spec_replicas_path.as_str()), "specReplicasPath", &[".spec."][..], "should be a json path under .spec"),
        (Some(status_replicas_path), "statusReplicasPath", &[".status."], "should be a json path under .status"),
        (selector, "labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ] {
        let Some(given) = given else { continue };
        let at = path.child("scale").child(field);
        if given.is_empty() {
            errors.required(&at, "");
        } else if !given.starts_with('.') {
            errors.invalid(&at, given, "must be a simple json path starting with .");
        } else if !under.iter().any(|prefix| given.starts_with(prefix)) {
            errors.invalid(&at, given, detail);
        }
    }
}

fn selectable(fields: &[SelectableField], schema: &Value, many: bool, path: &Path, errors: &mut FieldErrors) {
    // What keeps the schema from being built is told where it is checked.
    let Ok(node) = structural::build(schema) else { return };
    let mut seen = BTreeSet::new();
    for (i, SelectableField { json_path }) in fields.iter().enumerate() {
        let at = path.index(i).child("jsonPath");
        if json_path.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let (found, target) = match node.at_path(json_path, false) {
            Ok(found) => found,
            Err(why) => {
                errors.invalid(&at, json_path.as_str(), format!("is an invalid path: {why}"));
                continue;
            }
        };
        if found.as_str().split(['.', '[']).next() == Some("metadata") {
            errors.invalid(&at, json_path.as_str(), "must not point to fields in metadata");
        }
        if !matches!(target.kind, Some(Type::String | Type::Boolean | Type::Integer)) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings \
                          with formats are allowed.";
            errors.invalid(&at, json_path.as_str(), detail);
        }
        if !seen.insert(found) {
            errors.duplicate(&at, json_path.as_str());
        }
    }
    if !many && seen.len() > MAX_SELECTABLE {
        errors.too_many(path, seen.len(), MAX_SELECTABLE);
    }
}
