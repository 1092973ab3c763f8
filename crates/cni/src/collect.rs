//! What calls left that were killed and never repeated: attachments whose container is gone, and addresses of
//! no attachment.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use net::namespace::Namespace;

use crate::attach;
use crate::config::{Attachment, Config};
use crate::error::Error;
use crate::ports;
use crate::records::{Held, Key, Records};

/// A runtime tells of a pod only when its network is there; so long after an ADD it would have.
const YOUNG: Duration = Duration::from_secs(600);

/// GC: takes away every attachment that the runtime does not name; none where it names nothing at all.
///
/// # Errors
/// When something refuses.
pub fn named(config: &Config) -> Result<(), Error> {
    let Some(valid) = &config.valid else { return Ok(()) };
    let records = Records::of(&config.data_dir, &config.name);
    let key = |a: &Attachment| Key::new(&a.container_id, &a.ifname);
    let valid: BTreeSet<Key> = valid.iter().map(key).collect();
    sweep(&records, &config.name, config.gate.as_deref(), |key, _, _| !valid.contains(key))?;
    Ok(())
}

/// Takes away what no container in `known` has; what is so young that the runtime may not tell of it yet
/// stays while its namespace is there. Rules of host ports are written anew. How many went.
///
/// # Errors
/// When something refuses.
pub fn unknown(
    data_dir: &Path,
    network: &str,
    gate: Option<&Path>,
    known: &BTreeSet<String>,
    now: SystemTime,
) -> Result<usize, Error> {
    let records = Records::of(data_dir, network);
    sweep(&records, network, gate, |key, held, written| {
        let is_old = now.duration_since(written).is_ok_and(|age| age > YOUNG);
        !known.contains(key.container_id()) && (is_old || is_gone(held))
    })
}

/// Takes back addresses of containers whose network namespace is gone.
pub(crate) fn vanished(records: &Records, network: &str) -> Result<(), Error> {
    for (key, _) in records.keys().map_err(Error::io("the records"))? {
        let Some(mut held) = records.hold_idle(key.clone()).map_err(Error::io("the records"))? else { continue };
        if is_gone(&held) {
            // The kernel may be about to end its links still, and what leads to them.
            attach::delete_link(network, &key)?;
            // Ports lead to nobody before another pod has the address.
            if let Some(record) = held.read().filter(|record| !record.ports.is_empty()) {
                ports::close(records, &mut held, &record)?;
            }
            // The rest of it goes with the DEL or the sweep that follows.
            records.release_all(&key).map_err(Error::io("the addresses"))?;
        }
    }
    orphans(records)
}

fn is_gone(held: &Held) -> bool {
    let Some(record) = held.read() else { return true };
    Namespace::open(&record.netns).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn sweep(
    records: &Records,
    network: &str,
    gate: Option<&Path>,
    goes: impl Fn(&Key, &Held, SystemTime) -> bool,
) -> Result<usize, Error> {
    let mut count = 0;
    let keys = records.keys().map_err(Error::io("the records"))?;
    let any = !keys.is_empty();
    for (key, written) in keys {
        let Some(held) = records.hold_idle(key.clone()).map_err(Error::io("the records"))? else { continue };
        if goes(&key, &held, written) {
            attach::remove(records, network, gate, held)?;
            count += 1;
        }
    }
    orphans(records)?;
    if any {
        ports::sync(records)?;
    }
    Ok(count)
}

/// Addresses whose attachment has no record: nobody will give them back.
fn orphans(records: &Records) -> Result<(), Error> {
    let given = records.given().map_err(Error::io("the addresses"))?;
    let present: BTreeSet<Key> = records.keys().map_err(Error::io("the records"))?.into_iter().map(|k| k.0).collect();
    for (address, key) in given {
        if present.contains(&key) {
            continue;
        }
        // An ADD of the very same attachment may have begun since, and got this very address.
        let Some(held) = records.hold_absent(key.clone()).map_err(Error::io("the records"))? else { continue };
        records.release(&key, &[address]).map_err(Error::io("the addresses"))?;
        held.remove().map_err(Error::io("the records"))?;
    }
    Ok(())
}
