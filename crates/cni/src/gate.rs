//! Who is asked before a pod gets its network: whoever keeps the rules of its policies answers when they are in
//! the kernel. One line of JSON there, one back.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::Deserialize;
use serde_json::json;

use crate::error::{Error, GATE};
use crate::records::Record;

/// How long an answer may take before the ADD fails; the kubelet tries again.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a DEL waits: nothing hangs on it.
const SHORT: Duration = Duration::from_millis(200);
/// How long an answer may be.
const LONGEST: u64 = 1 << 16;

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    error: String,
}

/// Connects within the limit: who listens and takes nobody would be waited for without end.
fn connect(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&fd, timeout, Some(limit))?;
    }
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    Ok(fd.into())
}

fn ask(socket: &Path, op: &str, record: &Record, addresses: &[IpAddr], limit: Duration) -> io::Result<Answer> {
    let mut stream = connect(socket, limit)?;
    let question = json!({
        "op": op,
        "containerID": record.container_id,
        "namespace": record.namespace,
        "name": record.name,
        "uid": record.uid,
        "addresses": addresses,
    });
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(io::Error::other)
}

/// Waits until the pod may have its network. That somebody is to be asked is the configuration's word: where nobody
/// listens, the rules of this pod are in no kernel.
///
/// # Errors
/// When the answer is no, or does not come.
pub fn open(socket: &Path, record: &Record) -> Result<(), Error> {
    let refused = |details: String| Error {
        code: GATE,
        message: "the pod's network policies are not in the kernel".into(),
        details,
    };
    match ask(socket, "add", record, &record.addresses, LIMIT) {
        Ok(answer) if answer.ok => Ok(()),
        Ok(answer) => Err(refused(answer.error)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            let mend = "`pintle network-policy` keeps them, or `pintle network --no-network-policy` asks for none";
            Err(refused(format!("nobody listens at {} ({error}): {mend}", socket.display())))
        }
        Err(error) => Err(refused(format!("{}: {error}", socket.display()))),
    }
}

/// Tells that the pod is gone. Nobody there is fine: it will be seen without.
pub fn close(socket: &Path, record: &Record) {
    let _ = ask(socket, "del", record, &record.addresses, SHORT);
}
