//! What may be said of a claim's devices: which were given, to whom, and what their drivers say of them.

use std::collections::BTreeSet;

use api::types::resource::v1 as resource;
use machinery::field::{FieldErrors, Path};

use crate::check;
use crate::devices as rules;
use crate::pod::validate_scheduling;

type Claim = resource::ResourceClaim;

const USERS: usize = 256;
const RESULTS: usize = 32;
const DEVICE_CONDITIONS: usize = 8;
const DATA_LENGTH: usize = 10 * 1024;
const INTERFACE_LENGTH: usize = 256;
const HARDWARE_LENGTH: usize = 128;
const ADDRESSES: usize = 16;

/// A device, or a share of one, as messages show it.
fn id(driver: &str, pool: &str, device: &str, share: Option<&str>) -> String {
    let device = format!("{driver}/{pool}/{device}");
    share.map_or_else(|| device.clone(), |share| format!("{device}/{share}"))
}

fn allocated(claim: &Claim) -> BTreeSet<String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
    let of = |result: &resource::DeviceRequestAllocationResult| {
        id(&result.driver, &result.pool, &result.device, result.share_id.as_deref())
    };
    results.into_iter().flatten().map(of).collect()
}

fn of_status(device: &resource::AllocatedDeviceStatus) -> String {
    id(&device.driver, &device.pool, &device.device, device.share_id.as_deref())
}

/// What drivers said of devices that are no longer the claim's goes with them.
pub fn drop_deallocated(new: &mut Claim, old: &Claim) {
    let kept = allocated(new);
    let gone: BTreeSet<String> = allocated(old).difference(&kept).cloned().collect();
    let Some(status) = &mut new.status else { return };
    if let Some(devices) = &mut status.devices {
        devices.retain(|device| !gone.contains(&of_status(device)));
    }
    if status.devices.as_ref().is_some_and(Vec::is_empty) {
        status.devices = None;
    }
}

/// The mistakes in a change of status.
pub fn change(new: &Claim, old: &Claim, errors: &mut FieldErrors) {
    let none = resource::ResourceClaimStatus::default();
    let (status, before) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    let path = Path::new("status");
    let names = rules::RequestNames::of(new.spec.as_ref().and_then(|spec| spec.devices.as_ref()));
    let users = status.reserved_for.as_deref().unwrap_or_default();
    let users_path = path.child("reservedFor");
    rules::set(users, USERS, &users_path, errors, user, |user| user.uid.clone());
    let given = allocated(new);
    let devices = status.devices.as_deref().unwrap_or_default();
    let check_device = |device: &resource::AllocatedDeviceStatus, path: &Path, errors: &mut FieldErrors| {
        self::device(device, &given, path, errors)
    };
    rules::set(devices, usize::MAX, &path.child("devices"), errors, check_device, of_status);
    if !users.is_empty() {
        if status.allocation.is_none() {
            errors.forbidden(&users_path, "may not be specified when `allocated` is not set");
        } else if new.metadata.deletion_timestamp.is_some() {
            let before = before.reserved_for.as_deref().unwrap_or_default();
            if users.iter().any(|user| !before.contains(user)) {
                let wrong = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
                errors.forbidden(&users_path, wrong);
            }
        }
    }
    let path = path.child("allocation");
    match (&status.allocation, &before.allocation) {
        (Some(now), Some(before)) => check::immutable(now, before, &path, errors),
        (Some(now), None) => allocation(now, &names, &path, errors),
        (None, _) => {}
    }
}

fn user(user: &resource::ResourceClaimConsumerReference, path: &Path, errors: &mut FieldErrors) {
    for (text, field) in [(&user.resource, "resource"), (&user.name, "name"), (&user.uid, "uid")] {
        if text.is_empty() {
            errors.required(&path.child(field), "");
        }
    }
}

fn allocation(
    allocation: &resource::AllocationResult,
    names: &rules::RequestNames,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let none = resource::DeviceAllocationResult::default();
    let (devices, at) = (allocation.devices.as_ref().unwrap_or(&none), path.child("devices"));
    let results = devices.results.as_deref().unwrap_or_default();
    rules::list(results, RESULTS, &at.child("results"), errors, |result, path, errors| {
        names.check(&result.request, &path.child("request"), errors);
        rules::driver(&result.driver, &path.child("driver"), errors);
        rules::pool(&result.pool, &path.child("pool"), errors);
        rules::label(&result.device, &path.child("device"), errors);
        let (wanted, failures) = (result.binding_conditions.as_ref(), result.binding_failure_conditions.as_ref());
        rules::binding_conditions(wanted, failures, path, errors);
        if let Some(share) = &result.share_id {
            rules::uid(share, &path.child("shareID"), errors);
        }
    });
    let configs = devices.config.as_deref().unwrap_or_default();
    rules::list(configs, 2 * rules::CONFIGS, &at.child("config"), errors, |config, path, errors| {
        check::one_of(Some(&config.source), &["FromClaim", "FromClass"], &path.child("source"), errors);
        names.check_all(config.requests.as_ref(), &path.child("requests"), errors);
        rules::opaque(config.opaque.as_ref(), false, path, errors);
    });
    if let Some(selector) = &allocation.node_selector {
        validate_scheduling::node_selector(selector, &path.child("nodeSelector"), errors);
    }
}

fn device(device: &resource::AllocatedDeviceStatus, given: &BTreeSet<String>, path: &Path, errors: &mut FieldErrors) {
    rules::driver(&device.driver, &path.child("driver"), errors);
    rules::pool(&device.pool, &path.child("pool"), errors);
    rules::label(&device.device, &path.child("device"), errors);
    if let Some(share) = &device.share_id {
        rules::uid(share, &path.child("shareID"), errors);
    }
    let id = of_status(device);
    if !given.contains(&id) {
        // Shown as it is, without quotes.
        errors.invalid_unprinted(path, format!("{id}: must be an allocated device in the claim"));
    }
    let conditions = device.conditions.as_deref().unwrap_or_default();
    if conditions.len() > DEVICE_CONDITIONS {
        errors.too_many(&path.child("conditions"), conditions.len(), DEVICE_CONDITIONS);
    }
    check::conditions(conditions, &path.child("conditions"), errors);
    if let Some(data) = device.data.as_ref().filter(|data| !data.0.is_null()) {
        rules::raw(&data.0, DATA_LENGTH, &path.child("data"), errors);
    }
    if let Some(network) = &device.network_data {
        self::network(network, &path.child("networkData"), errors);
    }
}

fn network(network: &resource::NetworkDeviceData, path: &Path, errors: &mut FieldErrors) {
    for (text, field, max) in [
        (&network.interface_name, "interfaceName", INTERFACE_LENGTH),
        (&network.hardware_address, "hardwareAddress", HARDWARE_LENGTH),
    ] {
        if text.as_ref().is_some_and(|text| text.len() > max) {
            errors.too_long(&path.child(field), max);
        }
    }
    let addresses = network.ips.as_deref().unwrap_or_default();
    let check = |address: &String, path: &Path, errors: &mut FieldErrors| match address.parse::<ipnet::IpNet>() {
        Err(_) => {
            let wrong = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
            errors.invalid(path, address.as_str(), wrong);
        }
        Ok(net) if net.to_string() != *address => {
            errors.invalid(path, address.as_str(), format!("must be in canonical form (\"{net}\")"));
        }
        Ok(_) => {}
    };
    rules::set(addresses, ADDRESSES, &path.child("ips"), errors, check, String::clone);
}
