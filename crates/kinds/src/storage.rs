//! Rules that volumes, claims and the kinds of drivers share.

use std::collections::BTreeMap;

use api::meta::api::resource::Quantity as Amount;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::check;
use crate::resources;

/// How classes were named before there was a field for it.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
pub const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
const ACCESS_MODES: &[(&str, &str)] =
    &[("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
const SORTED_ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const MAX_PARAMETERS: usize = 512;
/// Of keys and values together, in bytes.
const MAX_PARAMETER_BYTES: usize = 256 * 1024;
const MAX_DRIVER_NAME: usize = 63;

/// The ways a volume may be mounted; `missing` is said when there is none.
pub fn access_modes(modes: Option<&[String]>, missing: &str, path: &Path, errors: &mut FieldErrors) {
    let modes = modes.unwrap_or_default();
    if modes.is_empty() {
        errors.required(path, missing);
    }
    for mode in modes.iter().filter(|mode| !SORTED_ACCESS_MODES.contains(&mode.as_str())) {
        errors.not_supported(path, mode.as_str(), SORTED_ACCESS_MODES);
    }
    let known = || modes.iter().map(String::as_str).filter(|mode| SORTED_ACCESS_MODES.contains(mode));
    if known().any(|mode| mode == "ReadWriteOncePod") && known().any(|mode| mode != "ReadWriteOncePod") {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// The same in a cell: `RWO,RWX`.
pub fn access_modes_cell(modes: Option<&[String]>) -> String {
    let modes = modes.unwrap_or_default();
    let given = ACCESS_MODES.iter().filter(|(mode, _)| modes.iter().any(|given| given == mode));
    given.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// The class of a volume or claim, wherever it is written.
pub fn class<'a>(annotations: Option<&'a BTreeMap<String, String>>, field: Option<&'a str>) -> &'a str {
    let annotation = annotations.and_then(|annotations| annotations.get(CLASS_ANNOTATION));
    annotation.map(String::as_str).or(field).unwrap_or_default()
}

/// An amount of which there must be some.
pub fn positive(amount: &Amount, path: &Path, errors: &mut FieldErrors) {
    if resources::parse(amount).is_some_and(|quantity| quantity.is_zero() || quantity.is_negative()) {
        errors.invalid(path, amount.0.as_str(), "must be greater than zero");
    }
}

/// An amount that may be nothing, but not less.
pub fn not_negative(amount: &Amount, path: &Path, errors: &mut FieldErrors) {
    if resources::parse(amount).is_some_and(|quantity| quantity.is_negative()) {
        errors.invalid(path, amount.0.as_str(), check::NOT_NEGATIVE);
    }
}

/// An amount that is sound at all.
pub fn amount(amount: &Amount, path: &Path, errors: &mut FieldErrors) {
    if let Some(quantity) = resources::parse(amount).filter(|quantity| quantity.value() < 0) {
        let value = i64::try_from(quantity.value()).unwrap_or(i64::MIN);
        errors.invalid(path, value, "must be a valid resource quantity");
    }
}

/// The name of a CSI driver.
pub fn driver_name(name: &str, path: &Path, errors: &mut FieldErrors) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > MAX_DRIVER_NAME {
        errors.too_long(path, MAX_DRIVER_NAME);
    }
    check::all(names::dns1123_subdomain(&name.to_lowercase()), path, name, errors);
}

/// The name of who makes volumes.
pub fn provisioner(name: &str, path: &Path, errors: &mut FieldErrors) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        let name = name.to_lowercase();
        check::all(names::qualified_name(&name), path, &name, errors);
    }
}

/// What a driver is told about its volumes.
pub fn parameters(parameters: Option<&BTreeMap<String, String>>, path: &Path, errors: &mut FieldErrors) {
    let Some(parameters) = parameters else { return };
    if parameters.len() > MAX_PARAMETERS {
        errors.too_long(path, MAX_PARAMETERS);
        return;
    }
    if parameters.contains_key("") {
        errors.invalid(path, "", "field can not be empty.");
    }
    if parameters.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_PARAMETER_BYTES {
        errors.too_long(path, MAX_PARAMETER_BYTES);
    }
}
