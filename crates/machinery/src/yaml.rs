//! YAML on a stack of its own: its reader and writer descend with every level of a document and take
//! tens of kilobytes for each, which a thread that serves requests does not have.

use serde_json::Value;

use crate::status::{Result, Status};

/// Enough for [`MAX_DEPTH`](crate::decode::MAX_DEPTH) levels several times over; only what is used is
/// ever real memory.
const STACK: usize = 64 * 1024 * 1024;

/// Runs `work` where there is room to descend, and waits for it.
///
/// # Errors
/// 503 when the system has no thread to give.
pub(crate) fn with_room<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("yaml".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => Err(Status::unavailable(format!("no thread for a YAML document: {error}"))),
        }
    })
}

/// Reads a document that no schema describes.
///
/// # Errors
/// 400.
pub fn read(bytes: &[u8]) -> Result<Value> {
    with_room(|| {
        let options = crate::decode::yaml_options(serde_saphyr::options::DuplicateKeyPolicy::LastWins);
        serde_saphyr::from_slice_with_options(bytes, options).map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Status::bad_request(format!("the body of the request cannot be read: {first}"))
        })
    })
}

/// Writes a tree.
///
/// # Errors
/// 500 when it cannot be written as YAML.
pub fn write(value: &Value) -> Result<String> {
    with_room(|| serde_saphyr::to_string(value).map_err(Status::internal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_may_be_yaml_may_be() {
        let mut deep = Value::from(1);
        for _ in 0..120 {
            deep = serde_json::json!({ "a": deep });
        }
        // On a thread as small as they come.
        let small = move || {
            let text = write(&deep).expect("written");
            assert_eq!(read(text.as_bytes()), Ok(deep));
        };
        std::thread::Builder::new().stack_size(512 * 1024).spawn(small).expect("thread").join().expect("fits");
    }
}
